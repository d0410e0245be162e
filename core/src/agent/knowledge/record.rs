//! Updates the agent's record on the host: how turns ended, and which image was staged, booted or proven.

use berth_api::Digest;
use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::condition::CommonReason;
use berth_api::names::BootId;
use berth_api::node::timeline::{ChapterName, ImageVersion, TurnOutcome};

use super::state::Knowledge;
use super::turn::Since;
use crate::Now;
use crate::agent::facts::{Desired, Past};
use crate::agent::step::is_unproven;
use crate::agent::timeline::{self, HostState, UpdateState};

impl Knowledge {
    /// Forgets which image Berth staged, as soon as that image is no longer staged. If the node is in no pool, the
    /// agent then stops reading the host (I12).
    pub(super) fn forget_what_is_gone(&mut self) {
        let pulls = self.pulls.running.is_some() || self.pulls.succeeded.is_some();
        if self.host.os.deployments().is_some() && !pulls && !self.has_staged() {
            self.past.staged_by_us = None;
        }
    }

    pub(super) fn has_staged(&self) -> bool {
        let staged = self.host.staged_digest();
        staged.is_some() && staged == self.past.staged_by_us.as_ref()
    }

    /// If the node is giving this berth back, records the end of its turn. Further calls change nothing.
    pub(super) fn count_turn(&mut self, berth: &Berth, now: &Now) {
        let Some(holding) = berth.holding() else { return };
        let HoldPhase::Releasing(outcome) = holding.phase else {
            return;
        };
        if self.turn.counted {
            return;
        }
        let message = match self.turn.message.as_str() {
            "" => outcome.as_str(),
            message => message,
        };
        self.past
            .turn_ended(outcome, message, &holding.target, now.wall, now.chance);
        if outcome == Outcome::Updated {
            self.past.succeeded(&holding.target);
        }
        let is_back = self.host.os.booted().is_some() && self.host.os.booted() == holding.from.as_ref();
        timeline::turn_ends(&mut self.past.turns, TurnOutcome::of(outcome, is_back), now.wall);
        self.turn.counted = true;
    }

    /// Copies the completed parts of the running boot's proof from the turn to the record of the update, each with its
    /// time.
    pub(super) fn record_proof(&mut self) {
        let target = self.cluster.holding().map(|holding| &holding.target);
        let mut updates = self.past.timeline.updates.iter_mut();
        let update = updates.next().filter(|update| Some(&update.to.digest) == target);
        if let Some(update) = update
            && !self.turn.proof.is_empty()
        {
            update.proof.clone_from(&self.turn.proof);
        }
    }

    /// Records when the node joined its pool. If the node joined before this agent process first read the BootcNode,
    /// the time stays unknown.
    pub(super) fn note_membership(&mut self, desired: &Desired, is_new: bool, now: &Now) {
        let joined = self.past.timeline.joined.as_ref();
        match (&self.desired, desired) {
            (Desired::Member(was), Desired::Member(is)) if was.pool == is.pool => {}
            (was, Desired::Member(is)) => {
                let other = joined.is_some_and(|joined| joined.pool != is.pool.as_str());
                if is_new || other || *was != Desired::Unknown {
                    timeline::join(&mut self.past.timeline, is.pool.as_str(), now.wall);
                }
            }
            (_, Desired::Release) => self.past.timeline.joined = None,
            // If a pool selects the node again, the new BootcNode must count as new, although it is for the same Node
            // UID.
            (Desired::Release, Desired::Unknown) => self.published_for = None,
            (_, Desired::Unknown) => {}
        }
    }

    fn record(&mut self, now: &Now) {
        let seen = self.update_state();
        let booted = self.host.os.deployments().and_then(|d| {
            Some(ImageVersion {
                digest: d.booted.digest.clone()?,
                version: d.booted.version.clone(),
            })
        });
        let past = &mut self.past;
        past.timeline = timeline::timeline(&past.timeline, &seen, booted.as_ref(), now.wall);
        let Some(berths) = &self.cluster.berths else { return };
        let boot_id = self.host.boot_id();
        let node = self.cluster.node.get();
        let rolled_back = rolled_back(past, boot_id);
        let host = HostState {
            boot_id,
            booted: self.host.os.booted(),
            node_ready: node.is_some_and(|node| node.reports_ready(boot_id)),
            drain_began: past.drain_began,
            rolled_back: rolled_back.as_deref(),
        };
        let held = berths.iter().find(|berth| berth.holding().is_some());
        past.turns = timeline::turns(&past.turns, held, &past.timeline, &host, now.wall);
    }

