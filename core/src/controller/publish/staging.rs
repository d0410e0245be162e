//! Permits to pull.
//!
//! At most `maxStaging` members may pull at once. A pulling member keeps its permit until the pull ends, because a
//! stopped pull would start over. An agent needs the permit only to begin a pull. So the controller can move the permit
//! of a member that does not pull to another member. A node that cannot pull, backs off or is down therefore blocks no
//! other node.

use std::cmp::Reverse;

use berth_api::berth::HoldPhase;
use berth_api::node::Staging;
use berth_api::seeded::Bug;

use super::facts::{Draft, PublishFacts, Terms};
use crate::controller::proof::{is_licensed, is_unproven};
use crate::controller::view::BootcNodeView;

/// State of a member's pull, for the distribution of permits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// The member has staged or booted the digest, so it needs no permit.
    Done,
    /// The member is pulling the digest.
    Pulls,
    /// The member has reported pulls of the digest for too long. It keeps its permit, but holds back no other member.
    PullsTooLong,
    /// The member could pull. The member with the smallest `Turn` gets a permit first.
    Waits(Turn),
    /// The member cannot pull at the moment.
    Cannot,
}

/// Rank of a member that could pull: the smallest rank gets a permit first. A member that failed, or left permits
/// unused, goes later, so that others get their turn.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// True if the agent reports a failure with this digest.
    failing: bool,
    /// True if the member holds a berth and may need another image before it can give the berth back: see [`is_stuck`].
    /// Such a member goes first, because other members wait for its berth. False if the member left permits unused.
    stuck: Reverse<bool>,
    /// True if the Node is not Ready. A new image may repair such a node, but the node may also be down, so it goes
    /// later.
    broken: bool,
    unused: u32,
    /// Number of failed pulls or stagings of this digest.
    attempts: u32,
    /// True if the member already has a permit. Between otherwise equal members, this member keeps its permit.
    has_permit: Reverse<bool>,
    /// Position of the node when sorted by name.
    index: usize,
}

/// Gives permits to pull to the first members in rank order, up to the pool's maximum.
pub(super) fn allow(facts: &PublishFacts<'_>, terms: &Terms, drafts: &mut [Draft<'_>]) {
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
    // If the target is withdrawn or the fleet paused, members that have not begun to pull must not begin.
    let mut free = if terms.unresolved || facts.fleet_paused {
        0
    } else {
        terms.max_staging.saturating_sub(pulling)
    };
    for (standing, index) in places {
        let allowed = match standing {
            Standing::Done | Standing::Pulls | Standing::PullsTooLong => true,
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

/// Returns the state of the member's pull; `None` if there is no image for the member.
fn standing(facts: &PublishFacts<'_>, index: usize, draft: &Draft<'_>) -> Option<Standing> {
    let digest = &draft.spec.image.as_ref()?.digest;
    let old = draft.host.and_then(|h| h.spec());
    let published = old
        .and_then(|old| old.image.as_ref())
        .is_some_and(|image| image.digest == *digest);
    let has_permit = published && old.is_some_and(|old| old.staging == Staging::Allowed);
    let report = draft.host.and_then(|h| h.report());
    if report.is_some_and(|r| r.images.staged.as_ref() == Some(digest) || r.images.booted.as_ref() == Some(digest)) {
        return Some(Standing::Done);
    }
    let name = &draft.node.name;
    let heard = draft.host.is_none() || facts.heard.contains(name) || Bug::SilentPulls.is_awake();
    // A member that pulls and has a permit counts as pulling this digest before it has reported on it: it may be
    // pulling an earlier digest, and pull this one next. A member that is not Ready counts too, if its agent reports.
    let pulls = report.is_some_and(|r| r.pull.pulling);
    let observed = draft.host.is_some_and(BootcNodeView::is_observed);
    if heard && published && (observed || has_permit) && pulls {
        if facts.permits.is_overlong(name.as_str(), digest) {
            return Some(Standing::PullsTooLong);
        }
        return Some(Standing::Pulls);
    }
    let failed = report.is_some_and(|r| r.images.failed.contains(digest));
    // A node that has a berth ends its turn before it pulls. A stuck node cannot end its turn, so it may pull.
    let busy = facts.occupied.contains_key(&draft.node.uid);
    let stuck = is_stuck(facts, draft);
    let blocked = report.is_some_and(|r| r.pull.blocked);
    if !heard || failed || (busy && !stuck) || blocked {
        return Some(Standing::Cannot);
    }
    let failure = report.and_then(|r| r.pull.failure.as_ref());
    let failure = failure.filter(|f| f.digest.as_ref().is_none_or(|d| d == digest));
    let unused = facts.permits.unused(name.as_str(), digest);
    Some(Standing::Waits(Turn {
        failing: failure.is_some(),
        stuck: Reverse(stuck && unused == 0),
        broken: !draft.node.ready,
        unused,
        attempts: failure.map_or(0, |f| f.attempts),
        has_permit: Reverse(has_permit),
        index,
    }))
}

/// True if the node holds a berth that it may be able to give back only with another image: its boot is unproven, or
/// its Node is not Ready.
fn is_stuck(facts: &PublishFacts<'_>, draft: &Draft<'_>) -> bool {
    let Some(holding) = facts.holdings.get(&draft.node.uid) else {
        return false;
    };
    let report = draft.host.and_then(BootcNodeView::report);
    if matches!(holding.phase, HoldPhase::Releasing(_)) || report.is_some_and(|report| is_licensed(holding, report)) {
        return false;
    }
    // If the node booted its earlier image, only the agent knows that this boot is unproven. The controller then sees
    // only that the Node is not Ready.
    !draft.node.ready || report.is_some_and(|report| is_unproven(holding, report))
}
