//! The agent's decision: facts in, next step out. Pure; the same function runs in production and in the tests, and
//! is the place where the invariants of the design are kept. Their numbers stand beside the lines that keep them.

use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::digest::Digest;
use berth_api::node::{DesiredImage, Staging};

use crate::facts::{ClusterNode, Desired, Facts, Member, Os, Reboot};
use crate::node::cordon::NodeFacts;
use berth_api::seeded::Bug;

/// How long a reboot that was asked for may take to begin before it counts as blocked.
pub const REBOOT_GRACE: Duration = Duration::from_secs(60);
/// How often something that nobody announces is looked at again: an inhibitor, a Node that is not Ready yet.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How soon after a boot a Node that is not Ready yet is looked at again.
const READY_AGAIN: Duration = Duration::from_millis(100);

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing, until something changes or the time is over.
    Wait(Why, Option<Duration>),
    /// Read the host's deployments.
    LookAtHost,
    /// Read the Node object.
    ReadNode,
    /// Pull and stage this image, locked.
    StartPull(DesiredImage),
    /// Stop the pull of this digest.
    CancelPull(Digest),
    /// Lock what is staged.
    Lock,
    /// Unlock what is staged. Only under a committed berth.
    Unlock,
    /// Remove what is staged.
    Unstage,
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
    /// Take the commit back.
    Uncommit(Berth),
    /// Start to give the berth back.
    Release(Berth, Outcome, String),
    /// Write the Node: undo our cordon, and mark it in any case.
    Restore(Berth),
    /// Close the berth.
    GiveBack(Berth),
    /// Undo a cordon of ours that no berth covers.
    Uncordon,
}

/// Why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The host goes down.
    ShuttingDown,
    /// Nothing is asked of this node.
    NothingAsked,
    /// What Berth did here is undone.
    Released,
    /// The berths are not known yet.
    BerthsUnknown,
    /// The berth is for a Node of this name that no longer exists.
    ForeignBerth,
    /// What is published is for another Node of this name.
    OtherNode,
    /// The node runs what it should.
    Updated,
    /// The image is not resolved.
    Unresolved,
    /// The host cannot be updated.
    HostUnusable,
    /// The digest failed here before.
    FailedDigest,
    /// Something failed; its backoff runs.
    BackingOff,
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
}

/// The next step.
pub fn step(facts: &Facts) -> Step {
    if facts.host.shutting_down {
        return Step::Wait(Why::ShuttingDown, Some(LOOK_AGAIN));
    }
    let Some(berths) = &facts.berths else {
        return Step::Wait(Why::BerthsUnknown, None);
    };
    // A turn that was begun is finished before anything else, whatever is desired now.
    if let Some((berth, holding)) = held(facts, berths) {
        return hold(facts, berth, holding);
    }
    match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        // I1(a): a cordon of ours that no berth covers is undone.
        ClusterNode::Is(node) if node.cordon.is_some() => return Step::Uncordon,
        _ => {}
    }
    match &facts.desired {
        Desired::Unknown => settle(facts).unwrap_or(Step::Wait(Why::NothingAsked, None)),
        Desired::Release => undo(facts),
        // What was published for another Node of this name is nothing to this one.
        Desired::Member(member) if facts.cluster_node.get().is_some_and(|n| n.uid != member.node_uid) => {
            settle(facts).unwrap_or(Step::Wait(Why::OtherNode, None))
        }
        Desired::Member(member) => pursue(facts, member, berths),
    }
}

fn held<'a>(facts: &Facts, berths: &'a [Berth]) -> Option<(&'a Berth, &'a Holding)> {
    berths.iter().filter_map(|b| b.holding().filter(|h| h.node == facts.node).map(|h| (b, h))).min_by_key(|(_, h)| {
        // Should there ever be two, the one that is furthest is finished first.
        match h.phase {
            HoldPhase::Releasing(_) => 0,
            HoldPhase::Committed => 1,
            HoldPhase::Taken => 2,
        }
    })
}

