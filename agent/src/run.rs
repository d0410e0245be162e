//! The loop: gather what is known, decide, report, do one step; when there is nothing to do, wait for a change.

use std::mem::Discriminant;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::berth::Outcome;
use berth_api::digest::Digest;
use berth_api::duration;
use berth_api::names::NodeName;
use berth_api::node::{BootcNode, BootcNodeStatus, Phase};
use berth_api::pool::DEFAULT_PROGRESS_INTERVAL;
use berth_core::agent::facts::{ClusterNode, DrainFacts, Facts, Os, Past, Trouble};
use berth_core::agent::report::{Subject, phase, report};
use berth_core::agent::step::{Step, Why, step};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clients::KubeletClient;
use crate::host::clock::Clock;
use crate::host::{Host, HostError};
use crate::jitter::Jitter;
use crate::node::cordon::NodeError;
use crate::node::drain::Drain;
use crate::status::StatusWriter;
use crate::watches::{self, Berths, Seen};

/// Longest sleep of the loop: also how often a service manager's watchdog hears of us, at least.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// How often a host that cannot be updated, or runs what nobody asked for, is looked at again.
const HOST_AGAIN: Duration = Duration::from_secs(30);
/// So many failures of one step in a row are reported; fewer are the ordinary noise of a cluster.
pub(crate) const TELL_AFTER: u32 = 3;
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
    /// The host's clock is right, whatever the host says.
    pub trust_clock: bool,
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
    /// When this process took the berth, or began to drain under a boot that is not proven.
    pub(crate) turn_since: Option<Instant>,
    pub(crate) reboot_asked: Option<Instant>,
    pub(crate) reboot_blocked: Option<(String, Instant)>,
    /// Whether the last write of the berth was this process's, and was answered.
    pub(crate) fenced: bool,
    pub(crate) restored: bool,
    /// Whether the end of the running turn is counted.
    pub(crate) turn_counted: bool,
    /// How the running turn ends, for people; the outcome itself is in the Lease.
    pub(crate) turn_message: String,
    /// The digest whose pull ended and whose staging is not confirmed yet.
    pub(crate) pulled: Option<Digest>,
    pub(crate) rivals: Vec<String>,
    /// Whether the host's clock is synchronised, and when that was asked.
    pub(crate) clock: Clock,
    pub(crate) finalization_failed: bool,
    pub(crate) bootc_version: Option<String>,
    /// The last change of what is staged that ended well, until something else was decided.
    pub(crate) changed: Option<String>,
    /// When the host was looked at last.
    pub(crate) looked: Instant,
    pub(crate) jitter: Jitter,
    /// UID of the Node that the BootcNode was published for.
    pub(crate) published_for: Option<String>,
    pub(crate) object: watch::Receiver<Seen>,
    changes: watch::Receiver<u64>,
    pub(crate) status: StatusWriter,
    heartbeat: Duration,
    last_heartbeat: Instant,
    heartbeat_time: Time,
    pub(crate) started: Instant,
    /// The step that failed last, and how often in a row.
    pub(crate) failing: Option<(Discriminant<Step>, Trouble)>,
    last_log: Option<(Phase, Step)>,
    /// Passes in a row that failed, also before there was a step.
    in_vain: u32,
}

impl Agent {
    /// Prepares the loop: reads the memory on the host, opens the watch of the BootcNode.
    pub fn new(setup: Setup) -> Self {
        let memory = setup.host.memory();
        let past = Past::from(memory);
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
            turn_since: None,
            reboot_asked: None,
            reboot_blocked: None,
            fenced: false,
            restored: false,
            turn_counted: false,
            turn_message: String::new(),
            pulled: None,
            rivals: vec![],
            clock: Clock::new(setup.trust_clock),
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
            in_vain: 0,
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
                Ok(pause) => {
                    self.in_vain = 0;
                    pause
                }
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
                if !matches!(
                    next,
                    Step::Lock | Step::Unlock | Step::Unstage | Step::LookAtHost | Step::ReadNode
                ) {
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
        if due {
            self.last_heartbeat = Instant::now();
            self.heartbeat_time = Time::from(Timestamp::now());
            // Somebody may have staged, unlocked or removed an image since.
            self.fresh = false;
            if !self.in_turn() {
                self.os = Os::Unknown;
            }
            // A cordon of ours that arrived late, after its berth was closed over our head, is seen by nobody else.
            self.cluster_node = ClusterNode::Unread;
        }
        if due || self.berths.berths().is_none() {
            self.berths
                .refresh()
                .await
                .context("cannot list the berths of this node")?;
        }
        self.berths.catch_up();
        if matches!(self.os, Os::Unusable { .. }) && self.looked.elapsed() >= HOST_AGAIN {
            self.fresh = false;
        }
        Ok(())
    }

    /// Whether this node holds a berth.
    pub(crate) fn in_turn(&self) -> bool {
        self.berths
            .berths()
            .is_some_and(|b| b.iter().any(|b| b.holding().is_some()))
    }

    /// Who holds a berth acts on nothing that it did not just read.
    pub(crate) fn unread_node_in_turn(&mut self) {
        if self.in_turn() {
            self.cluster_node = ClusterNode::Unread;
        }
    }

    /// Writes the status when it says something new.
    async fn report(&mut self, facts: &Facts, next: &Step, object: &Option<BootcNode>) {
        let Some(object) = object else { return };
        let subject = Subject {
            generation: object.metadata.generation,
            step: next,
            bootc_version: self.bootc_version.clone(),
            heartbeat: self.heartbeat_time.clone(),
        };
        let progress = duration::parse_or(Some(&object.spec.progress_interval), DEFAULT_PROGRESS_INTERVAL);
        let status: BootcNodeStatus = report(facts, &subject, self.status.known());
        if let Err(error) = self.status.write(status, progress).await {
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot write the BootcNode's status; trying again"
            );
        }
    }

