//! The conditions of a pool. Each says in one line what an admin would otherwise have to piece together.

use std::collections::BTreeMap;

use berth_api::condition::{Verdict, pool as types};
use berth_api::pool::Target;
use berth_api::{NodeName, keys};

use super::{Doing, Facts, Kind, trouble, unserved};
use crate::controller::plan::{BlockReason, Gate, GateReason};
use crate::text::{NAMED, few};

type Doings<'a> = BTreeMap<&'a NodeName, Doing>;

/// Every condition of the pool.
pub(super) fn all(facts: &Facts<'_>, target: Option<&Target>, doing: &Doings<'_>) -> Vec<(&'static str, Verdict)> {
    vec![
        (types::UPDATED, updated(facts, target, doing)),
        (types::PROGRESSING, progressing(facts, target, doing)),
        (types::DEGRADED, degraded(facts, target)),
        (types::PAUSED, paused(facts)),
        (types::WINDOW_OPEN, window(facts)),
        (types::ROLLOUT_HALTED, halted(facts)),
        (types::IMAGE_RESOLVED, image_resolved(facts, target)),
        (types::NODE_CONFLICT, node_conflict(facts)),
    ]
}

fn version(target: &Target) -> String {
    match &target.version {
        Some(version) => version.clone(),
        None => target.digest.to_string(),
    }
}

fn count(doing: &Doings<'_>, wanted: Doing) -> usize {
    doing.values().filter(|d| **d == wanted).count()
}

/// Says whether the target in force is what the spec asks for, and may.
fn is_current(facts: &Facts<'_>, target: &Target) -> bool {
    facts.refused.is_none() && target.image == facts.reference
}

fn updated(facts: &Facts<'_>, target: Option<&Target>, doing: &Doings<'_>) -> Verdict {
    let Some(target) = target.filter(|t| is_current(facts, t)) else {
        return Verdict::no(
            "ImageNotResolved",
            "the image of the spec is not resolved; see ImageResolved",
        );
    };
    let done = count(doing, Doing::Updated);
    if facts.members.is_empty() {
        return Verdict::unknown("NoNodes", "the selector matches no node");
    }
    let message = format!("{done} of {} nodes run {}", facts.members.len(), version(target));
    if done == facts.members.len() {
        Verdict::yes("AllUpdated", message)
    } else {
        Verdict::no("NotAllUpdated", message)
    }
}

fn progressing(facts: &Facts<'_>, target: Option<&Target>, doing: &Doings<'_>) -> Verdict {
    if facts.deleting {
        return Verdict::yes("Deleting", "the pool waits for its nodes and berths to be released");
    }
    if facts.members.is_empty() {
        return Verdict::no("NoNodes", "the selector matches no node");
    }
    let names = |wanted: Doing| few(doing.iter().filter(|(_, d)| **d == wanted).map(|(n, _)| n.to_string()));
    let active = [
        (Doing::Rebooting, "Rebooting", "reboot"),
        (Doing::Draining, "Draining", "drain"),
        (Doing::Staging, "Staging", "stage"),
    ];
    let parts: Vec<String> = active
        .iter()
        .filter(|(d, _, _)| count(doing, *d) > 0)
        .map(|(d, _, verb)| format!("{verb}: {}", names(*d)))
        .collect();
    if let Some((_, reason, _)) = active.iter().find(|(d, _, _)| count(doing, *d) > 0) {
        let done = count(doing, Doing::Updated);
        let message = format!("{done} of {} updated; {}", facts.members.len(), parts.join("; "));
        return Verdict::yes(*reason, message);
    }
    let Some(target) = target else {
        return Verdict::no(
            "ImageNotResolved",
            "the image is not resolved to a digest yet; see ImageResolved",
        );
    };
    if count(doing, Doing::Updated) == facts.members.len() {
        let current = is_current(facts, target);
        return Verdict::no(
            if current { "Updated" } else { "ImageNotResolved" },
            format!("all {} nodes run {}", facts.members.len(), version(target)),
        );
    }
    if let Some(gate) = &facts.plan.gate {
        return Verdict::no(gate.reason.as_str(), gate.message.clone());
    }
    if !is_current(facts, target) {
        let message = match facts.refused {
            Some(_) => format!("nobody goes on to {}; see ImageResolved", target.image),
            None => format!(
                "nobody goes on to {} before {} is resolved",
                target.image, facts.reference
            ),
        };
        return Verdict::no("ImageNotResolved", message);
    }
    if let Some(order) = waits(facts, BlockReason::Order).next().and(facts.plan.order.as_ref()) {
        return Verdict::no(order.reason.as_str(), order.message.clone());
    }
    waiting(facts)
}

/// The members that wait for this reason.
fn waits<'a>(facts: &'a Facts<'_>, wanted: BlockReason) -> impl Iterator<Item = &'a NodeName> {
    let waiting = facts.plan.waiting.iter();
    waiting.filter(move |(_, wait)| **wait == wanted).map(|(name, _)| name)
}

