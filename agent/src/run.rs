//! The agent's loop. Each pass gathers facts, decides, reports, and performs one step. A pass with nothing to do waits
//! for a change.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::decode::Decoded;
use berth_api::duration;
use berth_api::names::{BootId, NodeName};
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_api::pool::DEFAULT_PROGRESS_INTERVAL;
use berth_core::agent::facts::{AgentFacts, Past};
use berth_core::agent::knowledge::{Event, Knowledge};
use berth_core::agent::reason::Reason;
use berth_core::agent::report::{Machine, Subject, report};
use berth_core::agent::rollback_guard::{self, Duty};
use berth_core::agent::step::{Step, WaitReason, proven_parts, step, taken_away};
use berth_shell::retry;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clients::RequestError;
use crate::firstboot::record::RecordFile;
use crate::guard::GuardProbe;
use crate::host::clock::Clock as HostClock;
use crate::host::{Host, HostError, cpu};
use crate::kubelet::{ImpersonationRefused, KubeletClient, ProgramFailure};
use crate::ledger;
use crate::metrics::Metrics;
use crate::node::cordon::NodeError;
use crate::node::drain::Drain;
use crate::node::rivals::RivalPods;
use crate::ready::ReadyFile;
use crate::status::StatusWriter;
use crate::telemetry::Telemetry;
use crate::timers::{LONGEST_WAIT, Timers};
use crate::watches::{self, Berths, Seen};

/// Everything that an agent needs to start.
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
    /// File that shows that this agent is ready.
    pub ready: ReadyFile,
    /// Metrics that the agent updates.
    pub metrics: Metrics,
}

/// The agent: its clients and its knowledge. After a restart, the agent can restore all state that it still needs.
#[derive(Debug)]
pub struct Agent {
    pub(crate) node: NodeName,
    pub(crate) host: Host,
    pub(crate) contact: Contact,
    pub(crate) machine: Machine,
    pub(crate) api: ApiServer,
    pub(crate) pods: Pods,
    pub(crate) timers: Timers,
    pub(crate) knowledge: Knowledge,
    /// The memory as it was last written on the host.
    written: Past,
    telemetry: Telemetry,
}

#[derive(Debug)]
pub(crate) struct Contact {
    changes: watch::Receiver<u64>,
    pub(crate) clock: HostClock,
    /// Time of the last request that the host's services did not answer; `None` after an answer.
    pub(crate) silent_at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct ApiServer {
    pub(crate) kubelet: KubeletClient,
    pub(crate) berths: Berths,
    pub(crate) status: StatusWriter,
    pub(crate) guard: GuardProbe,
    pub(crate) object: watch::Receiver<Seen>,
}

#[derive(Debug, Default)]
pub(crate) struct Pods {
    /// Number and state of the current drain.
    pub(crate) drain: (u64, Drain),
    pub(crate) rivals: RivalPods,
}

impl ApiServer {
    /// Returns the BootcNode that the watch received last; `None` if it does not exist or its spec cannot be parsed.
    pub(crate) fn object(&mut self) -> Option<Decoded<BootcNode>> {
        match &*self.object.borrow_and_update() {
            Seen::Is(object) => Some(object.as_ref().clone()),
            Seen::Unreadable(error) => {
                tracing::error!(%error, "cannot parse the BootcNode; the agent starts nothing new until an admin repairs the object");
                None
            }
            Seen::Absent | Seen::NotYet => None,
        }
    }
}

impl Agent {
    /// Prepares the loop: reads the memory on the host and opens the watch of the BootcNode.
    pub fn new(setup: Setup) -> Result<Self> {
        let timers = Timers::begin(setup.heartbeat);
        let past = setup.host.memory();
        let boot_id = setup.host.boot_id()?;
        if let Err(error) = setup.host.show_agent_to_guard(&boot_id) {
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot notify the rollback guard that an agent runs"
            );
        }
        let machine = Machine {
            firstboot: RecordFile::new(setup.host.root()).load().map(|record| record.status),
            platform_variant: cpu::platform_variant(setup.host.root()),
            ..Machine::default()
        };
        Ok(Self {
            knowledge: Knowledge::new(setup.node.clone(), boot_id, past.clone(), &timers.now()),
            written: past,
            contact: Contact {
                changes: setup.host.changes(),
                clock: HostClock::new(setup.trust_clock),
                silent_at: None,
            },
            api: ApiServer {
                object: watches::bootc_node(setup.client.clone(), &setup.node),
                berths: Berths::new(setup.client.clone(), &setup.namespace, &setup.node),
                guard: GuardProbe::new(setup.client.clone(), &setup.namespace, &setup.node),
                status: StatusWriter::new(setup.client, &setup.node),
                kubelet: setup.kubelet,
            },
            node: setup.node,
            host: setup.host,
            machine,
            pods: Pods::default(),
            timers,
            telemetry: Telemetry::new(setup.ready, setup.metrics),
        })
    }

