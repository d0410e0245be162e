//! The loop: gather what is known, decide, report, do one step; when there is nothing to do, wait for a change.

use std::mem::Discriminant;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::berth::Outcome;
use berth_api::digest::Digest;
use berth_api::duration;
use berth_api::names::{NodeName, NodeUid, PoolName};
use berth_api::node::{BootcNode, BootcNodeStatus, Phase};
use berth_api::pool::{DEFAULT_DRAIN_TIMEOUT, DEFAULT_PROGRESS_INTERVAL, DEFAULT_REBOOT_TIMEOUT};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clients::KubeletClient;
use crate::facts::{ClusterNode, Desired, DrainFacts, Facts, HostFacts, Member, Os, Past, PullFacts, Reboot, Trouble};
use crate::host::{Host, HostError, PullState};
use crate::jitter::Jitter;
use crate::node::cordon::NodeError;
use crate::node::drain::Drain;
use crate::report::{Subject, report};
use crate::status::StatusWriter;
use crate::step::{Step, Why, step};
use crate::watches::{self, Berths, Seen};

/// Longest sleep of the loop: also how often a service manager's watchdog hears of us, at least.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// How often a host that cannot be updated, or runs what nobody asked for, is looked at again.
const HOST_AGAIN: Duration = Duration::from_secs(30);
/// So many failures of one step in a row are reported; fewer are the ordinary noise of a cluster.
const TELL_AFTER: u32 = 3;
/// So many failures to unlock end a turn.
const GIVE_UP_AFTER: u32 = 3;

/// What an agent is started with.
#[expect(missing_debug_implementations, reason = "kube::Client has none")]
pub struct Setup {
    /// The node that it serves.
    pub node: NodeName,
    /// The host, claimed.
    pub host: Host,
    /// Its own identity.
    pub client: Client,
    /// The kubelet's identity.
    pub kubelet: KubeletClient,
    /// Namespace of the berths.
    pub namespace: String,
    /// Time between two signs of life.
    pub heartbeat: Duration,
}

/// The agent's state between two passes. Only what can be found again, or may be lost, lives here alone.
#[derive(Debug)]
pub struct Agent {
    pub(crate) node: NodeName,
    pub(crate) host: Host,
    pub(crate) kubelet: KubeletClient,
    pub(crate) berths: Berths,
    pub(crate) past: Past,
    pub(crate) os: Os,
    pub(crate) fresh: bool,
    pub(crate) cluster_node: ClusterNode,
    pub(crate) drain: Option<Drain>,
    pub(crate) drained: DrainFacts,
    pub(crate) next_pass: Option<Instant>,
    pub(crate) reboot_asked: Option<Instant>,
    pub(crate) reboot_blocked: Option<String>,
    pub(crate) restored: bool,
    /// Whether the end of the running turn is counted.
    pub(crate) turn_counted: bool,
    /// How the running turn ends, for people; the outcome itself is in the Lease.
    pub(crate) turn_message: String,
    /// The digest whose pull ended and whose staging is not confirmed yet.
    pub(crate) pulled: Option<Digest>,
    pub(crate) rivals: Vec<String>,
    pub(crate) finalization_failed: bool,
    pub(crate) bootc_version: Option<String>,
    /// The last change of what is staged that ended well, until something else was decided.
    pub(crate) changed: Option<String>,
    /// When the host was looked at last.
    pub(crate) looked: Instant,
    pub(crate) jitter: Jitter,
    /// UID of the Node that the BootcNode was published for.
    published_for: Option<String>,
    object: watch::Receiver<Seen>,
    changes: watch::Receiver<u64>,
    status: StatusWriter,
    heartbeat: Duration,
    last_heartbeat: Instant,
    heartbeat_time: Time,
    started: Instant,
    /// The step that failed last, and how often in a row.
    failing: Option<(Discriminant<Step>, Trouble)>,
    last_log: Option<(Phase, Step)>,
}

