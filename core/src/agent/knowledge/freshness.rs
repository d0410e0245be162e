//! The rules of the agent's knowledge: for how long what it has read or done is still to be believed.
//!
//! A decision is as good as what it is made from. The shell reads and does, and tells here what came of it; every rule
//! about what is then still to be believed stands in this file. "Anew" means that the next decision asks for a new look.
//!
//! | event | deployments | Node | drain | reboot | berth |
//! | --- | --- | --- | --- | --- | --- |
//! | a pull runs, has ended, is started or stopped | unknown | | | | |
//! | deployments read | these | anew, in a turn | | | |
//! | Node read; another Node is published | | this; anew | | | |
//! | what a backend was kept for has ended | unknown | | | | |
//! | the pool asks for another backend | unknown; in a turn anew | | | | |
//! | lock, unlock, unstage | unknown | anew | | | |
//! | take, give back | | anew | forgotten | forgotten | fenced when answered |
//! | commit, licence anew | | anew | | forgotten | fenced when answered |
//! | other writes of the berth | | anew | | | fenced when answered |
//! | cordon | anew | anew | begins anew | | |
//! | drain: nothing is left | anew | anew | done | | |
//! | drain: something is left | | anew | as seen | | |
//! | restore, uncordon | | anew | | | |
//! | reboot asked for, refused | anew | | | asked, blocked | |
//! | three failed unlocks; a commit taken back | | anew | | blocked | |
//! | three failed locks, of a host that is not busy | to be removed while armed; staged anew after a pause. Packages of others are not removed: locked after a pause | anew | | | |
//! | rest, in a turn | | anew | | | |
//! | rest while a rollback is queued, or beside a rival | anew | | | | |
//! | rest until an offer, a reboot or a gate | anew | | begins anew behind a gate | | |
//! | sign of life | unknown; in a turn anew | anew, unless the host's services are silent; at rest the first time, and then every half hour | | | |
//! | another image is published at rest | | anew | | | |
//! | no answer of the host's services | anew | | | | |
//! | an answer after that | | anew | | | |
//! | 30 s with a host that cannot be used | anew | | | | |
//! | the berth is in another phase than this process wrote last | anew | | | | not fenced |
//! | a step or a read that failed | | anew | | | not fenced, if a berth was written |
//!
//! The end of a pull counts once, though the host tells of it until the memory is written.
//!
//! A pull that the registry refused for want of credentials is tried again at once when the host has others.
//!
//! That the API server refuses what it must is tried anew about an hour after it did so. Where there was nothing to try, it
//! is tried before an offer is taken. Where it did not refuse, or did not answer, it is tried after 2 s, then twice that, up
//! to ten minutes; what is no answer changes nothing of the last one.

use std::mem::discriminant;
use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase};
use berth_api::digest::Digest;
use berth_api::names::NodeUid;
use berth_api::node::{BootcNodeStatus, Deployment};
use berth_api::pool::SignatureRule;
use berth_api::seeded::Bug;

use super::event::{Ending, Event, HostFailure, Look, PullReading, Services};
use super::state::{Knowledge, LockTrouble, Rest, Since, Turn};
use crate::agent::backend::Why;
use crate::agent::facts::{ClusterNode, Deployments, Desired, DrainFacts, Os, Trouble, Verified};
use crate::agent::past;
use crate::agent::reason::Reason;
use crate::agent::step::{Step, WaitReason};
use crate::{BootMoment, Now};

/// Time after which a host that cannot be used, or runs what nobody asked for, is looked at again.
const HOST_AGAIN: Duration = Duration::from_secs(30);
/// Time after which the Node and the berths of a node at rest are read again.
const CLUSTER_AGAIN: Duration = Duration::from_secs(1800);
/// First pause before a lock is tried again that has failed so often, and the longest.
const LOCK_AGAIN: Duration = Duration::from_secs(30);
const LOCK_SELDOM: Duration = Duration::from_secs(600);
/// Failures to unlock that end a turn, and failures to lock after which what is armed is removed.
const GIVE_UP_AFTER: u32 = 3;
/// Time for which a drained node waits for somebody else's work on its host, before the turn ends.
const BUSY_LIMIT: Duration = Duration::from_secs(600);

