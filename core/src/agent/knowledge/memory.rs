//! Content of the host's memory: how a turn ended, what was staged, what ran and what was proven.

use berth_api::berth::{Berth, HoldPhase, Outcome};

use super::{Knowledge, Since};
use crate::Now;
use crate::agent::facts::{Deployments, Desired};
use crate::agent::step::is_unproven;

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
        self.turn.counted = true;
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
                    None => Since::remembered(self.past.proof_begins(boot_id, now.wall), now),
                });
            }
            None => self.proving = None,
        }
    }
}
