//! The loop: gather what is known, decide, report, do one step; when there is nothing to do, wait for a change.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::boot_image::NodeBootImage;
use berth_api::duration;
use berth_api::names::{BootId, NodeName};
use berth_api::node::{BootcNode, BootcNodeStatus, Phase};
use berth_api::pool::DEFAULT_PROGRESS_INTERVAL;
use berth_core::agent::facts::{Facts, Past};
use berth_core::agent::knowledge::{Event, Knowledge};
use berth_core::agent::reason::Reason;
use berth_core::agent::report::{Subject, phase, report};
use berth_core::agent::step::{Step, WaitReason, step};
use berth_core::{Moment, Now};
use berth_shell::retry;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clients::{KubeletClient, RequestError};
use crate::guard::GuardProbe;
use crate::host::clock::Clock as HostClock;
use crate::host::{Host, HostError};
use crate::ledger;
use crate::node::cordon::NodeError;
use crate::node::drain::Drain;
use crate::node::rivals::RivalPods;
use crate::ready::ReadyFile;
use crate::status::StatusWriter;
use crate::watches::{self, Berths, Seen};

/// Longest sleep of the loop: also how often a service manager's watchdog hears of us, at least.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Everything that an agent is started with.
#[expect(missing_debug_implementations, reason = "kube::Client has none")]
pub struct Setup {
    /// The node that it serves.
    pub node: NodeName,
    /// The host, claimed.
    pub host: Host,
    /// Client with the agent's own identity.
    pub client: Client,
    /// The kubelet's identity.
    pub kubelet: KubeletClient,
    /// Namespace of the berths.
    pub namespace: String,
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// The host's clock is right, whatever the host says.
    pub trust_clock: bool,
    /// Composefs hosts are updated too, which is experimental.
    pub experimental_composefs: bool,
    /// The file that says that this agent is ready.
    pub ready: ReadyFile,
}

/// The agent: its ways to the world, and what it knows. Only what can be found again, or may be lost, lives here alone.
#[derive(Debug)]
pub struct Agent {
    pub(crate) node: NodeName,
    pub(crate) host: Host,
    pub(crate) kubelet: KubeletClient,
    pub(crate) berths: Berths,
    pub(crate) status: StatusWriter,
    pub(crate) guard: GuardProbe,
    pub(crate) object: watch::Receiver<Seen>,
    changes: watch::Receiver<u64>,
    pub(crate) clock: Clock,
    pub(crate) host_clock: HostClock,
    /// Everything that decisions are made from.
    pub(crate) knowledge: Knowledge,
    /// The memory as the host has it.
    written: Past,
    /// The pods of the running drain, and its number.
    pub(crate) drain: (u64, Drain),
    pub(crate) rival_pods: RivalPods,
    pub(crate) bootc_version: Option<String>,
    /// Image that the machine was installed from, once that was looked at. It never changes.
    pub(crate) boot_image: Option<Option<NodeBootImage>>,
    pub(crate) experimental_composefs: bool,
    heartbeat: Heartbeat,
    pub(crate) refresh: Refresh,
    ready: ReadyFile,
    last_log: Option<(Phase, Step)>,
    /// Passes in a row that failed, also before there was a step.
    in_vain: u32,
    /// Time of the last question to the host's services without an answer.
    pub(crate) silent_at: Option<Instant>,
}

/// Signs of life.
#[derive(Debug)]
struct Heartbeat {
    every: Duration,
    last: Instant,
    time: Time,
}

impl Heartbeat {
    fn every(interval: Duration) -> Self {
        Self {
            every: interval,
            last: Instant::now(),
            time: Time::from(Timestamp::now()),
        }
    }

    /// The next one is due; it is given with this call.
    fn is_due(&mut self) -> bool {
        let due = self.last.elapsed() >= self.every;
        if due {
            *self = Self::every(self.every);
        }
        due
    }

    fn next(&self) -> Duration {
        self.every.saturating_sub(self.last.elapsed())
    }
}

/// The time at which the berths are read from the API server's own storage, whatever the watch says.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    at: Option<Instant>,
    in_vain: u32,
}

impl Refresh {
    fn is_due(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    fn ask_now(&mut self) {
        self.at = Some(Instant::now());
    }

    /// The API server did not answer something: this is asked until it does.
    fn ask_soon(&mut self) {
        self.in_vain = self.in_vain.saturating_add(1);
        self.at = Some(Instant::now() + retry::delay(self.in_vain, Duration::from_secs(1), LONGEST_WAIT));
    }

    /// They were read.
    pub(crate) fn done(&mut self) {
        *self = Self::default();
    }

    fn next(&self) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.at.map_or(LONGEST_WAIT, left)
    }
}

/// Clock of this process.
#[derive(Debug)]
pub(crate) struct Clock {
    began: Instant,
}

impl Clock {
    /// The present.
    pub(crate) fn now(&self) -> Now {
        Now {
            wall: Timestamp::now(),
            clock: Moment::after(self.began.elapsed()),
            chance: fastrand::f64(),
        }
    }
}