impl Agent {
    /// Prepares the loop: reads the memory on the host, opens the watch of the BootcNode.
    pub fn new(setup: Setup) -> Self {
        let memory = setup.host.memory();
        let past = Past {
            failed_digests: memory.failed_digests,
            staged_by_us: memory.staged_by_us,
            last_turn: memory.last_turn,
            not_applied: memory.not_applied,
            failure: None,
        };
        let changes = setup.host.changes();
        let object = watches::bootc_node(setup.client.clone(), &setup.node);
        let jitter = Jitter::new(&setup.node);
        Self {
            berths: Berths::new(setup.client.clone(), &setup.namespace, &setup.node),
            status: StatusWriter::new(setup.client, &setup.node),
            node: setup.node,
            host: setup.host,
            kubelet: setup.kubelet,
            past,
            os: Os::Unknown,
            fresh: false,
            cluster_node: ClusterNode::Unread,
            drain: None,
            drained: DrainFacts::default(),
            next_pass: None,
            reboot_asked: None,
            reboot_blocked: None,
            restored: false,
            turn_counted: false,
            turn_message: String::new(),
            pulled: None,
            rivals: vec![],
            finalization_failed: false,
            bootc_version: None,
            changed: None,
            looked: Instant::now(),
            jitter,
            published_for: None,
            object,
            changes,
            heartbeat: setup.heartbeat,
            last_heartbeat: Instant::now(),
            heartbeat_time: Time::from(Timestamp::now()),
            started: Instant::now(),
            failing: None,
            last_log: None,
        }
    }

