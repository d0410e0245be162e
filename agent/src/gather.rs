//! Gathering what the agent knows: reads only what may have changed and is cheap to read.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::berth::Berth;
use berth_api::digest::Digest;
use berth_api::duration;
use berth_api::names::{NodeUid, PoolName};
use berth_api::node::{BootcNode, BootcNodeStatus, Phase};
use berth_api::pool::DEFAULT_REBOOT_TIMEOUT;
use berth_core::agent::facts::{ClusterNode, Desired, Facts, HostFacts, Member, Os, PullFacts, Reboot};
use jiff::Timestamp;

use crate::host::PullState;
use crate::run::{Agent, TELL_AFTER};
use crate::watches::Seen;

impl Agent {
    pub(crate) fn object(&mut self) -> Option<BootcNode> {
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
    pub(crate) async fn gather(&mut self, object: &Option<BootcNode>) -> Result<Facts> {
        let desired = desired(object.as_ref());
        self.recall(object.as_ref(), &desired);
        let shutting_down = self
            .host
            .shutting_down()
            .await
            .context("cannot ask logind whether the host goes down")?;
        // A bus that is going away answers no more questions, and none matter now.
        let pull = if shutting_down {
            None
        } else {
            self.look_at_pull(&desired).await?
        };
        let at_stake = !shutting_down && (self.os.staged().is_some() || self.in_turn());
        let (inhibitors, shutdown_scheduled) = match at_stake {
            true => (
                self.host
                    .inhibitors()
                    .await
                    .context("cannot list logind's inhibitors")?,
                self.host
                    .shutdown_scheduled()
                    .await
                    .context("cannot ask logind for a scheduled shutdown")?,
            ),
            false => (vec![], false),
        };
        let clock_synchronized = match at_stake {
            true => self.clock.is_synchronized(&self.host, self.is_under_window()).await,
            false => self.clock.known(),
        };
        self.note_what_runs();
        let now = Timestamp::now();
        let mut drain = self.drained.clone();
        drain.elapsed = self.draining_for();
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
                clock_synchronized,
            },
            cluster_node: self.cluster_node.clone(),
            berths: self.berths.berths(),
            fenced: self.fenced,
            restored: self.restored,
            drain,
            // A process is never older than the boot that it runs in.
            proving_for: self.status.in_phase(Phase::Proving).max(self.started.elapsed()),
            past: self.past.clone(),
            trouble: self
                .failing
                .as_ref()
                .map(|(_, t)| t.clone())
                .filter(|t| t.attempts >= TELL_AFTER),
        })
    }

    /// How long the drain of this turn has taken, agent restarts included where the status tells of it.
    pub(crate) fn draining_for(&self) -> Duration {
        let here = self.turn_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.status.in_phase(Phase::Draining).max(here)
    }

    /// Whether a berth of this node, offered or held, says until when a reboot may start.
    fn is_under_window(&self) -> bool {
        let until = |b: &Berth| {
            b.offer()
                .map_or_else(|| b.holding().and_then(|h| h.open_until), |o| o.open_until)
        };
        self.berths
            .berths()
            .is_some_and(|berths| berths.iter().any(|b| until(b).is_some()))
    }

    /// That a target ran is known before anything is decided about it, and for good (I5).
    fn note_what_runs(&mut self) {
        let berths = self.berths.berths().unwrap_or_default();
        let Some(holding) = berths.iter().find_map(|b| b.holding()) else {
            return;
        };
        if self.past.runs(holding, self.os.booted()) {
            self.remember();
        }
    }

    fn reboot(&self) -> Reboot {
        match (&self.reboot_blocked, self.reboot_asked) {
            (Some((why, since)), _) => Reboot::Blocked {
                why: why.clone(),
                ago: since.elapsed(),
            },
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
            self.past.adopt(status);
        }
        let token = match desired {
            Desired::Member(member) => member.retry_token.as_deref(),
            _ => None,
        };
        if self.past.retry(token) {
            tracing::info!(token, "what has failed here may be tried again");
            self.remember();
        }
        if let Some(digest) = desired.digest() {
            self.past.desire(digest);
            if self.os.booted() == Some(digest) && !self.in_turn() {
                self.past.proven(digest);
            } else if self
                .os
                .staged()
                .is_some_and(|s| s.locked && s.digest.as_ref() == Some(digest))
            {
                self.past.succeeded(digest);
            }
        }
    }

    /// The running pull, if any; the end of one is dealt with here.
    async fn look_at_pull(&mut self, desired: &Desired) -> Result<Option<PullFacts>> {
        let Some(pull) = self
            .host
            .find_pull(desired.digest())
            .await
            .context("cannot look for a running pull")?
        else {
            return Ok(None);
        };
        match pull.state {
            PullState::Running => {
                self.os = Os::Unknown;
                self.fresh = false;
                Ok(Some(PullFacts {
                    progress: self.host.pull_progress(),
                    digest: pull.digest,
                }))
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
        self.past
            .host_failed(failure.reason, message, digest, failure.retry, Timestamp::now(), jitter);
        self.remember();
    }

    /// Something may have changed the host's deployments.
    pub(crate) fn forget_os(&mut self) {
        self.os = Os::Unknown;
        self.fresh = false;
    }

    /// Stores on the host what must outlive the BootcNode.
    pub(crate) fn remember(&mut self) {
        if let Err(error) = self.save_memory() {
            tracing::error!(
                error = format!("{error:#}"),
                "cannot write the agent's memory on the host; check that /var/lib/berth is writable"
            );
        }
    }

    /// The same, where nothing may go on without it.
    pub(crate) fn save_memory(&self) -> Result<()> {
        self.host.save_memory(&crate::host::Memory::from(&self.past))
    }
}

/// What the object asks for.
pub fn desired(object: Option<&BootcNode>) -> Desired {
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
        drain: spec.drain.clone(),
        retry_token: spec.retry_token.clone(),
        reboot_timeout: duration::parse_or(Some(&spec.reboot_timeout), DEFAULT_REBOOT_TIMEOUT),
    }))
}
