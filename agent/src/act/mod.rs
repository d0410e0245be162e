//! Performs one step: one read or one change, of the host, the Node or a berth. The agent's knowledge records the
//! result, and decides what must be read again before the next step.

mod signs;

use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::berth::Berth;
use berth_api::condition::one_line;
use berth_api::foreign::bounded;
use berth_api::node::DrainBlocker;
use berth_core::agent::facts::{ClusterNode, Guard};
use berth_core::agent::knowledge::{Ending, Event, Look};
use berth_core::agent::report::GuardUnit;
use berth_core::agent::rivals;
use berth_core::agent::rollback_guard::{self, Duty};
use berth_core::agent::soft_reboot;
use berth_core::agent::step::Step;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;

use crate::host::{Disarmed, HostError, Terms};
use crate::kubelet::KubeletClient;
use crate::node::cordon::{self, NodeError};
use crate::node::drain::{Drain, DrainProgress, Given, Settings};
use crate::run::{Agent, error_reason};
use crate::telemetry::describe;

/// Retry delay for reading the pool's drain settings while they are invalid.
const SETTINGS_RETRY: Duration = Duration::from_secs(10);
/// Maximum length of a blocker's reason in the BootcNode's schema, in characters.
const MAX_BLOCKER_REASON: usize = 512;

impl Agent {
    pub(crate) async fn act(&mut self, step: &Step, duty: &Duty) -> Result<()> {
        let repeats = self.knowledge.turn.repeats(step);
        self.learn(Event::Begins(step));
        let done = match self.write_memory_first(step) {
            Ok(()) => self.prepare_and_perform(step, duty, repeats).await,
            Err(error) => Err(error),
        };
        let ending = match &done {
            Ok(ending) => ending.clone(),
            Err(error) => {
                let (reason, message) = error_reason(error);
                Ending::Failed { reason, message }
            }
        };
        self.learn(Event::Ends(step, ending));
        self.remember();
        if done.is_err() && step.asks_cluster() {
            // A conflict means that another client wrote the berth: read the berths before the next decision.
            self.refresh_berths().await?;
        }
        done.map(drop)
    }

    fn write_memory_first(&mut self, step: &Step) -> Result<()> {
        if !step.needs_memory() {
            self.remember();
            return Ok(());
        }
        self.save_memory().with_context(|| {
            format!(
                "step {} is not started, because the agent cannot save its memory in /var/lib/berth on the host",
                describe(step)
            )
        })
    }

    /// Arms or disarms the host's rollback guard, as `duty` requires, and then performs the step. If the guard must be
    /// disarmed but has already fired, skips the step.
    async fn prepare_and_perform(&mut self, step: &Step, duty: &Duty, repeats: bool) -> Result<Ending> {
        match duty {
            Duty::None => {}
            Duty::Arm(order) => {
                let server = self.api.kubelet.server().await;
                let server = server.as_ref().map(|(host, port)| (host.as_str(), *port));
                let armed = self.host.arm_guard(&order.text(server));
                armed.context("cannot arm the host's rollback guard")?;
            }
            Duty::Disarm => {
                let disarmed = self.host.disarm_guard(&self.boot_id());
                if disarmed.context("cannot disarm the host's rollback guard")? == Disarmed::Fired {
                    return Ok(Ending::NotNeeded);
                }
            }
        }
        self.perform(step, repeats).await
    }