    /// Runs until the future that ends it does.
    ///
    /// # Errors
    /// Only what a restart of the process may mend; everything else is reported and tried again.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        tokio::select! {
            () = &mut stop => return Ok(()),
            first = self.wait_for_object() => first?,
        }
        loop {
            still_alive();
            let pause = match self.pass().await {
                Ok(pause) => pause,
                Err(error) => self.failed(&error),
            };
            tokio::select! {
                () = &mut stop => return Ok(()),
                () = self.wait(pause), if !pause.is_zero() => {}
                () = tokio::task::yield_now(), if pause.is_zero() => {}
            }
        }
    }

    /// Nothing is decided before the API server has said once what is asked of this node.
    async fn wait_for_object(&mut self) -> Result<()> {
        loop {
            still_alive();
            match timeout(LONGEST_WAIT, self.object.changed()).await {
                Ok(changed) => return changed.context("the watch of the BootcNode ended"),
                Err(_) => tracing::warn!("the API server has not answered yet"),
            }
        }
    }

    /// One pass. Answers how long there is nothing to do; zero: go on at once.
    async fn pass(&mut self) -> Result<Duration> {
        self.keep_up().await?;
        let object = self.object();
        let facts = self.gather(&object).await?;
        let next = step(&facts);
        self.log(&facts, &next, &object);
        self.berths.watch(needs_watch(&facts, &next));
        // While the host goes down, what was said before stays true.
        let resting = matches!(next, Step::Wait(..) | Step::Reboot);
        let going_down = matches!(next, Step::Wait(Why::ShuttingDown, _));
        if (resting && !going_down) || self.failing.is_some() {
            self.report(&facts, &next, &object).await;
        }
        match next {
            Step::Wait(why, wait) => {
                self.failing = None;
                self.changed = None;
                Ok(self.rest(why, wait))
            }
            next => {
                let kind = std::mem::discriminant(&next);
                if !matches!(next, Step::Lock | Step::Unlock | Step::Unstage | Step::LookAtHost | Step::ReadNode) {
                    self.changed = None;
                }
                let done = self.act(next.clone()).await;
                match &done {
                    Ok(()) if self.failing.as_ref().is_some_and(|(k, _)| *k == kind) => self.failing = None,
                    Ok(()) => {}
                    Err(error) => self.count_failure(&next, error),
                }
                done.map(|()| Duration::ZERO)
            }
        }
    }

    /// Knows the berths, and once in a while looks at what nobody announces.
    async fn keep_up(&mut self) -> Result<()> {
        let due = self.last_heartbeat.elapsed() >= self.heartbeat;
        if due && self.os != Os::Unknown {
            // Somebody may have staged, unlocked or removed an image since.
            self.fresh = false;
            if !self.in_turn() {
                self.os = Os::Unknown;
            }
        }
        if self.berths.berths().is_none() || due {
            self.berths.refresh().await.context("cannot list the berths of this node")?;
        }
        self.berths.catch_up();
        if matches!(self.os, Os::Unusable { .. }) && self.looked.elapsed() >= HOST_AGAIN {
            self.fresh = false;
        }
        Ok(())
    }

    /// Whether this node holds a berth.
    pub(crate) fn in_turn(&self) -> bool {
        self.berths.berths().is_some_and(|b| b.iter().any(|b| b.holding().is_some()))
    }

    /// Who holds a berth acts on nothing that it did not just read.
    pub(crate) fn unread_node_in_turn(&mut self) {
        if self.in_turn() {
            self.cluster_node = ClusterNode::Unread;
        }
    }

    fn object(&mut self) -> Option<BootcNode> {
        match &*self.object.borrow_and_update() {
            Seen::Is(object) => Some(object.as_ref().clone()),
            Seen::Unreadable(error) => {
                tracing::error!(%error, "the BootcNode cannot be read; nothing new is begun until it is mended");
                None
            }
            Seen::Absent | Seen::NotYet => None,
        }
    }

    /// Everything that the decision needs; reads only what may have changed and is cheap to read.
    async fn gather(&mut self, object: &Option<BootcNode>) -> Result<Facts> {
        let desired = desired(object.as_ref());
        self.recall(object.as_ref(), &desired);
        let shutting_down = self.host.shutting_down().await.context("cannot ask logind whether the host goes down")?;
        // A bus that is going away answers no more questions, and none matter now.
        let pull = if shutting_down { None } else { self.look_at_pull(&desired).await? };
        let at_stake = !shutting_down && (self.os.staged().is_some() || self.in_turn());
        let (inhibitors, shutdown_scheduled) = match at_stake {
            true => (
                self.host.inhibitors().await.context("cannot list logind's inhibitors")?,
                self.host.shutdown_scheduled().await.context("cannot ask logind for a scheduled shutdown")?,
            ),
            false => (vec![], false),
        };
        let now = Timestamp::now();
        let mut drain = self.drained.clone();
        drain.elapsed = self.status.in_phase(Phase::Draining);
        drain.next_pass = self.next_pass.map(|at| at.saturating_duration_since(Instant::now()));
        Ok(Facts {
            node: self.node.clone(),
            now,
            desired,
            host: HostFacts {
                boot_id: self.host.boot_id()?,
                os: self.os.clone(),
                fresh: self.fresh,
                pull,
                inhibitors: inhibitors.iter().map(ToString::to_string).collect(),
                shutting_down,
                shutdown_scheduled,
                rivals: self.rivals.clone(),
                finalization_failed: self.finalization_failed,
                reboot: self.reboot(),
            },
            cluster_node: self.cluster_node.clone(),
            berths: self.berths.berths(),
            restored: self.restored,
            drain,
            // A process is never older than the boot that it runs in.
            proving_for: self.status.in_phase(Phase::Proving).max(self.started.elapsed()),
            past: self.past.clone(),
            trouble: self.failing.as_ref().map(|(_, t)| t.clone()).filter(|t| t.attempts >= TELL_AFTER),
        })
    }

    fn reboot(&self) -> Reboot {
        match (&self.reboot_blocked, self.reboot_asked) {
            (Some(why), _) => Reboot::Blocked(why.clone()),
            (None, Some(at)) => Reboot::Asked(at.elapsed()),
            (None, None) => Reboot::NotAsked,
        }
    }

    /// Takes over from the object what a former process remembered there.
    fn recall(&mut self, object: Option<&BootcNode>, desired: &Desired) {
        let Some(object) = object else { return };
        if self.published_for.as_deref() != Some(&object.spec.node_uid) {
            // Another Node of this name, perhaps: what was read of the former says nothing of it.
            self.published_for = Some(object.spec.node_uid.clone());
            self.cluster_node = ClusterNode::Unread;
        }
        // What an agent on another Node of this name went through is not ours to remember.
        let ours = |status: &&BootcNodeStatus| status.node_uid.as_deref() == Some(&object.spec.node_uid);
        if let Some(status) = self.status.adopt(object).filter(ours) {
            self.past.failure = self.past.failure.take().or_else(|| status.failure.clone());
            self.past.last_turn = self.past.last_turn.take().or_else(|| status.last_turn.clone());
            for digest in &status.failed_digests {
                if !self.past.failed_digests.contains(digest) {
                    self.past.failed_digests.push(digest.clone());
                }
            }
        }
        if let Some(digest) = desired.digest() {
            self.past.desire(digest);
            if self.os.booted() == Some(digest) && !self.in_turn() {
                self.past.proven(digest);
            } else if self.os.staged().is_some_and(|s| s.locked && s.digest.as_ref() == Some(digest)) {
                self.past.succeeded(digest);
            }
        }
    }

    /// The running pull, if any; the end of one is dealt with here.
    async fn look_at_pull(&mut self, desired: &Desired) -> Result<Option<PullFacts>> {
        let Some(pull) = self.host.find_pull(desired.digest()).await.context("cannot look for a running pull")? else {
            return Ok(None);
        };
        match pull.state {
            PullState::Running => {
                self.os = Os::Unknown;
                self.fresh = false;
                Ok(Some(PullFacts { progress: self.host.pull_progress(), digest: pull.digest }))
            }
            PullState::Succeeded => {
                tracing::info!(digest = %pull.digest, "pull ended");
                self.forget_os();
                self.pulled = Some(pull.digest.clone());
                self.host.forget_pull(&pull.digest).await?;
                Ok(None)
            }
            PullState::Failed { message } => {
                self.forget_os();
                self.pull_failed(&pull.digest, &message);
                self.host.forget_pull(&pull.digest).await?;
                Ok(None)
            }
        }
    }

    pub(crate) fn pull_failed(&mut self, digest: &Digest, message: &str) {
        let failure = crate::host::failure::classify(message);
        tracing::warn!(%digest, reason = failure.reason, message, "pull failed");
        let jitter = self.jitter.fraction();
        self.past.host_failed(failure.reason, message, digest, failure.retry, Timestamp::now(), jitter);
        self.remember();
    }

    /// Something may have changed the host's deployments.
    pub(crate) fn forget_os(&mut self) {
        self.os = Os::Unknown;
        self.fresh = false;
    }

    /// Stores on the host what must outlive the BootcNode.
    pub(crate) fn remember(&mut self) {
        let memory = crate::host::Memory {
            failed_digests: self.past.failed_digests.clone(),
            staged_by_us: self.past.staged_by_us.clone(),
            last_turn: self.past.last_turn.clone(),
            not_applied: self.past.not_applied.clone(),
        };
        if let Err(error) = self.host.save_memory(&memory) {
            tracing::error!(
                error = format!("{error:#}"),
                "cannot write the agent's memory on the host; check that /var/lib/berth is writable"
            );
        }
    }

    /// Writes the status when it says something new.
    async fn report(&mut self, facts: &Facts, next: &Step, object: &Option<BootcNode>) {
        let Some(object) = object else { return };
        if self.last_heartbeat.elapsed() >= self.heartbeat {
            self.last_heartbeat = Instant::now();
            self.heartbeat_time = Time::from(facts.now);
        }
        let subject = Subject {
            generation: object.metadata.generation,
            step: next,
            bootc_version: self.bootc_version.clone(),
            heartbeat: self.heartbeat_time.clone(),
        };
        let progress = duration::parse_or(Some(&object.spec.progress_interval), DEFAULT_PROGRESS_INTERVAL);
        let status: BootcNodeStatus = report(facts, &subject, self.status.known());
        if let Err(error) = self.status.write(status, progress).await {
            tracing::warn!(error = format!("{error:#}"), "cannot write the BootcNode's status; trying again");
        }
    }

    /// The turn ends like this: remember what the next one must know.
    pub(crate) fn count_turn(&mut self, outcome: Outcome, digest: &Digest) {
        let message = match self.turn_message.as_str() {
            "" => outcome.as_str().to_owned(),
            message => message.to_owned(),
        };
        let jitter = self.jitter.fraction();
        self.past.turn_ended(outcome, &message, digest, Timestamp::now(), jitter);
        if outcome == Outcome::Updated {
            self.past.succeeded(digest);
        }
        self.turn_counted = true;
        self.remember();
    }

    /// One line for each new thing that the agent does.
    fn log(&mut self, facts: &Facts, next: &Step, object: &Option<BootcNode>) {
        let subject =
            Subject { generation: None, step: next, bootc_version: None, heartbeat: self.heartbeat_time.clone() };
        let phase = report(facts, &subject, self.status.known()).phase.unwrap_or(Phase::Idle);
        let same = self.last_log.as_ref().is_some_and(|(p, s)| {
            *p == phase && std::mem::discriminant(s) == std::mem::discriminant(next) && why(s) == why(next)
        });
        if same {
            return;
        }
        let pool = object.as_ref().map(|o| o.spec.pool_name.as_str()).unwrap_or_default();
        tracing::info!(phase = phase.as_str(), step = describe(next), pool, "step");
        self.last_log = Some((phase, next.clone()));
    }

    /// How long to rest, and what must be read anew afterwards.
    fn rest(&mut self, why: Why, wait: Option<Duration>) -> Duration {
        self.unread_node_in_turn();
        match why {
            Why::ForeignBerth | Why::OtherNode => self.cluster_node = ClusterNode::Unread,
            Why::Rebooting | Why::NoBerth => self.fresh = false,
            Why::Unproven if self.looked.elapsed() >= HOST_AGAIN => self.fresh = false,
            _ => {}
        }
        let heartbeat = self.heartbeat.saturating_sub(self.last_heartbeat.elapsed());
        wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT).min(heartbeat.max(Duration::from_millis(10)))
    }

    /// Counts failures of the same step, whatever succeeded in between on the way to it.
    fn count_failure(&mut self, step: &Step, error: &anyhow::Error) {
        let kind = std::mem::discriminant(step);
        let before = self.failing.as_ref().filter(|(k, _)| *k == kind).map_or(0, |(_, t)| t.attempts);
        let attempts = before.saturating_add(1);
        let message = format!("{error:#}");
        if *step == Step::Unlock && attempts >= GIVE_UP_AFTER {
            // The turn ends here, with the image locked, rather than never.
            self.reboot_blocked = Some(format!("the staged image cannot be unlocked: {message}"));
        }
        self.failing = Some((kind, Trouble { reason: reason(error), message, attempts }));
    }

    fn failed(&mut self, error: &anyhow::Error) -> Duration {
        let attempts = self.failing.as_ref().map_or(1, |(_, t)| t.attempts);
        let base = Duration::from_millis(100).saturating_mul(1 << attempts.min(8));
        let wait = base.mul_f64(0.5 + self.jitter.fraction()).min(LONGEST_WAIT);
        tracing::warn!(
            error = format!("{error:#}"),
            attempts,
            wait_ms = wait.as_millis() as u64,
            "step failed; trying again"
        );
        self.cluster_node = ClusterNode::Unread;
        wait
    }

    /// Sleeps until something changes or the time is over.
    async fn wait(&mut self, wait: Duration) {
        let _ = timeout(wait, async {
            tokio::select! {
                () = changed(&mut self.object) => {}
                () = changed(&mut self.changes) => {}
                () = self.berths.changed() => {}
            }
        })
        .await;
    }
}

