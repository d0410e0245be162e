//! Rules for how long the agent's readings are valid.
//!
//! The `agent` crate reads and acts, and reports each result here. This file and [`super::steps`] decide which
//! readings an event makes stale. "Reread" means that the next decision reads the object again, "unknown" that the old
//! reading is dropped as well. A wait is the decision to do nothing now. An agent is at rest if its node is up to date
//! or in no pool.
//!
//! | event | deployments | Node | drain | reboot | berth |
//! | --- | --- | --- | --- | --- | --- |
//! | a pull is started, runs, has ended, or is stopped | unknown | | | | |
//! | deployments read | set | reread, in a turn | | | |
//! | Node read; another Node is published | | set; reread | | | |
//! | the update that had to keep its backend has ended | unknown | | | | |
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
//! | three failed locks on a host that is not busy | removed while armed, staged again after a pause; with packages that Berth did not request: locked after a pause | reread | | | |
//! | a wait in a turn | | reread | | | |
//! | a wait because of a queued rollback or a rival updater | reread | | | | |
//! | a wait for an offer, a reboot or a gate | reread | | restarts if the wait is for a gate | | |
//! | heartbeat | unknown; in a turn reread | reread, unless the host's services are silent; at rest only the first time, and then every half hour | | | |
//! | another image is published at rest | | reread | | | |
//! | the host's services do not answer | reread | | | | |
//! | the host's services answer again | | reread | | | |
//! | 30 s with an unusable host | reread | | | | |
//! | the berth's phase differs from this process's last write | reread | | | | not fenced |
//! | a step or a read failed | | reread | | | not fenced, if a berth was written |
//!
//! The host reports a finished pull until the agent has written its memory file. The agent processes the pull only
//! once. A pull that failed authentication is retried as soon as the host's credentials change.
//!
//! The guard probe is repeated about an hour after the API server rejected the write. If the cluster had no object to
//! try the write on, the agent probes again before it takes an offer. If the write was accepted, or the API server did
//! not answer, the next probe follows after 2 s. Each further retry waits twice as long, up to ten minutes. A probe
//! without an answer does not change the last result.

use std::mem::discriminant;
use std::time::Duration;

use berth_api::berth::Berth;
use berth_api::digest::Digest;
use berth_api::names::NodeUid;
use berth_api::node::{BootcNodeStatus, Deployment};
use berth_api::pool::SignatureRule;
use berth_api::seeded::Bug;

use super::event::{Event, HostFailure, Look, PullReading, Services};
use super::state::Knowledge;
use crate::Now;
use crate::agent::backend::CommonReason;
use crate::agent::facts::{ClusterNode, Deployments, Desired, Os, RollbackGuard, Verified};
use crate::agent::reason::Reason;

/// Average interval between reads of the Node and the berths while the agent has nothing else to do.
const CLUSTER_READ_INTERVAL: Duration = Duration::from_secs(1800);

fn is_of(deployment: &Deployment, digest: &Digest) -> bool {
    deployment.digest.as_ref() == Some(digest)
}

/// Returns why a successful pull did not lead to a usable staged image; `None` if the image is usable. `lacks_policy`:
/// the image was not pulled under the required signature policy.
fn shortcoming(deployments: &Deployments, digest: &Digest, lacks_policy: bool) -> Option<(Reason, &'static str)> {
    let can_lock = deployments.storage.ostree_lock().is_some();
    match deployments.staged.as_ref().filter(|d| is_of(d, digest)) {
        // A pull without the required policy must count as failed. Without the backoff of a failure, the agent would
        // remove the image and stage it again forever.
        Some(_) if lacks_policy => Some((
            Reason::SignatureNotEnforced,
            "the pull succeeded, but the image was not checked against the host's current signature policy; the pool requires that \
             check",
        )),
        Some(staged) if staged.locked || can_lock => None,
        Some(_) => Some((Reason::LockFailed, "the pull succeeded, but the image is not locked")),
        None if is_of(&deployments.booted, digest) => None,
        None => Some((Reason::PullFailed, "the pull succeeded, but the image is not staged")),
    }
}