    async fn perform(&mut self, step: &Step, repeats: bool) -> Result<Ending> {
        match step {
            Step::Wait(..) => Ok(Ending::NotNeeded),
            Step::LookAtHost => self.look_at_host().await,
            Step::ReadNode => self.read_node().await,
            Step::TryGuard => Ok(self.try_guard().await),
            Step::StartPull(image, lock) => {
                let started = self.host.start_pull(image, *lock).await;
                started.with_context(|| format!("cannot start the pull of {}", image.reference))?;
                Ok(Ending::Done)
            }
            Step::CancelPull(digest) => {
                let stopped = self.host.cancel_pull(digest).await;
                stopped.with_context(|| format!("cannot stop the pull of {digest}"))?;
                Ok(Ending::Done)
            }
            Step::Lock(lock) => self.change_staged(step, self.host.lock(*lock).await, repeats),
            Step::Unlock => self.change_staged(step, self.host.unlock().await, repeats),
            Step::Unstage(staged) => self.change_staged(step, self.host.unstage(staged).await, repeats),
            Step::Rollback(to, reason, why) => {
                tracing::warn!(%to, reason = reason.as_str(), why, "the boot was not proven in time; rolling back");
                self.record_more_containers().await;
                self.change_staged(step, self.host.rollback(to).await, repeats)
            }
            Step::Reboot => self.reboot_host().await,
            Step::Drain => self.drain_pass().await,
            Step::Take(berth) => self.take(berth).await,
            Step::Cordon(berth) => self.cordon(berth).await,
            Step::Commit(berth) => {
                self.record_containers(vec![]).await;
                self.store(berth.committed(self.boot_id())?).await
            }
            // Writes the berth unchanged. Its new renewTime gives the berth a new resourceVersion.
            Step::Fence(berth) => self.store(berth.clone()).await,
            Step::Uncommit(berth) => self.store(berth.uncommitted()?).await,
            Step::Relicense(berth, digest) => {
                self.record_more_containers().await;
                let stored = self.store(berth.relicensed(digest.clone(), self.boot_id())?).await?;
                tracing::warn!(berth = berth.name(), %digest, "the running image is unproven; the node keeps its berth and reboots into {digest}");
                Ok(stored)
            }
            Step::Release(berth, outcome, _) => self.store(berth.releasing(*outcome, self.boot_id())?).await,
            Step::Restore(_) => self.restore().await,
            Step::GiveBack(berth) => {
                let stored = self.store(berth.given_back()?).await?;
                // Remove the lifecycle conditions now, from the Node as the restore returned it. The agent would not
                // read the Node again while the host does not answer.
                if let Some(node) = self.knowledge.cluster.node.get().cloned() {
                    self.take_signs_off(&node).await;
                }
                self.refresh_berths().await?;
                Ok(stored)
            }
            Step::Uncordon => self.uncordon().await,
        }
    }

    /// Fails if the host reported an error. Also fails if `repeats`: the last change of the staged image was of the
    /// same kind, and had no effect.
    fn change_staged(&self, step: &Step, done: Result<(), HostError>, repeats: bool) -> Result<Ending> {
        let name = describe(step);
        done.with_context(|| format!("step {name} failed on the host"))?;
        anyhow::ensure!(!repeats, "step {name} succeeded on the host but changed nothing");
        Ok(Ending::Done)
    }

    async fn look_at_host(&mut self) -> Result<Ending> {
        let units = self.host.rivals().await;
        let mut rivals = units.context("cannot ask systemd whether other updaters run")?;
        rivals.extend(self.rival_pods().await);
        let finalization_failed = self.host.finalization_failed().await.unwrap_or_default();
        let terms = Terms {
            rule: self.knowledge.desired.backend(),
            begun: self.knowledge.past.staged_with,
        };
        let survey = self
            .host
            .survey(&terms)
            .await
            .context("cannot read the host's deployments")?;
        self.look_for_boot_image().await;
        self.look_for_safeguards().await;
        if rollback_guard::is_wanted(&self.knowledge.desired, &survey.os) {
            self.look_for_guard().await;
        }
        if survey.bootc_version.is_some() {
            self.machine.bootc_version = survey.bootc_version;
        }
        let rivals = rivals::with_policy(rivals, survey.policy.as_deref());
        let look = Look {
            os: survey.os,
            rivals,
            finalization_failed,
        };
        self.learn(Event::Looked(look));
        Ok(Ending::Done)
    }

    /// Reads the machine's boot image, unless an earlier survey has read it. After a failure, the update continues.
    async fn look_for_boot_image(&mut self) {
        if self.machine.boot_image.is_some() {
            return;
        }
        match self.host.boot_image().await {
            Ok(found) => self.machine.boot_image = Some(found),
            Err(error) => {
                tracing::warn!(%error, "cannot read the machine's boot image; retrying with the next read of the host")
            }
        }
    }

