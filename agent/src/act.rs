//! Doing one step. Each arm does one thing to one system, and leaves behind what must be read anew.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::berth::{Berth, HoldPhase, Outcome};
use berth_api::condition::one_line;
use berth_api::digest::Digest;
use berth_api::node::DrainBlocker;
use berth_core::agent::facts::{ClusterNode, Deployments, DrainFacts, Os};
use berth_core::agent::node::NodeFacts;
use berth_core::agent::step::Step;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::host::bootc::BootcStatus;
use crate::host::{BootcVersion, HostError};
use crate::node::cordon;
use crate::node::drain::{Drain, DrainProgress, Given, Settings};
use crate::run::Agent;
use crate::run::describe;

/// How soon settings that make no sense are looked at again.
const SETTINGS_AGAIN: Duration = Duration::from_secs(10);
/// Longest reason of a blocker that the schema allows.
const MAX_BLOCKER_REASON: usize = 512;

impl Agent {
    /// Does one step.
    pub(crate) async fn act(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Wait(..) => Ok(()),
            Step::LookAtHost => self.look_at_host().await,
            Step::ReadNode => self.read_node().await,
            Step::StartPull(image) => {
                self.past.staged_by_us = Some(image.digest.clone());
                self.remember();
                self.forget_os();
                self.host
                    .start_pull(&image)
                    .await
                    .with_context(|| format!("cannot start the pull of {}", image.reference))
            }
            Step::CancelPull(digest) => {
                self.forget_os();
                self.host
                    .cancel_pull(&digest)
                    .await
                    .with_context(|| format!("cannot stop the pull of {digest}"))
            }
            Step::Lock | Step::Unlock | Step::Unstage => self.change_staged(step).await,
            Step::Reboot => self.reboot_host().await,
            Step::Drain => self.drain_pass().await,
            step => self.act_on_cluster(step).await,
        }
    }

    /// Changes what is staged. The same change twice in a row means that the first had no effect.
    async fn change_staged(&mut self, step: Step) -> Result<()> {
        self.forget_os();
        // The Node is read again before anything is decided on what the host now is.
        self.cluster_node = ClusterNode::Unread;
        let name = describe(&step);
        let again = self.changed.as_ref() == Some(&name);
        let done = match step {
            Step::Lock => self.host.lock().await,
            Step::Unlock => self.host.unlock().await,
            _ => self.host.unstage().await,
        };
        done.with_context(|| format!("{name} failed on the host"))?;
        self.changed = Some(name.clone());
        anyhow::ensure!(!again, "{name} ended well on the host, and had no effect");
        Ok(())
    }

    async fn act_on_cluster(&mut self, step: Step) -> Result<()> {
        let result = match step {
            Step::Take(berth) => self.take(&berth).await,
            Step::Cordon(berth) => self.cordon(&berth).await,
            Step::Commit(berth) => self.commit(&berth).await,
            Step::Relicense(berth, digest) => self.relicense(&berth, &digest).await,
            // The same once more: its renewTime makes it another version.
            Step::Fence(berth) => self.store(berth).await,
            Step::Uncommit(berth) => {
                // Stored first: should the write be lost, the next try still knows why.
                let stored = self.store(berth.uncommitted()?).await;
                if stored.is_ok() && self.reboot_asked.take().is_some() && self.reboot_blocked.is_none() {
                    self.reboot_is_blocked("logind accepted the reboot, and no shutdown began".to_owned());
                }
                stored
            }
            Step::Release(berth, outcome, message) => {
                self.turn_message = message;
                self.restored = false;
                if outcome == Outcome::Updated {
                    self.past.turn_proven(Timestamp::now());
                }
                self.store(berth.releasing(outcome, self.host.boot_id()?)?).await
            }
            Step::Restore(_) => self.restore().await,
            Step::GiveBack(berth) => self.give_back(&berth).await,
            Step::Uncordon => self.uncordon().await,
            _ => Ok(()),
        };
        // Whatever happened, the Node is read again before the next decision on it.
        self.cluster_node = ClusterNode::Unread;
        if let Err(error) = &result {
            tracing::debug!(error = format!("{error:#}"), "reading the berths again");
            // A conflict means that somebody else wrote: decide anew from what is there.
            self.berths
                .refresh()
                .await
                .context("cannot list the berths of this node")?;
        }
        result
    }

    async fn look_at_host(&mut self) -> Result<()> {
        self.rivals = self.host.rivals().await.unwrap_or_default();
        self.finalization_failed = self.host.finalization_failed().await.unwrap_or_default();
        self.os = match self.host.bootc_version().await {
            BootcVersion::Missing => unusable("BootcMissing", "the host has no /usr/bin/bootc"),
            BootcVersion::TooOld(v) => unusable(
                "BootcTooOld",
                &format!("bootc {v} is too old; 1.12.1 or newer is needed"),
            ),
            BootcVersion::Failed(message) => unusable("BootcFailed", &message),
            BootcVersion::Version(version) => {
                self.bootc_version = Some(version);
                match self.host.status().await {
                    Ok(status) => os(status),
                    // A pull or a tool that we did not know of runs: its end is waited for, not taken for an answer.
                    Err(error @ HostError::Busy(_)) => return Err(error).context("cannot look at the host"),
                    Err(error) => unusable("StatusFailed", &format!("{error:#}")),
                }
            }
        };
        self.fresh = true;
        self.looked = Instant::now();
        // What is decided next on the host is decided on a Node that was read after it.
        self.unread_node_in_turn();
        self.check_pulled();
        Ok(())
    }

    /// After a pull that ended well, its image must be staged; a host tool that says otherwise has failed.
    fn check_pulled(&mut self) {
        let Some(digest) = self.pulled.take() else { return };
        if self.os.deployments().is_none() {
            return;
        }
        let staged = self.os.staged().and_then(|s| s.digest.as_ref());
        if staged == Some(&digest) || self.os.booted() == Some(&digest) {
            self.past.succeeded(&digest);
        } else {
            self.pull_failed(&digest, "bootc switch ended well, but the image is not staged");
        }
    }

    async fn read_node(&mut self) -> Result<()> {
        let client = self
            .kubelet
            .get()
            .await
            .context("cannot use the kubelet's credentials")?;
        let node = cordon::read(client, self.node.as_str())
            .await
            .context("cannot read the Node")?;
        self.cluster_node = node.map_or(ClusterNode::Gone, ClusterNode::Is);
        Ok(())
    }

    async fn reboot_host(&mut self) -> Result<()> {
        tracing::warn!("asking logind to reboot the host");
        self.reboot_asked = Some(Instant::now());
        self.reboot_blocked = None;
        self.fresh = false;
        if let Err(error) = self.host.reboot().await {
            self.reboot_is_blocked(format!("logind refused the reboot: {error:#}"));
        }
        Ok(())
    }

    async fn drain_pass(&mut self) -> Result<()> {
        // Without the object, the settings under which the least is moved.
        let pool = self.object().map(|object| object.spec.drain).unwrap_or_default();
        // A drain under a boot that is not proven is not in the phase that tells how long it takes.
        self.turn_since.get_or_insert_with(Instant::now);
        let elapsed = self.draining_for();
        let boot_id = self.host.boot_id()?;
        let settings = match Settings::new(&pool, elapsed) {
            Ok(settings) => settings,
            Err(error) => {
                self.cannot_drain(&error);
                return Ok(());
            }
        };
        let is_ready = |node: &NodeFacts| node.ready && node.boot_id.as_ref() == Some(&boot_id);
        let given = Given {
            node: self.node.as_str(),
            settings: &settings,
            node_ready: self.cluster_node.get().is_some_and(is_ready),
            left: pool.timeout().saturating_sub(elapsed),
            now: Timestamp::now(),
        };
        let client = self
            .kubelet
            .get()
            .await
            .context("cannot use the kubelet's credentials")?;
        let drain = self.drain.get_or_insert_with(Drain::default);
        match drain.pass(client, &given).await.context("cannot drain the node")? {
            DrainProgress::Done { left_behind } => {
                self.drained = DrainFacts {
                    done: true,
                    left_behind,
                    ..DrainFacts::default()
                };
                self.next_pass = None;
                // Between here and the commit everything is read once more.
                self.fresh = false;
            }
            DrainProgress::Waiting { blockers, next } => {
                self.drained = DrainFacts {
                    done: false,
                    blockers,
                    ..DrainFacts::default()
                };
                self.next_pass = Some(Instant::now() + next);
            }
        }
        self.cluster_node = ClusterNode::Unread;
        Ok(())
    }

    /// Settings that make no sense are in the way like a pod: nothing is moved, and it is said why.
    fn cannot_drain(&mut self, error: &anyhow::Error) {
        let since = self
            .drained
            .blockers
            .first()
            .map_or_else(|| Time::from(Timestamp::now()), |b| b.since.clone());
        let reason = one_line(&format!("{error:#}; nothing is moved until it is corrected"));
        let blocker = DrainBlocker {
            pod: "drain.podSelector".to_owned(),
            reason: reason.chars().take(MAX_BLOCKER_REASON).collect(),
            since,
        };
        self.drained = DrainFacts {
            blockers: vec![blocker],
            ..DrainFacts::default()
        };
        self.next_pass = Some(Instant::now() + SETTINGS_AGAIN);
        self.cluster_node = ClusterNode::Unread;
    }

    async fn store(&mut self, berth: Berth) -> Result<()> {
        let state = berth
            .holding()
            .map_or_else(|| "Closed".to_owned(), |h| format!("{:?}", h.phase));
        self.fenced = false;
        self.berths
            .put(&berth)
            .await
            .with_context(|| format!("cannot write berth {}", berth.name()))?;
        self.fenced = true;
        tracing::info!(berth = berth.name(), state, "berth");
        Ok(())
    }

    async fn take(&mut self, berth: &Berth) -> Result<()> {
        let Some(node) = self.cluster_node.get() else {
            return Ok(());
        };
        let taken = berth.taken(&self.node, &node.uid, self.os.booted().cloned(), self.host.boot_id()?)?;
        self.begin_turn();
        self.turn_since = Some(Instant::now());
        if self.past.turn_begins() {
            self.remember();
        }
        self.store(taken).await
    }

    async fn commit(&mut self, berth: &Berth) -> Result<()> {
        self.reboot_asked = None;
        let drained_in = self.draining_for();
        self.store(berth.committed(self.host.boot_id()?)?).await?;
        self.past.turn_commits(drained_in, Timestamp::now());
        self.remember();
        Ok(())
    }

    async fn relicense(&mut self, berth: &Berth, digest: &Digest) -> Result<()> {
        self.reboot_asked = None;
        self.reboot_blocked = None;
        let boot_id = self.host.boot_id()?;
        let next = berth.relicensed(digest.clone(), boot_id.clone())?;
        if let Some(holding) = berth.holding() {
            // Before the berth names this boot: whoever reads that must know that the boot is not proven.
            self.past.goes_on(holding, digest, &boot_id, Timestamp::now());
            // Where what was proven last runs, nothing but the memory says so.
            match self.os.booted() == holding.from.as_ref() {
                true => self
                    .save_memory()
                    .context("cannot go on without the agent's memory on the host")?,
                false => self.remember(),
            }
        }
        self.store(next).await?;
        tracing::warn!(berth = berth.name(), %digest, "going on from a boot that is not proven");
        Ok(())
    }

    /// A new turn remembers nothing of the one before.
    fn begin_turn(&mut self) {
        self.drain = None;
        self.drained = DrainFacts::default();
        self.next_pass = None;
        self.turn_since = None;
        self.reboot_asked = None;
        self.reboot_blocked = None;
        self.restored = false;
        self.turn_counted = false;
        self.changed = None;
        self.turn_message.clear();
    }

    async fn cordon(&mut self, berth: &Berth) -> Result<()> {
        let Some(node) = self.cluster_node.get() else {
            return Ok(());
        };
        // Whatever was drained before: pods may have come while the Node was schedulable.
        self.drain = None;
        self.drained = DrainFacts::default();
        self.next_pass = None;
        // Where nothing is drained, everything is read once more between here and the commit.
        self.fresh = false;
        let client = self
            .kubelet
            .get()
            .await
            .context("cannot use the kubelet's credentials")?;
        cordon::cordon(client, self.node.as_str(), node, &berth.name())
            .await
            .context("cannot cordon the Node")?;
        tracing::info!(berth = berth.name(), "cordoned");
        Ok(())
    }

    async fn restore(&mut self) -> Result<()> {
        let Some(node) = self.cluster_node.get() else {
            return Ok(());
        };
        let client = self
            .kubelet
            .get()
            .await
            .context("cannot use the kubelet's credentials")?;
        // The mark has a new value each time: the same value would not move the resourceVersion.
        let mark = Timestamp::now().to_string();
        cordon::restore(client, self.node.as_str(), node, &mark)
            .await
            .context("cannot restore the Node")?;
        self.restored = true;
        tracing::info!("restored the Node");
        Ok(())
    }

    async fn give_back(&mut self, berth: &Berth) -> Result<()> {
        if let Some(holding) = berth.holding()
            && let HoldPhase::Releasing(outcome) = holding.phase
        {
            // Counted and stored before the berth is closed: a crash in between counts a turn twice, never not at all.
            if !self.turn_counted {
                self.count_turn(outcome, &holding.target);
            }
            self.store(berth.given_back()?).await?;
        }
        self.begin_turn();
        self.berths
            .refresh()
            .await
            .context("cannot list the berths of this node")
    }

    /// A cordon of ours that no berth covers, as the API server's own storage has it.
    async fn uncordon(&mut self) -> Result<()> {
        self.berths
            .refresh()
            .await
            .context("cannot list the berths of this node")?;
        match self.in_turn() {
            true => Ok(()),
            false => self.restore().await,
        }
    }
}

fn unusable(reason: &'static str, message: &str) -> Os {
    Os::Unusable {
        reason,
        message: message.to_owned(),
    }
}

fn os(status: BootcStatus) -> Os {
    match status {
        BootcStatus::NotBootc => unusable(
            "NotBootcHost",
            "bootc status reports no booted deployment; the host was not installed as a bootc host",
        ),
        BootcStatus::Layered => unusable(
            "LayeredHost",
            "the booted deployment has packages layered by rpm-ostree, which an update would drop; run `rpm-ostree reset` on the host first",
        ),
        BootcStatus::Host(host) => Os::Bootc(Box::new(Deployments {
            booted: host.booted,
            staged: host.staged,
            rollback: host.rollback,
        })),
    }
}
