//! Conditions of a pool. Each message is one line and names the nodes, berths or settings concerned.

use std::collections::BTreeMap;

use berth_api::NodeName;
use berth_api::condition::{CommonReason, Verdict, Word, pool as types};
use berth_api::pool::Target;

use super::facts::{MemberState, PoolStatusFacts};
use super::trouble::trouble;
use crate::controller::gate::GateReason;
use crate::controller::plan::BlockReason;
use crate::controller::plan::FleetUse;
use crate::controller::usage::{CapacityUse, UseKind};
use crate::finding::Finding;
use crate::finding::kind::Kind;
use crate::text::{NAMED, few};

type MemberStates<'a> = BTreeMap<&'a NodeName, MemberState>;

/// Returns all conditions of the pool except `ImageResolved`.
pub(super) fn all(
    facts: &PoolStatusFacts<'_>,
    target: Option<&Target>,
    doing: &MemberStates<'_>,
) -> Vec<(&'static str, Verdict)> {
    vec![
        (types::UPDATED, updated(facts, target, doing)),
        (types::PROGRESSING, progressing(facts, target, doing)),
        (types::DEGRADED, degraded(facts, target)),
        (types::PAUSED, paused(facts)),
        (types::WINDOW_OPEN, window(facts)),
        (types::ROLLOUT_HALTED, halted(facts)),
        (types::NODE_CONFLICT, node_conflict(facts)),
    ]
}

fn version(target: &Target) -> String {
    match &target.version {
        Some(version) => version.clone(),
        None => target.digest.to_string(),
    }
}

pub(super) fn count(doing: &MemberStates<'_>, wanted: MemberState) -> usize {
    doing.values().filter(|d| **d == wanted).count()
}

/// True if the current target was resolved from the image reference now in the spec, and that reference is allowed.
fn is_current(facts: &PoolStatusFacts<'_>, target: &Target) -> bool {
    facts.refused.is_none() && target.is_of(facts.spec.image_ref())
}

fn updated(facts: &PoolStatusFacts<'_>, target: Option<&Target>, doing: &MemberStates<'_>) -> Verdict {
    let Some(target) = target.filter(|t| is_current(facts, t)) else {
        return Verdict::no(
            CommonReason::ImageNotResolved,
            "image.ref is not resolved yet; see ImageResolved",
        );
    };
    let done = count(doing, MemberState::Updated);
    if facts.members.is_empty() {
        return Verdict::unknown(CommonReason::NoNodes, "the selector matches no node");
    }
    let message = format!("{done} of {} nodes run {}", facts.members.len(), version(target));
    if done == facts.members.len() {
        Verdict::yes(CommonReason::AllUpdated, message)
    } else {
        Verdict::no(CommonReason::NotAllUpdated, message)
    }
}

fn progressing(facts: &PoolStatusFacts<'_>, target: Option<&Target>, doing: &MemberStates<'_>) -> Verdict {
    if facts.deleting {
        return Verdict::yes(
            CommonReason::Deleting,
            "the pool is being deleted: it waits until its nodes and berths are released",
        );
    }
    if facts.members.is_empty() {
        return Verdict::no(CommonReason::NoNodes, "the selector matches no node");
    }
    if let Some(active) = active(facts, doing) {
        return active;
    }
    let Some(target) = target else {
        return Verdict::no(
            CommonReason::ImageNotResolved,
            "image.ref is not resolved to a digest yet; see ImageResolved",
        );
    };
    if count(doing, MemberState::Updated) == facts.members.len() {
        let current = is_current(facts, target);
        return Verdict::no(
            if current {
                CommonReason::Updated
            } else {
                CommonReason::ImageNotResolved
            },
            format!("all {} nodes run {}", facts.members.len(), version(target)),
        );
    }
    if let Some(gate) = &facts.plan.gate {
        return Verdict::no(gate.reason, gate.message.clone());
    }
    if !is_current(facts, target) {
        let message = match facts.refused {
            Some(_) => format!("no node updates to {}; see ImageResolved", target.image),
            None => format!(
                "no node updates to {} until {} is resolved",
                target.image,
                facts.spec.image_ref()
            ),
        };
        return Verdict::no(CommonReason::ImageNotResolved, message);
    }
    if let Some(order) = waits(facts, BlockReason::Order).next().and(facts.plan.order.as_ref()) {
        return Verdict::no(order.reason, order.message.clone());
    }
    waiting(facts)
}

