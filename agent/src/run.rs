//! The loop. Each pass gathers facts, decides, reports, and performs one step. With nothing to do, it waits for a
//! change.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::boot_image::NodeBootImage;
use berth_api::duration;
use berth_api::firstboot::NodeFirstboot;
use berth_api::names::{BootId, NodeName};
use berth_api::node::{BootcNode, BootcNodeStatus, Phase};
use berth_api::pool::DEFAULT_PROGRESS_INTERVAL;
use berth_core::agent::facts::{AgentFacts, Past};
use berth_core::agent::knowledge::{Event, Knowledge};
use berth_core::agent::reason::Reason;
use berth_core::agent::report::{Subject, phase, report};
use berth_core::agent::step::{Step, WaitReason, step, taken_away};
use berth_shell::retry;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clients::{KubeletClient, RequestError};
use crate::firstboot::record::RecordFile;
use crate::guard::GuardProbe;
use crate::host::clock::Clock as HostClock;
use crate::host::{Host, HostError, cpu};
use crate::ledger;
use crate::metrics::Metrics;
use crate::node::cordon::NodeError;
use crate::node::drain::Drain;
use crate::node::rivals::RivalPods;
use crate::ready::ReadyFile;
use crate::status::StatusWriter;
use crate::timers::{Clock, Heartbeat, LONGEST_WAIT, Pause, Refresh};
use crate::watches::{self, Berths, Seen};

/// Everything that an agent is started with.
#[expect(missing_debug_implementations, reason = "kube::Client has none")]
pub struct Setup {
    /// The node that the agent serves.
    pub node: NodeName,
    /// The host, with its lock held.
    pub host: Host,
    /// Client with the agent's own identity.
    pub client: Client,
    /// Client with the kubelet's identity.
    pub kubelet: KubeletClient,
    /// Namespace of the berths.
    pub namespace: String,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// True to trust the host's clock without asking timedated.
    pub trust_clock: bool,
    /// True to update composefs hosts too (experimental).
    pub experimental_composefs: bool,
    /// File that shows that this agent is ready.
    pub ready: ReadyFile,
    /// Metrics that the agent updates.
    pub metrics: Metrics,
}

/// The agent: its clients and its knowledge. State that lives only here can be found again or may be lost.
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
    /// Everything that decisions are based on.
    pub(crate) knowledge: Knowledge,
    /// The memory as it was last written on the host.
    written: Past,
    /// Number and state of the running drain.
    pub(crate) drain: (u64, Drain),
    pub(crate) rival_pods: RivalPods,
    pub(crate) bootc_version: Option<String>,
    /// Highest CPU variant of the architecture that the host supports.
    platform_variant: Option<&'static str>,
    /// Image that the machine was installed from. `None` until it was read once; it never changes.
    pub(crate) boot_image: Option<Option<NodeBootImage>>,
    /// Record of the machine's first boot, which ended before this agent started.
    firstboot: Option<NodeFirstboot>,
    pub(crate) experimental_composefs: bool,
    heartbeat: Heartbeat,
    pub(crate) refresh: Refresh,
    /// Delay before the Node's lifecycle conditions are written again.
    pub(crate) signs: Pause,
    ready: ReadyFile,
    metrics: Metrics,
    last_log: Option<(Phase, Step)>,
    /// Number of consecutive passes that failed, at a step or before it.
    failed_passes: u32,
    /// When the host's services last failed to answer.
    pub(crate) silent_at: Option<Instant>,
}