/// Reason for which a pull that ended well has not led to what it was for.
fn shortcoming(deployments: &Deployments, digest: &Digest, lacks_policy: bool) -> Option<(Reason, &'static str)> {
    let is_it = |d: &Deployment| d.digest.as_ref() == Some(digest);
    let can_lock = deployments.storage.ostree_lock().is_some();
    match deployments.staged.as_ref().filter(|d| is_it(d)) {
        // Both would be removed and staged anew for ever, without a pause.
        Some(_) if lacks_policy => Some((
            Reason::SignatureNotEnforced,
            "the pull ended well, but not under the host's current signature policy, which the pool requires",
        )),
        Some(staged) if staged.locked || can_lock => None,
        Some(_) => Some((Reason::LockFailed, "the pull ended well, but the image is not locked")),
        None if is_it(&deployments.booted) => None,
        None => Some((Reason::PullFailed, "the pull ended well, but the image is not staged")),
    }
}

impl Knowledge {
    /// Takes in what has happened.
    pub fn after(&mut self, event: Event<'_>, now: &Now) {
        match event {
            Event::Published { desired, uid, status } => self.published(desired, uid, status, now),
            Event::Services(services) => self.answered(services, now),
            Event::Unreachable(why) => self.silent(why, now),
            Event::Memory(failure) => self.forgetful = failure,
            Event::Rules(rules) => self.rules = *rules,
            Event::NewCredentials => {
                self.renewed = true;
                self.past.log_in_again(now.wall);
            }
            Event::Pull(reading) => self.pull_seen(reading, now),
            Event::Looked(look) => self.looked_at(look, now),
            Event::NodeRead(node) => self.cluster_node = node,
            Event::Guard(answer) => {
                let ours = |b: &Berth| {
                    b.offer().is_some_and(|o| o.node == self.node) || b.holding().is_some_and(|h| h.node == self.node)
                };
                let has_berth = self.berths.iter().flatten().any(ours);
                self.guard.answered(answer, has_berth, now);
            }
            Event::Berths(berths) => self.berths_read(berths),
            Event::Heartbeat => self.heartbeat(now),
            Event::Begins(step) => self.begins(step, now),
            Event::Ends(step, ending) => self.ends(step, ending, now),
            Event::Rests(why) => self.rests(why, now),
            Event::Unreadable => self.cluster_node = ClusterNode::Unread,
        }
        self.recall(now);
    }

    /// A berth in another phase than this process wrote it last is another process's work, or was written before this one
    /// began: what that one did to the host is not known, and what it sent may still arrive.
    fn berths_read(&mut self, berths: Vec<Berth>) {
        self.berths = Some(berths);
        let phase = self.holding().map(|holding| discriminant(&holding.phase));
        if phase.is_some() && phase != self.turn.wrote && !Bug::OldLookTrusted.is_awake() {
            self.turn.wrote = phase;
            self.fenced = false;
            self.fresh = false;
        }
        self.forget_backend();
    }

    fn published(&mut self, desired: Desired, uid: Option<NodeUid>, status: Option<&BootcNodeStatus>, now: &Now) {
        let is_other = uid.is_some() && self.published_for != uid;
        if is_other {
            // Another Node of this name, perhaps: what was read of the former says nothing of it.
            self.published_for = uid;
            self.cluster_node = ClusterNode::Unread;
        }
        if let Some(status) = status {
            self.past.adopt(status);
        }
        let is_new = is_other && status.is_none_or(|s| s.observed_generation.is_none());
        self.note_membership(&desired, is_new, now);
        if desired.backend() != self.desired.backend() {
            // The host was looked at with the backend of the former rule. A turn goes on with that one.
            self.look_again();
        }
        if desired != self.desired && self.rest.take().is_some() {
            // It was read long ago.
            self.cluster_node = ClusterNode::Unread;
        }
        self.desired = desired;
    }