impl Knowledge {
    /// Applies an event to the knowledge.
    pub fn after(&mut self, event: Event<'_>, now: &Now) {
        match event {
            Event::Published {
                desired,
                uid,
                status,
                is_unread,
            } => self.published(desired, uid, (status, is_unread), now),
            Event::Services(services) => self.answered(services, now),
            Event::Unreachable(why) => self.host.silent(why, now),
            Event::Memory(failure) => self.failures.memory = failure,
            Event::Rules(rules) => self.host.rules = *rules,
            Event::NewCredentials => {
                self.pulls.renewed = true;
                self.past.retry_unauthorized(now.wall);
            }
            Event::Pull(reading) => self.pull_seen(reading, now),
            Event::Looked(look) => self.looked_at(look, now),
            Event::NodeRead(node) => self.node_read(node, now),
            Event::PoolChecks(readings) => self.turn.pool_checks.made(readings, now),
            Event::Proves(parts) => self.turn.proves(parts, now),
            Event::ContainersBefore(ids) => self.past.containers_before = ids,
            Event::Guard(answer) => self.cluster.guard_answered(answer, &self.node, now),
            Event::Berths(berths) => self.berths_read(berths),
            Event::Heartbeat => self.heartbeat(now),
            Event::Begins(step) => self.begins(step, now),
            Event::Ends(step, ending) => self.ends(step, ending, now),
            Event::Rests(why) => self.rests(why, now),
            Event::Unreadable => {
                self.cluster.node = ClusterNode::Unread;
                // The Node may have been NotReady while it could not be read.
                self.turn.ready_since = None;
            }
        }
        self.recall(now);
    }

    fn node_read(&mut self, mut node: ClusterNode, now: &Now) {
        if let ClusterNode::Is(node) = &mut node {
            let began = self.host.services.soft_reboots.userspace_began;
            node.settle_boot(self.host.boot_id(), began);
        }
        let is_ready = node.get().is_some_and(|node| node.is_ready(self.host.boot_id()));
        let since = self.turn.ready_since.unwrap_or(now.clock);
        self.turn.ready_since = is_ready.then_some(since);
        self.cluster.node = node;
    }

    /// Stores the berths. If this agent process did not write the phase of the held berth, another agent process did.
    /// The other process may have changed the host, and its writes may still arrive.
    fn berths_read(&mut self, berths: Vec<Berth>) {
        self.cluster.berths = Some(berths);
        let phase = self.cluster.holding().map(|holding| discriminant(&holding.phase));
        if phase.is_some() && phase != self.turn.wrote && !Bug::OldLookTrusted.is_awake() {
            self.turn.wrote = phase;
            self.cluster.fenced = false;
            self.host.fresh = false;
        }
        self.forget_backend();
    }

    fn published(
        &mut self,
        desired: Desired,
        uid: Option<NodeUid>,
        (status, is_unread): (Option<&BootcNodeStatus>, bool),
        now: &Now,
    ) {
        let is_other = uid.is_some() && self.published_for != uid;
        if is_other {
            // The Node that was read may have been replaced by another one of the same name.
            self.published_for = uid;
            self.cluster.node = ClusterNode::Unread;
        }
        if let Some(status) = status {
            self.past.adopt(status);
        }
        // A status that cannot be read shows that the BootcNode is not new.
        let is_new = is_other && !is_unread && status.is_none_or(|s| s.observed_generation.is_none());
        self.note_membership(&desired, is_new, now);
        if desired.backend() != self.desired.backend() {
            // The deployments were read with the old backend; the new rule may lead to another backend.
            self.look_again();
        }
        if desired != self.desired && self.rest.take().is_some() {
            // At rest, the agent rarely reads the Node, so its copy may be old.
            self.cluster.node = ClusterNode::Unread;
        }
        self.desired = desired;
    }

    fn answered(&mut self, services: Services, now: &Now) {
        if let RollbackGuard::Fired(fired) = &services.rollback_guard {
            self.past.guard_fired(fired);
        }
        if self.host.answered(services, now) {
            // While the host's services were silent, no heartbeat read the Node.
            self.cluster.node = ClusterNode::Unread;
        }
    }

