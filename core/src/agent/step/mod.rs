//! The agent's decision: facts in, next step out. Pure; the same function runs in production, in the tests and inside the
//! model checker, and is the place where the invariants of the design are kept. Their numbers stand beside the lines
//! that keep them.
//!
//! Here is what a decision can be, and who decides: [`turn`] with a berth, [`boot`] under a boot that is not proven yet,
//! [`idle`] without a berth. [`way`] is the one way to a reboot, which turns and unproven boots share.

mod boot;
mod idle;
mod turn;
mod way;

use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::{Deployment, DesiredImage};
use berth_api::seeded::Bug;

pub(crate) use self::boot::{is_ready, reports_ready};
pub use self::idle::taken_away;
pub(crate) use self::idle::{set_aside, twin, unlockable};
pub(crate) use self::way::{blockers, closed_window, is_drained, overdue};
pub use self::way::{inhibited, is_inhibited, rollback_queued};
use crate::agent::facts::{ClusterNode, Deployments, Desired, Facts, Os, Past, Unreachable};
use crate::agent::reason::Reason;
use crate::agent::storage::{OstreeLock, StagingLock};

/// Time within which a requested reboot must begin; after that it counts as blocked.
pub const REBOOT_GRACE: Duration = Duration::from_secs(60);
/// Time between two looks at something that nobody announces: an inhibitor, a Node that is not Ready yet.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Wait before a blocked reboot is asked for again, when there is no way back to before the commit.
pub const REBOOT_AGAIN: Duration = Duration::from_secs(60);
/// Time between two looks at something that only others can change, while nothing announces it.
const LOOK_SELDOM: Duration = Duration::from_secs(10);
/// Time between two looks at the host's deployments, while only others can change them.
const LOOK_HOST_AGAIN: Duration = Duration::from_secs(30);
/// Time between two looks at a Node that is not Ready yet, soon after a boot.
const READY_AGAIN: Duration = Duration::from_millis(100);

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Do nothing, until something changes or the time is over.
    Wait(WaitReason, Option<Duration>),
    /// Read the host's deployments.
    LookAtHost,
    /// Read the Node object.
    ReadNode,
    /// Try, and not mean, the writes that the API server must refuse (I6).
    TryGuard,
    /// Pull and stage this image, locked in this way.
    StartPull(DesiredImage, StagingLock),
    /// Stop the pull of this digest.
    CancelPull(Digest),
    /// Lock what is staged, by ostree's lock.
    Lock(OstreeLock),
    /// Unlock what is staged. Only under a committed berth.
    Unlock,
    /// Remove what is staged.
    Unstage(Deployment),
    /// Ask logind to reboot. Only under a committed berth.
    Reboot,
    /// Take the offered berth.
    Take(Berth),
    /// Cordon the Node and record that in the same patch.
    Cordon(Berth),
    /// Make one pass of the drain.
    Drain,
    /// Commit the berth.
    Commit(Berth),
    /// Write the berth as it is, so that an older write of it that is still on its way loses.
    Fence(Berth),
    /// Take the commit back.
    Uncommit(Berth),
    /// Go on to this digest under the same berth, from a boot that is not proven.
    Relicense(Berth, Digest),
    /// Start to give the berth back.
    Release(Berth, Outcome, String),
    /// Write the Node: undo our cordon, and mark it in any case.
    Restore(Berth),
    /// Close the berth.
    GiveBack(Berth),
    /// Undo a cordon of ours that no berth covers.
    Uncordon,
}

impl Step {
    /// Writes the berth: what was sent before it and not answered may still arrive after it.
    pub fn writes_berth(&self) -> bool {
        match self {
            Self::Take(_)
            | Self::Commit(_)
            | Self::Fence(_)
            | Self::Uncommit(_)
            | Self::Relicense(..)
            | Self::Release(..)
            | Self::GiveBack(_) => true,
            Self::Wait(..)
            | Self::LookAtHost
            | Self::ReadNode
            | Self::TryGuard
            | Self::StartPull(..)
            | Self::CancelPull(_)
            | Self::Lock(_)
            | Self::Unlock
            | Self::Unstage(_)
            | Self::Reboot
            | Self::Cordon(_)
            | Self::Drain
            | Self::Restore(_)
            | Self::Uncordon => false,
        }
    }