/// Returns the condition `Progressing` if at least one member stages, drains or reboots; otherwise `None`.
fn active(facts: &PoolStatusFacts<'_>, doing: &MemberStates<'_>) -> Option<Verdict> {
    let active = [
        (MemberState::Rebooting, CommonReason::Rebooting, "rebooting"),
        (MemberState::Draining, CommonReason::Draining, "draining"),
        (MemberState::Staging, CommonReason::Staging, "staging"),
    ];
    let parts: Vec<String> = active
        .iter()
        .filter(|(d, _, _)| count(doing, *d) > 0)
        .map(|(wanted, _, verb)| {
            let members = doing.iter().filter(|(_, d)| *d == wanted);
            format!("{verb}: {}", few(members.map(|(name, _)| name.to_string())))
        })
        .collect();
    let (_, reason, _) = active.iter().find(|(d, _, _)| count(doing, *d) > 0)?;
    let done = count(doing, MemberState::Updated);
    let message = format!("{done} of {} updated; {}", facts.members.len(), parts.join("; "));
    Some(Verdict::yes(*reason, message))
}

fn waits<'a>(facts: &'a PoolStatusFacts<'_>, wanted: BlockReason) -> impl Iterator<Item = &'a NodeName> {
    let waiting = facts.plan.waiting.iter();
    waiting.filter(move |(_, wait)| **wait == wanted).map(|(name, _)| name)
}

/// Returns the condition `Progressing` of a pool where no member stages, drains or reboots. Its message lists the
/// waiting nodes by reason, the most important reason first.
fn waiting(facts: &PoolStatusFacts<'_>) -> Verdict {
    if facts.plan.counts.offered > 0 {
        let offered = facts.plan.used_by.iter().filter(|u| u.how == UseKind::IsOffered);
        let names = few(offered.map(|u| u.who.clone()));
        return Verdict::yes(CommonReason::Offered, format!("a berth is offered to {names}"));
    }
    if waits(facts, BlockReason::Capacity).next().is_some() {
        let users = few(facts.plan.used_by.iter().map(CapacityUse::words));
        let (used, total) = (facts.plan.used_by.len(), facts.plan.counts.total);
        let message = format!("rollout.maxUnavailable is used up, {used} of {total}: {users}");
        return Verdict::no(CommonReason::Waiting, message);
    }
    let fleet = waits(facts, BlockReason::FleetCapacity)
        .next()
        .and(facts.plan.fleet.as_ref());
    if let Some(fleet) = fleet {
        return Verdict::no(CommonReason::FleetCapacity, fleet.words());
    }
    let fleet = waits(facts, BlockReason::Fencing).next().and(facts.plan.fleet.as_ref());
    if let Some(unfenced) = fleet.and_then(FleetUse::unfenced_words) {
        return Verdict::no(CommonReason::Fencing, unfenced);
    }
    let mut groups: BTreeMap<BlockReason, Vec<&NodeName>> = BTreeMap::new();
    for (node, wait) in &facts.plan.waiting {
        if *wait != BlockReason::UpToDate {
            groups.entry(*wait).or_default().push(node);
        }
    }
    let message = groups
        .into_iter()
        .map(|(wait, nodes)| {
            let words = facts.plan.wait_words(wait, &nodes);
            format!("{words}: {}", few(nodes.into_iter().map(ToString::to_string)))
        })
        .collect::<Vec<_>>()
        .join("; ");
    Verdict::no(CommonReason::Waiting, message)
}

/// Returns the condition `Degraded`. Its message lists the pool's own troubles before troubles of nodes; the first
/// trouble gives the condition's reason.
fn degraded(facts: &PoolStatusFacts<'_>, target: Option<&Target>) -> Verdict {
    match (pool_trouble(facts), node_trouble(facts, target)) {
        (None, None) => Verdict::no(CommonReason::AsExpected, ""),
        (Some((reason, pool)), Some((_, nodes))) => Verdict::yes(reason, format!("{pool}; {nodes}")),
        (Some((reason, message)), None) | (None, Some((reason, message))) => Verdict::yes(reason, message),
    }
}

