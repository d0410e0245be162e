//! Under a boot that is not proven: prove it and give back, or go on from it to another digest.
//!
//! A node whose image turns out to be bad must be able to go forward, with the one licence that it has: giving back
//! first would need a proof that never comes. So its berth is licensed anew for what is desired now (I2, I10), after
//! everything that a commit asks for. There is no way back from that: the boot stays unproven (I5) until a reboot
//! leads to one that is.

use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::node::DesiredImage;
use berth_api::seeded::Bug;

use super::action::{
    LOOK_AGAIN, LOOK_HOST_AGAIN, LOOK_SELDOM, READY_AGAIN, REBOOT_AGAIN, REBOOT_GRACE, Step, WaitReason,
};
use super::disarm::settle;
use super::idle::{lacks_policy, set_aside_step, stage};
use super::turn;
use super::way::{self, Ahead, await_reboot, inhibited, is_inhibited};
use crate::agent::facts::{Desired, Facts, Member, Reboot};
use crate::agent::node::NodeFacts;
use crate::agent::past::MAX_NOT_APPLIED;

/// Result of looking at a boot.
enum Proof {
    /// The target runs.
    Target,
    /// The digest that ran before runs again.
    From,
    /// The boot is not proven yet; what is missing, and when to look again.
    NotYet(WaitReason, Option<Duration>),
}

/// The way on for a holder: the pool that asks for it, and the image.
type Way<'a> = (&'a Member, &'a DesiredImage);

/// Taken or committed, and the boot is not proven.
pub(super) fn prove(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if holding.phase == HoldPhase::Committed
        && holding.boot_id == facts.host.boot_id
        && let Some(wait) = await_reboot(facts)
    {
        return wait;
    }
    let way = way_on(facts, holding, node);
    if let Some(pull) = &facts.host.pull {
        // What runs is proven only when it can be seen, which a pull prevents: none but the one that leads on stays.
        return match way {
            Some((_, image)) if image.digest == pull.digest => Step::Wait(WaitReason::Pulling, None),
            _ => Step::CancelPull(pull.digest.clone()),
        };
    }
    if let Some(first) = see(facts) {
        return first;
    }
    if let Some((member, image)) = way
        && is_licensed(facts, holding, image)
    {
        return go(facts, berth, holding, node, (member, image));
    }
    // Who else stages images must not arm one while we wait.
    if let Some(first) = settle(facts).or_else(|| await_queued(facts, holding)) {
        return first;
    }
    if node.excluded {
        let (outcome, message) = abandoned(facts, holding, node);
        return Step::Release(berth.clone(), outcome, message);
    }
    match proof(facts, holding, node) {
        Proof::Target => Step::Release(berth.clone(), Outcome::Updated, String::new()),
        Proof::From => {
            let (outcome, message) = not_applied(facts, holding);
            Step::Release(berth.clone(), outcome, message)
        }
        Proof::NotYet(why, again) => match way {
            Some(way) => go_on(facts, berth, holding, node, way),
            None => Step::Wait(why, again),
        },
    }
}

/// Step that comes before anything can be said about the boot.
fn see(facts: &Facts) -> Option<Step> {
    if !facts.host.fresh {
        return Some(Step::LookAtHost);
    }
    // Whoever cannot see what runs keeps the licence.
    facts
        .host
        .os
        .deployments()
        .is_none()
        .then_some(Step::Wait(WaitReason::HostUnusable, None))
}

/// A boot is proven (I5) when what runs is known, and the Node is Ready under this very boot.
fn proof(facts: &Facts, holding: &Holding, node: &NodeFacts) -> Proof {
    let booted = facts.host.os.booted();
    let proof = if booted == Some(&holding.target) {
        if facts.host.os.is_rollback_queued() {
            // The next boot leads away from it.
            return Proof::NotYet(WaitReason::RollbackQueued, Some(LOOK_HOST_AGAIN));
        }
        Proof::Target
    } else if booted.is_some() && booted == holding.from.as_ref() {
        Proof::From
    } else {
        return Proof::NotYet(WaitReason::Unproven, None);
    };
    if !is_ready(facts, node) && !Bug::ReleaseBeforeProof.is_awake() {
        // A host that comes back quickly must not wait for its next look; one that does not is asked in peace.
        let next = (facts.proving_for / 8).clamp(READY_AGAIN, LOOK_AGAIN);
        return Proof::NotYet(WaitReason::NotReady, Some(next));
    }
    proof
}

/// Ready as said under this very boot: what a Node says of an earlier one proves nothing.
pub(crate) fn reports_ready(facts: &Facts, node: &NodeFacts) -> bool {
    node.ready && node.boot_id.as_ref() == Some(&facts.host.boot_id)
}

/// Ready under this very boot, and no readiness taint keeps pods away.
pub(crate) fn is_ready(facts: &Facts, node: &NodeFacts) -> bool {
    reports_ready(facts, node) && node.not_ready_taint.is_none()
}

