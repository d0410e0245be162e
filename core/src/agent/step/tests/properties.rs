//! Property tests: the agent's decisions keep the invariants for arbitrary facts.

use berth_api::pool::SignatureRule;
use proptest::prelude::*;

use super::any_facts::{all_kinds, name};
use super::*;
use crate::floors::check;

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(5_000)
    }
}

/// True if the deployments are known, and a shutdown now would apply no staged image.
fn is_disarmed(facts: &AgentFacts) -> bool {
    facts
        .host
        .os
        .deployments()
        .is_some_and(|d| d.staged.as_ref().is_none_or(|s| s.locked))
}

fn holding(facts: &AgentFacts) -> Option<&Holding> {
    facts.berths.as_ref()?.first()?.holding()
}

/// True if the current boot is unproven under the berth. Either the host has rebooted since the boot that the berth
/// names, or the berth was committed again during this unproven boot.
fn is_unproven_boot(facts: &AgentFacts, held: &Holding) -> bool {
    held.boot_id != facts.host.boot_id
        || facts.past.unproven_boot.as_ref() == Some(&facts.host.boot_id)
        || facts
            .host
            .os
            .deployments()
            .is_some_and(|d| d.booted.digest != held.from)
}

fn is_rollback_queued(facts: &AgentFacts) -> bool {
    facts.host.os.deployments().is_some_and(|d| d.rollback_queued)
}

/// True if the host runs the target or the previous image, and the Node is Ready under this boot. If the target runs,
/// the next boot must not take a rollback. On an excluded Node, such a rollback does not matter, because the turn may
/// end with any image.
fn is_proven(facts: &AgentFacts, held: &Holding) -> bool {
    let booted = facts.host.os.booted();
    let runs_target = booted == Some(&held.target);
    if runs_target && facts.host.os.is_rollback_queued() && !is_excluded(facts) {
        return false;
    }
    let node = facts.cluster_node.get().unwrap();
    let ready = node.ready && node.boot_id.as_ref() == Some(&facts.host.boot_id);
    booted.is_some() && (runs_target || booted == held.from.as_ref()) && ready
}

fn has_pool(facts: &AgentFacts) -> bool {
    let node = facts.cluster_node.get();
    matches!(&facts.desired, Desired::Member(m) if node.is_some_and(|n| n.uid == m.node_uid && !n.excluded))
}

fn is_ours(facts: &AgentFacts, staged: Option<&Digest>) -> bool {
    let held = holding(facts).map(|h| &h.target);
    staged.is_some() && (staged == facts.past.staged_by_us.as_ref() || staged == held)
}

/// True if Berth may lock only its own images on this node. Either the node has no pool, or Berth does not update its
/// host and no turn is in progress (I12).
fn is_nobodys(facts: &AgentFacts) -> bool {
    !has_pool(facts) || (facts.host.os.refusal().is_some() && holding(facts).is_none())
}

/// True if no staged image that Berth must lock is armed.
fn is_settled(facts: &AgentFacts) -> bool {
    let staged = facts.host.os.staged();
    let others = staged.is_some_and(|s| !is_ours(facts, s.digest.as_ref()));
    let nothing = facts.past.staged_by_us.is_none() && holding(facts).is_none();
    is_disarmed(facts) || (is_nobodys(facts) && (others || nothing))
}

fn is_excluded(facts: &AgentFacts) -> bool {
    facts.cluster_node.get().is_some_and(|n| n.excluded)
}

/// I2: an unlock or a reboot needs a committed berth for this Node UID, digest and boot. The agent must have just read
/// the host and written the berth.
#[test]
fn only_a_commit_licenses() {
    check(
        config(),
        all_kinds(),
        &[("unlock", 60), ("reboot", 60)],
        |facts, reached| {
            let next = step(&facts);
            if matches!(next, Step::Unlock | Step::Reboot) {
                reached.note(name(&next));
                let held = holding(&facts).unwrap();
                prop_assert_eq!(&held.phase, &HoldPhase::Committed);
                prop_assert_eq!(&held.boot_id, &facts.host.boot_id);
                prop_assert_eq!(facts.cluster_node.get().map(|n| &n.uid), Some(&held.uid));
                prop_assert_eq!(facts.desired.digest(), Some(&held.target));
                let staged = facts.host.os.staged().unwrap();
                prop_assert_eq!(staged.digest.as_ref(), Some(&held.target));
                prop_assert_eq!(staged.locked, next == Step::Unlock);
                prop_assert!(facts.past.is_complete(&held.target));
                prop_assert!(facts.host.fresh && !facts.host.shutting_down && facts.host.inhibitors.is_empty());
                prop_assert!(!facts.host.shutdown_scheduled && !is_excluded(&facts) && !is_rollback_queued(&facts));
                prop_assert_eq!(facts.host.os.unit_missing(), None);
                prop_assert!(facts.fenced, "what may take the licence back has lost");
                let node = facts.cluster_node.get().unwrap();
                prop_assert!(
                    node.unschedulable && node.cordon.is_some() && facts.drain.done,
                    "a licence may be old"
                );
                prop_assert!(facts.now < held.open_until.unwrap() && facts.host.clock_synchronized == Some(true));
            }
            Ok(())
        },
    );
}

