//! Rules for how long the agent's readings are valid.
//!
//! The shell reads and acts, and reports each result here. This file has all rules for the readings that an event
//! invalidates. "Reread" means that the next decision reads the state again.
//!
//! | event | deployments | Node | drain | reboot | berth |
//! | --- | --- | --- | --- | --- | --- |
//! | a pull runs, has ended, is started or stopped | unknown | | | | |
//! | deployments read | set | reread, in a turn | | | |
//! | Node read; another Node is published | | set; reread | | | |
//! | the update that fixed the backend has ended | unknown | | | | |
//! | the pool selects another backend | unknown; in a turn reread | | | | |
//! | lock, unlock, unstage | unknown | reread | | | |
//! | take, give back | | reread | cleared | cleared | fenced when answered |
//! | commit, relicense | | reread | | cleared | fenced when answered |
//! | other writes of the berth | | reread | | | fenced when answered |
//! | cordon | reread | reread | restarts | | |
//! | drain: nothing is left | reread | reread | done | | |
//! | drain: something is left | | reread | set | | |
//! | restore, uncordon | | reread | | | |
//! | reboot requested, refused | reread | | | requested, blocked | |
//! | three failed unlocks; a commit taken back | | reread | | blocked | |
//! | three failed locks on a host that is not busy | removed while armed, staged again after a pause; with packages of others: locked after a pause | reread | | | |
//! | rest, in a turn | | reread | | | |
//! | rest while a rollback is queued, or with a rival updater | reread | | | | |
//! | rest until an offer, a reboot or a gate | reread | | restarts behind a gate | | |
//! | heartbeat | unknown; in a turn reread | reread, unless the host's services are silent; at rest the first time, and then every half hour | | | |
//! | another image is published at rest | | reread | | | |
//! | no answer of the host's services | reread | | | | |
//! | an answer after that | | reread | | | |
//! | 30 s with an unusable host | reread | | | | |
//! | the berth's phase differs from this process's last write | reread | | | | not fenced |
//! | a step or a read failed | | reread | | | not fenced, if a berth was written |
//!
//! The end of a pull is processed once, though the host reports it until the memory is written.
//!
//! A pull that failed authentication is retried at once when the host's credentials change.
//!
//! The API server's guard is probed again about an hour after a rejection. If there was nothing to try, it is probed
//! before an offer is taken. If the write was not rejected or not answered, it is probed after 2 s, then twice that,
//! up to ten minutes. A missing answer does not change the last one.

use std::mem::discriminant;
use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase};
use berth_api::digest::Digest;
use berth_api::names::NodeUid;
use berth_api::node::{BootcNodeStatus, Deployment};
use berth_api::pool::SignatureRule;
use berth_api::seeded::Bug;

use super::event::{Ending, Event, HostFailure, Look, PullReading, Services};
use super::state::{Knowledge, LockRetry, Rest, Since, Turn};
use crate::agent::backend::Why;
use crate::agent::facts::{ClusterNode, Deployments, Desired, DrainFacts, Os, StepFailure, Verified};
use crate::agent::past;
use crate::agent::reason::Reason;
use crate::agent::step::{Step, WaitReason};
use crate::{BootMoment, Now};

/// Interval between reads of a host that is unusable or runs an unexpected image.
const HOST_READ_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between reads of the Node and the berths of a node at rest.
const CLUSTER_READ_INTERVAL: Duration = Duration::from_secs(1800);
/// First and longest pause before a repeatedly failed lock is tried again.
const LOCK_RETRY_FIRST: Duration = Duration::from_secs(30);
const LOCK_RETRY_MAX: Duration = Duration::from_secs(600);
/// Limit of failures in a row: that many failed unlocks end a turn, that many failed locks have an armed image
/// removed.
const GIVE_UP_AFTER: u32 = 3;
/// How long a drained node waits for another program's work on its host before the turn ends.
const BUSY_TIMEOUT: Duration = Duration::from_secs(600);

fn is_of(deployment: &Deployment, digest: &Digest) -> bool {
    deployment.digest.as_ref() == Some(digest)
}