/// Under a licence for this very boot, a shutdown that is queued is waited for before the licence is let go.
fn await_queued(facts: &Facts, holding: &Holding) -> Option<Step> {
    let queued = holding.boot_id == facts.host.boot_id && facts.host.shutdown_scheduled;
    queued.then_some(Step::Wait(WaitReason::Rebooting, Some(LOOK_SELDOM)))
}

/// Outcome of a turn after which the digest that ran before runs again, proven. Decided once and stored in the berth;
/// what counts it later finds it there.
fn not_applied(facts: &Facts, holding: &Holding) -> (Outcome, String) {
    let target = &holding.target;
    if holding.boot_id == facts.host.boot_id {
        // Licensed anew under this boot, and never rebooted since.
        return (Outcome::Withdrawn, format!("{target} is no longer desired here"));
    }
    if holding.phase == HoldPhase::Taken {
        return (
            Outcome::NotStaged,
            "the host rebooted before the turn was committed".to_owned(),
        );
    }
    // I5, I8: it ran, and nobody could prove it.
    if facts.past.tried.as_ref() == Some(target) || facts.past.failed_digests.contains(target) {
        return (
            Outcome::Failed,
            format!("{target} ran unproven, and the host went back to what it ran before"),
        );
    }
    // I8: finalized, and the boot loader has fallen back from it.
    if facts.host.os.queued_digest() == Some(target) {
        let message = format!("{target} was finalized, and what ran before was booted in its place");
        return (Outcome::Failed, message);
    }
    let message = match facts.host.finalization_failed {
        true => "ostree-finalize-staged.service failed at shutdown",
        false => "the host rebooted into what it ran before",
    };
    match facts.past.times_not_applied(target).saturating_add(1) {
        times if times >= MAX_NOT_APPLIED => (Outcome::Failed, format!("{message}, for the {times}. time")),
        _ => (Outcome::NotApplied, message.to_owned()),
    }
}

/// Outcome of the turn of an excluded node, whose proof nobody waits for. A target that ran unproven counts as failed.
fn abandoned(facts: &Facts, holding: &Holding, node: &NodeFacts) -> (Outcome, String) {
    let booted = facts.host.os.booted();
    let message = "the Node is excluded".to_owned();
    if booted == Some(&holding.target) && reports_ready(facts, node) {
        return (Outcome::Updated, String::new());
    }
    let same_boot = holding.boot_id == facts.host.boot_id;
    if holding.phase == HoldPhase::Taken || (same_boot && booted != Some(&holding.target)) {
        return (Outcome::Withdrawn, message);
    }
    match booted.is_some() && booted == holding.from.as_ref() {
        true => not_applied(facts, holding),
        false => (Outcome::Failed, format!("{message}, and its boot was not proven")),
    }
}

/// The way on from an unproven boot, if the holder has one. The pool must want another digest than the licensed one; or
/// the same one, when a former licence for it led nowhere.
fn way_on<'a>(facts: &'a Facts, holding: &Holding, node: &NodeFacts) -> Option<Way<'a>> {
    let Desired::Member(member) = &facts.desired else {
        return None;
    };
    let image = member.image.as_ref()?;
    let (desired, booted) = (&image.digest, facts.host.os.booted());
    // What was licensed already is as good as committed, and what runs needs no pull.
    if facts.objection().is_some() && booted != Some(desired) && !is_licensed(facts, holding, image) {
        return None;
    }
    // I5: without it nobody could tell later that the boot is not proven. I8: no failed digest.
    if holding.from.is_none() || facts.past.failed_digests.contains(desired) {
        return None;
    }
    if node.excluded || member.node_uid != node.uid {
        return None;
    }
    let may = if *desired != holding.target {
        // What ran before runs again: once proven, that is all there is to do.
        booted != Some(desired) || booted != holding.from.as_ref()
    } else if booted == Some(desired) {
        false
    } else {
        is_licensed(facts, holding, image) || may_repeat(facts, holding, member)
    };
    may.then_some((&**member, image))
}

/// Says whether this very boot may be left for the image.
fn is_licensed(facts: &Facts, holding: &Holding, image: &DesiredImage) -> bool {
    holding.phase == HoldPhase::Committed && holding.boot_id == facts.host.boot_id && holding.target == image.digest
}

/// Says whether a target that was never booted may be licensed once more. Only after the time that a boot is given to
/// prove itself, since giving back comes first; and not for ever (I8).
fn may_repeat(facts: &Facts, holding: &Holding, member: &Member) -> bool {
    facts.proving_for >= member.reboot_timeout
        && facts.past.tried.as_ref() != Some(&holding.target)
        && facts.past.times_not_applied(&holding.target).saturating_add(1) < MAX_NOT_APPLIED
}