    fn update_state(&self) -> UpdateState {
        let Some(berths) = &self.cluster.berths else {
            return UpdateState::Nothing;
        };
        if let Some(holding) = berths.iter().find_map(Berth::holding) {
            return self.update_on(self.chapter(holding), &holding.target);
        }
        let desired = match &self.desired {
            Desired::Unknown => return UpdateState::Nothing,
            Desired::Release => None,
            Desired::Member(_) => self.desired.digest(),
        };
        if let Some(digest) = desired {
            if self.pulls.running.as_ref().is_some_and(|pull| pull.digest == *digest) {
                return self.update_on(ChapterName::Prepared, digest);
            }
            if self.host.is_staged_locked(digest)
                && self.past.is_complete(digest)
                && self.host.os.booted() != Some(digest)
            {
                return self.update_on(ChapterName::Waited, digest);
            }
        }
        UpdateState::Idle {
            desired: desired.cloned(),
            booted: self.host.os.booted().cloned(),
            failed: desired.is_some_and(|digest| self.past.failed_digests.contains(digest)),
        }
    }

    fn update_on(&self, chapter: ChapterName, digest: &Digest) -> UpdateState {
        let image = self.desired.image().filter(|image| image.digest == *digest);
        let version = image.and_then(|image| image.version.clone());
        let to = ImageVersion {
            digest: digest.clone(),
            version,
        };
        let drains = chapter == ChapterName::Drained;
        UpdateState::On {
            chapter,
            to,
            began: self.past.drain_began.filter(|_| drains),
        }
    }

    fn chapter(&self, holding: &Holding) -> ChapterName {
        let boot_id = self.host.boot_id();
        let booted = self.host.os.booted();
        match holding.phase {
            HoldPhase::Releasing(outcome) => {
                let is_back = booted.is_some() && booted == holding.from.as_ref();
                TurnOutcome::of(outcome, is_back).chapter()
            }
            HoldPhase::Committed if holding.boot_id == *boot_id && booted != Some(&holding.target) => {
                ChapterName::Rebooted
            }
            _ if is_unproven(holding, boot_id, &self.host.os, &self.past) => ChapterName::Proven,
            HoldPhase::Committed => ChapterName::Rebooted,
            HoldPhase::Taken => ChapterName::Drained,
        }
    }

    /// Updates the agent's record from its current knowledge. A second call changes nothing.
    pub(super) fn recall(&mut self, now: &Now) {
        let token = match &self.desired {
            Desired::Member(member) => member.retry_token.as_deref(),
            Desired::Unknown | Desired::Release => None,
        };
        self.past.retry(token, self.host.boot_id());
        let holding = self.cluster.holding();
        if let Some(digest) = self.desired.digest() {
            self.past.desire(digest);
            if self.host.os.booted() == Some(digest) && self.cluster.berths.is_some() && holding.is_none() {
                self.past.proven(digest);
            } else if self.host.is_staged_locked(digest) {
                self.past.succeeded(digest);
            }
        }
        // Store that the target has booted, before any decision about that boot (I5).
        let boot_id = self.host.boot_id();
        match holding {
            Some(holding) => {
                self.past.runs(holding, self.host.os.booted());
                self.past
                    .falls_back(holding, boot_id, &self.host.os, self.host.finalization_failed);
                let unproven = is_unproven(holding, boot_id, &self.host.os, &self.past);
                if let Some(health) = self.host.health().filter(|_| !unproven) {
                    self.past.health_before = Some(health.into());
                }
                self.turn.proving = unproven.then(|| match self.turn.proving {
                    Some(since) => since,
                    None => Since::remembered(self.past.proof_begins(boot_id, now.clock), now),
                });
            }
            None => self.turn.proving = None,
        }
        self.note_boot();
        self.record(now);
    }

    /// Records which image a member has booted, and whether it booted another image without a berth. Changes nothing if
    /// the Node, the berths or the deployments are not read yet.
    fn note_boot(&mut self) {
        let member = match &self.desired {
            Desired::Member(member) => member,
            Desired::Release => return self.past.forget_boot(),
            Desired::Unknown => return,
        };
        let Some(node) = self.cluster.node.get().filter(|node| node.uid == member.node_uid) else {
            return;
        };
        if node.excluded {
            return self.past.forget_boot();
        }
        let (Some(_), Some(known)) = (&self.cluster.berths, self.host.os.deployments()) else {
            return;
        };
        let boot_id = self.host.boot_id();
        if self.cluster.holding().is_some() {
            self.past.boots_with_berth(known);
        } else if self.past.last_booted.is_some() || (node.reports_ready(boot_id) && node.cordon.is_none()) {
            self.past.boots_without_berth(known, self.desired.digest());
        }
    }
}

/// Returns why the host left the image of the current turn, as a condition reason: either the rollback that the agent
/// or the rollback guard began, or `FellBack`. `None` if neither happened.
fn rolled_back(past: &Past, boot_id: &BootId) -> Option<String> {
    if let Some(undone) = &past.undone {
        return Some(undone.reason.clone());
    }
    let fell = past.fell_back.as_ref().filter(|fell| fell.boot_id == *boot_id)?;
    past.failed_digests
        .contains(&fell.digest)
        .then(|| CommonReason::FellBack.as_str().to_owned())
}
