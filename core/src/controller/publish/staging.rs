//! Members that may pull now.
//!
//! There are as many permits to pull as members may stage at once. A member that pulls keeps its permit until the pull
//! is over, since a stopped pull would start over. Any other permit can be passed on: agents look at theirs only before
//! they begin. So a node that cannot pull, backs off or is not there holds up nobody.

use std::cmp::Reverse;

use berth_api::berth::HoldPhase;
use berth_api::node::Staging;
use berth_api::seeded::Bug;

use super::facts::{Draft, Facts, Terms};
use crate::controller::proof::{is_licensed, is_unproven};
use crate::controller::view::BootcNodeView;

/// Need of a member for a permit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// The member has the digest, staged or booted, and needs no permit.
    Done,
    /// The member pulls the digest now.
    Pulls,
    /// The member could pull; the least comes first.
    Waits(Turn),
    /// The member cannot pull, for now.
    Cannot,
}

/// Order among those that could pull. Members without failures come first. Of the others the one with the fewest tries
/// does, so that they take turns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// The agent reports a failure with this digest.
    failing: bool,
    /// The member holds a berth under a boot that is not proven, and another image is its way out: everybody waits for
    /// it, as long as it uses its permits.
    stuck: Reverse<bool>,
    /// The Node is not Ready. Its agent has been heard of lately, so that a fix can reach it; but it may be down as well.
    broken: bool,
    /// Number of permits that it had for long and did not use.
    unused: u32,
    /// Number of its failures.
    attempts: u32,
    /// True for a member that has a permit: it keeps it, all else being equal.
    has_leave: Reverse<bool>,
    /// Position by name.
    index: usize,
}

/// Allows staging to as many members as may stage at once, in the order of their turns.
pub(super) fn allow(facts: &Facts<'_>, terms: &Terms, drafts: &mut [Draft<'_>]) {
    let mut places: Vec<(Standing, usize)> = drafts
        .iter()
        .enumerate()
        .filter_map(|(index, draft)| Some((standing(facts, index, draft)?, index)))
        .collect();
    places.sort();
    let pulling = places
        .iter()
        .filter(|(standing, _)| *standing == Standing::Pulls && !Bug::PermitsUncounted.is_awake())
        .count();
    // Withdrawn, or told to wait: whoever has not begun with it does not.
    let mut free = match terms.unresolved || facts.fleet_paused {
        true => 0,
        false => terms.max_staging.saturating_sub(pulling),
    };
    for (standing, index) in places {
        let allowed = match standing {
            Standing::Done | Standing::Pulls => true,
            Standing::Waits(_) if free > 0 => {
                free -= 1;
                true
            }
            Standing::Waits(_) | Standing::Cannot => false,
        };
        if let (true, Some(draft)) = (allowed, drafts.get_mut(index)) {
            draft.spec.staging = Staging::Allowed;
        }
    }
}

/// `None`: there is no image for it.
fn standing(facts: &Facts<'_>, index: usize, draft: &Draft<'_>) -> Option<Standing> {
    let digest = &draft.spec.image.as_ref()?.digest;
    let old = draft.host.and_then(|h| h.spec());
    let published = old
        .and_then(|old| old.image.as_ref())
        .is_some_and(|image| image.digest == *digest);
    let has_leave = published && old.is_some_and(|old| old.staging == Staging::Allowed);
    let report = draft.host.and_then(|h| h.report());
    if report.is_some_and(|r| r.staged.as_ref() == Some(digest) || r.booted.as_ref() == Some(digest)) {
        return Some(Standing::Done);
    }
    let name = &draft.node.name;
    let heard = draft.host.is_none() || facts.heard.contains(name) || Bug::SilentPulls.is_awake();
    // It may pull a former digest still, until it has reported on this one; with leave it then goes on to this one.
    // Also one whose Node is not Ready, as long as its agent speaks: the pull goes on.
    let pulls = report.is_some_and(|r| r.pulling);
    let observed = draft.host.is_some_and(BootcNodeView::observed);
    if heard && published && (observed || has_leave) && pulls {
        return Some(Standing::Pulls);
    }
    let failed = report.is_some_and(|r| r.failed.contains(digest));
    // An agent finishes its turn, on whatever digest, before it pulls; unless it cannot finish it.
    let busy = facts.occupied.contains_key(&draft.node.uid);
    let stuck = is_stuck(facts, draft);
    let blocked = report.is_some_and(|r| r.blocked);
    if !heard || failed || (busy && !stuck) || blocked {
        return Some(Standing::Cannot);
    }
    let failure = report.and_then(|r| r.failure.as_ref());
    let failure = failure.filter(|f| f.digest.as_ref().is_none_or(|d| d == digest));
    let unused = facts.leaves.unused(name.as_str(), digest);
    Some(Standing::Waits(Turn {
        failing: failure.is_some(),
        stuck: Reverse(stuck && unused == 0),
        broken: !draft.node.ready,
        unused,
        attempts: failure.map_or(0, |f| f.attempts),
        has_leave: Reverse(has_leave),
        index,
    }))
}

/// True if the node holds a berth that it may not be able to give back before it runs another image: its boot is not proven, or
/// its Node is not Ready.
fn is_stuck(facts: &Facts<'_>, draft: &Draft<'_>) -> bool {
    let Some(holding) = facts.holdings.get(&draft.node.uid) else {
        return false;
    };
    let report = draft.host.and_then(BootcNodeView::report);
    if matches!(holding.phase, HoldPhase::Releasing(_)) || report.is_some_and(|report| is_licensed(holding, report)) {
        return false;
    }
    // Only its agent remembers that a boot with the former image is not proven; the Node is not Ready then.
    !draft.node.ready || report.is_some_and(|report| is_unproven(holding, report))
}