impl Agent {
    /// Prepares the loop: reads the memory on the host, opens the watch of the BootcNode.
    ///
    /// # Errors
    /// When the boot ID cannot be read.
    pub fn new(setup: Setup) -> Result<Self> {
        let clock = Clock { began: Instant::now() };
        let past = setup.host.memory();
        let boot_id = setup.host.boot_id()?;
        Ok(Self {
            knowledge: Knowledge::new(setup.node.clone(), boot_id, past.clone(), &clock.now()),
            written: past,
            changes: setup.host.changes(),
            object: watches::bootc_node(setup.client.clone(), &setup.node),
            berths: Berths::new(setup.client.clone(), &setup.namespace, &setup.node),
            guard: GuardProbe::new(setup.client.clone(), &setup.namespace, &setup.node),
            status: StatusWriter::new(setup.client, &setup.node),
            node: setup.node,
            host: setup.host,
            kubelet: setup.kubelet,
            clock,
            host_clock: HostClock::new(setup.trust_clock),
            drain: (0, Drain::default()),
            rival_pods: RivalPods::default(),
            bootc_version: None,
            boot_image: None,
            experimental_composefs: setup.experimental_composefs,
            heartbeat: Heartbeat::every(setup.heartbeat),
            refresh: Refresh::default(),
            ready: setup.ready,
            last_log: None,
            in_vain: 0,
            silent_at: None,
        })
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
            // A pass may hang on a host that does not answer. It may be ended anywhere, as by a kill.
            let passed = tokio::select! {
                () = &mut stop => return Ok(()),
                passed = self.pass() => passed,
            };
            let pause = match passed {
                Ok(pause) => {
                    self.in_vain = 0;
                    // Of a host that does not answer nothing is done, however quiet the pass.
                    if self.knowledge.unreachable.is_none() {
                        self.ready.turned();
                    }
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

    /// Waits until the API server has said once what is asked of this node; before that nothing is decided.
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
        self.gather(object.as_ref()).await?;
        let facts = self.knowledge.facts(&self.clock.now());
        let next = step(&facts);
        self.log(&facts, &next, object.as_ref());
        self.berths.watch(needs_watch(&facts, &next));
        // While the host goes down, what was said before stays true; a host that is silent for a moment may do so too.
        let resting = matches!(next, Step::Wait(..) | Step::Reboot);
        let silent = facts.host.unreachable.as_ref().is_some_and(|s| !s.is_to_be_told());
        let nothing_new = matches!(next, Step::Wait(WaitReason::ShuttingDown, _)) || silent;
        if (resting && !nothing_new) || self.knowledge.trouble().is_some() {
            self.report(&facts, &next, object.as_ref()).await;
        }
        if let Step::Wait(why, wait) = next {
            self.learn(Event::Rests(why));
            let due = self
                .heartbeat
                .next()
                .min(self.refresh.next())
                .max(Duration::from_millis(10));
            return Ok(wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT).min(due));
        }
        self.act(&next).await?;
        Ok(Duration::ZERO)
    }

    /// Knows the berths, and once in a while looks at what nobody announces.
    async fn keep_up(&mut self) -> Result<()> {
        if self.heartbeat.is_due() {
            self.learn(Event::Heartbeat);
            self.refresh.ask_now();
        }
        if self.knowledge.berths.is_none() {
            self.refresh_berths().await?;
        } else if self.refresh.is_due()
            && let Err(error) = self.refresh_berths().await
        {
            // What is known of them goes on to count, as it does between two signs of life.
            tracing::warn!(error = format!("{error:#}"), "trying again");
        }
        if self.berths.catch_up() {
            self.learn_berths();
        }
        Ok(())
    }

    /// Takes note of whether the API server has answered. When it has not, it is asked again until it does.
    pub(crate) fn heard(&mut self, answered: bool) {
        self.ready.api_server(answered);
        if !answered {
            self.refresh.ask_soon();
        }
    }

    /// Takes in what has happened.
    pub(crate) fn learn(&mut self, event: Event<'_>) {
        self.knowledge.after(event, &self.clock.now());
    }

    /// The running boot, as it was read in this pass.
    pub(crate) fn boot_id(&self) -> BootId {
        self.knowledge.services.boot_id.clone()
    }

    /// Stores on the host what must outlive the BootcNode.
    pub(crate) fn remember(&mut self) {
        if self.knowledge.past == self.written && self.knowledge.forgetful.is_none() {
            return;
        }
        let is_new = self.knowledge.forgetful.is_none();
        if let Err(error) = self.save_memory()
            && is_new
        {
            tracing::error!(
                error = format!("{error:#}"),
                "cannot write the agent's memory on the host; check that /var/lib/berth is writable"
            );
        }
    }

    /// The same, where nothing may go on without it.
    pub(crate) fn save_memory(&mut self) -> Result<()> {
        let saved = self.host.save_memory(&self.knowledge.past);
        self.learn(Event::Memory(saved.as_ref().err().map(|error| format!("{error:#}"))));
        saved?;
        ledger::log(&self.written, &self.knowledge.past);
        self.written = self.knowledge.past.clone();
        Ok(())
    }

    /// Writes the status when it says something new.
    async fn report(&mut self, facts: &Facts, next: &Step, object: Option<&BootcNode>) {
        let Some(object) = object else { return };
        let subject = Subject {
            generation: object.metadata.generation,
            step: next,
            bootc_version: self.bootc_version.clone(),
            boot_image: self.boot_image.as_ref(),
            heartbeat: self.heartbeat.time.clone(),
            told: object.status.as_ref().map_or(&[], |status| &status.conditions),
        };
        let progress = duration::parse_or(Some(&object.spec.progress_interval), DEFAULT_PROGRESS_INTERVAL);
        let status: BootcNodeStatus = report(facts, &subject, self.status.known());
        let written = self.status.write(status, progress).await;
        let is_answer = |error: &anyhow::Error| error.downcast_ref().is_some_and(RequestError::is_answer);
        if written.as_ref().err().is_some_and(|error| !is_answer(error)) {
            self.heard(false);
        }
        if let Err(error) = written {
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot write the BootcNode's status; trying again"
            );
        }
    }

