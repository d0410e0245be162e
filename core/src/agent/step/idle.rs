//! Steps of a node that holds no berth: stage the image and wait for an offer; undo Berth's changes; or leave the host
//! alone.

use std::time::Duration;

use berth_api::berth::{Berth, Offer};
use berth_api::digest::Digest;
use berth_api::node::{Deployment, DesiredImage, Staging};
use berth_api::pool::SignatureRule;
use berth_api::seeded::Bug;

use super::action::{HOST_LOOK_INTERVAL, LOOK_INTERVAL_MAX, Step, WaitReason};
use super::disarm::{disarm, has_pool, is_to_lock, settle, staged_by_berth};
use super::way::{closed_window, is_inhibited, is_next_boot_wrong};
use crate::agent::facts::{AgentFacts, Deployments, Guard, Member, Os};
use crate::agent::rivals;
use crate::agent::storage::Storage;

/// Returns the step of a node that Berth leaves alone, because it is excluded or in no known pool. The step disarms an
/// image that Berth staged, or is a wait (I3, I12).
pub(super) fn leave_alone(facts: &AgentFacts, why: WaitReason, again: Option<Duration>) -> Step {
    settle(facts).unwrap_or(Step::Wait(why, again))
}

/// Returns the step of a node that left its pool: undo Berth's own changes and nothing else (I12).
pub(super) fn undo(facts: &AgentFacts) -> Step {
    if let Some(pull) = &facts.host.pull {
        return Step::CancelPull(pull.digest.clone());
    }
    let Some(ours) = &facts.past.staged_by_us else {
        return Step::Wait(WaitReason::Released, None);
    };
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    match &facts.host.os {
        // The agent cannot read if Berth's image is still staged.
        Os::Unusable { .. } => Step::Wait(WaitReason::HostUnusable, None),
        Os::Bootc(known) => match known.staged.as_ref().filter(|s| s.digest.as_ref() == Some(ours)) {
            // Another program or person has added packages to the image that Berth staged. Lock the image, and leave it
            // there (I3).
            Some(staged) if known.staged_layers => {
                set_aside_step(facts, known, staged).unwrap_or(Step::Wait(WaitReason::Released, None))
            }
            Some(staged) => Step::Unstage(staged.clone()),
            None => Step::Wait(WaitReason::Released, None),
        },
        Os::Unknown => Step::LookAtHost,
    }
}

/// Returns the step of a member whose host Berth does not update. Removes an image that Berth staged, unless the image
/// is desired and locked. Keeps an image that another program staged.
fn step_on_refused_host(facts: &AgentFacts, deployments: &Deployments, desired: &Digest) -> Step {
    let runs = deployments.booted.digest.as_ref() == Some(desired);
    if let Some(staged) = deployments.staged.as_ref().filter(|s| is_to_lock(facts, s)) {
        let is_of_use =
            !runs && staged.locked && facts.staged_whole(desired).is_some() && !is_unwelcome(facts, desired);
        if !is_of_use {
            return Step::Unstage(staged.clone());
        }
    }
    if !facts.host.fresh {
        Step::LookAtHost
    } else if !runs {
        Step::Wait(WaitReason::HostUnusable, None)
    } else if deployments.rollback_queued {
        Step::Wait(WaitReason::RollbackQueued, Some(HOST_LOOK_INTERVAL))
    } else {
        Step::Wait(WaitReason::Updated, None)
    }
}

