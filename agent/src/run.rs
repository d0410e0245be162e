//! The loop: gather what is known, decide, report, do one step; when there is nothing to do, wait for a change.

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
use crate::signs::Pause;
use crate::status::StatusWriter;
use crate::timers::{Clock, Heartbeat, LONGEST_WAIT, Refresh};
use crate::watches::{self, Berths, Seen};

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
    /// Metrics for Prometheus.
    pub metrics: Metrics,
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
    /// Most demanding variant of its architecture that the host's CPU runs.
    platform_variant: Option<&'static str>,
    /// Image that the machine was installed from, once that was looked at. It never changes.
    pub(crate) boot_image: Option<Option<NodeBootImage>>,
    /// Record of the machine's first boot. It was over before this agent began.
    firstboot: Option<NodeFirstboot>,
    pub(crate) experimental_composefs: bool,
    heartbeat: Heartbeat,
    pub(crate) refresh: Refresh,
    /// Pause before the Node's lifecycle conditions are written again.
    pub(crate) signs: Pause,
    ready: ReadyFile,
    metrics: Metrics,
    last_log: Option<(Phase, Step)>,
    /// Passes in a row that failed, also before there was a step.
    in_vain: u32,
    /// Time of the last question to the host's services without an answer.
    pub(crate) silent_at: Option<Instant>,
}

impl Agent {
    /// Prepares the loop: reads the memory on the host, opens the watch of the BootcNode.
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
            self.still_alive();
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

    /// Tells a service manager, and whoever probes this process, that the loop turns.
    fn still_alive(&self) {
        self.ready.turns();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
    }

    /// Waits until the API server has said once what is asked of this node; before that nothing is decided.
    async fn wait_for_object(&mut self) -> Result<()> {
        loop {
            self.still_alive();
            match timeout(LONGEST_WAIT, self.object.changed()).await {
                Ok(changed) => return changed.context("the watch of the BootcNode ended"),
                Err(_) => tracing::warn!("the API server has not answered yet"),
            }
        }
    }

    /// One pass. Answers how long there is nothing to do; zero: go on at once.
    async fn pass(&mut self) -> Result<Duration> {
        self.metrics.pass();
        self.keep_up().await?;
        let object = self.object();
        self.gather(object.as_ref()).await?;
        let facts = self.knowledge.facts(&self.clock.now());
        let next = step(&facts);
        self.log(&facts, &next, object.as_ref());
        self.berths.watch(needs_watch(&facts, &next));
        // While the host goes down, what was said before stays true; a host that is silent for a moment may do so too.
        let resting = matches!(next, Step::Wait(..) | Step::Reboot);
        let silent = facts.host.unreachable.as_ref().is_some_and(|s| !s.is_reportable());
        let nothing_new = matches!(next, Step::Wait(WaitReason::ShuttingDown, _)) || silent;
        // What somebody else has staged is not removed without a word.
        let takes_away = taken_away(&facts, &next).is_some();
        if (resting && !nothing_new) || takes_away || self.knowledge.trouble().is_some() {
            self.report(&facts, &next, object.as_ref()).await;
        }
        let shows_signs = match next {
            Step::Wait(..) => !nothing_new,
            // The last moment before the image is unlocked. From there to the reboot nothing takes time that need not.
            Step::Commit(_) => true,
            _ => false,
        };
        if shows_signs && self.show_signs(&facts).await && matches!(next, Step::Commit(_)) {
            // That took some time: the commit is decided anew.
            return Ok(Duration::ZERO);
        }
        if let Step::Wait(why, wait) = next {
            self.learn(Event::Rests(why));
            let due = self
                .heartbeat
                .next()
                .min(self.refresh.next())
                .min(self.signs.left().unwrap_or(LONGEST_WAIT))
                .min(self.status.due().unwrap_or(LONGEST_WAIT))
                .max(Duration::from_millis(10));
            return Ok(wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT).min(due));
        }
        self.act(&next).await?;
        Ok(Duration::ZERO)
    }

    /// Knows the berths, and once in a while looks at what nobody announces.
    async fn keep_up(&mut self) -> Result<()> {
        if self.heartbeat.is_due() {
            if self.knowledge.rereads_cluster(&self.clock.now()) {
                self.refresh.ask_now();
            }
            self.learn(Event::Heartbeat);
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
        if self.knowledge.past == self.written && self.knowledge.memory_error.is_none() {
            return;
        }
        let is_new = self.knowledge.memory_error.is_none();
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
        let progress = duration::parse_or(Some(&object.spec.progress_interval), DEFAULT_PROGRESS_INTERVAL);
        let status: BootcNodeStatus = report(facts, &subject, self.status.before());
        self.metrics.show(&object.spec, &status);
        let written = self.status.write(status, next, progress).await;
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
    fn log(&mut self, facts: &AgentFacts, next: &Step, object: Option<&BootcNode>) {
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
        self.metrics.failed();
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

/// Says whether the berths must be watched: while one is held, and while one is waited for.
fn needs_watch(facts: &AgentFacts, next: &Step) -> bool {
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