fn hold(facts: &Facts, berth: &Berth, holding: &Holding) -> Step {
    let node = match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        ClusterNode::Is(node) if node.uid == holding.uid => node,
        // I2: the licence is for another Node of this name. Nothing here may use it; the controller closes it.
        ClusterNode::Is(_) | ClusterNode::Gone => return settle(facts).unwrap_or(Step::Wait(Why::ForeignBerth, None)),
    };
    let rebooted = holding.boot_id != facts.host.boot_id;
    match holding.phase {
        HoldPhase::Releasing(_) => release(facts, berth, holding, node),
        HoldPhase::Taken | HoldPhase::Committed if rebooted => prove(facts, berth, holding, node),
        HoldPhase::Taken => work(facts, berth, holding, node),
        HoldPhase::Committed => go(facts, berth, holding),
    }
}

/// What must be done before it is known that nothing is armed (I3): that nothing is staged, or that it is locked. A
/// host that does not answer is not one with nothing staged.
fn settle(facts: &Facts) -> Option<Step> {
    if facts.host.pull.is_some() {
        // Its own unit locks what it stages; its end is looked at.
        return None;
    }
    match &facts.host.os {
        Os::Unknown => Some(Step::LookAtHost),
        Os::Unusable { .. } if !facts.host.fresh => Some(Step::LookAtHost),
        Os::Unusable { .. } => Some(Step::Wait(Why::HostUnusable, None)),
        Os::Bootc(d) if d.staged.as_ref().is_some_and(|s| !s.locked) => Some(Step::Lock),
        Os::Bootc(_) => None,
    }
}

/// Taken, same boot: cordon, drain, commit; or give back when there is a reason to.
fn work(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if let Some(first) = settle(facts) {
        return first;
    }
    if let Some((outcome, message)) = reason_to_stop(facts, holding) {
        return Step::Release(berth.clone(), outcome, message);
    }
    if node.cordon.is_none() || !node.unschedulable {
        return Step::Cordon(berth.clone());
    }
    if !facts.drain.done {
        return match facts.drain.next_pass {
            Some(next) if !next.is_zero() => Step::Wait(Why::Draining, Some(next)),
            _ => Step::Drain,
        };
    }
    // Everything is seen once more, live, before the point of no return.
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    Step::Commit(berth.clone())
}

/// Why an uncommitted turn should end.
fn reason_to_stop(facts: &Facts, holding: &Holding) -> Option<(Outcome, String)> {
    if let Some(reason) = &holding.revoke {
        return Some((Outcome::Revoked, reason.clone()));
    }
    if facts.desired.digest() != Some(&holding.target) {
        return Some((Outcome::Withdrawn, format!("{} is no longer desired here", holding.target)));
    }
    if let Reboot::Blocked(why) = &facts.host.reboot {
        return Some((Outcome::RebootBlocked, why.clone()));
    }
    // I8
    if facts.past.failed_digests.contains(&holding.target) {
        return Some((Outcome::Withdrawn, format!("{} failed on this node", holding.target)));
    }
    match facts.host.os.staged() {
        Some(staged) if staged.digest.as_ref() == Some(&holding.target) => {}
        Some(staged) => {
            let what = staged.digest.as_ref().map_or_else(|| staged.image.clone(), ToString::to_string);
            return Some((Outcome::NotStaged, format!("{what} is staged in place of {}", holding.target)));
        }
        None => return Some((Outcome::NotStaged, format!("{} is no longer staged", holding.target))),
    }
    let timeout = match &facts.desired {
        Desired::Member(member) => member.drain.timeout(),
        _ => Duration::ZERO,
    };
    if !facts.drain.done && facts.drain.elapsed >= timeout {
        let who: Vec<_> = facts.drain.blockers.iter().map(|b| format!("{}: {}", b.pod, b.reason)).collect();
        return Some((Outcome::DrainTimeout, format!("after {}s still there: {}", timeout.as_secs(), who.join("; "))));
    }
    if facts.drain.done && is_inhibited(facts) {
        return Some((Outcome::RebootBlocked, inhibited(facts)));
    }
    None
}

/// Whether a reboot would be refused, or would come in the way of one that somebody else has planned.
pub fn is_inhibited(facts: &Facts) -> bool {
    !facts.host.inhibitors.is_empty() || facts.host.shutdown_scheduled
}

/// Who inhibits it, for people.
pub fn inhibited(facts: &Facts) -> String {
    let mut who = facts.host.inhibitors.clone();
    if facts.host.shutdown_scheduled {
        who.push("a shutdown that is scheduled for later".to_owned());
    }
    format!("shutdown is inhibited by {}", who.join(", "))
}

