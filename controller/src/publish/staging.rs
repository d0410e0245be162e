//! Which members may pull now. Leave to pull is never taken back for the same digest: a pull that runs is not
//! stopped half-way, and one that was stopped would start over.

use berth_api::Digest;
use berth_api::node::Staging;

use super::{Draft, Facts, Terms};

/// A member that wants a digest.
struct Place {
    index: usize,
    /// It may pull this digest already.
    allowed: bool,
    /// It has the digest, staged or booted.
    done: bool,
    /// It backs off from a failure: it keeps its leave, and others may pull meanwhile.
    failing: bool,
    /// Its agent is there and its Node is Ready. Others come later, and do not keep a place from those that are.
    alive: bool,
}

/// Allows staging to as many members as may stage at once, in the order of their names.
pub(super) fn allow(facts: &Facts<'_>, terms: &Terms, drafts: &mut [Draft<'_>]) {
    let mut places: Vec<Place> =
        drafts.iter().enumerate().filter_map(|(index, draft)| place(facts, index, draft)).collect();
    let pulling = |p: &&Place| p.allowed && !p.done && !p.failing && p.alive;
    let mut free = terms.max_staging.saturating_sub(places.iter().filter(pulling).count());
    places.sort_by_key(|p| (!p.alive, p.index));
    for place in places {
        let takes = !place.allowed && !place.done;
        if takes && free == 0 {
            continue;
        }
        if takes && place.alive {
            free -= 1;
        }
        if let Some(draft) = drafts.get_mut(place.index) {
            draft.spec.staging = Staging::Allowed;
        }
    }
}

fn place(facts: &Facts<'_>, index: usize, draft: &Draft<'_>) -> Option<Place> {
    let digest = &draft.spec.image.as_ref()?.digest;
    let old = draft.host.and_then(|h| h.spec());
    let report = draft.host.and_then(|h| h.report());
    let had = |d: &Option<Digest>| d.as_ref() == Some(digest);
    Some(Place {
        index,
        allowed: old.is_some_and(|old| {
            old.staging == Staging::Allowed && old.image.as_ref().map(|i| &i.digest) == Some(digest)
        }),
        done: report.is_some_and(|r| had(&r.staged) || had(&r.booted)),
        failing: report.is_some_and(|r| r.failure.is_some()),
        alive: draft.node.ready && (draft.host.is_none() || facts.heard.contains(&draft.node.name)),
    })
}