    /// Runs until the `stop` future resolves. Fails if the watch of the BootcNode ends, because only a restart of the
    /// agent can repair that. Other errors are reported and retried.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        tokio::select! {
            () = &mut stop => return Ok(()),
            first = self.wait_for_object() => first?,
        }
        loop {
            self.telemetry.notify_alive();
            // A pass may hang on a host that does not answer. Aborting a pass is safe at any point, like killing the
            // agent.
            let passed = tokio::select! {
                () = &mut stop => return Ok(()),
                passed = self.pass() => passed,
            };
            let pause = match passed {
                Ok(pause) => {
                    self.telemetry.passed(self.knowledge.host.unreachable.is_none());
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

    /// Waits for the first event about the BootcNode. Until then, the agent makes no decision.
    async fn wait_for_object(&mut self) -> Result<()> {
        loop {
            self.telemetry.notify_alive();
            match timeout(LONGEST_WAIT, self.api.object.changed()).await {
                Ok(changed) => return changed.context("the watch of the BootcNode ended"),
                Err(_) => tracing::warn!("waiting for the BootcNode: the API server has not answered yet"),
            }
        }
    }

    /// Makes one pass. Returns how long the loop may wait before the next pass; zero to continue at once.
    async fn pass(&mut self) -> Result<Duration> {
        self.telemetry.metrics.pass();
        self.update_berths().await?;
        let object = self.api.object();
        self.gather(object.as_ref()).await?;
        let facts = self.knowledge.facts(&self.timers.now());
        if self.knowledge.turn.proving.is_some()
            && let Some(parts) = proven_parts(&facts)
        {
            self.learn(Event::Proves(parts));
        }
        let next = step(&facts);
        self.telemetry.log(&facts, &next, object.as_deref());
        self.api.berths.watch(needs_watch(&facts, &next));
        // During a shutdown, the agent writes no new report. A host that has just stopped answering may be shutting
        // down too.
        let resting = matches!(next, Step::Wait(..) | Step::Reboot);
        let silent = facts.host.unreachable.as_ref().is_some_and(|s| !s.is_reportable());
        let nothing_new = matches!(next, Step::Wait(WaitReason::ShuttingDown, _)) || silent;
        // The report must be written before the agent removes an image that another program staged.
        let takes_away = taken_away(&facts, &next).is_some();
        if (resting && !nothing_new) || takes_away || self.knowledge.failures.trouble().is_some() {
            self.report(&facts, &next, object.as_ref()).await;
        }
        let shows_signs = match next {
            Step::Wait(..) => !nothing_new,
            // This is the last moment to write lifecycle conditions: the agent writes none between the unlock and the
            // reboot.
            Step::Commit(_) => true,
            _ => false,
        };
        if shows_signs && self.show_signs(&facts).await && matches!(next, Step::Commit(_)) {
            // The write took time, so the agent must decide again whether to commit.
            return Ok(Duration::ZERO);
        }
        let duty = rollback_guard::duty(&facts, &next);
        if let Step::Wait(why, wait) = next {
            if duty == Duty::Disarm {
                self.host.disarm_guard(&self.boot_id())?;
            }
            self.learn(Event::Rests(why));
            let status = self.api.status.due().unwrap_or(LONGEST_WAIT);
            let due = self.timers.due().min(status).max(Duration::from_millis(10));
            return Ok(wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT).min(due));
        }
        self.act(&next, &duty).await?;
        Ok(Duration::ZERO)
    }

    /// Reads the berths if they are unknown or a read is due. Then adds the changes that the watch of the berths has
    /// received.
    async fn update_berths(&mut self) -> Result<()> {
        if self.timers.heartbeat.is_due() {
            if self.knowledge.rereads_cluster(&self.timers.now()) {
                self.timers.refresh.ask_now();
            }
            self.learn(Event::Heartbeat);
        }
        if !self.knowledge.cluster.has_read_berths() {
            self.refresh_berths().await?;
        } else if self.timers.refresh.is_due()
            && let Err(error) = self.refresh_berths().await
        {
            // The last known berths still count, as they do between two heartbeats.
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot read the berths; using the last known ones and retrying"
            );
        }
        if self.api.berths.catch_up() {
            self.learn_berths();
        }
        Ok(())
    }

    /// Records whether the API server has answered. After an unanswered request, schedules a retry.
    pub(crate) fn note_api_answer(&mut self, answered: bool) {
        self.telemetry.ready.api_server(answered);
        if !answered {
            self.timers.refresh.ask_soon();
        }
    }

    pub(crate) fn learn(&mut self, event: Event<'_>) {
        self.knowledge.after(event, &self.timers.now());
    }

    pub(crate) fn boot_id(&self) -> BootId {
        self.knowledge.host.boot_id().clone()
    }

    /// Writes the agent's memory to the host if it changed, because the memory must outlive the BootcNode.
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

    pub(crate) fn save_memory(&mut self) -> Result<()> {
        let saved = self.host.save_memory(&self.knowledge.past);
        self.learn(Event::Memory(saved.as_ref().err().map(|error| format!("{error:#}"))));
        saved?;
        ledger::log(&self.written, &self.knowledge.past);
        self.written = self.knowledge.past.clone();
        Ok(())
    }

    async fn report(&mut self, facts: &AgentFacts, next: &Step, object: Option<&Decoded<BootcNode>>) {
        let Some(object) = object else { return };
        let subject = Subject {
            generation: object.metadata.generation,
            step: next,
            machine: &self.machine,
            heartbeat: self.timers.heartbeat.time.clone(),
            conditions: object.status.as_ref().map_or(&[], |status| &status.conditions),
        };
        let progress = duration::or(Some(&object.spec.progress_interval), DEFAULT_PROGRESS_INTERVAL);
        let status: BootcNodeStatus = report(facts, &subject, self.api.status.before());
        self.telemetry.metrics.show(&object.spec, &status);
        let written = self.api.status.write(status, next, progress).await;
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

    fn failed(&mut self, error: &anyhow::Error) -> Duration {
        let failed_passes = self.telemetry.failed();
        let attempts = self
            .knowledge
            .failures
            .trouble()
            .map_or(1, |t| t.attempts)
            .max(failed_passes);
        let wait = retry::delay(attempts, Duration::from_millis(150), LONGEST_WAIT / 2);
        tracing::warn!(
            error = format!("{error:#}"),
            attempts,
            wait_ms = wait.as_millis() as u64,
            "a pass of the agent's loop failed; retrying"
        );
        self.learn(Event::Unreadable);
        wait
    }

    /// Sleeps until a watch or the host reports a change, or until this time is over.
    async fn wait(&mut self, wait: Duration) {
        let _ = timeout(wait, async {
            tokio::select! {
                () = changed(&mut self.api.object) => {}
                () = changed(&mut self.contact.changes) => {}
                () = self.api.berths.changed() => {}
            }
        })
        .await;
    }
}

/// Resolves at the next change. Never resolves if the sender is gone.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Returns the condition reason and the message of an error from the host tool or the API server.
pub(crate) fn error_reason(error: &anyhow::Error) -> (Reason, String) {
    if error.downcast_ref::<ProgramFailure>().is_some() {
        return (Reason::CredentialProgramFailed, format!("{error:#}"));
    }
    if error.downcast_ref::<ImpersonationRefused>().is_some() {
        return (Reason::ImpersonationRefused, format!("{error:#}"));
    }
    let reason = match (error.downcast_ref::<HostError>(), error.downcast_ref::<NodeError>()) {
        (Some(host), _) => host.reason(),
        (None, Some(NodeError::Forbidden(_))) => Reason::KubeletForbidden,
        (None, _) => Reason::StepFailed,
    };
    (reason, format!("{error:#}"))
}

/// True if the watch of the berths must be open: while the node holds a berth, or waits for a berth.
fn needs_watch(facts: &AgentFacts, next: &Step) -> bool {
    let holding = facts.berths.iter().flatten().any(|b| b.holding().is_some());
    let waiting = matches!(
        next,
        Step::Wait(
            WaitReason::NoBerth | WaitReason::Inhibited | WaitReason::ForeignBerth | WaitReason::BackingOff,
            _
        ) | Step::Take(_)
    );
    // Keep the watch open during a read of the host or the Node. A new watch would start with a list, which would wake
    // the loop and so cause another read.
    let looking =
        matches!(next, Step::ReadNode | Step::LookAtHost | Step::TryGuard) && facts.host.os.staged().is_some();
    holding || waiting || looking
}