/// Returns the next step of a member that holds no berth: stage and lock the image, then take an offer.
pub(super) fn pursue(facts: &AgentFacts, member: &Member, berths: &[Berth]) -> Step {
    let Some(image) = &member.image else {
        return settle(facts).unwrap_or(Step::Wait(WaitReason::Unresolved, None));
    };
    let desired = &image.digest;
    if let Some(pull) = &facts.host.pull {
        // I7: one pull at a time. Let a pull of the desired digest continue, and stop any other pull.
        return if pull.digest == *desired && facts.objection().is_none() {
            Step::Wait(WaitReason::Pulling, None)
        } else {
            Step::CancelPull(pull.digest.clone())
        };
    }
    let deployments = match &facts.host.os {
        Os::Unknown => return Step::LookAtHost,
        Os::Unusable { .. } if facts.host.fresh => return Step::Wait(WaitReason::HostUnusable, None),
        Os::Unusable { .. } => return Step::LookAtHost,
        Os::Bootc(deployments) => deployments,
    };
    if deployments.refusal.is_some() {
        return step_on_refused_host(facts, deployments, desired);
    }
    if Bug::RollbackAnswered.is_awake() && facts.past.outside_boot.is_some() {
        return Step::Reboot;
    }
    if deployments.booted.digest.as_ref() == Some(desired) {
        // I3: the desired image already runs, so no staged image is needed.
        return match &deployments.staged {
            Some(staged) if deployments.staged_layers => {
                set_aside_step(facts, deployments, staged).unwrap_or(Step::Wait(WaitReason::Updated, None))
            }
            Some(staged) => Step::Unstage(staged.clone()),
            None if deployments.rollback_queued && !facts.host.fresh => Step::LookAtHost,
            None if deployments.rollback_queued => Step::Wait(WaitReason::RollbackQueued, Some(HOST_LOOK_INTERVAL)),
            None => Step::Wait(WaitReason::Updated, None),
        };
    }
    if let Some(staged) = &deployments.staged {
        // I3: the rival updater would remove the lock and reboot.
        let rival = rivals::in_the_way(facts).is_some();
        if facts.staged_whole(desired).is_none() || is_unwelcome(facts, desired) || rival {
            if !deployments.staged_layers {
                return Step::Unstage(staged.clone());
            }
            return set_aside_step(facts, deployments, staged).unwrap_or_else(|| begin(facts, member, image));
        }
        if Bug::SkipBerth.is_awake() {
            return if staged.locked { Step::Unlock } else { Step::Reboot };
        }
        let is_left = staged.locked || Bug::UnlockableLeft.is_awake() && facts.host.lock_failure.is_some();
        if !is_left {
            return disarm(facts, deployments, staged);
        }
        return wait_for_berth(facts, desired, berths);
    }
    begin(facts, member, image)
}

fn begin(facts: &AgentFacts, member: &Member, image: &DesiredImage) -> Step {
    if !is_unwelcome(facts, &image.digest)
        && let Some(first) = await_host(facts, &image.digest)
    {
        return first;
    }
    stage(facts, member, image)
}

/// Returns the step that locks a staged deployment with packages that Berth did not request (I3); `None` if the
/// deployment is already locked. The agent does not remove the deployment. The next image that the agent stages gets
/// the packages too.
pub(super) fn set_aside_step(facts: &AgentFacts, deployments: &Deployments, staged: &Deployment) -> Option<Step> {
    (!staged.locked).then(|| disarm(facts, deployments, staged))
}

/// Returns a message if the host keeps a locked deployment with packages that Berth did not request. The deployment
/// stays until the next image replaces it.
pub(crate) fn set_aside(facts: &AgentFacts) -> Option<String> {
    let deployments = facts.host.os.deployments().filter(|d| d.staged_layers)?;
    let desired = facts.desired.digest()?;
    let goes_along = deployments.booted.digest.as_ref() != Some(desired) && facts.staged_whole(desired).is_some();
    (!goes_along && has_pool(facts)).then(|| {
        "a deployment with other packages was staged on the host, not by Berth; Berth keeps it locked. The pool's next image \
         will replace this deployment and keep its packages; a reboot before that discards the deployment. To apply it \
         now: drain the node and run `rpm-ostree finalize-deployment --allow-missing-checksum` on the host, which reboots \
         the host. To discard it: run `rpm-ostree cleanup --pending`"
            .to_owned()
    })
}