fn pool_trouble(facts: &PoolStatusFacts<'_>) -> Option<(Word, String)> {
    if let Some(error) = facts.bad_selector {
        let message = format!("{error}; the pool keeps its nodes and gets no new nodes");
        return Some((CommonReason::InvalidSelector.into(), message));
    }
    if !facts.unreadable.is_empty() {
        let unreadable = facts.unreadable.iter().map(|e| (*e).to_owned());
        return Some((CommonReason::UnreadableLease.into(), few(unreadable)));
    }
    if let Some(first) = facts.unwritable.first() {
        let words = facts.unwritable.iter().map(|lease| lease.words());
        return Some((first.reason().into(), few(words)));
    }
    let order = facts.plan.order.as_ref()?;
    match order.reason {
        GateReason::OrderCycle | GateReason::UnknownPool => Some((order.reason.into(), order.message.clone())),
        _ => None,
    }
}

fn node_trouble(facts: &PoolStatusFacts<'_>, target: Option<&Target>) -> Option<(Word, String)> {
    let all = facts.members.iter().filter_map(|m| facts.trouble(m, target));
    // A holder that left the pool is reported only if it has not come back from its reboot in time, or may lie.
    let away = facts.away.iter().filter_map(|m| trouble(m, facts.pool, None, None));
    let away = away.filter(|found| matches!(found.kind, Kind::RebootTimedOut | Kind::Implausible));
    let mut troubles: Vec<Finding> = all.chain(away).collect();
    // The message has room for a few nodes. Nodes that may be compromised come first.
    troubles.sort_by_key(|found| found.kind != Kind::Implausible);
    let reason = if let Some(first) = troubles.first().filter(|first| first.kind == Kind::Implausible) {
        first.reason.clone()
    } else if troubles.iter().any(|found| found.kind == Kind::RebootTimedOut) {
        CommonReason::RebootTimedOut.into()
    } else if troubles.iter().any(|found| found.kind != Kind::BadTurn) {
        CommonReason::NodesDegraded.into()
    } else {
        troubles.iter().max_by_key(|found| &*found.reason)?.reason.clone()
    };
    let words = troubles
        .iter()
        .take(NAMED)
        .map(|found| format!("{}: {}", found.subject.name(), found.line()));
    let shown = words.collect::<Vec<_>>().join("; ");
    Some((reason, format!("{} degraded: {shown}", troubles.len())))
}

fn paused(facts: &PoolStatusFacts<'_>) -> Verdict {
    if facts.spec.is_paused() {
        let message = "no berth is offered; nodes that have not committed to a reboot give their berths back";
        Verdict::yes(CommonReason::PausedByAdmin, message)
    } else if facts
        .plan
        .gate
        .as_ref()
        .is_some_and(|g| g.reason == GateReason::FleetPaused)
    {
        Verdict::yes(
            CommonReason::PausedByFleet,
            "BootcFleet cluster is paused, so every pool is paused",
        )
    } else {
        Verdict::no(CommonReason::NotPaused, "")
    }
}

fn window(facts: &PoolStatusFacts<'_>) -> Verdict {
    match facts.gates {
        Some(gates) => gates.window.clone(),
        None => Verdict::unknown(CommonReason::NotJudged, ""),
    }
}

fn halted(facts: &PoolStatusFacts<'_>) -> Verdict {
    match &facts.plan.halt {
        Some(halt) => Verdict::yes(CommonReason::TooManyFailures, halt.message.clone()),
        None => Verdict::no(CommonReason::AsExpected, ""),
    }
}

fn node_conflict(facts: &PoolStatusFacts<'_>) -> Verdict {
    if facts.conflicts.is_empty() {
        let shared = &facts.plan.address_conflicts;
        if shared.is_empty() {
            return Verdict::no(CommonReason::NoConflict, "");
        }
        return Verdict::yes(CommonReason::AddressShared, few(shared.iter().cloned()));
    }
    let named = facts.conflicts.iter().map(|c| format!("{}: {}", c.node, c.message()));
    Verdict::yes(CommonReason::SelectedTwice, few(named))
}
