//! How the agent's own steps and waits change its knowledge: see the table in [`super::freshness`].

use std::mem::discriminant;

use berth_api::berth::HoldPhase;
use berth_api::digest::Digest;
use berth_api::node::Deployment;

use super::event::{DrainProgress, Ending};
use super::state::{Knowledge, Rest};
use super::turn::Since;
use crate::agent::facts::{ClusterNode, StepFailure};
use crate::agent::reason::Reason;
use crate::agent::step::{Step, WaitReason};
use crate::{BootMoment, Now};

/// After this number of failures in a row, the agent gives up. After failed unlocks, it ends the turn. After failed
/// locks, it removes the armed image.
const GIVE_UP_AFTER: u32 = 3;

impl Knowledge {
    /// Forgets all knowledge that may become wrong when this step runs. Called before the step.
    fn invalidate(&mut self, step: &Step) {
        if !matches!(step, Step::LookAtHost | Step::ReadNode | Step::TryGuard) {
            self.rest = None;
        }
        if !matches!(
            step,
            Step::Lock(_) | Step::Unlock | Step::Unstage(_) | Step::Rollback(..) | Step::LookAtHost | Step::ReadNode
        ) {
            self.turn.changed = None;
        }
        if step.writes_berth() {
            self.cluster.fenced = false;
        }
        self.host.disarmed &= !matches!(step, Step::StartPull(..) | Step::CancelPull(_) | Step::Unlock);
    }

    pub(super) fn begins(&mut self, step: &Step, now: &Now) {
        self.invalidate(step);
        self.turn.wrote = match step {
            Step::Commit(_) | Step::Relicense(..) => Some(discriminant(&HoldPhase::Committed)),
            Step::Uncommit(_) => Some(discriminant(&HoldPhase::Taken)),
            Step::Release(_, outcome, _) => Some(discriminant(&HoldPhase::Releasing(*outcome))),
            _ => self.turn.wrote,
        };
        match step {
            Step::Wait(..) | Step::LookAtHost | Step::ReadNode => {}
            Step::StartPull(image, _) => self.pull_begins(&image.digest),
            Step::CancelPull(digest) => {
                self.past.incomplete = Some(digest.clone());
                self.host.forget_os();
            }
            Step::Lock(_) | Step::Unlock => self.host_change_begins(),
            Step::Unstage(staged) => {
                self.record_unlockable(staged, now);
                self.host_change_begins();
            }
            Step::Rollback(_, reason, why) => {
                self.record_proof();
                self.past
                    .undo_begins(self.host.os.booted(), self.host.boot_id(), *reason, why);
                self.host_change_begins();
            }
            Step::Reboot => {
                self.turn.reboot.asked = Some(now.clock);
                self.turn.reboot.blocked = None;
                self.host.fresh = false;
            }
            Step::Take(_) => self.turn_begins(now),
            Step::Cordon(_) => {
                // Pods may have been scheduled here while the Node was not cordoned.
                self.turn.drain.restart();
                // Read the host once more before the commit, even if the node has no pods to drain.
                self.host.fresh = false;
            }
            Step::Drain => self.begin_to_drain(now),
            Step::Commit(berth) => {
                self.turn.reboot.asked = None;
                let target = berth.holding().map(|holding| &holding.target);
                self.past.target_deployed = target.and_then(|target| self.host.os.has_deployed(target));
            }
            Step::Relicense(berth, digest) => {
                (self.turn.reboot.asked, self.turn.reboot.blocked) = (None, None);
                self.past.target_deployed = self.host.os.has_deployed(digest);
                if let Some(holding) = berth.holding() {
                    // Record the unproven boot before the berth names this boot. From then on, only the record shows
                    // that the boot is unproven.
                    self.past.relicensed(holding, digest, self.host.boot_id());
                }
            }
            Step::Release(_, _, message) => {
                self.record_proof();
                self.turn.message.clone_from(message);
                self.turn.restored = false;
            }
            // Count the turn before its berth is closed. After a crash in between, the turn is counted twice instead of
            // never.
            Step::GiveBack(berth) => self.count_turn(berth, now),
            Step::TryGuard | Step::Fence(_) | Step::Uncommit(_) | Step::Restore(_) | Step::Uncordon => {}
        }
    }