    /// Remembers why no reboot came of it, and since when.
    pub(crate) fn reboot_is_blocked(&mut self, why: String) {
        self.reboot_blocked = Some((why, Instant::now()));
    }

    /// The turn ends like this: remember what the next one must know.
    pub(crate) fn count_turn(&mut self, outcome: Outcome, digest: &Digest) {
        let message = match self.turn_message.as_str() {
            "" => outcome.as_str().to_owned(),
            message => message.to_owned(),
        };
        let jitter = self.jitter.fraction();
        self.past
            .turn_ended(outcome, &message, digest, Timestamp::now(), jitter);
        if outcome == Outcome::Updated {
            self.past.succeeded(digest);
        }
        self.turn_counted = true;
        self.remember();
    }

    /// One line for each new thing that the agent does.
    fn log(&mut self, facts: &Facts, next: &Step, object: &Option<BootcNode>) {
        let phase = phase(facts, next);
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
            Why::ForeignBerth | Why::OtherNode | Why::Excluded => self.cluster_node = ClusterNode::Unread,
            Why::Rebooting | Why::NoBerth => self.fresh = false,
            Why::Revoked | Why::WindowClosed => {
                self.fresh = false;
                self.drain = None;
                self.forget_drain();
            }
            Why::Inhibited => {
                self.fresh = false;
                self.forget_drain();
            }
            Why::Unproven if self.looked.elapsed() >= HOST_AGAIN => self.fresh = false,
            _ => {}
        }
        let heartbeat = self.heartbeat.saturating_sub(self.last_heartbeat.elapsed());
        wait.unwrap_or(LONGEST_WAIT)
            .min(LONGEST_WAIT)
            .min(heartbeat.max(Duration::from_millis(10)))
    }

    /// Before it goes on from a boot that is not proven, a holder may have to wait for days. What was drained before
    /// that says nothing of the pods that are there afterwards; and a drain that has yet to begin is not overdue.
    fn forget_drain(&mut self) {
        self.drained = DrainFacts::default();
        self.next_pass = None;
        self.turn_since = None;
    }

    /// Counts failures of the same step, whatever succeeded in between on the way to it.
    fn count_failure(&mut self, step: &Step, error: &anyhow::Error) {
        let kind = std::mem::discriminant(step);
        let before = self
            .failing
            .as_ref()
            .filter(|(k, _)| *k == kind)
            .map_or(0, |(_, t)| t.attempts);
        let attempts = before.saturating_add(1);
        let message = format!("{error:#}");
        if *step == Step::Unlock && attempts >= GIVE_UP_AFTER {
            // The turn ends here, with the image locked, rather than never.
            self.reboot_is_blocked(format!("the staged image cannot be unlocked: {message}"));
        }
        self.failing = Some((
            kind,
            Trouble {
                reason: reason(error),
                message,
                attempts,
            },
        ));
    }

    fn failed(&mut self, error: &anyhow::Error) -> Duration {
        self.in_vain = self.in_vain.saturating_add(1);
        let attempts = self.failing.as_ref().map_or(1, |(_, t)| t.attempts).max(self.in_vain);
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

/// Whether the berths must be watched: while one is held, and while one is waited for.
fn needs_watch(facts: &Facts, next: &Step) -> bool {
    let holding = facts.berths.iter().flatten().any(|b| b.holding().is_some());
    let waiting = matches!(
        next,
        Step::Wait(Why::NoBerth | Why::ForeignBerth | Why::Excluded | Why::BackingOff, _) | Step::Take(_)
    );
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
        Step::Fence(b) => format!("Fence({})", b.name()),
        Step::Uncommit(b) => format!("Uncommit({})", b.name()),
        Step::Relicense(b, digest) => format!("Relicense({}, {digest})", b.name()),
        Step::Release(b, outcome, message) => format!("Release({}, {}, {message})", b.name(), outcome.as_str()),
        Step::Restore(b) => format!("Restore({})", b.name()),
        Step::GiveBack(b) => format!("GiveBack({})", b.name()),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostRoot;

    async fn agent(root: &std::path::Path) -> Agent {
        crate::clients::install_crypto().ok();
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1/".parse().unwrap())).unwrap();
        Agent::new(Setup {
            node: NodeName::from("n1"),
            host: Host::connect(None, HostRoot::new(root)).await.unwrap(),
            client,
            kubelet: KubeletClient::new(std::path::Path::new("/kubeconfig"), root),
            namespace: "berth-system".to_owned(),
            heartbeat: Duration::from_secs(300),
            trust_clock: false,
        })
    }

    #[tokio::test]
    async fn a_drain_is_forgotten_while_a_gate_is_closed_and_kept_while_pods_leave() {
        let scratch = std::env::temp_dir().join(format!("berth-run-{}", std::process::id()));
        let mut agent = agent(&scratch).await;
        for (why, forgotten) in [
            (Why::Revoked, true),
            (Why::WindowClosed, true),
            (Why::Inhibited, true),
            (Why::Draining, false),
        ] {
            agent.drained.done = true;
            agent.turn_since = Some(Instant::now());
            agent.rest(why, None);
            assert_eq!(
                (agent.drained.done, agent.turn_since.is_some()),
                (!forgotten, !forgotten),
                "{why:?}"
            );
        }
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
