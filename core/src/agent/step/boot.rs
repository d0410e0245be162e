//! Steps under an unproven boot: prove it and give the berth back, or continue to another image.
//!
//! A node that cannot prove its new image must be able to continue to a corrected image. The node cannot give its berth
//! back first, since a give-back needs the missing proof. So the agent commits the same berth again, for the image that
//! is desired now (I2, I10), after all checks that any commit needs. This commit cannot be taken back: the boot stays
//! unproven (I5) until the host reboots and the next boot is proven.

use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::node::DesiredImage;
use berth_api::seeded::Bug;

use super::action::{LOOK_INTERVAL, LOOK_INTERVAL_MAX, Step, WaitReason};
use super::disarm::settle;
use super::idle::{lacks_policy, set_aside_step, stage};
use super::proof::{Proof, proof};
use super::way::{self, Obstacle, await_reboot, inhibited, is_inhibited};
use super::{turn, undo};
use crate::agent::facts::{AgentFacts, Desired, Member};
use crate::agent::node::NodeFacts;
use crate::agent::outside;
use crate::agent::past::MAX_NOT_APPLIED;
use crate::agent::storage::Storage;

/// Next image for a node with an unproven boot, and the node's settings as a member of its pool.
type NextImage<'a> = (&'a Member, &'a DesiredImage);

pub(super) fn prove(facts: &AgentFacts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if holding.phase == HoldPhase::Committed
        && holding.boot_id == facts.host.boot_id
        && let Some(wait) = await_reboot(facts)
    {
        return wait;
    }
    if let Some(wait) = undo::await_guard(facts) {
        return wait;
    }
    let next = next_image(facts, holding, node);
    if let Some(pull) = &facts.host.pull {
        // While a pull runs, the agent cannot read the deployments and so cannot prove the boot. Only a pull of the
        // next image may continue.
        return match next {
            Some((_, image)) if image.digest == pull.digest => Step::Wait(WaitReason::Pulling, None),
            _ => Step::CancelPull(pull.digest.clone()),
        };
    }
    if let Some(first) = read_first(facts) {
        return first;
    }
    if let Some((member, image)) = next
        && is_licensed(facts, holding, image)
    {
        return licensed(facts, berth, holding, node, (member, image));
    }
    // Another program may have staged an image since the boot. Lock or remove it first.
    if let Some(first) = settle(facts).or_else(|| await_queued(facts, holding)) {
        return first;
    }
    if node.excluded {
        let (outcome, message) = abandoned(facts, holding, node);
        return Step::Release(berth.clone(), outcome, message);
    }
    let proof = proof(facts, holding, node);
    // The agent finishes a rollback that it has begun, even if the Node has become Ready meanwhile.
    let is_unproven = matches!(proof, Proof::NotYet(..)) || Bug::UndoneAlways.is_awake();
    if (facts.undoes_boot() || is_unproven)
        && let Some(step) = undo::next_step(facts, holding, node)
    {
        return step;
    }
    match proof {
        Proof::Target => Step::Release(berth.clone(), Outcome::Updated, String::new()),
        Proof::From => {
            let (outcome, message) = not_applied(facts, holding);
            Step::Release(berth.clone(), outcome, message)
        }
        Proof::NotYet(why, again) => match next {
            Some(next) => continue_to(facts, berth, holding, node, next),
            None => Step::Wait(why, again),
        },
    }
}

/// Returns a step that reads the deployments, or a wait if they cannot be read; `None` if the booted image is known.
fn read_first(facts: &AgentFacts) -> Option<Step> {
    if !facts.host.fresh {
        return Some(Step::LookAtHost);
    }
    // While the booted image is unknown, the agent must not end the turn, so the node keeps its licence to reboot.
    facts
        .host
        .os
        .deployments()
        .is_none()
        .then_some(Step::Wait(WaitReason::HostUnusable, None))
}

/// Returns a wait if another program has scheduled a shutdown in the boot that the berth names. Until this shutdown,
/// the berth must keep its licence to reboot.
fn await_queued(facts: &AgentFacts, holding: &Holding) -> Option<Step> {
    let queued = holding.boot_id == facts.host.boot_id && facts.host.shutdown_scheduled;
    queued.then_some(Step::Wait(WaitReason::Rebooting, Some(LOOK_INTERVAL_MAX)))
}

