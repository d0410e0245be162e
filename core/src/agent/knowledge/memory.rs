//! Content of the host's memory: how a turn ended, what was staged, what ran and what was proven.

use berth_api::Digest;
use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::node::Deployment;
use berth_api::node::timeline::{ChapterName, ImageVersion, TurnOutcome};

use super::state::{Knowledge, Since};
use crate::Now;
use crate::agent::facts::{Deployments, Desired};
use crate::agent::step::is_unproven;
use crate::agent::timeline::{self, Seen, Sight};

impl Knowledge {
    /// Forgets that Berth staged something here, once it is gone: from then on the host of a node that no pool has is not
    /// even read (I12).
    pub(super) fn forget_what_is_gone(&mut self) {
        let ours = |d: &Deployments| {
            let staged = d.staged.as_ref().and_then(|s| s.digest.as_ref());
            staged.is_some() && staged == self.past.staged_by_us.as_ref()
        };
        let pulls = self.pull.is_some() || self.pulled.is_some();
        if !pulls && self.os.deployments().is_some_and(|d| !ours(d)) {
            self.past.staged_by_us = None;
        }
    }

    /// The turn ends like this: the next one must know.
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
        let is_back = self.os.booted().is_some() && self.os.booted() == holding.from.as_ref();
        timeline::turn_ends(&mut self.past.turns, TurnOutcome::of(outcome, is_back), now.wall);
        self.turn.counted = true;
    }

    /// Notes since when the node is a member of its pool. Nobody saw the beginning where the object is not new, and this
    /// process did not know what was asked before.
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
            // Should a pool have the node again, its object is a new one, for the same Node.
            (Desired::Release, Desired::Unknown) => self.published_for = None,
            (_, Desired::Unknown) => {}
        }
    }

    /// Brings the record of the node's updates up to what is known now.
    fn record(&mut self, now: &Now) {
        let seen = self.seen();
        let booted = self.os.deployments().and_then(|d| {
            Some(ImageVersion {
                digest: d.booted.digest.clone()?,
                version: d.booted.version.clone(),
            })
        });
        let past = &mut self.past;
        past.timeline = timeline::timeline(&past.timeline, &seen, booted.as_ref(), now.wall);
        let Some(berths) = &self.berths else { return };
        let boot_id = &self.services.boot_id;
        let node = self.cluster_node.get();
        let sight = Sight {
            boot_id,
            booted: self.os.booted(),
            node_ready: node.is_some_and(|n| n.ready && n.boot_id.as_ref() == Some(boot_id)),
            drain_began: past.drain_began,
        };
        let held = berths.iter().find(|berth| berth.holding().is_some());
        past.turns = timeline::turns(&past.turns, held, &past.timeline, &sight, now.wall);
    }

    /// Sight of the node's update.
    fn seen(&self) -> Seen {
        let Some(berths) = &self.berths else {
            return Seen::Nothing;
        };
        let on = |chapter, digest: &Digest| {
            let image = self.desired.image().filter(|image| image.digest == *digest);
            let version = image.and_then(|image| image.version.clone());
            let to = ImageVersion {
                digest: digest.clone(),
                version,
            };
            let drains = chapter == ChapterName::Drained;
            Seen::On {
                chapter,
                to,
                began: self.past.drain_began.filter(|_| drains),
            }
        };
        if let Some(holding) = berths.iter().find_map(Berth::holding) {
            return on(self.chapter(holding), &holding.target);
        }
        let desired = match &self.desired {
            Desired::Unknown => return Seen::Nothing,
            Desired::Release => None,
            Desired::Member(_) => self.desired.digest(),
        };
        if let Some(digest) = desired {
            let is_it = |s: &Deployment| s.locked && s.digest.as_ref() == Some(digest);
            if self.pull.as_ref().is_some_and(|pull| pull.digest == *digest) {
                return on(ChapterName::Prepared, digest);
            }
            if self.os.staged().is_some_and(is_it) && self.past.is_complete(digest) && self.os.booted() != Some(digest)
            {
                return on(ChapterName::Waited, digest);
            }
        }
        Seen::Idle {
            desired: desired.cloned(),
            booted: self.os.booted().cloned(),
            failed: desired.is_some_and(|digest| self.past.failed_digests.contains(digest)),
        }
    }

    /// The chapter of a turn.
    fn chapter(&self, holding: &Holding) -> ChapterName {
        let boot_id = &self.services.boot_id;
        let booted = self.os.booted();
        match holding.phase {
            HoldPhase::Releasing(outcome) => {
                let is_back = booted.is_some() && booted == holding.from.as_ref();
                TurnOutcome::of(outcome, is_back).chapter()
            }
            HoldPhase::Committed if holding.boot_id == *boot_id && booted != Some(&holding.target) => {
                ChapterName::Rebooted
            }
            _ if is_unproven(holding, boot_id, &self.os, &self.past) => ChapterName::Proven,
            HoldPhase::Committed => ChapterName::Rebooted,
            HoldPhase::Taken => ChapterName::Drained,
        }
    }

    /// Draws the memory's conclusions from what is known now. Doing so twice makes no difference.
    pub(super) fn recall(&mut self, now: &Now) {
        let token = match &self.desired {
            Desired::Member(member) => member.retry_token.as_deref(),
            Desired::Unknown | Desired::Release => None,
        };
        self.past.retry(token);
        let holding = self.berths.iter().flatten().find_map(Berth::holding);
        if let Some(digest) = self.desired.digest() {
            self.past.desire(digest);
            let is_staged = |s: &berth_api::node::Deployment| s.locked && s.digest.as_ref() == Some(digest);
            if self.os.booted() == Some(digest) && self.berths.is_some() && holding.is_none() {
                self.past.proven(digest);
            } else if self.os.staged().is_some_and(is_staged) {
                self.past.succeeded(digest);
            }
        }
        // That a target ran is known before anything is decided about it, and for good (I5).
        let boot_id = &self.services.boot_id;
        match holding {
            Some(holding) => {
                self.past.runs(holding, self.os.booted());
                let unproven = is_unproven(holding, boot_id, &self.os, &self.past);
                self.proving = unproven.then(|| match self.proving {
                    Some(since) => since,
                    None => Since::remembered(self.past.proof_begins(boot_id, now.clock), now),
                });
            }
            None => self.proving = None,
        }
        self.record(now);
    }
}