/// Goes on from a boot that is not proven to another digest: all that a commit asks for, and then the new licence.
fn go_on(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts, (member, image): Way<'_>) -> Step {
    let relicense = Step::Relicense(berth.clone(), image.digest.clone());
    if facts.host.os.booted() == Some(&image.digest) {
        // It runs already: no reboot follows, only its proof.
        return if holding.revoke.is_some() {
            Step::Wait(WaitReason::Revoked, Some(LOOK_SELDOM))
        } else {
            relicense
        };
    }
    if let Some(first) = prepare(facts, member, image) {
        return first;
    }
    if facts.host.os.refusal().is_some() {
        return Step::Wait(WaitReason::HostUnusable, Some(LOOK_SELDOM));
    }
    if holding.revoke.is_some() {
        return Step::Wait(WaitReason::Revoked, Some(LOOK_SELDOM));
    }
    match way::ahead(facts, berth, holding, node) {
        Ahead::WindowClosed(_) => Step::Wait(WaitReason::WindowClosed, Some(LOOK_SELDOM)),
        Ahead::NotClear(step) => step,
        Ahead::Inhibited(_) => Step::Wait(WaitReason::Inhibited, Some(LOOK_SELDOM)),
        Ahead::Nothing => relicense,
    }
}

/// The next step towards the image being staged; `None` once it is.
fn prepare(facts: &Facts, member: &Member, image: &DesiredImage) -> Option<Step> {
    let deployments = facts.host.os.deployments();
    let staged = deployments.and_then(|known| Some((known, known.staged.as_ref()?)));
    match staged {
        Some(_) if facts.staged_whole(&image.digest).is_some() && !lacks_policy(facts) => None,
        Some((known, other)) if !known.staged_layers => Some(Step::Unstage(other.clone())),
        Some((known, other)) if !other.locked => set_aside_step(facts, known, other),
        _ => Some(match stage(facts, member, image) {
            // Meanwhile the Node may become Ready.
            Step::Wait(why, wait) => Step::Wait(why, Some(wait.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN))),
            step => step,
        }),
    }
}

/// Reason why a reboot that was asked for did not begin, until it may be asked for again.
fn held_up(facts: &Facts) -> Option<String> {
    match &facts.host.reboot {
        Reboot::NotAsked => None,
        Reboot::Blocked { why, ago } => (*ago < REBOOT_AGAIN).then(|| why.clone()),
        Reboot::Asked(ago) => {
            (*ago < REBOOT_GRACE + REBOOT_AGAIN).then(|| "logind accepted the reboot, and no shutdown began".to_owned())
        }
    }
}

/// Licensed under this unproven boot: unlock, verify, reboot. There is no commit to take back: what is in the way is waited
/// for.
fn go(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts, (member, image): Way<'_>) -> Step {
    let staged = facts.staged_whole(&image.digest);
    let ahead = match (held_up(facts), staged) {
        (Some(why), _) => Ahead::Inhibited(why),
        (None, Some(_)) => way::ahead(facts, berth, holding, node),
        (None, None) if is_inhibited(facts) => Ahead::Inhibited(inhibited(facts)),
        (None, None) => Ahead::NotClear(prepare(facts, member, image).unwrap_or(Step::LookAtHost)),
    };
    if let (Ahead::Nothing, Some(staged)) = (&ahead, staged) {
        return way::use_licence(facts, berth, staged);
    }
    // I3: nothing stays armed while it waits.
    if let Some(first) = settle(facts).or_else(|| await_queued(facts, holding)) {
        return first;
    }
    let proof = proof(facts, holding, node);
    let refusal = facts
        .host
        .os
        .refusal()
        .map(str::to_owned)
        .or_else(|| Some(facts.objection()?.message));
    if let (None, Some(why), Proof::From) = (staged, refusal, &proof) {
        // Nothing can be staged here any more.
        return Step::Release(berth.clone(), Outcome::RebootBlocked, why);
    }
    match (ahead, proof) {
        // It has become whole meanwhile, running what it ran before.
        (Ahead::Inhibited(why), Proof::From) => Step::Release(berth.clone(), Outcome::RebootBlocked, why),
        (Ahead::Inhibited(_), _) => Step::Wait(WaitReason::Inhibited, Some(LOOK_SELDOM)),
        (Ahead::WindowClosed(_), _) => Step::Wait(WaitReason::WindowClosed, Some(LOOK_SELDOM)),
        (Ahead::NotClear(step), _) => step,
        (Ahead::Nothing, _) => Step::LookAtHost,
    }
}

/// Releasing: restore the Node, then close the berth. A boot that came after the release began is proven like any.
pub(super) fn release(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if holding.boot_id != facts.host.boot_id && !node.excluded {
        if let Some(pull) = &facts.host.pull {
            // As above: what runs could not be seen before its end.
            return Step::CancelPull(pull.digest.clone());
        }
        if let Some(first) = see(facts).or_else(|| settle(facts)) {
            return first;
        }
        if let Proof::NotYet(why, again) = proof(facts, holding, node) {
            return Step::Wait(why, again);
        }
    }
    // What this process has begun to give back unseen, it also gives back unseen, if the host goes on to be silent.
    if let Some(first) = settle(facts).filter(|first| !turn::is_unseen(facts, first)) {
        return first;
    }
    // Also with nothing to restore: the write makes a cordon of a crashed agent, still on its way, lose.
    if (node.cordon.is_some() || !facts.restored) && !Bug::GiveBackNotSticky.is_awake() {
        return Step::Restore(berth.clone());
    }
    Step::GiveBack(berth.clone())
}