/// Committed, same boot: unlock, verify, reboot; or take the commit back.
fn go(facts: &Facts, berth: &Berth, holding: &Holding) -> Step {
    // A reboot that was asked for may be on its way: a lost reply counts as accepted.
    if let Reboot::Asked(ago) = facts.host.reboot
        && ago < REBOOT_GRACE
    {
        return Step::Wait(Why::Rebooting, Some(LOOK_AGAIN.min(REBOOT_GRACE.saturating_sub(ago))));
    }
    let blocked = match &facts.host.reboot {
        Reboot::Blocked(_) | Reboot::Asked(_) => true,
        Reboot::NotAsked => is_inhibited(facts),
    };
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    if facts.host.os.deployments().is_none() {
        // The image may be unlocked: who cannot see that it is not keeps the licence.
        return Step::Wait(Why::HostUnusable, None);
    }
    let staged = facts.host.os.staged();
    let is_target = staged.is_some_and(|s| s.digest.as_ref() == Some(&holding.target));
    let desired = facts.desired.digest() == Some(&holding.target);
    if blocked || !is_target || !desired {
        // I3: nothing stays armed when the turn does not end in a reboot.
        if let Some(first) = settle(facts) {
            return first;
        }
        // A shutdown that is queued is waited for: whatever it ends is still under this licence.
        if facts.host.shutdown_scheduled {
            return Step::Wait(Why::Rebooting, Some(LOOK_AGAIN * 10));
        }
        return Step::Uncommit(berth.clone());
    }
    match staged {
        Some(staged) if staged.locked => Step::Unlock,
        // I2: committed for this UID, digest and boot ID, all read live in this very pass.
        _ => Step::Reboot,
    }
}

/// What a new boot turned out to be.
#[expect(clippy::large_enum_variant, reason = "it lives for one decision")]
enum Proof {
    /// The target runs.
    Target,
    /// What ran before runs again.
    From,
    /// It is not proven yet; this comes first.
    NotYet(Step),
}

/// A new boot is proven (I5) when what runs is known, and the Node is Ready under this very boot. Otherwise: what to
/// do until it is.
fn proof(facts: &Facts, holding: &Holding, node: &NodeFacts) -> Proof {
    if !facts.host.fresh {
        return Proof::NotYet(Step::LookAtHost);
    }
    if facts.host.os.deployments().is_none() {
        return Proof::NotYet(Step::Wait(Why::HostUnusable, None));
    }
    // Who else stages images must not arm one while we wait.
    if let Some(first) = settle(facts) {
        return Proof::NotYet(first);
    }
    let booted = facts.host.os.booted();
    let proof = if booted == Some(&holding.target) {
        Proof::Target
    } else if booted.is_some() && booted == holding.from.as_ref() {
        Proof::From
    } else {
        return Proof::NotYet(Step::Wait(Why::Unproven, None));
    };
    if !(node.ready && node.boot_id.as_ref() == Some(&facts.host.boot_id)) {
        // A host that comes back quickly must not wait for its next look; one that does not is asked in peace.
        let next = (facts.proving_for / 8).clamp(READY_AGAIN, LOOK_AGAIN);
        return Proof::NotYet(Step::Wait(Why::NotReady, Some(next)));
    }
    proof
}

/// A new boot under a taken or committed berth: give back once it is proven.
fn prove(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    match proof(facts, holding, node) {
        Proof::NotYet(first) => return first,
        Proof::Target => return Step::Release(berth.clone(), Outcome::Updated, String::new()),
        Proof::From => {}
    }
    let (outcome, message) = match holding.phase {
        HoldPhase::Taken => (Outcome::NotStaged, "the host rebooted before the turn was committed".to_owned()),
        _ if facts.host.finalization_failed => {
            (Outcome::NotApplied, "ostree-finalize-staged.service failed at shutdown".to_owned())
        }
        _ => (Outcome::NotApplied, "the host rebooted into what it ran before".to_owned()),
    };
    Step::Release(berth.clone(), outcome, message)
}

/// Releasing: restore the Node, then close the berth. A boot that came after the release began is proven like any.
fn release(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if holding.boot_id != facts.host.boot_id
        && let Proof::NotYet(first) = proof(facts, holding, node)
    {
        return first;
    }
    if let Some(first) = settle(facts) {
        return first;
    }
    // Also with nothing to restore: the write makes a cordon of a crashed agent, still on its way, lose.
    if node.cordon.is_some() || !facts.restored {
        return Step::Restore(berth.clone());
    }
    Step::GiveBack(berth.clone())
}