    fn turn_begins(&mut self, now: &Now) {
        self.begin_turn();
        self.turn.wrote = Some(discriminant(&HoldPhase::Taken));
        self.begin_to_drain(now);
        self.past.turn_begins();
    }

    fn pull_begins(&mut self, digest: &Digest) {
        (self.pulls.renewed, self.pulls.processed) = (false, None);
        self.past.staged_with = self.host.os.deployments().map(|d| d.backend.name);
        self.past.pull_begins(digest);
        self.host.forget_os();
    }

    fn host_change_begins(&mut self) {
        self.host.forget_os();
        // Read the Node again before the next decision about the host.
        self.cluster.node = ClusterNode::Unread;
    }

    pub(super) fn ends(&mut self, step: &Step, ending: Ending, now: &Now) {
        if step.asks_cluster() {
            // Read the Node again before the next decision about it, even if the step failed.
            self.cluster.node = ClusterNode::Unread;
        }
        let is_done = ending == Ending::Done;
        match ending {
            Ending::Failed { reason, message } => return self.failed(step, reason, message, now),
            Ending::NotNeeded => {}
            Ending::Refused(why) => self.turn.reboot.block(why, now),
            Ending::Drain(progress) => {
                // Read the host once more between the end of the drain and the commit.
                self.host.fresh &= matches!(progress, DrainProgress::Waiting { .. });
                self.turn.drain.pass_ended(progress, now);
            }
            Ending::Done => self.done(step, now),
        }
        self.failures.step.take_if(|(kind, _)| *kind == discriminant(step));
        if let Step::Unlock | Step::Reboot = step {
            self.turn.reboot.busy_since = None;
        }
        self.cluster.fenced |= step.writes_berth() && is_done;
    }

    fn done(&mut self, step: &Step, now: &Now) {
        match step {
            Step::Lock(_) | Step::Unlock | Step::Unstage(_) | Step::Rollback(..) => {
                self.turn.changed = Some(discriminant(step))
            }
            // If the commit is taken back, the next drain gets a new time limit.
            Step::Commit(_) => self.forget_drain_time(),
            Step::Uncommit(_) => self.turn.reboot.commit_taken_back(now),
            Step::Restore(_) | Step::Uncordon => self.turn.restored = true,
            Step::GiveBack(_) => self.begin_turn(),
            Step::Wait(..)
            | Step::LookAtHost
            | Step::ReadNode
            | Step::TryGuard
            | Step::StartPull(..)
            | Step::CancelPull(_)
            | Step::Reboot
            | Step::Take(_)
            | Step::Cordon(_)
            | Step::Drain
            | Step::Fence(_)
            | Step::Relicense(..)
            | Step::Release(..) => {}
        }
    }

    fn failed(&mut self, step: &Step, reason: Reason, message: String, now: &Now) {
        self.cluster.node = ClusterNode::Unread;
        let is_busy = reason == Reason::HostBusy;
        let attempts = self.failures.count(step, reason);
        match step {
            Step::Unlock | Step::Reboot if is_busy => self.turn.reboot.wait_for_other_work(&message, now),
            Step::Unlock if attempts >= GIVE_UP_AFTER => {
                // The turn must end, with the image still locked. Otherwise the agent would retry the unlock forever.
                let why = format!("the staged image cannot be unlocked: {message}");
                self.turn.reboot.block(why, now);
            }
            _ => {}
        }
        if matches!(step, Step::Lock(_)) && !is_busy && (attempts >= GIVE_UP_AFTER || self.failures.lock.is_some()) {
            self.failures.lock_failed(&message, now);
        }
        let trouble = StepFailure {
            reason,
            message,
            attempts,
        };
        self.failures.step = Some((discriminant(step), trouble));
    }