/// Resolves at the next change; never when the other end is gone.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The condition reason of an error: that of the host tool, or of the API server.
fn reason(error: &anyhow::Error) -> &'static str {
    if let Some(host) = error.downcast_ref::<HostError>() {
        return host.reason();
    }
    match error.downcast_ref::<NodeError>() {
        Some(NodeError::Forbidden(_)) => "KubeletForbidden",
        _ => "StepFailed",
    }
}

/// Tells a service manager that the loop turns.
fn still_alive() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
}

/// What the object asks for.
fn desired(object: Option<&BootcNode>) -> Desired {
    let Some(object) = object else { return Desired::Unknown };
    if object.metadata.deletion_timestamp.is_some() || object.spec.pool_name.is_empty() {
        return Desired::Release;
    }
    let spec = &object.spec;
    Desired::Member(Box::new(Member {
        pool: PoolName::from(spec.pool_name.as_str()),
        node_uid: NodeUid::from(spec.node_uid.as_str()),
        image: spec.image.clone(),
        staging: spec.staging,
        hold: spec.hold.clone(),
        drain_timeout: duration::parse_or(Some(&spec.drain_timeout), DEFAULT_DRAIN_TIMEOUT),
        reboot_timeout: duration::parse_or(Some(&spec.reboot_timeout), DEFAULT_REBOOT_TIMEOUT),
    }))
}