    /// Writes to the cluster: the berth, the Node or its pods.
    pub fn asks_cluster(&self) -> bool {
        self.writes_berth() || matches!(self, Self::Cordon(_) | Self::Drain | Self::Restore(_) | Self::Uncordon)
    }

    /// Says whether the step must not be done unless the memory on the host was written: a host that forgets what it
    /// tried reboots for ever.
    pub fn needs_memory(&self) -> bool {
        let needs = matches!(self, Self::Take(_) | Self::Commit(_) | Self::Relicense(..));
        needs && !Bug::MemoryNotNeeded.is_awake()
    }
}

/// Reason why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The host goes down.
    ShuttingDown,
    /// Nothing is asked of this node.
    NothingAsked,
    /// Everything that Berth did here is undone.
    Released,
    /// The berths are not known yet.
    BerthsUnknown,
    /// The berth is for a Node of this name that no longer exists.
    ForeignBerth,
    /// The spec is published for another Node of this name.
    OtherNode,
    /// The node runs what it should.
    Updated,
    /// The node runs what it should, and its next boot would take another deployment.
    RollbackQueued,
    /// The image is not resolved.
    Unresolved,
    /// The host cannot be updated.
    HostUnusable,
    /// The host's bus, systemd or logind does not answer.
    HostUnreachable,
    /// The agent's memory on the host cannot be written.
    Forgetful,
    /// The API server does not refuse what it must, or did not answer yet.
    Unguarded,
    /// Another updater on the host would apply what is staged.
    RivalUpdater,
    /// The host's own rules refuse the image.
    ImageRefused,
    /// The digest failed here before.
    FailedDigest,
    /// Something failed; its backoff runs.
    BackingOff,
    /// Packages that somebody has staged cannot be locked, and are not removed: any reboot applies them.
    Unlockable,
    /// The controller lets others pull first.
    StagingHeld,
    /// The pull runs.
    Pulling,
    /// Staged and locked; no berth is offered.
    NoBerth,
    /// The drain waits for pods.
    Draining,
    /// The reboot was asked for.
    Rebooting,
    /// Rebooted; the Node is not Ready under this boot yet.
    NotReady,
    /// Rebooted into something that is neither the target nor what ran before.
    Unproven,
    /// The next image is staged, but a gate of the pool keeps the holder from going on to it.
    Revoked,
    /// The next image is staged, but the window in which reboots may start has closed.
    WindowClosed,
    /// There is no way back to before the commit, and something inhibits the reboot.
    Inhibited,
    /// An admin has excluded the Node.
    Excluded,
}

/// The next step.
pub fn step(facts: &Facts) -> Step {
    if facts.host.shutting_down {
        return Step::Wait(WaitReason::ShuttingDown, Some(LOOK_AGAIN));
    }
    if let Some(silence) = &facts.host.unreachable {
        // Without them nothing can be done on the host, nor seen of it.
        if !silence.is_to_be_told() {
            return Step::Wait(WaitReason::HostUnreachable, Some(LOOK_AGAIN));
        }
        return finish_in_silence(facts, silence).unwrap_or(Step::Wait(WaitReason::HostUnreachable, Some(LOOK_SELDOM)));
    }
    let Some(berths) = &facts.berths else {
        return Step::Wait(WaitReason::BerthsUnknown, None);
    };
    // A turn that was begun is finished before anything else, whatever is desired now.
    if let Some((berth, holding)) = held(facts, berths) {
        return finish(facts, berth, holding);
    }
    match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        // I1(a): a cordon of ours that no berth covers is undone.
        ClusterNode::Is(node) if node.cordon.is_some() => return Step::Uncordon,
        _ => {}
    }
    let node = facts.cluster_node.get();
    match &facts.desired {
        Desired::Unknown => idle::leave_alone(facts, WaitReason::NothingAsked, None),
        Desired::Release => idle::undo(facts),
        // What was published for another Node of this name is nothing to this one.
        Desired::Member(member) if node.is_none_or(|n| n.uid != member.node_uid) => {
            idle::leave_alone(facts, WaitReason::OtherNode, None)
        }
        Desired::Member(_) if node.is_some_and(|n| n.excluded) => {
            idle::leave_alone(facts, WaitReason::Excluded, Some(LOOK_SELDOM))
        }
        Desired::Member(_) if facts.guard.next_try.is_zero() => Step::TryGuard,
        Desired::Member(member) => idle::pursue(facts, member, berths),
    }
}