    pub(super) fn rests(&mut self, why: WaitReason, now: &Now) {
        self.failures.step = None;
        self.turn.changed = None;
        self.cluster.unread_node_in_turn();
        let is_rest = matches!(
            why,
            WaitReason::Updated | WaitReason::Released | WaitReason::NothingAsked
        );
        self.rest = match (is_rest && self.cluster.holding().is_none(), self.rest) {
            (true, None) => Some(Rest { reread: None }),
            (true, rest) => rest,
            (false, _) => None,
        };
        if let WaitReason::NothingAsked | WaitReason::Released | WaitReason::OtherNode | WaitReason::Excluded = why {
            self.forget_what_is_gone();
        }
        match why {
            WaitReason::ForeignBerth | WaitReason::OtherNode | WaitReason::Excluded => {
                self.cluster.node = ClusterNode::Unread;
            }
            WaitReason::Rebooting | WaitReason::NoBerth | WaitReason::RollbackQueued | WaitReason::RivalUpdater => {
                self.host.fresh = false;
            }
            // The agent may wait for days here. Pods that come meanwhile need another drain, with a new time limit.
            WaitReason::Revoked | WaitReason::WindowClosed | WaitReason::Inhibited => {
                self.host.fresh = false;
                self.turn.drain.restart();
                self.forget_drain_time();
            }
            WaitReason::Unproven => self.host.fresh &= !self.host.looked_long_ago(now),
            WaitReason::ShuttingDown
            | WaitReason::NothingAsked
            | WaitReason::Released
            | WaitReason::BerthsUnknown
            | WaitReason::Updated
            | WaitReason::Unresolved
            | WaitReason::HostUnusable
            | WaitReason::HostUnreachable
            | WaitReason::Forgetful
            | WaitReason::Unguarded
            | WaitReason::FailedDigest
            | WaitReason::ImageRefused
            | WaitReason::BackingOff
            | WaitReason::Unlockable
            | WaitReason::StagingHeld
            | WaitReason::Pulling
            | WaitReason::Draining
            | WaitReason::NotReady
            | WaitReason::Unhealthy => {}
        }
    }

    fn begin_turn(&mut self) {
        self.turn.begin();
        self.forget_drain_time();
    }

    fn forget_drain_time(&mut self) {
        self.turn.drain.since = None;
        (self.past.drain_began, self.past.drain_since) = (None, None);
    }

    fn begin_to_drain(&mut self, now: &Now) {
        if self.turn.drain.since.is_none() {
            self.turn.drain.since = Some(Since::now(now));
            self.past.drain_began.get_or_insert(now.wall);
            self.past.drain_since = Some(BootMoment::new(self.host.boot_id(), now.clock));
        }
    }

    /// If the agent is about to remove the desired image because the image cannot be locked, records that as a failed
    /// pull. The next pull then waits for the backoff.
    fn record_unlockable(&mut self, staged: &Deployment, now: &Now) {
        let deployments = self.host.os.deployments();
        let cannot_lock =
            deployments.is_some_and(|d| d.storage.ostree_lock().is_none() || self.failures.lock.is_some());
        let is_for_the_lock = !staged.locked && cannot_lock;
        let is_tried_again = self.failures.is_of(&Step::Unstage(staged.clone()));
        let desired = self
            .desired
            .digest()
            .filter(|d| staged.digest.as_ref() == Some(d) && self.past.is_complete(d));
        if let Some(digest) = desired.filter(|_| is_for_the_lock && !is_tried_again).cloned() {
            let message = "the staged image could not be locked, so the agent removes it and stages it again";
            self.past
                .pull_failed(Reason::LockFailed.as_str(), message, &digest, now.wall, now.chance);
        }
    }
}