/// Returns the outcome and the message of a turn that ends with the previous image booted.
fn not_applied(facts: &AgentFacts, holding: &Holding) -> (Outcome, String) {
    let target = &holding.target;
    if holding.boot_id == facts.host.boot_id {
        // The berth was committed again under this boot, but the host has not rebooted since.
        return (
            Outcome::Withdrawn,
            format!("{target} is no longer desired on this node"),
        );
    }
    if holding.phase == HoldPhase::Taken {
        return (
            Outcome::NotStaged,
            "the host rebooted before the berth was committed".to_owned(),
        );
    }
    if let Some(undone) = facts.past.undone.as_ref().filter(|undone| undone.digest == *target) {
        return (Outcome::Failed, undo::outcome(undone));
    }
    if let Some(message) = outside::fell_back(facts, target) {
        return (Outcome::Failed, message);
    }
    // I5, I8: the target ran but was never proven, so it has failed.
    if facts.past.tried.as_ref() == Some(target) || facts.past.failed_digests.contains(target) {
        return (
            Outcome::Failed,
            format!("{target} ran but was not proven, and the host went back to the previous image"),
        );
    }
    let message = why_not_applied(facts);
    match facts.past.times_not_applied(target).saturating_add(1) {
        times if times >= MAX_NOT_APPLIED => (Outcome::Failed, format!("{message} ({times} times)")),
        _ => (Outcome::NotApplied, message.to_owned()),
    }
}

/// Returns why the previous image runs again, as far as the host reports it. On a composefs host, no unit of the next boot
/// reports a failed finalization, and bootc before 1.17.0 can fail there if `/boot` is an automount (bootc#2496).
fn why_not_applied(facts: &AgentFacts) -> &'static str {
    let storage = facts.host.os.deployments().map(|known| known.storage);
    match storage {
        _ if facts.host.finalization_failed => "ostree-finalize-staged.service failed at shutdown",
        Some(Storage::Composefs) => {
            "the host rebooted into the previous image; see `journalctl -b -1 -u bootc-finalize-staged` on the host. If /boot \
             is an automount, bootc 1.17.0 or newer is needed"
        }
        _ => "the host rebooted into the previous image",
    }
}

/// Returns the outcome and the message of a turn whose node an admin has excluded. Such a turn may end without a proof.
/// If the target ran unproven, the target has failed.
fn abandoned(facts: &AgentFacts, holding: &Holding, node: &NodeFacts) -> (Outcome, String) {
    let booted = facts.host.os.booted();
    let message = "the Node is excluded".to_owned();
    if booted == Some(&holding.target) && node.reports_ready(&facts.host.boot_id) {
        return (Outcome::Updated, String::new());
    }
    let same_boot = holding.boot_id == facts.host.boot_id;
    if holding.phase == HoldPhase::Taken || (same_boot && booted != Some(&holding.target)) {
        return (Outcome::Withdrawn, message);
    }
    if booted.is_some() && booted == holding.from.as_ref() {
        return not_applied(facts, holding);
    }
    (
        Outcome::Failed,
        format!("{message}; the boot of the target was not proven"),
    )
}

/// Returns the image that the node may update to from an unproven boot. This is another digest that the pool wants, or
/// the berth's target if the target has not booted.
fn next_image<'a>(facts: &'a AgentFacts, holding: &Holding, node: &NodeFacts) -> Option<NextImage<'a>> {
    let Desired::Member(member) = &facts.desired else {
        return None;
    };
    let image = member.image.as_ref()?;
    let (desired, booted) = (&image.digest, facts.host.os.booted());
    // The host's policy has no effect on an image whose boot is already licensed. It has none on the booted image
    // either, since that image needs no pull.
    if facts.objection().is_some() && booted != Some(desired) && !is_licensed(facts, holding, image) {
        return None;
    }
    // I5: if the berth does not name the previous image, the agent could not recognize a later boot as unproven. I8: a
    // failed digest is not tried again.
    if holding.from.is_none() || facts.past.failed_digests.contains(desired) {
        return None;
    }
    if node.excluded || member.node_uid != node.uid {
        return None;
    }
    let may = if *desired != holding.target {
        // If the pool wants the previous image, and that image runs again, only a proof is missing. The turn can then
        // end without a new commit.
        booted != Some(desired) || booted != holding.from.as_ref()
    } else if booted == Some(desired) {
        false
    } else {
        is_licensed(facts, holding, image) || may_repeat(facts, holding, member)
    };
    may.then_some((&**member, image))
}

/// True if the berth is committed under this boot and licenses a reboot into this image.
fn is_licensed(facts: &AgentFacts, holding: &Holding, image: &DesiredImage) -> bool {
    holding.phase == HoldPhase::Committed && holding.boot_id == facts.host.boot_id && holding.target == image.digest
}

/// True if the agent may commit its berth again for a target that has never booted. The running image must have stayed
/// unproven for the reboot timeout, and the number of attempts is limited (I8). If the running image is proven, the
/// node gives its berth back instead.
fn may_repeat(facts: &AgentFacts, holding: &Holding, member: &Member) -> bool {
    facts.proving_for >= member.reboot_timeout
        && facts.past.tried.as_ref() != Some(&holding.target)
        && facts.past.times_not_applied(&holding.target).saturating_add(1) < MAX_NOT_APPLIED
}