    /// A host that does not answer may be doing anything: all of it is looked at again afterwards.
    fn silent(&mut self, why: String, now: &Now) {
        let since = self.unreachable.take().map_or(now.clock, |(_, since)| since);
        self.unreachable = Some((why, since));
        self.fresh = false;
    }

    fn answered(&mut self, services: Services, now: &Now) {
        self.services = services;
        if self.unreachable.take().is_some() {
            // It was not read anew with the signs of life meanwhile.
            self.cluster_node = ClusterNode::Unread;
        }
        let unusable = matches!(self.os, Os::Unusable { .. }) || self.os.refusal().is_some();
        if unusable && self.looked_long_ago(now) {
            self.fresh = false;
        }
    }

    fn looked_long_ago(&self, now: &Now) -> bool {
        now.clock.since(self.looked) >= HOST_AGAIN
    }

    fn pull_seen(&mut self, reading: PullReading, now: &Now) {
        self.pull = None;
        let ended = reading.ended();
        if ended.is_some_and(|ended| !self.is_news(ended)) {
            return;
        }
        self.ended = ended.cloned();
        match reading {
            PullReading::None => return,
            PullReading::Running(pull) => self.pull = Some(pull),
            PullReading::Succeeded { digest, policy } => {
                self.past.verified = policy.map(|policy| Verified {
                    digest: digest.clone(),
                    policy,
                });
                self.pulled = Some(digest);
            }
            PullReading::Failed { digest, failure } => self.pull_failed(&digest, &failure, now),
        }
        // Whatever becomes of it, it may have staged something.
        self.disarmed = false;
        self.forget_os();
    }

    fn pull_failed(&mut self, digest: &Digest, failure: &HostFailure, now: &Now) {
        let HostFailure { reason, message } = failure;
        self.past.incomplete = Some(digest.clone());
        self.past
            .host_failed(reason.as_str(), message, digest, now.wall, now.chance);
        if std::mem::take(&mut self.renewed) {
            // It was refused with the former ones.
            self.past.log_in_again(now.wall);
        }
    }

    /// Something may have changed the host's deployments.
    fn forget_os(&mut self) {
        self.os = Os::Unknown;
        self.fresh = false;
    }

    fn looked_at(&mut self, look: Look, now: &Now) {
        self.os = look.os;
        self.rivals = look.rivals;
        self.finalization_failed = look.finalization_failed;
        self.fresh = true;
        self.looked = now.clock;
        if let Some(deployments) = self.os.deployments() {
            self.disarmed = deployments.staged.as_ref().is_none_or(|s| s.locked);
            self.lock_fails.take_if(|_| self.disarmed);
        }
        // What is decided next on the host is decided on a Node that was read after it.
        self.unread_node_in_turn();
        self.judge_pull(now);
        self.forget_backend();
    }

    /// Says of a pull that ended well whether it has led to what it was for.
    fn judge_pull(&mut self, now: &Now) {
        let Some(digest) = self.pulled.take() else { return };
        let Some(deployments) = self.os.deployments() else {
            return;
        };
        let image = self.desired.image();
        let is_required = image.is_some_and(|image| image.signature == SignatureRule::Required);
        let is_verified = self.past.is_verified(&digest, self.rules.policy_digest.as_ref());
        let lacks_policy = is_required && !(deployments.staged_signed && is_verified);
        match shortcoming(deployments, &digest, lacks_policy) {
            // A staged image that is not locked yet has not succeeded: where the lock has no effect it is removed, and its failures
            // must add up over all pulls.
            None if deployments.staged.as_ref().is_some_and(|staged| !staged.locked) => {}
            None => self.past.succeeded(&digest),
            Some((reason, message)) => {
                let failure = HostFailure {
                    reason,
                    message: message.to_owned(),
                };
                self.pull_failed(&digest, &failure, now);
            }
        }
    }