    /// Reads which mechanisms guard the host's boots (such as greenboot), unless an earlier survey has read them. The
    /// result stays valid for the life of the agent, because a reboot also restarts the agent.
    async fn look_for_safeguards(&mut self) {
        if self.machine.boot_safeguards.is_some() {
            return;
        }
        match self.host.boot_safeguards().await {
            Ok(found) => self.machine.boot_safeguards = Some(found),
            Err(error) => {
                tracing::warn!(%error, "cannot read the host's boot safeguards, such as greenboot; retrying with the next read of the host")
            }
        }
    }

    /// Installs the host's rollback guard, unless an earlier survey has installed it. After a failure, the update
    /// continues.
    async fn look_for_guard(&mut self) {
        if matches!(self.machine.guard_unit, Some(GuardUnit::InImage | GuardUnit::Installed)) {
            return;
        }
        let found = match self.host.install_guard().await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "cannot install the rollback guard; retrying with the next read of the host");
                GuardUnit::Missing(one_line(&error.to_string()))
            }
        };
        self.machine.guard_unit = Some(found);
    }

    /// Returns the names of the pods of rival updaters on this node; empty if the node has no desired image. During a
    /// turn, returns the last result, because a query would delay the turn.
    async fn rival_pods(&mut self) -> Vec<String> {
        if self.knowledge.desired.digest().is_none() {
            return vec![];
        }
        if self.pods.rivals.is_due(self.knowledge.is_at_rest())
            && !self.knowledge.is_in_turn()
            && let Ok(client) = self.api.kubelet.get().await
        {
            self.pods.rivals.ask(client, self.node.as_str()).await;
        }
        self.pods.rivals.seen().to_vec()
    }

    async fn read_node(&mut self) -> Result<Ending> {
        let client = kubelet_client(&mut self.api.kubelet).await?;
        let read = cordon::read(client, self.node.as_str()).await;
        self.note_api_answer(!matches!(&read, Err(NodeError::Failed(error)) if !error.is_answer()));
        if let Err(NodeError::Forbidden(rejection)) = &read
            && let Some(refused) = self.api.kubelet.refusal(rejection)
        {
            return Err(refused.into());
        }
        let node = read.context("cannot read the Node")?;
        self.learn(Event::NodeRead(node.map_or(ClusterNode::Gone, ClusterNode::Is)));
        Ok(Ending::Done)
    }

    /// Checks that the API server rejects forbidden writes. If the API server does not answer, the step still succeeds.
    async fn try_guard(&mut self) -> Ending {
        let impersonates = self.api.kubelet.impersonates();
        let answer = match kubelet_client(&mut self.api.kubelet).await {
            Ok(kubelet) => self.api.guard.ask(kubelet, impersonates).await,
            Err(error) => Err(error),
        };
        let answer = answer.map_err(|error| format!("{error:#}"));
        match &answer {
            Ok(Guard::Allows(what)) => tracing::error!(
                what,
                "the API server accepts a write that it must reject; this agent takes no berth until that is fixed"
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(error, "cannot check whether the API server rejects forbidden writes"),
        }
        self.learn(Event::Guard(answer));
        Ending::Done
    }

    async fn reboot_host(&mut self) -> Result<Ending> {
        let is_soft = soft_reboot::is_chosen(&self.knowledge.facts(&self.timers.now()));
        tracing::warn!(is_soft, "asking the host to reboot");
        let asked = if is_soft {
            self.host.soft_reboot().await
        } else {
            self.host.reboot().await
        };
        match asked {
            Ok(()) => Ok(Ending::Done),
            // The reboot was not started.
            Err(error @ HostError::Busy(_)) => Err(error.into()),
            Err(error) => Ok(Ending::Refused(format!("the host refused the reboot: {error:#}"))),
        }
    }

    async fn drain_pass(&mut self) -> Result<Ending> {
        // Without the BootcNode, use the default settings, which move the fewest pods.
        let pool = self
            .api
            .object()
            .map(|object| object.object.spec.drain)
            .unwrap_or_default();
        let now = self.timers.now();
        let elapsed = self.knowledge.turn.drain.elapsed(&now);
        let settings = match Settings::new(&pool, elapsed) {
            Ok(settings) => settings,
            Err(error) => return Ok(self.cannot_drain(&error)),
        };
        let boot_id = self.boot_id();
        let cluster_node = self.knowledge.cluster.node.get();
        let given = Given {
            node: self.node.as_str(),
            settings: &settings,
            node_ready: cluster_node.is_some_and(|node| node.ready && node.boot_id.as_ref() == Some(&boot_id)),
            left: pool.timeout().saturating_sub(elapsed),
            now: now.wall,
            clock: now.clock,
        };
        let client = kubelet_client(&mut self.api.kubelet).await?;
        let number = self.knowledge.turn.drain.number;
        if self.pods.drain.0 != number {
            self.pods.drain = (number, Drain::default());
        }
        let progress = self.pods.drain.1.pass(client, &given).await;
        Ok(Ending::Drain(progress.context("cannot drain the node")?))
    }

    /// Reports invalid drain settings as a blocker, as if they were a pod. No pod is moved until an admin corrects the
    /// settings.
    fn cannot_drain(&self, error: &anyhow::Error) -> Ending {
        let known = self.knowledge.turn.drain.last_pass.blockers.first();
        let reason = format!("{error:#}; no pod is evicted until an admin corrects the setting");
        let blocker = DrainBlocker {
            pod: "drain.podSelector".to_owned(),
            reason: bounded(&reason, MAX_BLOCKER_REASON),
            since: known.map_or_else(|| Time::from(Timestamp::now()), |b| b.since.clone()),
        };
        Ending::Drain(DrainProgress::Waiting {
            blockers: vec![blocker],
            next: SETTINGS_RETRY,
        })
    }

    async fn store(&mut self, berth: Berth) -> Result<Ending> {
        let state = berth
            .holding()
            .map_or_else(|| "Closed".to_owned(), |h| format!("{:?}", h.phase));
        self.api
            .berths
            .put(&berth)
            .await
            .with_context(|| format!("cannot write berth {}", berth.name()))?;
        self.learn_berths();
        tracing::info!(berth = berth.name(), state, "wrote the berth");
        Ok(Ending::Done)
    }

    async fn take(&mut self, berth: &Berth) -> Result<Ending> {
        let Some(node) = self.knowledge.cluster.node.get() else {
            return Ok(Ending::NotNeeded);
        };
        let taken = berth.taken(
            &self.node,
            &node.uid,
            self.knowledge.host.os.booted().cloned(),
            self.boot_id(),
        )?;
        self.store(taken).await
    }

    async fn cordon(&mut self, berth: &Berth) -> Result<Ending> {
        let Some(node) = self.knowledge.cluster.node.get() else {
            return Ok(Ending::NotNeeded);
        };
        let client = kubelet_client(&mut self.api.kubelet).await?;
        cordon::cordon(client, self.node.as_str(), node, &berth.name())
            .await
            .context("cannot cordon the Node")?;
        tracing::info!(berth = berth.name(), "cordoned the Node");
        Ok(Ending::Done)
    }

    async fn restore(&mut self) -> Result<Ending> {
        let Some(node) = self.knowledge.cluster.node.get() else {
            return Ok(Ending::NotNeeded);
        };
        let client = kubelet_client(&mut self.api.kubelet).await?;
        // The mark is the value of an annotation. Without a new value, the write would not change the Node's
        // resourceVersion.
        let mark = Timestamp::now().to_string();
        cordon::restore(client, self.node.as_str(), node, &mark)
            .await
            .context("cannot undo the cordon of the Node")?;
        tracing::info!("restored the Node to its state before the cordon");
        Ok(Ending::Done)
    }

    /// Removes Berth's cordon after a read from the API server has confirmed that this node holds no berth.
    async fn uncordon(&mut self) -> Result<Ending> {
        self.refresh_berths().await?;
        if self.knowledge.is_in_turn() {
            return Ok(Ending::NotNeeded);
        }
        self.restore().await
    }
}

/// Returns a client with the kubelet's identity, for writes of the Node and evictions.
async fn kubelet_client(kubelet: &mut KubeletClient) -> Result<&Client> {
    kubelet.get().await.context("cannot use the kubelet's identity")
}