/// I2, I8, I10: every commit, first or repeated, needs a desired, complete image that has not failed. The node must be
/// cordoned, drained and within its window, and all gates must be open.
#[test]
fn a_licence_needs_all_its_conditions() {
    check(
        config(),
        all_kinds(),
        &[("commit", 35), ("relicense", 40)],
        |facts, reached| {
            let next = step(&facts);
            let digest = match &next {
                Step::Relicense(_, digest) => digest,
                Step::Commit(berth) => &berth.holding().unwrap().target,
                _ => return Ok(()),
            };
            reached.note(name(&next));
            let held = holding(&facts).unwrap();
            prop_assert!(held.revoke.is_none() && !matches!(held.phase, HoldPhase::Releasing(_)));
            prop_assert!(facts.host.fresh && facts.host.pull.is_none() && !is_excluded(&facts));
            prop_assert_eq!(facts.desired.digest(), Some(digest));
            prop_assert!(!facts.past.failed_digests.contains(digest));
            let node = facts.cluster_node.get().unwrap();
            prop_assert_eq!(&node.uid, &held.uid);
            if facts.host.os.booted() != Some(digest) {
                let staged = facts.host.os.staged().unwrap();
                prop_assert!(staged.locked && staged.digest.as_ref() == Some(digest) && facts.past.is_complete(digest));
                let asked = facts.desired.image().unwrap().signature == SignatureRule::Required;
                let policy = facts.host.rules.policy_digest.as_ref();
                let checked =
                    facts.host.os.deployments().unwrap().staged_signed && facts.past.is_verified(digest, policy);
                prop_assert!(!asked || checked, "pulled without the policy");
                prop_assert!(node.unschedulable && node.cordon.is_some() && facts.drain.done);
                prop_assert!(facts.host.inhibitors.is_empty() && !facts.host.shutdown_scheduled);
                prop_assert!(!is_rollback_queued(&facts) && facts.host.os.unit_missing().is_none());
                prop_assert!(facts.now < held.open_until.unwrap() && facts.host.clock_synchronized == Some(true));
            }
            match next {
                Step::Commit(_) => prop_assert!(held.phase == HoldPhase::Taken && !is_unproven_boot(&facts, held)),
                _ => {
                    prop_assert!(is_unproven_boot(&facts, held) && !is_proven(&facts, held));
                    // A holder that has not committed and does not run the previous image has rebooted, even if the
                    // berth names this boot.
                    let is_third = held.phase == HoldPhase::Taken && facts.host.os.booted() != held.from.as_ref();
                    prop_assert!(*digest != held.target || held.boot_id != facts.host.boot_id || is_third);
                    // Without `from`, nothing would show later that this boot was not proven.
                    prop_assert!(held.from.is_some());
                }
            }
            Ok(())
        },
    );
}

/// I3: if an image may be armed without a licence to reboot, the agent disarms the image before it gives a berth back
/// or waits.
#[test]
fn nothing_is_left_armed() {
    check(
        config(),
        all_kinds(),
        &[
            ("take", 35),
            ("commit", 35),
            ("relicense", 40),
            ("uncommit", 55),
            ("release", 250),
            ("give back", 35),
            ("wait", 800),
        ],
        |facts, reached| {
            let next = step(&facts);
            reached.note(name(&next));
            // A running pull locks its image. The agent reads the image when the pull ends.
            let disarmed = is_settled(&facts) || facts.host.pull.is_some();
            // If the host has packages that Berth did not request and cannot lock, the agent only retries that lock.
            let layered = facts.host.os.deployments().is_some_and(|d| d.staged_layers);
            let unlockable =
                layered && facts.host.lock_failure.is_some() && matches!(next, Step::Wait(WaitReason::Unlockable, _));
            let disarmed = disarmed || unlockable;
            // A turn that has armed no image may end even while the host is silent.
            let is_silent = matches!(facts.host.os, Os::Unusable { .. }) || facts.host.unreachable.is_some();
            let unseen = facts.host.disarmed && is_silent;
            let disarmed = disarmed || (unseen && matches!(next, Step::Release(..) | Step::GiveBack(_)));
            if matches!(
                next,
                Step::Uncommit(_) | Step::Release(..) | Step::GiveBack(_) | Step::Take(_)
            ) {
                prop_assert!(disarmed, "{next:?}");
            }
            if matches!(next, Step::Commit(_) | Step::Relicense(..)) {
                prop_assert!(is_disarmed(&facts), "{next:?}");
            }
            let free = [
                WaitReason::ShuttingDown,
                WaitReason::HostUnusable,
                WaitReason::HostUnreachable,
            ];
            let rests = matches!(next, Step::Wait(why, _) if !free.contains(&why));
            let licensed =
                holding(&facts).is_some_and(|h| h.phase == HoldPhase::Committed && h.boot_id == facts.host.boot_id);
            if rests && !(licensed && matches!(next, Step::Wait(WaitReason::Rebooting, _))) {
                prop_assert!(disarmed, "{next:?}");
            }
            Ok(())
        },
    );
}

