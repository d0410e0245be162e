//! A turn with a berth, up to the reboot: cordon, drain, commit, unlock, reboot; or back again.

use std::time::Duration;

use berth_api::berth::{Berth, Holding, Outcome};
use berth_api::pool::{Drain, OnTimeout};
use berth_api::seeded::Bug;

use super::{LOOK_SELDOM, Step, Why, await_reboot, closed_window, fence, inhibited, is_inhibited, settle};
use crate::agent::facts::{Desired, Facts, Reboot};
use crate::agent::node::NodeFacts;

/// Taken, same boot: cordon, drain, commit; or give back when there is a reason to.
pub(super) fn work(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if let Some(first) = settle(facts) {
        return first;
    }
    if let Some((outcome, message)) = reason_to_stop(facts, holding, node) {
        return Step::Release(berth.clone(), outcome, message);
    }
    if let Some(first) = clear(facts, berth, node) {
        return first;
    }
    // Everything is seen once more, live, before the point of no return.
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    Step::Commit(berth.clone())
}

/// The next step towards a node that is cordoned and drained; `None` once it is.
pub(super) fn clear(facts: &Facts, berth: &Berth, node: &NodeFacts) -> Option<Step> {
    if node.cordon.is_none() || !node.unschedulable {
        return Some(Step::Cordon(berth.clone()));
    }
    if is_drained(facts) {
        return None;
    }
    match facts.drain.next_pass {
        Some(next) if !next.is_zero() => Some(Step::Wait(Why::Draining, Some(next))),
        _ => Some(Step::Drain),
    }
}

/// How the pool wants pods to be moved.
fn settings(facts: &Facts) -> Option<&Drain> {
    match &facts.desired {
        Desired::Member(member) => Some(&member.drain),
        _ => None,
    }
}

/// Nothing is left to move, or nothing is to be moved.
pub(crate) fn is_drained(facts: &Facts) -> bool {
    facts.drain.done || settings(facts).is_some_and(|drain| !drain.is_enabled())
}

/// What the pool wants to happen with a drain that takes too long, when this one does.
pub(crate) fn overdue(facts: &Facts) -> Option<OnTimeout> {
    let settings = settings(facts)?;
    (!is_drained(facts) && facts.drain.elapsed >= settings.timeout()).then(|| settings.on_timeout())
}

/// Whether the drain has taken so long that the turn ends. Force gets the same time again: what cannot even be deleted must
/// not keep the berth from the others for ever.
fn gives_up(facts: &Facts) -> bool {
    let timeout = settings(facts).map_or(Duration::ZERO, Drain::timeout);
    match overdue(facts) {
        Some(OnTimeout::Release) => true,
        Some(OnTimeout::Force) => facts.drain.elapsed >= timeout.saturating_mul(2),
        Some(OnTimeout::Hold) | None => false,
    }
}

/// Who holds up the drain, for people.
pub(crate) fn blockers(facts: &Facts) -> String {
    let who: Vec<_> = facts
        .drain
        .blockers
        .iter()
        .map(|b| format!("{}: {}", b.pod, b.reason))
        .collect();
    let timeout = settings(facts).map_or(Duration::ZERO, Drain::timeout);
    format!("after {}s still there: {}", timeout.as_secs(), who.join("; "))
}

/// Why the target is not to be booted here any more, whatever else is the case.
fn unwanted(facts: &Facts, holding: &Holding, node: &NodeFacts) -> Option<String> {
    if node.excluded {
        return Some("the Node is excluded".to_owned());
    }
    (facts.desired.digest() != Some(&holding.target)).then(|| format!("{} is no longer desired here", holding.target))
}

/// Why an uncommitted turn should end.
fn reason_to_stop(facts: &Facts, holding: &Holding, node: &NodeFacts) -> Option<(Outcome, String)> {
    if let Some(reason) = &holding.revoke {
        return Some((Outcome::Revoked, reason.clone()));
    }
    if let Some(why) = unwanted(facts, holding, node) {
        return Some((Outcome::Withdrawn, why));
    }
    if let Reboot::Blocked { why, .. } = &facts.host.reboot {
        return Some((Outcome::RebootBlocked, why.clone()));
    }
    // I8
    if facts.past.failed_digests.contains(&holding.target) {
        return Some((Outcome::Withdrawn, format!("{} failed on this node", holding.target)));
    }
    // No gate is missed because the controller is dead.
    if let Some(why) = closed_window(facts, holding.open_until) {
        return Some((Outcome::Revoked, why));
    }
    match facts.host.os.staged() {
        Some(staged) if staged.digest.as_ref() == Some(&holding.target) => {}
        Some(staged) => {
            let what = staged
                .digest
                .as_ref()
                .map_or_else(|| staged.image.clone(), ToString::to_string);
            return Some((
                Outcome::NotStaged,
                format!("{what} is staged in place of {}", holding.target),
            ));
        }
        None => return Some((Outcome::NotStaged, format!("{} is no longer staged", holding.target))),
    }
    if gives_up(facts) {
        return Some((Outcome::DrainTimeout, blockers(facts)));
    }
    if is_drained(facts) && is_inhibited(facts) {
        return Some((Outcome::RebootBlocked, inhibited(facts)));
    }
    None
}

/// Committed, same boot: unlock, verify, reboot; or take the commit back.
pub(super) fn go(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if let Some(reason) = holding.revoke.as_ref().filter(|_| Bug::ReleaseAfterCommit.is_awake()) {
        return Step::Release(berth.clone(), Outcome::Revoked, reason.clone());
    }
    if let Some(wait) = await_reboot(facts) {
        return wait;
    }
    let blocked = match &facts.host.reboot {
        Reboot::Blocked { .. } | Reboot::Asked(_) => true,
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
    if blocked || !is_target || unwanted(facts, holding, node).is_some() {
        // I3: nothing stays armed when the turn does not end in a reboot.
        if let Some(first) = settle(facts) {
            return first;
        }
        // A shutdown that is queued is waited for: whatever it ends is still under this licence.
        if facts.host.shutdown_scheduled {
            return Step::Wait(Why::Rebooting, Some(LOOK_SELDOM));
        }
        return Step::Uncommit(berth.clone());
    }
    if let Some(first) = fence(facts, berth) {
        return first;
    }
    match staged {
        Some(staged) if staged.locked => Step::Unlock,
        // I2: committed for this UID, digest and boot ID, all read live in this very pass.
        _ => Step::Reboot,
    }
}