/// Returns why a successful pull left no usable staged image.
fn shortcoming(deployments: &Deployments, digest: &Digest, lacks_policy: bool) -> Option<(Reason, &'static str)> {
    let can_lock = deployments.storage.ostree_lock().is_some();
    match deployments.staged.as_ref().filter(|d| is_of(d, digest)) {
        // Without a failure, both would be removed and staged again forever, without a pause.
        Some(_) if lacks_policy => Some((
            Reason::SignatureNotEnforced,
            "the pull succeeded, but not under the host's current signature policy, which the pool requires",
        )),
        Some(staged) if staged.locked || can_lock => None,
        Some(_) => Some((Reason::LockFailed, "the pull succeeded, but the image is not locked")),
        None if is_of(&deployments.booted, digest) => None,
        None => Some((Reason::PullFailed, "the pull succeeded, but the image is not staged")),
    }
}

impl Knowledge {
    /// Updates the knowledge after an event.
    pub fn after(&mut self, event: Event<'_>, now: &Now) {
        match event {
            Event::Published { desired, uid, status } => self.published(desired, uid, status, now),
            Event::Services(services) => self.answered(services, now),
            Event::Unreachable(why) => self.silent(why, now),
            Event::Memory(failure) => self.memory_error = failure,
            Event::Rules(rules) => self.rules = *rules,
            Event::NewCredentials => {
                self.renewed = true;
                self.past.retry_unauthorized(now.wall);
            }
            Event::Pull(reading) => self.pull_seen(reading, now),
            Event::Looked(look) => self.looked_at(look, now),
            Event::NodeRead(node) => self.cluster_node = node,
            Event::Guard(answer) => {
                let has_berth = self.has_berth();
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

    /// True if this node holds a berth or is offered one.
    fn has_berth(&self) -> bool {
        self.berths.iter().flatten().any(|berth| {
            berth.offer().is_some_and(|offer| offer.node == self.node)
                || berth.holding().is_some_and(|holding| holding.node == self.node)
        })
    }

    /// Stores the berths. A phase other than this process's last write comes from another process, or from before
    /// this one began: what that process did to the host is unknown, and its writes may still arrive.
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
            // This may be another Node of the same name, not read yet.
            self.published_for = uid;
            self.cluster_node = ClusterNode::Unread;
        }
        if let Some(status) = status {
            self.past.adopt(status);
        }
        let is_new = is_other && status.is_none_or(|s| s.observed_generation.is_none());
        self.note_membership(&desired, is_new, now);
        if desired.backend() != self.desired.backend() {
            // The host was read with the previous rule's backend. A turn continues with that one.
            self.look_again();
        }
        if desired != self.desired && self.rest.take().is_some() {
            // The Node was read long ago.
            self.cluster_node = ClusterNode::Unread;
        }
        self.desired = desired;
    }

    /// Records silence of the host. It may be doing anything, so everything is read again afterwards.
    fn silent(&mut self, why: String, now: &Now) {
        let since = self.unreachable.take().map_or(now.clock, |(_, since)| since);
        self.unreachable = Some((why, since));
        self.fresh = false;
    }

    fn answered(&mut self, services: Services, now: &Now) {
        self.services = services;
        if self.unreachable.take().is_some() {
            // The Node was not read with the heartbeats in the meantime.
            self.cluster_node = ClusterNode::Unread;
        }
        let unusable = matches!(self.os, Os::Unusable { .. }) || self.os.refusal().is_some();
        if unusable && self.looked_long_ago(now) {
            self.fresh = false;
        }
    }

    fn looked_long_ago(&self, now: &Now) -> bool {
        now.clock.since(self.looked) >= HOST_READ_INTERVAL
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
        // Whatever its result, the pull may have staged an image.
        self.disarmed = false;
        self.forget_os();
    }

    fn pull_failed(&mut self, digest: &Digest, failure: &HostFailure, now: &Now) {
        let HostFailure { reason, message } = failure;
        self.past.incomplete = Some(digest.clone());
        self.past
            .pull_failed(reason.as_str(), message, digest, now.wall, now.chance);
        if std::mem::take(&mut self.renewed) {
            // The pull was refused with the old credentials.
            self.past.retry_unauthorized(now.wall);
        }
    }

    /// Drops the deployments: they may have changed.
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
            self.lock_failure.take_if(|_| self.disarmed);
        }
        // The next decision about the host needs a Node that is read after it.
        self.unread_node_in_turn();
        self.judge_pull(now);
        self.forget_backend();
    }

    /// Records whether a successful pull left a usable staged image.
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
            // A staged image that is not locked yet is not a success: if the lock has no effect, the image is
            // removed, and the failures must add up over all pulls.
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

    /// Forgets the backend of the last update when nothing of it is left, so that another may be chosen.
    fn forget_backend(&mut self) {
        let Some(deployments) = self.os.deployments() else {
            return;
        };
        let staged = deployments.staged.as_ref().and_then(|staged| staged.digest.as_ref());
        let is_left = staged.is_some() && staged == self.past.staged_by_us.as_ref();
        let in_turn = self.berths.is_none() || self.holding().is_some();
        if !is_left && !in_turn && self.pull.is_none() {
            self.past.staged_with = None;
            // The deployments were read with the old choice; the next read chooses again.
            if deployments.backend.reason == Why::Begun.as_str() {
                self.forget_os();
            }
        }
    }

    /// Another program may have staged, unlocked or removed an image. And only this agent sees a cordon of its own
    /// that arrived after its berth was closed by others.
    fn heartbeat(&mut self, now: &Now) {
        self.look_again();
        let rereads = self.rereads_cluster(now);
        // On a silent host, a pass may take as long as a heartbeat interval; rereading would never let it finish.
        if rereads && self.unreachable.is_none() {
            self.cluster_node = ClusterNode::Unread;
        }
        if rereads && let Some(rest) = &mut self.rest {
            // Spread the reads of agents that start together.
            let wait = CLUSTER_READ_INTERVAL.mul_f64(0.75 + 0.5 * now.chance.clamp(0.0, 1.0));
            rest.reread = Some(now.clock + wait);
        }
    }

    /// Has the host read again. In a turn the old reading is used until then.
    fn look_again(&mut self) {
        self.fresh = false;
        if self.holding().is_none() {
            self.os = Os::Unknown;
        }
    }

    /// Drops the Node as read, during a turn: a holder acts only on a fresh reading.
    fn unread_node_in_turn(&mut self) {
        if self.holding().is_some() {
            self.cluster_node = ClusterNode::Unread;
        }
    }

    /// Drops the knowledge that does not outlast the beginning of this step.
    fn invalidate(&mut self, step: &Step) {
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
        self.disarmed &= !matches!(step, Step::StartPull(..) | Step::CancelPull(_) | Step::Unlock);
    }

    fn begins(&mut self, step: &Step, now: &Now) {
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
                self.forget_os();
            }
            Step::Lock(_) | Step::Unlock | Step::Unstage(_) => {
                if let Step::Unstage(staged) = step {
                    self.record_unlockable(staged, now);
                }
                self.forget_os();
                // Read the Node again before the next decision about the host.
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
                // Pods may have come while the Node was schedulable.
                self.restart_drain();
                // If there is nothing to drain, this has everything read once more before the commit.
                self.fresh = false;
            }
            Step::Drain => self.begin_to_drain(now),
            Step::Commit(_) => self.turn.reboot_asked = None,
            Step::Relicense(berth, digest) => {
                (self.turn.reboot_asked, self.turn.reboot_blocked) = (None, None);
                if let Some(holding) = berth.holding() {
                    // Record this before the berth names this boot: any later reader must know that the boot is not
                    // proven.
                    self.past.relicensed(holding, digest, &self.services.boot_id);
                }
            }
            Step::Release(_, _, message) => {
                self.turn.message.clone_from(message);
                self.turn.restored = false;
            }
            // Count and store before the berth is closed: a crash in between counts a turn twice rather than never.
            Step::GiveBack(berth) => self.count_turn(berth, now),
            Step::TryGuard | Step::Fence(_) | Step::Uncommit(_) | Step::Restore(_) | Step::Uncordon => {}
        }
    }

    fn pull_begins(&mut self, digest: &Digest) {
        (self.renewed, self.ended) = (false, None);
        self.past.staged_with = self.os.deployments().map(|d| d.backend.name);
        self.past.pull_begins(digest);
        self.forget_os();
    }

    fn ends(&mut self, step: &Step, ending: Ending, now: &Now) {
        if step.asks_cluster() {
            // Whatever the result, read the Node again before the next decision about it.
            self.cluster_node = ClusterNode::Unread;
        }
        if let Ending::Failed { reason, message } = ending {
            return self.failed(step, reason, message, now);
        }
        self.failing.take_if(|(kind, _)| *kind == discriminant(step));
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
                let drain = DrainFacts {
                    done,
                    blockers,
                    left_behind,
                    ..DrainFacts::default()
                };
                self.drain_pass_ended(drain, next, now);
            }
            (Step::Lock(_) | Step::Unlock | Step::Unstage(_), _) => self.turn.changed = Some(discriminant(step)),
            // If the commit is taken back, another drain begins.
            (Step::Commit(_), _) => self.forget_drain_time(),
            (Step::Uncommit(_), _) => self.commit_taken_back(now),
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

    fn drain_pass_ended(&mut self, drain: DrainFacts, next: Duration, now: &Now) {
        let is_done = drain.done;
        self.turn.drain = drain;
        self.turn.next_pass = (!is_done).then_some(now.clock + next);
        // Read everything once more between the end of a drain and the commit.
        self.fresh &= !is_done;
    }

    /// Records that a requested reboot, if there was one, did not begin under the commit.
    fn commit_taken_back(&mut self, now: &Now) {
        let asked = self.turn.reboot_asked.take().is_some();
        if asked && self.turn.reboot_blocked.is_none() {
            let why = "logind accepted the reboot, but no shutdown began";
            self.turn.reboot_blocked = Some((why.to_owned(), now.clock));
        }
    }

    /// Counts failures of the same step, ignoring successes of other steps in between.
    fn failed(&mut self, step: &Step, reason: Reason, message: String, now: &Now) {
        self.cluster_node = ClusterNode::Unread;
        let kind = discriminant(step);
        // A busy host is counted apart from a host that cannot do the step.
        let is_busy = reason == Reason::HostBusy;
        let before = self
            .failing
            .as_ref()
            .filter(|(k, t)| *k == kind && (t.reason == Reason::HostBusy) == is_busy);
        let attempts = before.map_or(0, |(_, t)| t.attempts).saturating_add(1);
        match step {
            Step::Unlock | Step::Reboot if is_busy => self.wait_for_other_work(&message, now),
            Step::Unlock if attempts >= GIVE_UP_AFTER => {
                // End the turn with the image locked; otherwise it would never end.
                let why = format!("the staged image cannot be unlocked: {message}");
                self.turn.reboot_blocked = Some((why, now.clock));
            }
            _ => {}
        }
        if matches!(step, Step::Lock(_)) && !is_busy && (attempts >= GIVE_UP_AFTER || self.lock_failure.is_some()) {
            self.lock_failed(&message, now);
        }
        let trouble = StepFailure {
            reason,
            message,
            attempts,
        };
        self.failing = Some((kind, trouble));
    }

    /// Waits, for a limited time, while another program works on a host that is about to reboot.
    fn wait_for_other_work(&mut self, why: &str, now: &Now) {
        // The reboot has not begun.
        self.turn.reboot_asked = None;
        let since = *self.turn.busy_since.get_or_insert(now.clock);
        if now.clock.since(since) >= BUSY_TIMEOUT {
            let minutes = BUSY_TIMEOUT.as_secs() / 60;
            let why = format!("the host has been busy with other work for {minutes} min: {why}");
            self.turn.reboot_blocked = Some((why, now.clock));
        }
    }

    /// Records that a lock failed repeatedly: the armed image is removed, or if it must stay, the lock is retried
    /// after a pause.
    fn lock_failed(&mut self, why: &str, now: &Now) {
        let pauses = self.lock_failure.as_ref().map_or(0, |trouble| trouble.pauses);
        self.lock_failure = Some(LockRetry {
            why: why.to_owned(),
            pauses: pauses.saturating_add(1),
            again: now.clock + past::backoff(LOCK_RETRY_FIRST, LOCK_RETRY_MAX, pauses.saturating_add(1)),
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
            // This wait may take days. An earlier drain does not cover the pods that are there afterwards, and a
            // drain that has not begun is not overdue.
            WaitReason::Revoked | WaitReason::WindowClosed | WaitReason::Inhibited => {
                self.fresh = false;
                self.restart_drain();
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

    /// Starts a turn without knowledge of the previous one.
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

    fn restart_drain(&mut self) {
        self.turn.drain = DrainFacts::default();
        self.turn.next_pass = None;
        self.turn.drain_number = self.turn.drain_number.wrapping_add(1);
    }
}