/// While the host's services do not answer, the agent sends them no request. The agent ends a turn only if the turn has
/// armed no image.
#[test]
fn nothing_is_asked_of_a_silent_host() {
    check(
        config(),
        all_kinds(),
        &[("wait", 200), ("release", 45)],
        |facts, reached| {
            if facts.host.unreachable.is_none() {
                return Ok(());
            }
            let next = step(&facts);
            reached.note(name(&next));
            match next {
                Step::Wait(WaitReason::ShuttingDown | WaitReason::HostUnreachable, _) | Step::ReadNode => {}
                Step::Release(..) | Step::Restore(_) | Step::GiveBack(_) => {
                    let held = holding(&facts).unwrap();
                    prop_assert!(facts.host.disarmed && held.phase != HoldPhase::Committed);
                    prop_assert!(!is_unproven_boot(&facts, held) || held.boot_id == facts.host.boot_id);
                }
                other => prop_assert!(false, "{other:?}"),
            }
            Ok(())
        },
    );
}

/// I3: Berth sets ostree's lock only on an ostree host, and stages no image without a lock.
#[test]
fn a_staged_image_is_locked_by_the_hosts_lock() {
    check(
        config(),
        all_kinds(),
        &[("lock", 100), ("pull", 45)],
        |facts, reached| {
            let next = step(&facts);
            reached.note(name(&next));
            match next {
                Step::Lock(_) => prop_assert_eq!(facts.host.os.deployments().unwrap().storage, Storage::Ostree),
                Step::StartPull(_, lock) => {
                    let deployments = facts.host.os.deployments().unwrap();
                    prop_assert_eq!(lock.ostree().is_some(), deployments.storage == Storage::Ostree);
                    prop_assert_eq!(lock.is_bootcs(), deployments.stages_locked);
                    prop_assert!(lock.ostree().is_some() || lock.is_bootcs());
                }
                _ => {}
            }
            Ok(())
        },
    );
}

/// I12: for a node without a pool and without a berth, the agent reads the host only if Berth staged an image there.
#[test]
fn nobodys_host_is_left_alone() {
    check(
        config(),
        all_kinds(),
        &[("lock", 40), ("wait", 150)],
        |facts, reached| {
            if has_pool(&facts) || holding(&facts).is_some() {
                return Ok(());
            }
            let staged = facts.host.os.staged().and_then(|s| s.digest.as_ref());
            let next = step(&facts);
            reached.note(name(&next));
            match next {
                Step::LookAtHost => prop_assert!(facts.past.staged_by_us.is_some()),
                Step::Lock(_) | Step::Unstage(_) => prop_assert!(is_ours(&facts, staged)),
                // The pull's name shows that Berth started the pull.
                Step::CancelPull(_) | Step::Wait(..) | Step::ReadNode | Step::Uncordon => {}
                other => prop_assert!(false, "{other:?}"),
            }
            Ok(())
        },
    );
}

/// If the host's own policy rejects an image, the agent does not pull it, and no new turn boots it. This holds even if
/// the pool publishes the image.
#[test]
fn an_image_that_the_host_rejects_is_not_begun() {
    check(
        config(),
        all_kinds(),
        &[("refused", 150), ("refused in a turn", 50)],
        |facts, reached| {
            if facts.objection().is_none() {
                return Ok(());
            }
            reached.note("refused");
            let next = step(&facts);
            if matches!(next, Step::Relicense(..)) {
                reached.note(name(&next));
            }
            let holds = holding(&facts)
                .is_some_and(|held| held.phase == HoldPhase::Taken && held.boot_id == facts.host.boot_id);
            if holds {
                reached.note("refused in a turn");
            }
            match next {
                Step::StartPull(..) | Step::Take(_) | Step::Commit(_) => prop_assert!(false),
                Step::Relicense(_, digest) => prop_assert!(facts.host.os.booted() == Some(&digest)),
                _ => {}
            }
            Ok(())
        },
    );
}