/// Describes a pool in which nothing moves: who waits for what, the most telling reason first.
fn waiting(facts: &Facts<'_>) -> Verdict {
    if facts.plan.counts.offered > 0 {
        let node = |u: &&crate::controller::plan::Use| u.how == crate::controller::plan::How::IsOffered;
        let names = few(facts.plan.used_by.iter().filter(node).map(|u| u.who.clone()));
        return Verdict::yes("Offered", format!("a berth is offered to {names}"));
    }
    if waits(facts, BlockReason::Capacity).next().is_some() {
        let users = few(facts
            .plan
            .used_by
            .iter()
            .map(|u| format!("{}, {}", u.who, u.how.words())));
        let (used, total) = (facts.plan.used_by.len(), facts.plan.counts.total);
        let message = format!("{used} of {total} used: {users}");
        return Verdict::no("Waiting", message);
    }
    let fleet = waits(facts, BlockReason::FleetCapacity).next().and(facts.plan.fleet);
    if let Some(fleet) = fleet {
        return Verdict::no("FleetCapacity", fleet.words());
    }
    let mut groups: BTreeMap<BlockReason, Vec<String>> = BTreeMap::new();
    for (node, wait) in &facts.plan.waiting {
        if *wait != BlockReason::UpToDate {
            groups.entry(*wait).or_default().push(node.to_string());
        }
    }
    let message = groups
        .into_iter()
        .map(|(wait, nodes)| format!("{}: {}", wait.words(), few(nodes)))
        .collect::<Vec<_>>()
        .join("; ");
    Verdict::no("Waiting", message)
}

fn degraded(facts: &Facts<'_>, target: Option<&Target>) -> Verdict {
    if let Some(error) = facts.bad_selector {
        return Verdict::yes(
            "InvalidSelector",
            format!("{error}; the pool keeps the nodes it has, and gets no more"),
        );
    }
    let unreadable = facts.unreadable.iter().map(|e| (*e).to_owned());
    if !facts.unreadable.is_empty() {
        return Verdict::yes("UnreadableLease", few(unreadable));
    }
    if let Some(lease) = facts.name_taken {
        return Verdict::yes(
            "NameTaken",
            format!(
                "Lease {lease} has the name of a berth, and not its label {}; nothing is offered until it has the label again, or \
                 is deleted, which is safe when it names no holder",
                keys::LABEL_POOL
            ),
        );
    }
    let is_wrong = |order: &&Gate| matches!(order.reason, GateReason::OrderCycle | GateReason::UnknownPool);
    if let Some(order) = facts.plan.order.as_ref().filter(is_wrong) {
        return Verdict::yes(order.reason.as_str(), order.message.clone());
    }
    let all = facts.members.iter().filter_map(|m| Some((m, trouble(m, target)?)));
    // Of those that have left, only who does not come back is this pool's business: it keeps its berth.
    let away = facts.away.iter().filter_map(|m| Some((m, trouble(m, None)?)));
    let troubles: Vec<_> = all.chain(away.filter(|(_, t)| t.kind == Kind::TimedOut)).collect();
    let reason = match troubles.iter().map(|(_, t)| t.kind).max() {
        None => return Verdict::no("AsExpected", ""),
        Some(Kind::TimedOut) => "RebootTimedOut",
        Some(Kind::Degraded) => "NodesDegraded",
        Some(Kind::Turn(outcome)) => outcome,
    };
    let words = troubles
        .iter()
        .take(NAMED)
        .map(|(m, t)| format!("{}: {}: {}", m.node.name, t.reason, t.message));
    let shown = words.collect::<Vec<_>>().join("; ");
    Verdict::yes(reason, format!("{} degraded: {shown}", troubles.len()))
}

fn paused(facts: &Facts<'_>) -> Verdict {
    if facts.paused {
        let message = "no berth is offered, and nodes that have not committed give theirs back";
        Verdict::yes("PausedByAdmin", message)
    } else if facts
        .plan
        .gate
        .as_ref()
        .is_some_and(|g| g.reason == GateReason::FleetPaused)
    {
        Verdict::yes("PausedByFleet", "BootcFleet cluster is paused, and every pool with it")
    } else {
        Verdict::no("NotPaused", "")
    }
}

fn window(facts: &Facts<'_>) -> Verdict {
    match facts.gates {
        Some(gates) => gates.window.clone(),
        None => Verdict::unknown("NotJudged", ""),
    }
}

fn halted(facts: &Facts<'_>) -> Verdict {
    match &facts.plan.halt {
        Some(halt) => Verdict::yes("TooManyFailures", halt.message.clone()),
        None => Verdict::no("AsExpected", ""),
    }
}

fn image_resolved(facts: &Facts<'_>, target: Option<&Target>) -> Verdict {
    if let Some(words) = facts.refused {
        return Verdict::no("RegistryNotAllowed", words.to_owned());
    }
    match (target.filter(|t| is_current(facts, t)), &facts.resolution) {
        (Some(target), _) => Verdict::yes("Resolved", format!("{} is {}", target.image, target.digest)),
        (None, Some(verdict)) => verdict.clone(),
        (None, None) if let Some(refused) = &facts.resolved => no_such_platform(facts, refused),
        (None, None) => Verdict::unknown("Resolving", format!("asking the registry for {}", facts.reference)),
    }
}

/// Words about a target that is not adopted, because it lacks an image for some of the members.
fn no_such_platform(facts: &Facts<'_>, refused: &Target) -> Verdict {
    let nodes = unserved(facts, refused).map(|node| format!("{} ({})", node.name, node.platform));
    let there: Vec<_> = refused.platforms.iter().map(ToString::to_string).collect();
    let message = format!(
        "{} has images for {}, and so none for {}; add them to the image, exclude these nodes, or label those that run \
         such a variant with {}",
        refused.image,
        there.join(", "),
        few(nodes),
        keys::LABEL_VARIANT
    );
    Verdict::no("NoSuchPlatform", message)
}

fn node_conflict(facts: &Facts<'_>) -> Verdict {
    if facts.conflicts.is_empty() {
        return Verdict::no("NoConflict", "");
    }
    let named = facts.conflicts.iter().map(|c| format!("{}: {}", c.node, c.message()));
    Verdict::yes("SelectedTwice", few(named))
}