fn held<'a>(facts: &Facts, berths: &'a [Berth]) -> Option<(&'a Berth, &'a Holding)> {
    let elsewhere = |b: &Berth| matches!(&facts.desired, Desired::Member(m) if m.pool != b.pool);
    let seen = berths
        .iter()
        .filter(|b| !(Bug::SearchInNewPoolOnly.is_awake() && elsewhere(b)));
    seen.filter_map(|b| b.holding().filter(|h| h.node == facts.node).map(|h| (b, h)))
        .min_by_key(|(_, h)| {
            // Should there ever be two, the one that is furthest is finished first.
            match h.phase {
                HoldPhase::Releasing(_) => 0,
                HoldPhase::Committed => 1,
                HoldPhase::Taken => 2,
            }
        })
}

/// The next step, of those that ask nothing of the host, towards the end of a turn that has armed nothing: the node must not
/// stay drained for as long as the host's services are silent.
fn finish_in_silence(facts: &Facts, silence: &Unreachable) -> Option<Step> {
    let (berth, holding) = held(facts, facts.berths.as_deref()?)?;
    let is_unproven = match holding.phase {
        // Its end was decided on a boot; another one has to be looked at.
        HoldPhase::Releasing(_) => holding.boot_id != facts.host.boot_id,
        _ => is_unproven(holding, &facts.host.boot_id, &facts.host.os, &facts.past),
    };
    if Bug::SilentLetsGo.is_awake() && holding.boot_id != facts.host.boot_id {
        return Some(Step::Release(berth.clone(), Outcome::Updated, silence.why.clone()));
    }
    if !facts.host.disarmed || is_unproven || holding.phase == HoldPhase::Committed {
        return None;
    }
    // What was seen of it before counts no more.
    let mut blind = facts.clone();
    blind.host.fresh = true;
    blind.host.os = Os::Unusable {
        reason: Reason::HostUnreachable,
        message: silence.why.clone(),
    };
    let next = match finish(&blind, berth, holding) {
        // Nobody has looked at the pods lately: they are not what keeps the turn.
        Step::Release(berth, Outcome::DrainTimeout, _) => {
            let why = format!("the host does not answer: {}", silence.why);
            Step::Release(berth, Outcome::RebootBlocked, why)
        }
        Step::Release(berth, outcome, why) if !why.contains(&silence.why) => {
            Step::Release(berth, outcome, format!("{why}; {}", silence.why))
        }
        next => next,
    };
    let of_cluster = matches!(
        next,
        Step::ReadNode | Step::Release(..) | Step::Restore(_) | Step::GiveBack(_)
    );
    of_cluster.then_some(next)
}

/// The next step of a turn that was begun.
fn finish(facts: &Facts, berth: &Berth, holding: &Holding) -> Step {
    let node = match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        ClusterNode::Is(node) if node.uid == holding.uid || Bug::NoUidCheck.is_awake() => node,
        // I2: the licence is for another Node of this name. Nothing here may use it; the controller closes it.
        ClusterNode::Is(_) | ClusterNode::Gone => {
            return settle(facts).unwrap_or(Step::Wait(WaitReason::ForeignBerth, None));
        }
    };
    match holding.phase {
        HoldPhase::Releasing(_) => boot::release(facts, berth, holding, node),
        HoldPhase::Taken | HoldPhase::Committed
            if is_unproven(holding, &facts.host.boot_id, &facts.host.os, &facts.past) =>
        {
            boot::prove(facts, berth, holding, node)
        }
        HoldPhase::Taken => turn::work(facts, berth, holding, node),
        HoldPhase::Committed => turn::go(facts, berth, holding, node),
    }
}