/// The node left its pool: undo what Berth did.
fn undo(facts: &Facts) -> Step {
    if let Some(pull) = &facts.host.pull {
        return Step::CancelPull(pull.digest.clone());
    }
    if facts.host.os == Os::Unknown || !facts.host.fresh {
        return Step::LookAtHost;
    }
    match (&facts.host.os, &facts.past.staged_by_us) {
        // Whether what we staged is still there cannot be seen now.
        (Os::Unusable { .. }, Some(_)) => Step::Wait(Why::HostUnusable, None),
        (os, Some(ours)) if os.staged().is_some_and(|s| s.digest.as_ref() == Some(ours)) => Step::Unstage,
        _ => Step::Wait(Why::Released, None),
    }
}

/// No berth held: bring the host to "staged, locked", and take an offer.
fn pursue(facts: &Facts, member: &Member, berths: &[Berth]) -> Step {
    let Some(image) = &member.image else {
        return settle(facts).unwrap_or(Step::Wait(Why::Unresolved, None));
    };
    let desired = &image.digest;
    if let Some(pull) = &facts.host.pull {
        // I7: one pull at a time; the one for the desired digest is adopted, another one is stopped.
        return match pull.digest == *desired {
            true => Step::Wait(Why::Pulling, None),
            false => Step::CancelPull(pull.digest.clone()),
        };
    }
    let deployments = match &facts.host.os {
        Os::Unknown => return Step::LookAtHost,
        Os::Unusable { .. } if facts.host.fresh => return Step::Wait(Why::HostUnusable, None),
        Os::Unusable { .. } => return Step::LookAtHost,
        Os::Bootc(deployments) => deployments,
    };
    if deployments.booted.digest.as_ref() == Some(desired) {
        // I3: what is staged is not desired, since what is desired runs.
        return match deployments.staged {
            Some(_) => Step::Unstage,
            None => Step::Wait(Why::Updated, None),
        };
    }
    if let Some(staged) = &deployments.staged {
        if staged.digest.as_ref() != Some(desired) || facts.past.failed_digests.contains(desired) {
            return Step::Unstage;
        }
        if Bug::SkipBerth.is_awake() {
            return if staged.locked { Step::Unlock } else { Step::Reboot };
        }
        if !staged.locked {
            return Step::Lock;
        }
        return wait_for_berth(facts, desired, berths);
    }
    stage(facts, member, image)
}

fn stage(facts: &Facts, member: &Member, image: &DesiredImage) -> Step {
    if facts.past.failed_digests.contains(&image.digest) {
        return Step::Wait(Why::FailedDigest, None);
    }
    if let Some(left) = facts.past.pull_backoff(&image.digest, facts.now) {
        return Step::Wait(Why::BackingOff, Some(left));
    }
    if member.staging == Staging::Held {
        return Step::Wait(Why::StagingHeld, None);
    }
    // A failed pull may have armed a deployment, and another updater may have staged one: look before each pull.
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    Step::StartPull(image.clone())
}

fn wait_for_berth(facts: &Facts, desired: &Digest, berths: &[Berth]) -> Step {
    if let Some(left) = facts.past.turn_backoff(desired, facts.now) {
        return Step::Wait(Why::BackingOff, Some(left));
    }
    if is_inhibited(facts) {
        return Step::Wait(Why::NoBerth, Some(LOOK_AGAIN * 10));
    }
    let offer = berths.iter().find(|b| {
        b.offer().is_some_and(|o| {
            o.node == facts.node && o.target == *desired && o.open_until.is_none_or(|until| facts.now < until)
        })
    });
    let Some(berth) = offer else {
        return Step::Wait(Why::NoBerth, None);
    };
    // Somebody may have changed what is staged since: better seen before the drain than after it.
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    match &facts.cluster_node {
        ClusterNode::Unread => Step::ReadNode,
        // The offer is for one UID; a Node that was created anew under this name must not take it.
        ClusterNode::Is(node) if berth.offer().is_some_and(|o| o.uid == node.uid) => Step::Take(berth.clone()),
        _ => Step::Wait(Why::ForeignBerth, None),
    }
}

#[cfg(test)]
mod tests;