    fn pull_seen(&mut self, reading: PullReading, now: &Now) {
        self.pulls.running = None;
        let ended = reading.ended();
        if ended.is_some_and(|ended| !self.pulls.is_news(ended)) {
            return;
        }
        self.pulls.processed = ended.cloned();
        match reading {
            PullReading::None => return,
            PullReading::Running(pull) => self.pulls.running = Some(pull),
            PullReading::Succeeded { digest, policy } => {
                self.past.verified = policy.map(|policy| Verified {
                    digest: digest.clone(),
                    policy,
                });
                self.pulls.succeeded = Some(digest);
            }
            PullReading::Failed { digest, failure } => self.pull_failed(&digest, &failure, now),
        }
        // Even a failed pull may have staged an image.
        self.host.disarmed = false;
        self.host.forget_os();
    }

    fn pull_failed(&mut self, digest: &Digest, failure: &HostFailure, now: &Now) {
        let HostFailure { reason, message } = failure;
        self.past.incomplete = Some(digest.clone());
        self.past
            .pull_failed(reason.as_str(), message, digest, now.wall, now.chance);
        if std::mem::take(&mut self.pulls.renewed) {
            // The failed pull still used the old credentials.
            self.past.retry_unauthorized(now.wall);
        }
    }

    fn looked_at(&mut self, look: Look, now: &Now) {
        self.host.looked_at(look, now);
        if self.host.os.deployments().is_some() {
            self.failures.lock.take_if(|_| self.host.disarmed);
        }
        // During a turn, the agent acts on the host only after it has read the Node again, later than the host.
        self.cluster.unread_node_in_turn();
        self.judge_pull(now);
        self.forget_backend();
    }

    fn judge_pull(&mut self, now: &Now) {
        let Some(digest) = self.pulls.succeeded.take() else {
            return;
        };
        let Some(deployments) = self.host.os.deployments() else {
            return;
        };
        let image = self.desired.image();
        let is_required = image.is_some_and(|image| image.signature == SignatureRule::Required);
        let is_verified = self.past.is_verified(&digest, self.host.rules.policy_digest.as_ref());
        let lacks_policy = is_required && !(deployments.staged_signed && is_verified);
        match shortcoming(deployments, &digest, lacks_policy) {
            // An image that is still unlocked does not count as a success yet. If locking it has no effect, the
            // failures of its pulls must add up.
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

    /// Forgets the backend of the last update, as soon as nothing of that update is left.
    fn forget_backend(&mut self) {
        let Some(deployments) = self.host.os.deployments() else {
            return;
        };
        let in_turn = self.cluster.berths.is_none() || self.cluster.holding().is_some();
        if !self.has_staged() && !in_turn && self.pulls.running.is_none() {
            self.past.staged_with = None;
            // The deployments were last read with that update's backend. Read them again with the backend that is now
            // chosen.
            if deployments.backend.reason == CommonReason::Begun.as_str() {
                self.host.forget_os();
            }
        }
    }

    /// Handles the heartbeat: the next decision reads the host and the Node again. Another program may have staged,
    /// unlocked or removed an image. A late write may have cordoned the Node after its berth was closed, and only the
    /// agent notices that.
    fn heartbeat(&mut self, now: &Now) {
        self.look_again();
        let rereads = self.rereads_cluster(now);
        // Reading a silent host may take as long as a heartbeat interval. If each heartbeat made the agent read the
        // Node again, no pass of the agent's loop would end.
        if rereads && self.host.unreachable.is_none() {
            self.cluster.node = ClusterNode::Unread;
        }
        if rereads && let Some(rest) = &mut self.rest {
            // Spread the reads, so that agents that started together do not read together.
            let wait = CLUSTER_READ_INTERVAL.mul_f64(0.75 + 0.5 * now.chance.clamp(0.0, 1.0));
            rest.reread = Some(now.clock + wait);
        }
    }

    /// Makes the next decision read the host's deployments again. During a turn, the old deployments stay known until
    /// then.
    fn look_again(&mut self) {
        self.host.fresh = false;
        if self.cluster.holding().is_none() {
            self.host.os = Os::Unknown;
        }
    }
}