/// Says whether the boot that runs has still to be proven under this berth (I5). That is true of a new boot. It is also
/// true of a boot under which the berth was licensed anew, since that did not prove it: this host remembers such a
/// boot; and if it has forgotten, another image runs than the one that was proven last.
pub(crate) fn is_unproven(holding: &Holding, boot_id: &BootId, os: &Os, past: &Past) -> bool {
    if Bug::NoBootIdCheck.is_awake() {
        return false;
    }
    let is_other = |d: &Deployments| holding.from.is_some() && d.booted.digest != holding.from;
    holding.boot_id != *boot_id
        || past.unproven_boot.as_ref() == Some(boot_id)
        || os.deployments().is_some_and(is_other)
}

/// Step that must be done before it is known that nothing of Berth's is armed (I3): that nothing is staged, or that it is
/// locked. A host that does not answer does not count as one with nothing staged. Where nothing can be Berth's, the host
/// is not even read (I12).
fn settle(facts: &Facts) -> Option<Step> {
    if facts.host.pull.is_some() {
        // bootc or the unit of the pull locks what it stages; its end is looked at.
        return None;
    }
    if !has_pool(facts) && staged_by_berth(facts).next().is_none() {
        return None;
    }
    match &facts.host.os {
        Os::Unknown => Some(Step::LookAtHost),
        Os::Unusable { .. } if !facts.host.fresh => Some(Step::LookAtHost),
        Os::Unusable { .. } => Some(Step::Wait(WaitReason::HostUnusable, None)),
        Os::Bootc(d) => {
            let armed = d.staged.as_ref().filter(|s| !s.locked && is_to_lock(facts, s));
            let armed = armed.filter(|_| !(Bug::UnlockableLeft.is_awake() && facts.host.lock_fails.is_some()));
            armed.map(|staged| disarm(facts, d, staged))
        }
    }
}

/// Step after which a staged image is not armed: it is locked, or removed where that cannot be, or fails again and again (I3).
/// One with packages that somebody has asked for is never removed: the lock is tried again, ever more seldom.
fn disarm(facts: &Facts, deployments: &Deployments, staged: &Deployment) -> Step {
    match (deployments.storage.ostree_lock(), &facts.host.lock_fails) {
        (Some(lock), None) => Step::Lock(lock),
        (Some(lock), Some(trouble)) if deployments.staged_layers => match trouble.pause {
            Duration::ZERO => Step::Lock(lock),
            pause => Step::Wait(WaitReason::Unlockable, Some(pause)),
        },
        _ => Step::Unstage(staged.clone()),
    }
}

/// Says whether a pool has this node, and nobody has excluded it.
fn has_pool(facts: &Facts) -> bool {
    match (&facts.desired, facts.cluster_node.get()) {
        (Desired::Member(member), Some(node)) => node.uid == member.node_uid && !node.excluded,
        _ => false,
    }
}

/// Says whether a staged image is Berth's to lock (I12): any image on a node of a pool, and elsewhere what Berth staged. On a
/// host that is refused, what others staged is theirs as well, but for a turn that was begun.
fn is_to_lock(facts: &Facts, staged: &Deployment) -> bool {
    let is_left_alone =
        facts.host.os.refusal().is_some() && held(facts, facts.berths.as_deref().unwrap_or(&[])).is_none();
    (has_pool(facts) && !is_left_alone) || staged_by_berth(facts).any(|ours| staged.digest.as_ref() == Some(ours))
}

/// Images that Berth may have staged here: the one that the host remembers, and those of the berths that the node holds.
fn staged_by_berth(facts: &Facts) -> impl Iterator<Item = &Digest> {
    let held = facts.berths.iter().flatten().filter_map(Berth::holding);
    let targets = held.filter(|h| h.node == facts.node).map(|h| &h.target);
    facts.past.staged_by_us.iter().chain(targets)
}

#[cfg(test)]
mod tests;