/// Whether the berths must be watched: while one is held, and while one is waited for.
fn needs_watch(facts: &Facts, next: &Step) -> bool {
    let holding = facts.berths.iter().flatten().any(|b| b.holding().is_some());
    let waiting = matches!(next, Step::Wait(Why::NoBerth | Why::ForeignBerth | Why::BackingOff, _) | Step::Take(_));
    holding || waiting || (matches!(next, Step::ReadNode) && facts.host.os.staged().is_some())
}

fn why(step: &Step) -> Option<Why> {
    match step {
        Step::Wait(why, _) => Some(*why),
        _ => None,
    }
}

pub(crate) fn describe(step: &Step) -> String {
    match step {
        Step::Wait(why, _) => format!("Wait({why:?})"),
        Step::StartPull(image) => format!("StartPull({})", image.reference),
        Step::CancelPull(digest) => format!("CancelPull({digest})"),
        Step::Take(b) => format!("Take({})", b.name()),
        Step::Cordon(b) => format!("Cordon({})", b.name()),
        Step::Commit(b) => format!("Commit({})", b.name()),
        Step::Uncommit(b) => format!("Uncommit({})", b.name()),
        Step::Release(b, outcome, message) => format!("Release({}, {}, {message})", b.name(), outcome.as_str()),
        Step::Restore(b) => format!("Restore({})", b.name()),
        Step::GiveBack(b) => format!("GiveBack({})", b.name()),
        other => format!("{other:?}"),
    }
}