    /// One line for each new thing that the agent does.
    fn log(&mut self, facts: &Facts, next: &Step, object: Option<&BootcNode>) {
        let phase = phase(facts, next);
        let same = self.last_log.as_ref().is_some_and(|(p, s)| {
            *p == phase && std::mem::discriminant(s) == std::mem::discriminant(next) && why(s) == why(next)
        });
        if same {
            return;
        }
        let pool = object.map(|o| o.spec.pool_name.as_str()).unwrap_or_default();
        tracing::info!(phase = phase.as_str(), step = describe(next), pool, "step");
        self.last_log = Some((phase, next.clone()));
    }

    fn failed(&mut self, error: &anyhow::Error) -> Duration {
        self.in_vain = self.in_vain.saturating_add(1);
        let attempts = self.knowledge.trouble().map_or(1, |t| t.attempts).max(self.in_vain);
        let wait = retry::delay(attempts, Duration::from_millis(150), LONGEST_WAIT / 2);
        tracing::warn!(
            error = format!("{error:#}"),
            attempts,
            wait_ms = wait.as_millis() as u64,
            "step failed; trying again"
        );
        self.learn(Event::Unreadable);
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

/// Condition reason and words of an error: the host tool's, or the API server's.
pub(crate) fn trouble(error: &anyhow::Error) -> (Reason, String) {
    let reason = match (error.downcast_ref::<HostError>(), error.downcast_ref::<NodeError>()) {
        (Some(host), _) => host.reason(),
        (None, Some(NodeError::Forbidden(_))) => Reason::KubeletForbidden,
        (None, _) => Reason::StepFailed,
    };
    (reason, format!("{error:#}"))
}

/// Tells a service manager that the loop turns.
fn still_alive() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
}

/// Says whether the berths must be watched: while one is held, and while one is waited for.
fn needs_watch(facts: &Facts, next: &Step) -> bool {
    let holding = facts.berths.iter().flatten().any(|b| b.holding().is_some());
    let waiting = matches!(
        next,
        Step::Wait(
            WaitReason::NoBerth | WaitReason::Inhibited | WaitReason::ForeignBerth | WaitReason::BackingOff,
            _
        ) | Step::Take(_)
    );
    // A look in between must not end the watch: the first list of the next one would wake the loop, for the next look.
    let looking =
        matches!(next, Step::ReadNode | Step::LookAtHost | Step::TryGuard) && facts.host.os.staged().is_some();
    holding || waiting || looking
}

fn why(step: &Step) -> Option<WaitReason> {
    match step {
        Step::Wait(why, _) => Some(*why),
        _ => None,
    }
}

/// Step in one line, for the log.
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
        Step::Unstage(_) => "Unstage".to_owned(),
        Step::LookAtHost
        | Step::ReadNode
        | Step::TryGuard
        | Step::Lock
        | Step::Unlock
        | Step::Reboot
        | Step::Drain
        | Step::Uncordon => format!("{step:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refresh_without_an_answer_is_repeated_before_the_next_sign_of_life() {
        let mut refresh = Refresh::default();
        assert!(!refresh.is_due());
        refresh.ask_now();
        assert!(refresh.is_due());
        refresh.ask_soon();
        assert!(!refresh.is_due() && refresh.next() <= Duration::from_secs(2));
        for _ in 0..40 {
            refresh.ask_soon();
        }
        // The jitter included.
        assert!(refresh.next() <= 2 * LONGEST_WAIT);
        refresh.done();
        assert_eq!((refresh.is_due(), refresh.next()), (false, LONGEST_WAIT));
    }
}