    /// Nothing of what was begun with a backend is left: another one may be chosen.
    fn forget_backend(&mut self) {
        let Some(deployments) = self.os.deployments() else {
            return;
        };
        let staged = deployments.staged.as_ref().and_then(|staged| staged.digest.as_ref());
        let is_left = staged.is_some() && staged == self.past.staged_by_us.as_ref();
        let in_turn = self.berths.is_none() || self.holding().is_some();
        if !is_left && !in_turn && self.pull.is_none() {
            self.past.staged_with = None;
            // Seen with the former choice: the next look makes another one.
            if deployments.backend.reason == Why::Begun.as_str() {
                self.forget_os();
            }
        }
    }

    /// Somebody may have staged, unlocked or removed an image since. And a cordon of ours that arrived late, after its
    /// berth was closed over our head, is seen by nobody else.
    fn heartbeat(&mut self, now: &Now) {
        self.look_again();
        let rereads = self.rereads_cluster(now);
        // A pass over a silent host may take as long as there is between two signs of life: it would never get further.
        if rereads && self.unreachable.is_none() {
            self.cluster_node = ClusterNode::Unread;
        }
        if rereads && let Some(rest) = &mut self.rest {
            // All agents may begin together; they must not ask together for ever.
            let wait = CLUSTER_AGAIN.mul_f64(0.75 + 0.5 * now.chance.clamp(0.0, 1.0));
            rest.reread = Some(now.clock + wait);
        }
    }

    /// Has the host looked at again; in a turn what was seen of it goes on to count until then.
    fn look_again(&mut self) {
        self.fresh = false;
        if self.holding().is_none() {
            self.os = Os::Unknown;
        }
    }

    /// Discards the Node as read, during a turn: a holder acts only on what it has just read.
    fn unread_node_in_turn(&mut self) {
        if self.holding().is_some() {
            self.cluster_node = ClusterNode::Unread;
        }
    }

    fn begins(&mut self, step: &Step, now: &Now) {
        if !matches!(step, Step::LookAtHost | Step::ReadNode | Step::TryGuard) {
            self.rest = None;
        }
        if !matches!(
            step,
            Step::Lock(_) | Step::Unlock | Step::Unstage(_) | Step::LookAtHost | Step::ReadNode
        ) {
            self.turn.changed = None;
        }
        if step.writes_berth() {
            self.fenced = false;
        }
        self.turn.wrote = match step {
            Step::Commit(_) | Step::Relicense(..) => Some(discriminant(&HoldPhase::Committed)),
            Step::Uncommit(_) => Some(discriminant(&HoldPhase::Taken)),
            Step::Release(_, outcome, _) => Some(discriminant(&HoldPhase::Releasing(*outcome))),
            _ => self.turn.wrote,
        };
        self.disarmed &= !matches!(step, Step::StartPull(..) | Step::CancelPull(_) | Step::Unlock);
        match step {
            Step::Wait(..) | Step::LookAtHost | Step::ReadNode => {}
            Step::StartPull(image, _) => {
                (self.renewed, self.ended) = (false, None);
                self.past.staged_with = self.os.deployments().map(|d| d.backend.name);
                self.past.pull_begins(&image.digest);
                self.forget_os();
            }
            Step::CancelPull(digest) => {
                self.past.incomplete = Some(digest.clone());
                self.forget_os();
            }
            Step::Lock(_) | Step::Unlock | Step::Unstage(_) => {
                if let Step::Unstage(staged) = step {
                    self.given_up(staged, now);
                }
                self.forget_os();
                // The Node is read again before anything is decided on what the host now is.
                self.cluster_node = ClusterNode::Unread;
            }
            Step::Reboot => {
                self.turn.reboot_asked = Some(now.clock);
                self.turn.reboot_blocked = None;
                self.fresh = false;
            }
            Step::Take(_) => {
                self.begin_turn();
                self.turn.wrote = Some(discriminant(&HoldPhase::Taken));
                self.begin_to_drain(now);
                self.past.turn_begins();
            }
            Step::Cordon(_) => {
                // Whatever was drained before: pods may have come while the Node was schedulable.
                self.drain_anew();
                // Where nothing is drained, everything is read once more between here and the commit.
                self.fresh = false;
            }
            Step::Drain => self.begin_to_drain(now),
            Step::Commit(_) => self.turn.reboot_asked = None,
            Step::Relicense(berth, digest) => {
                (self.turn.reboot_asked, self.turn.reboot_blocked) = (None, None);
                if let Some(holding) = berth.holding() {
                    // Before the berth names this boot: whoever reads that must know that the boot is not proven.
                    self.past.goes_on(holding, digest, &self.services.boot_id);
                }
            }
            Step::Release(_, _, message) => {
                self.turn.message.clone_from(message);
                self.turn.restored = false;
            }
            // Counted and stored before the berth is closed: a crash in between counts a turn twice, never not at all.
            Step::GiveBack(berth) => self.count_turn(berth, now),
            Step::TryGuard | Step::Fence(_) | Step::Uncommit(_) | Step::Restore(_) | Step::Uncordon => {}
        }
    }