/// Returns a message if the next step removes a deployment that Berth did not stage.
pub fn taken_away(facts: &AgentFacts, next: &Step) -> Option<String> {
    let Step::Unstage(staged) = next else { return None };
    let known = facts.host.os.deployments()?;
    let digest = staged.digest.as_ref();
    let runs = digest.is_some() && digest == known.booted.digest.as_ref();
    let is_ours =
        !runs && (digest == facts.desired.digest() || staged_by_berth(facts).any(|ours| digest == Some(ours)));
    (!is_ours).then(|| {
        let what = digest.map_or_else(|| staged.image.clone(), ToString::to_string);
        let what = if runs {
            "the booted image again, perhaps with other kernel arguments".to_owned()
        } else {
            format!("{what}, an image that the pool does not want")
        };
        format!(
            "removing a staged deployment that Berth did not stage: {what}. Otherwise a reboot could apply it. To change the \
             host yourself, first exclude the node or take it out of its pool"
        )
    })
}

/// Returns a message if a staged deployment with packages that Berth did not request cannot be locked.
pub(crate) fn unlockable(facts: &AgentFacts) -> Option<String> {
    let trouble = facts.host.lock_failure.as_ref()?;
    let deployments = facts.host.os.deployments().filter(|d| d.staged_layers)?;
    let is_armed = deployments
        .staged
        .as_ref()
        .is_some_and(|s| !s.locked && is_to_lock(facts, s));
    is_armed.then(|| {
        format!(
            "a deployment with other packages was staged on the host, not by Berth, and cannot be locked ({}): any reboot \
             applies it, and Berth does not update the node until the deployment is locked or removed. To discard it, run \
             `rpm-ostree cleanup --pending` on the host",
            trouble.why
        )
    })
}

/// Returns a wait if another updater would apply a staged image, or if the host cannot stage this image. The agent
/// checks this before it checks the controller's permit to pull. So a node without a permit reports the problem too,
/// and uses up no permit that another node needs.
fn await_host(facts: &AgentFacts, desired: &Digest) -> Option<Step> {
    let reason = match rivals::in_the_way(facts) {
        Some(_) => WaitReason::RivalUpdater,
        None => same_deployment(facts, desired).map(|_| WaitReason::HostUnusable)?,
    };
    if facts.host.fresh {
        Some(Step::Wait(reason, Some(HOST_LOOK_INTERVAL)))
    } else {
        Some(Step::LookAtHost)
    }
}

/// True if the digest failed on this node and must not be tried again (I8).
fn has_failed(facts: &AgentFacts, digest: &Digest) -> bool {
    facts.past.failed_digests.contains(digest) && !Bug::RetryFailedDigest.is_awake()
}

/// True if the desired image must not stay staged: it failed on this node, or violates the policy of the host or the
/// pool.
fn is_unwelcome(facts: &AgentFacts, desired: &Digest) -> bool {
    has_failed(facts, desired) || facts.objection().is_some() || lacks_policy(facts)
}

/// True if the pool requires signatures, and the staged image was not pulled under the host's current signature policy.
/// The backend's own report (`staged_signed`) is not enough, because the backend does not check the signature of an
/// image that the host already has.
pub(super) fn lacks_policy(facts: &AgentFacts) -> bool {
    let required = facts
        .desired
        .image()
        .is_some_and(|image| image.signature == SignatureRule::Required);
    let Some(deployments) = facts.host.os.deployments().filter(|_| required) else {
        return false;
    };
    let Some(staged) = &deployments.staged else {
        return false;
    };
    let policy = facts.host.rules.policy_digest.as_ref();
    let digest = staged.digest.as_ref();
    !deployments.staged_signed || !digest.is_some_and(|digest| facts.past.is_verified(digest, policy))
}