/// Returns the next step toward another image: first every check that a commit requires, then the commit.
fn continue_to(
    facts: &AgentFacts,
    berth: &Berth,
    holding: &Holding,
    node: &NodeFacts,
    (member, image): NextImage<'_>,
) -> Step {
    let relicense = Step::Relicense(berth.clone(), image.digest.clone());
    if facts.host.os.booted() == Some(&image.digest) {
        // The image already runs. It needs a licence and a proof, but no reboot.
        return if holding.revoke.is_some() {
            Step::Wait(WaitReason::Revoked, Some(LOOK_INTERVAL_MAX))
        } else {
            relicense
        };
    }
    if let Some(first) = prepare(facts, member, image) {
        return first;
    }
    if facts.host.os.refusal().is_some() {
        return Step::Wait(WaitReason::HostUnusable, Some(LOOK_INTERVAL_MAX));
    }
    if holding.revoke.is_some() {
        return Step::Wait(WaitReason::Revoked, Some(LOOK_INTERVAL_MAX));
    }
    match way::obstacle(facts, berth, holding, node) {
        Obstacle::WindowClosed(_) => Step::Wait(WaitReason::WindowClosed, Some(LOOK_INTERVAL_MAX)),
        Obstacle::NotClear(step) => step,
        Obstacle::Inhibited(_) => Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)),
        Obstacle::None => relicense,
    }
}

/// Returns the next step toward a staged image; `None` if the image is staged.
fn prepare(facts: &AgentFacts, member: &Member, image: &DesiredImage) -> Option<Step> {
    let deployments = facts.host.os.deployments();
    let staged = deployments.and_then(|known| Some((known, known.staged.as_ref()?)));
    match staged {
        Some(_) if facts.staged_whole(&image.digest).is_some() && !lacks_policy(facts) => None,
        Some((known, other)) if !known.staged_layers => Some(Step::Unstage(other.clone())),
        Some((known, other)) if !other.locked => set_aside_step(facts, known, other),
        _ => Some(match stage(facts, member, image) {
            // Check often, since the Node may become Ready, which proves the boot.
            Step::Wait(why, wait) => Step::Wait(why, Some(wait.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL))),
            step => step,
        }),
    }
}

/// Returns the next step after the berth was committed under this unproven boot: unlock, verify, reboot. This commit
/// cannot be taken back. If there is an obstacle, the agent waits, or ends the turn if the previous image is proven.
fn licensed(
    facts: &AgentFacts,
    berth: &Berth,
    holding: &Holding,
    node: &NodeFacts,
    (member, image): NextImage<'_>,
) -> Step {
    let staged = facts.staged_whole(&image.digest);
    let ahead = match (way::reboot_held_up(facts), staged) {
        (Some(why), _) => Obstacle::Inhibited(why),
        (None, Some(_)) => way::obstacle(facts, berth, holding, node),
        (None, None) if is_inhibited(facts) => Obstacle::Inhibited(inhibited(facts)),
        (None, None) => Obstacle::NotClear(prepare(facts, member, image).unwrap_or(Step::LookAtHost)),
    };
    if let (Obstacle::None, Some(staged)) = (&ahead, staged) {
        return way::use_licence(facts, berth, staged);
    }
    // I3: no image may stay armed while the agent waits.
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
        // The host can no longer stage the image, but the previous image runs and is proven. So the turn can end.
        return Step::Release(berth.clone(), Outcome::RebootBlocked, why);
    }
    match (ahead, proof) {
        // The previous image is proven, so the turn can end.
        (Obstacle::Inhibited(why), Proof::From) => Step::Release(berth.clone(), Outcome::RebootBlocked, why),
        (Obstacle::Inhibited(_), _) => Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)),
        (Obstacle::WindowClosed(_), _) => Step::Wait(WaitReason::WindowClosed, Some(LOOK_INTERVAL_MAX)),
        (Obstacle::NotClear(step), _) => step,
        (Obstacle::None, _) => Step::LookAtHost,
    }
}

/// Returns the next step of a give-back: restore the Node, then close the berth. If the host has rebooted since the
/// give-back began, the new boot must be proven first.
pub(super) fn release(facts: &AgentFacts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if holding.boot_id != facts.host.boot_id && !node.excluded {
        if let Some(pull) = &facts.host.pull {
            // While a pull runs, the agent cannot read the booted image.
            return Step::CancelPull(pull.digest.clone());
        }
        if let Some(first) = read_first(facts).or_else(|| settle(facts)) {
            return first;
        }
        if let Proof::NotYet(why, again) = proof(facts, holding, node) {
            return Step::Wait(why, again);
        }
    }
    // A give-back that began while the deployments could not be read also ends without reading them.
    if let Some(first) = settle(facts).filter(|first| !turn::is_unseen(facts, first)) {
        return first;
    }
    // Write the Node even if it has no cordon. A crashed agent's write of a cordon may still be in flight, and the API
    // server then rejects it.
    if (node.cordon.is_some() || !facts.restored) && !Bug::GiveBackNotSticky.is_awake() {
        return Step::Restore(berth.clone());
    }
    Step::GiveBack(berth.clone())
}