    fn ends(&mut self, step: &Step, ending: Ending, now: &Now) {
        if step.asks_cluster() {
            // Whatever came of it, the Node is read again before the next decision on it.
            self.cluster_node = ClusterNode::Unread;
        }
        if let Ending::Failed { reason, message } = ending {
            return self.failed(step, reason, message, now);
        }
        if self
            .failing
            .as_ref()
            .is_some_and(|(kind, _)| *kind == discriminant(step))
        {
            self.failing = None;
        }
        if let Step::Unlock | Step::Reboot = step {
            self.turn.busy_since = None;
        }
        self.fenced |= step.writes_berth() && ending == Ending::Done;
        match (step, ending) {
            (_, Ending::NotNeeded) => {}
            (_, Ending::Refused(why)) => self.turn.reboot_blocked = Some((why, now.clock)),
            (
                _,
                Ending::Drain {
                    done,
                    blockers,
                    left_behind,
                    next,
                },
            ) => {
                self.turn.drain = DrainFacts {
                    done,
                    blockers,
                    left_behind,
                    ..DrainFacts::default()
                };
                self.turn.next_pass = (!done).then_some(now.clock + next);
                // Between a drain that is done and the commit everything is read once more.
                self.fresh &= !done;
            }
            (Step::Lock(_) | Step::Unlock | Step::Unstage(_), _) => self.turn.changed = Some(discriminant(step)),
            // Should the commit be taken back, another drain begins.
            (Step::Commit(_), _) => self.forget_drain_time(),
            (Step::Uncommit(_), _) => {
                let asked = self.turn.reboot_asked.take().is_some();
                if asked && self.turn.reboot_blocked.is_none() {
                    let why = "logind accepted the reboot, and no shutdown began";
                    self.turn.reboot_blocked = Some((why.to_owned(), now.clock));
                }
            }
            (Step::Restore(_) | Step::Uncordon, _) => self.turn.restored = true,
            (Step::GiveBack(_), _) => self.begin_turn(),
            (
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
                | Step::Release(..),
                _,
            ) => {}
        }
    }

    /// Counts failures of the same step, whatever succeeded in between on the way to it.
    fn failed(&mut self, step: &Step, reason: Reason, message: String, now: &Now) {
        self.cluster_node = ClusterNode::Unread;
        let kind = discriminant(step);
        // A host that is at work for somebody else is no host that cannot do it: the two are counted apart.
        let is_busy = |reason: Reason| reason == Reason::HostBusy;
        let before = self
            .failing
            .as_ref()
            .filter(|(k, t)| *k == kind && is_busy(t.reason) == is_busy(reason));
        let attempts = before.map_or(0, |(_, t)| t.attempts).saturating_add(1);
        match step {
            Step::Unlock | Step::Reboot if is_busy(reason) => self.is_kept_waiting(&message, now),
            Step::Unlock if attempts >= GIVE_UP_AFTER => {
                // The turn ends here, with the image locked, rather than never.
                let why = format!("the staged image cannot be unlocked: {message}");
                self.turn.reboot_blocked = Some((why, now.clock));
            }
            _ => {}
        }
        if matches!(step, Step::Lock(_)) && !is_busy(reason) && (attempts >= GIVE_UP_AFTER || self.lock_fails.is_some())
        {
            self.lock_failed(&message, now);
        }
        let trouble = Trouble {
            reason,
            message,
            attempts,
        };
        self.failing = Some((kind, trouble));
    }