/// Returns the step that pulls the image, or a wait until the pull is allowed. This function ignores rival updaters. A
/// node with an unproven boot is already down and reboots under its berth, so a rival must not stop its pull (I10).
pub(super) fn stage(facts: &AgentFacts, member: &Member, image: &DesiredImage) -> Step {
    if has_failed(facts, &image.digest) {
        return Step::Wait(WaitReason::FailedDigest, None);
    }
    if facts.objection().is_some() {
        return Step::Wait(WaitReason::ImageRefused, None);
    }
    if let Some(left) = facts.past.pull_backoff(&image.digest, facts.now) {
        return Step::Wait(WaitReason::BackingOff, Some(left));
    }
    if member.staging == Staging::Held {
        return Step::Wait(WaitReason::StagingHeld, None);
    }
    // Read the host before each pull: a failed pull or another updater may have armed a deployment.
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    if facts.host.os.refusal().is_some() {
        return Step::Wait(WaitReason::HostUnusable, None);
    }
    if same_deployment(facts, &image.digest).is_some() {
        return Step::Wait(WaitReason::HostUnusable, Some(HOST_LOOK_INTERVAL));
    }
    let lock = facts.host.os.deployments().and_then(Deployments::staging_lock);
    match lock {
        Some(lock) => Step::StartPull(image.clone(), lock),
        // I3: this host has no way to lock the image while it is staged.
        None => Step::Wait(WaitReason::HostUnusable, None),
    }
}

/// Returns a message if bootc cannot stage this image on a composefs host, because the rollback deployment already has
/// that image. The rollback deployment is not removed, since the host may need it.
pub(crate) fn same_deployment(facts: &AgentFacts, digest: &Digest) -> Option<String> {
    let deployments = facts.host.os.deployments()?;
    let rollback = deployments.rollback.as_ref()?.digest.as_ref();
    let is_same = deployments.storage == Storage::Composefs && rollback == Some(digest);
    (is_same && deployments.booted.digest.as_ref() != Some(digest)).then(|| {
        format!(
            "the rollback deployment already has {digest}, and bootc cannot stage it a second time in composefs: drain the \
             node, run `bootc rollback` on the host and reboot it"
        )
    })
}

fn is_for(offer: &Offer, desired: &Digest) -> bool {
    offer.target == *desired || Bug::OfferForAnotherDigest.is_awake()
}

fn wait_for_berth(facts: &AgentFacts, desired: &Digest, berths: &[Berth]) -> Step {
    if let Some(left) = facts.past.turn_backoff(desired, facts.now) {
        return Step::Wait(WaitReason::BackingOff, Some(left));
    }
    if facts.host.memory_error.is_some() && !Bug::MemoryNotNeeded.is_awake() {
        // I8: a host that forgets a failed target would reboot into it again and again.
        return Step::Wait(WaitReason::Forgetful, Some(LOOK_INTERVAL_MAX));
    }
    if facts.guard.unguarded().is_some() && !Bug::GuardIgnored.is_awake() {
        // I6: the agent of another node could change this node's berth.
        return Step::Wait(WaitReason::Unguarded, Some(facts.guard.next_try));
    }
    if is_next_boot_wrong(facts) {
        return if facts.host.fresh {
            Step::Wait(WaitReason::Inhibited, Some(HOST_LOOK_INTERVAL))
        } else {
            Step::LookAtHost
        };
    }
    if is_inhibited(facts) {
        return Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX));
    }
    let mut offered = berths.iter().filter_map(|berth| Some((berth, berth.offer()?)));
    let ours = offered.find(|(_, offer)| offer.node == facts.node && is_for(offer, desired));
    let Some((berth, offer)) = ours else {
        return Step::Wait(WaitReason::NoBerth, None);
    };
    if closed_window(facts, offer.open_until).is_some() {
        return Step::Wait(WaitReason::NoBerth, Some(LOOK_INTERVAL_MAX));
    }
    if facts.guard.answer == Guard::NothingToTry {
        // I6: the offered berth is an object that the guard probe can try.
        return Step::TryGuard;
    }
    // The staged image may have changed since the last read. Read it before the drain begins.
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    // The offer is for a Node with this UID. A new Node of the same name must not take it.
    match facts.cluster_node.get() {
        Some(node) if node.uid == offer.uid => Step::Take(berth.clone()),
        _ => Step::Wait(WaitReason::ForeignBerth, None),
    }
}