/// I3, I12: on a host that Berth does not update, the agent begins no update and touches only images that Berth staged.
#[test]
fn a_refused_host_finishes_what_was_begun() {
    check(
        config(),
        all_kinds(),
        &[
            ("refused", 12),
            ("refused in a turn", 100),
            ("release", 45),
            ("wait", 40),
        ],
        |facts, reached| {
            if facts.host.os.refusal().is_none() {
                return Ok(());
            }
            let (next, held) = (step(&facts), holding(&facts));
            reached.note(if held.is_some() { "refused in a turn" } else { "refused" });
            reached.note(name(&next));
            let begins = match &next {
                Step::StartPull(..) | Step::Take(_) | Step::Commit(_) => true,
                Step::Relicense(_, digest) => facts.host.os.booted() != Some(digest),
                _ => false,
            };
            prop_assert!(!begins, "{next:?}");
            let staged = facts.host.os.staged().and_then(|s| s.digest.as_ref());
            if matches!(next, Step::Lock(_) | Step::Unstage(_)) && held.is_none() {
                prop_assert!(is_ours(&facts, staged), "{next:?}");
            }
            prop_assert!(!matches!(next, Step::Lock(_)), "nothing can be locked there");
            let unusable = matches!(next, Step::Wait(WaitReason::HostUnusable, _));
            if unusable {
                prop_assert!(is_settled(&facts), "nothing of Berth's is left armed");
                let ours = facts.past.staged_by_us.as_ref();
                prop_assert!(has_pool(&facts) || ours.is_none() || staged != ours, "it is not wanted");
            }
            if let Some(held) = held.filter(|_| unusable) {
                prop_assert!(
                    is_unproven_boot(&facts, held) && !is_proven(&facts, held),
                    "the turn can end"
                );
            }
            Ok(())
        },
    );
}

/// I5: in an unproven boot, the agent never takes the commit back. The agent gives the berth back only if a known image
/// runs and the Node is Ready under this boot, or if the Node is excluded. After a repeated commit, the boot is still
/// unproven, although the berth names it.
#[test]
fn only_a_proven_boot_is_given_back() {
    check(
        config(),
        all_kinds(),
        &[("new boot", 65), ("commit", 50), ("updated", 50), ("not updated", 170)],
        |facts, reached| {
            let Some(held) = holding(&facts) else { return Ok(()) };
            let next = step(&facts);
            let releasing = matches!(held.phase, HoldPhase::Releasing(_));
            // If the give-back began under this boot, this boot had been proven before.
            let unproven = if releasing {
                held.boot_id != facts.host.boot_id
            } else {
                is_unproven_boot(&facts, held)
            };
            let lets_go = matches!(
                next,
                Step::Release(..) | Step::Uncommit(_) | Step::Restore(_) | Step::GiveBack(_)
            );
            if lets_go && unproven && !is_excluded(&facts) {
                reached.note("new boot");
                prop_assert!(is_proven(&facts, held), "{next:?}");
            }
            if lets_go && unproven {
                prop_assert!(!matches!(next, Step::Uncommit(_)));
            }
            let committed = held.phase == HoldPhase::Committed && held.boot_id == facts.host.boot_id;
            if committed && lets_go {
                reached.note("commit");
                let asked = matches!(facts.host.reboot, Reboot::Asked(ago) if ago < REBOOT_START_TIMEOUT);
                prop_assert!(!asked && !facts.host.shutdown_scheduled, "a shutdown may be on its way");
                prop_assert!(
                    matches!(next, Step::Uncommit(_)) || unproven,
                    "a commit under this boot is taken back first"
                );
            }
            if let Step::Release(_, outcome, _) = next {
                reached.note(if outcome == Outcome::Updated {
                    "updated"
                } else {
                    "not updated"
                });
                prop_assert_eq!(
                    outcome == Outcome::Updated,
                    is_proven(&facts, held) && facts.host.os.booted() == Some(&held.target)
                );
                let kept = outcome != Outcome::Updated || is_excluded(&facts) || !is_rollback_queued(&facts);
                prop_assert!(kept, "the next boot would leave the updated image");
                prop_assert!(outcome != Outcome::Failed || (unproven && held.phase == HoldPhase::Committed));
            }
            Ok(())
        },
    );
}