    /// Somebody else is at work on a host that is about to reboot: that is waited for, and not for ever.
    fn is_kept_waiting(&mut self, why: &str, now: &Now) {
        // Nothing was begun of the reboot.
        self.turn.reboot_asked = None;
        let since = *self.turn.busy_since.get_or_insert(now.clock);
        if now.clock.since(since) >= BUSY_LIMIT {
            let minutes = BUSY_LIMIT.as_secs() / 60;
            let why = format!("somebody else has been at work on the host for {minutes} min: {why}");
            self.turn.reboot_blocked = Some((why, now.clock));
        }
    }

    /// A lock has failed so often that what is armed is removed; where that must not be, it is tried again after a pause.
    fn lock_failed(&mut self, why: &str, now: &Now) {
        let pauses = self.lock_fails.as_ref().map_or(0, |trouble| trouble.pauses);
        self.lock_fails = Some(LockTrouble {
            why: why.to_owned(),
            pauses: pauses.saturating_add(1),
            again: now.clock + past::backoff(LOCK_AGAIN, LOCK_SELDOM, pauses.saturating_add(1)),
        });
    }

    fn rests(&mut self, why: WaitReason, now: &Now) {
        self.failing = None;
        self.turn.changed = None;
        self.unread_node_in_turn();
        let is_rest = matches!(
            why,
            WaitReason::Updated | WaitReason::Released | WaitReason::NothingAsked
        );
        self.rest = match (is_rest && self.holding().is_none(), self.rest) {
            (true, None) => Some(Rest { reread: None }),
            (true, rest) => rest,
            (false, _) => None,
        };
        if let WaitReason::NothingAsked | WaitReason::Released | WaitReason::OtherNode | WaitReason::Excluded = why {
            self.forget_what_is_gone();
        }
        match why {
            WaitReason::ForeignBerth | WaitReason::OtherNode | WaitReason::Excluded => {
                self.cluster_node = ClusterNode::Unread;
            }
            WaitReason::Rebooting | WaitReason::NoBerth | WaitReason::RollbackQueued | WaitReason::RivalUpdater => {
                self.fresh = false;
            }
            // It may take days. What was drained before that says nothing of the pods that are there afterwards; and a
            // drain that has yet to begin is not overdue.
            WaitReason::Revoked | WaitReason::WindowClosed | WaitReason::Inhibited => {
                self.fresh = false;
                self.drain_anew();
                self.forget_drain_time();
            }
            WaitReason::Unproven => self.fresh &= !self.looked_long_ago(now),
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
            | WaitReason::NotReady => {}
        }
    }

    /// A new turn knows nothing of the one before.
    fn begin_turn(&mut self) {
        self.turn = Turn {
            drain_number: self.turn.drain_number.wrapping_add(1),
            ..Turn::default()
        };
        self.forget_drain_time();
    }

    fn forget_drain_time(&mut self) {
        self.draining = None;
        (self.past.drain_began, self.past.drain_since) = (None, None);
    }

    fn begin_to_drain(&mut self, now: &Now) {
        if self.draining.is_none() {
            self.draining = Some(Since::now(now));
            self.past.drain_began.get_or_insert(now.wall);
            self.past.drain_since = Some(BootMoment::new(&self.services.boot_id, now.clock));
        }
    }

    fn drain_anew(&mut self) {
        self.turn.drain = DrainFacts::default();
        self.turn.next_pass = None;
        self.turn.drain_number = self.turn.drain_number.wrapping_add(1);
    }
}