impl Agent {
    /// Prepares the loop: reads the memory on the host and opens the watch of the BootcNode.
    ///
    /// # Errors
    /// When the boot ID cannot be read.
    pub fn new(setup: Setup) -> Result<Self> {
        let clock = Clock::begin();
        let past = setup.host.memory();
        let boot_id = setup.host.boot_id()?;
        let firstboot = RecordFile::new(setup.host.root()).load().map(|record| record.status);
        let platform_variant = cpu::platform_variant(setup.host.root());
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
            platform_variant,
            boot_image: None,
            firstboot,
            experimental_composefs: setup.experimental_composefs,
            heartbeat: Heartbeat::every(setup.heartbeat),
            refresh: Refresh::default(),
            signs: Pause::default(),
            ready: setup.ready,
            metrics: setup.metrics,
            last_log: None,
            failed_passes: 0,
            silent_at: None,
        })
    }

    /// Runs until the `stop` future resolves.
    ///
    /// # Errors
    /// When the watch of the BootcNode ends, which only a restart can repair. All other errors are reported and
    /// retried.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        tokio::select! {
            () = &mut stop => return Ok(()),
            first = self.wait_for_object() => first?,
        }
        loop {
            self.notify_alive();
            // A pass may hang on a host that does not answer. It may be aborted at any point, as by a kill.
            let passed = tokio::select! {
                () = &mut stop => return Ok(()),
                passed = self.pass() => passed,
            };
            let pause = match passed {
                Ok(pause) => {
                    self.failed_passes = 0;
                    // A pass on a host that does not answer achieves nothing, even without an error.
                    if self.knowledge.host.unreachable.is_none() {
                        self.ready.turn_ended();
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

    /// Shows the service manager and the liveness probe that the loop turns.
    fn notify_alive(&self) {
        self.ready.turn_begins();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
    }

    /// Waits for the first event about the BootcNode. Nothing is decided before it.
    async fn wait_for_object(&mut self) -> Result<()> {
        loop {
            self.notify_alive();
            match timeout(LONGEST_WAIT, self.object.changed()).await {
                Ok(changed) => return changed.context("the watch of the BootcNode ended"),
                Err(_) => tracing::warn!("the API server has not answered yet"),
            }
        }
    }

    /// Makes one pass. Returns how long nothing needs to be done; zero to continue at once.
    async fn pass(&mut self) -> Result<Duration> {
        self.metrics.pass();
        self.update_berths().await?;
        let object = self.object();
        self.gather(object.as_ref()).await?;
        let facts = self.knowledge.facts(&self.clock.now());
        let next = step(&facts);
        self.log(&facts, &next, object.as_ref());
        self.berths.watch(needs_watch(&facts, &next));
        // During a shutdown the last report stays true. A host that has just stopped answering may be shutting down
        // too.
        let resting = matches!(next, Step::Wait(..) | Step::Reboot);
        let silent = facts.host.unreachable.as_ref().is_some_and(|s| !s.is_reportable());
        let nothing_new = matches!(next, Step::Wait(WaitReason::ShuttingDown, _)) || silent;
        // Report before an image that another program staged is removed.
        let takes_away = taken_away(&facts, &next).is_some();
        if (resting && !nothing_new) || takes_away || self.knowledge.failures.trouble().is_some() {
            self.report(&facts, &next, object.as_ref()).await;
        }
        let shows_signs = match next {
            Step::Wait(..) => !nothing_new,
            // The last moment for a write: from the unlock to the reboot, no time is spent on signs.
            Step::Commit(_) => true,
            _ => false,
        };
        if shows_signs && self.show_signs(&facts).await && matches!(next, Step::Commit(_)) {
            // The write took time, so the commit must be decided again.
            return Ok(Duration::ZERO);
        }
        if let Step::Wait(why, wait) = next {
            self.learn(Event::Rests(why));
            let timers = self.heartbeat.next().min(self.refresh.next());
            let signs = self.signs.left().unwrap_or(LONGEST_WAIT);
            let status = self.status.due().unwrap_or(LONGEST_WAIT);
            let due = timers.min(signs).min(status).max(Duration::from_millis(10));
            return Ok(wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT).min(due));
        }
        self.act(&next).await?;
        Ok(Duration::ZERO)
    }

    /// Reads the berths if they are unknown or a read is due, and takes over the events of their watch.
    async fn update_berths(&mut self) -> Result<()> {
        if self.heartbeat.is_due() {
            if self.knowledge.rereads_cluster(&self.clock.now()) {
                self.refresh.ask_now();
            }
            self.learn(Event::Heartbeat);
        }
        if !self.knowledge.cluster.has_read_berths() {
            self.refresh_berths().await?;
        } else if self.refresh.is_due()
            && let Err(error) = self.refresh_berths().await
        {
            // The known berths still count, as they do between two heartbeats.
            tracing::warn!(error = format!("{error:#}"), "using the last known berths; retrying");
        }
        if self.berths.catch_up() {
            self.learn_berths();
        }
        Ok(())
    }

    /// Records whether the API server has answered. If it has not, schedules a retry.
    pub(crate) fn note_api_answer(&mut self, answered: bool) {
        self.ready.api_server(answered);
        if !answered {
            self.refresh.ask_soon();
        }
    }

    /// Passes an event to the knowledge.
    pub(crate) fn learn(&mut self, event: Event<'_>) {
        self.knowledge.after(event, &self.clock.now());
    }

    /// Boot ID as read in this pass.
    pub(crate) fn boot_id(&self) -> BootId {
        self.knowledge.host.boot_id().clone()
    }

    /// Writes the memory on the host if it changed. The memory must outlive the BootcNode.
    pub(crate) fn remember(&mut self) {
        if self.knowledge.past == self.written && self.knowledge.failures.memory.is_none() {
            return;
        }
        let is_new = self.knowledge.failures.memory.is_none();
        if let Err(error) = self.save_memory()
            && is_new
        {
            tracing::error!(
                error = format!("{error:#}"),
                "cannot write the agent's memory on the host; check that /var/lib/berth is writable"
            );
        }
    }

    /// Writes the memory on the host, for steps that need it written first.
    pub(crate) fn save_memory(&mut self) -> Result<()> {
        let saved = self.host.save_memory(&self.knowledge.past);
        self.learn(Event::Memory(saved.as_ref().err().map(|error| format!("{error:#}"))));
        saved?;
        ledger::log(&self.written, &self.knowledge.past);
        self.written = self.knowledge.past.clone();
        Ok(())
    }

    /// Writes the status if it changed.
    async fn report(&mut self, facts: &AgentFacts, next: &Step, object: Option<&BootcNode>) {
        let Some(object) = object else { return };
        let subject = Subject {
            generation: object.metadata.generation,
            step: next,
            bootc_version: self.bootc_version.clone(),
            platform_variant: self.platform_variant,
            boot_image: self.boot_image.as_ref(),
            firstboot: self.firstboot.as_ref(),
            heartbeat: self.heartbeat.time.clone(),
            conditions: object.status.as_ref().map_or(&[], |status| &status.conditions),
        };
        let progress = duration::or(Some(&object.spec.progress_interval), DEFAULT_PROGRESS_INTERVAL);
        let status: BootcNodeStatus = report(facts, &subject, self.status.before());
        self.metrics.show(&object.spec, &status);
        let written = self.status.write(status, next, progress).await;
        if let Err(error) = written {
            let is_answer = error.downcast_ref().is_some_and(RequestError::is_answer);
            if !is_answer {
                self.note_api_answer(false);
            }
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot write the BootcNode's status; retrying"
            );
        }
    }

    /// Logs the step if it differs from the last one logged.
    fn log(&mut self, facts: &AgentFacts, next: &Step, object: Option<&BootcNode>) {
        let phase = phase(facts, next);
        let same = self.last_log.as_ref().is_some_and(|(p, s)| {
            *p == phase
                && std::mem::discriminant(s) == std::mem::discriminant(next)
                && wait_reason(s) == wait_reason(next)
        });
        if same {
            return;
        }
        let pool = object.map(|o| o.spec.pool_name.as_str()).unwrap_or_default();
        tracing::info!(phase = phase.as_str(), step = describe(next), pool, "step");
        self.last_log = Some((phase, next.clone()));
    }

    fn failed(&mut self, error: &anyhow::Error) -> Duration {
        self.metrics.failed();
        self.failed_passes = self.failed_passes.saturating_add(1);
        let attempts = self
            .knowledge
            .failures
            .trouble()
            .map_or(1, |t| t.attempts)
            .max(self.failed_passes);
        let wait = retry::delay(attempts, Duration::from_millis(150), LONGEST_WAIT / 2);
        tracing::warn!(
            error = format!("{error:#}"),
            attempts,
            wait_ms = wait.as_millis() as u64,
            "step failed; retrying"
        );
        self.learn(Event::Unreadable);
        wait
    }

    /// Sleeps until a watch or the host reports a change, or the time is over.
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

/// Resolves at the next change; never if the sender is gone.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Returns the condition reason and the message of an error from the host tool or the API server.
pub(crate) fn error_reason(error: &anyhow::Error) -> (Reason, String) {
    let reason = match (error.downcast_ref::<HostError>(), error.downcast_ref::<NodeError>()) {
        (Some(host), _) => host.reason(),
        (None, Some(NodeError::Forbidden(_))) => Reason::KubeletForbidden,
        (None, _) => Reason::StepFailed,
    };
    (reason, format!("{error:#}"))
}

/// True if the berths must be watched: while one is held or awaited.
fn needs_watch(facts: &AgentFacts, next: &Step) -> bool {
    let holding = facts.berths.iter().flatten().any(|b| b.holding().is_some());
    let waiting = matches!(
        next,
        Step::Wait(
            WaitReason::NoBerth | WaitReason::Inhibited | WaitReason::ForeignBerth | WaitReason::BackingOff,
            _
        ) | Step::Take(_)
    );
    // A look in between must keep the watch open. A new watch would begin with a list, which would wake the loop for
    // the next look.
    let looking =
        matches!(next, Step::ReadNode | Step::LookAtHost | Step::TryGuard) && facts.host.os.staged().is_some();
    holding || waiting || looking
}

fn wait_reason(step: &Step) -> Option<WaitReason> {
    match step {
        Step::Wait(why, _) => Some(*why),
        _ => None,
    }
}

/// Returns the step as text for the log.
pub(crate) fn describe(step: &Step) -> String {
    match step {
        Step::Wait(why, _) => format!("Wait({why:?})"),
        Step::StartPull(image, _) => format!("StartPull({})", image.reference),
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
        Step::Lock(_) => "Lock".to_owned(),
        Step::Unstage(_) => "Unstage".to_owned(),
        Step::LookAtHost
        | Step::ReadNode
        | Step::TryGuard
        | Step::Unlock
        | Step::Reboot
        | Step::Drain
        | Step::Uncordon => format!("{step:?}"),
    }
}
