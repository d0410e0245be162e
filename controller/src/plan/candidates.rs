//! Which members may be offered a berth, in which order, and why the others wait.

use std::collections::BTreeSet;

use berth_api::berth::{BerthState, Offer, Outcome};
use berth_api::{Digest, NodeName};

use super::{Member, PoolFacts, SeenBerth};

/// Why a member is not offered a berth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// It runs the target already.
    UpToDate,
    /// The target has no image for its platform, or there is no target yet.
    NoImage,
    /// The target is not published to it yet.
    NotPublished,
    /// What is published is for a former Node of that name.
    OtherNode,
    /// Its agent has not reported on what is published.
    NotObserved,
    /// The digest failed there before.
    FailedBefore,
    /// The digest is not staged and locked.
    NotStaged,
    /// Its agent says that it is not prepared: it backs off, or something inhibits the reboot.
    NotPrepared,
    /// Its agent has not been heard of lately.
    Silent,
    /// It holds a berth, or is offered one.
    HasBerth,
    /// The pool is paused.
    Paused,
    /// The image that the pool asks for now is not resolved yet.
    Unresolved,
    /// Berths are being fenced against writes of a former leader.
    Fencing,
    /// The capacity is used up.
    Capacity,
    /// There is room, but the Lease is not there yet or not closed yet.
    NoBerth,
}

impl Wait {
    /// For people, behind the node's name.
    pub fn words(self) -> &'static str {
        match self {
            Self::UpToDate => "runs the target",
            Self::NoImage => "has no image for its platform",
            Self::NotPublished => "has not been told its image",
            Self::OtherNode => "was created anew",
            Self::NotObserved => "has not reported on its image",
            Self::FailedBefore => "failed with this image before",
            Self::NotStaged => "has not staged its image",
            Self::NotPrepared => "is not prepared",
            Self::Silent => "has a silent agent",
            Self::HasBerth => "is being updated",
            Self::Paused => "waits because the pool is paused",
            Self::Unresolved => "waits until the pool's new image is resolved",
            Self::Fencing => "waits for the new leader",
            Self::Capacity => "waits for a berth",
            Self::NoBerth => "waits for a berth to be closed or created",
        }
    }
}

/// The digest that the member may be offered a berth for.
pub(super) fn fit(member: &Member) -> Result<Digest, Wait> {
    let Some(desired) = &member.desired else {
        return Err(Wait::NoImage);
    };
    let same = |digest: &Option<Digest>| digest.as_ref() == Some(desired);
    if same(&member.booted) {
        return Err(Wait::UpToDate);
    }
    if !same(&member.published) {
        return Err(Wait::NotPublished);
    }
    if member.published_uid != member.uid {
        return Err(Wait::OtherNode);
    }
    if !member.observed {
        return Err(Wait::NotObserved);
    }
    if member.failed.contains(desired) {
        return Err(Wait::FailedBefore);
    }
    if !same(&member.staged) {
        return Err(Wait::NotStaged);
    }
    if !member.prepared {
        return Err(Wait::NotPrepared);
    }
    if !member.heard {
        return Err(Wait::Silent);
    }
    Ok(desired.clone())
}

/// Why an open offer is to be withdrawn. Softer than [`fit`]: an agent that has yet to report, or is not heard,
/// lets the offer lapse by itself.
pub(super) fn withdrawal(facts: &PoolFacts, offer: &Offer) -> Option<&'static str> {
    if facts.paused {
        return Some("the pool is paused");
    }
    if facts.unresolved {
        return Some("the pool asks for another image now, which is not resolved yet");
    }
    let Some(member) = facts.member(&offer.node, &offer.uid) else {
        return Some("the node is no longer a member");
    };
    if member.desired.as_ref() != Some(&offer.target) || member.published.as_ref() != Some(&offer.target) {
        return Some("the node should run another image now");
    }
    match fit(member) {
        Err(Wait::FailedBefore) => Some("the image failed on the node"),
        Err(Wait::UpToDate) => Some("the node runs the image already"),
        Err(Wait::NotStaged | Wait::NotPrepared) => Some("the node is no longer prepared"),
        _ => None,
    }
}

/// The members in the order in which they get berths: unavailable ones first, then those whose last turn did not
/// end badly, then by name. Of those whose turn did, the one with the fewest such turns comes first, so that two
/// nodes that cannot be drained take turns.
///
/// Whoever let an offer lapse goes behind all who did not, unavailable or not: unlike a turn that ended badly, nothing
/// makes it wait before the next offer, and it would get every one.
pub(super) fn ordered<'a>(facts: &'a PoolFacts, berths: &[SeenBerth]) -> Vec<&'a Member> {
    // What a former controller has left behind: the last one for each berth.
    let lapsed: BTreeSet<&NodeName> = berths
        .iter()
        .filter_map(|s| match s.berth.as_ref().map(|b| &b.state) {
            Ok(BerthState::Closed(c)) if c.outcome == Some(Outcome::Lapsed) => c.last_node.as_ref(),
            _ => None,
        })
        .collect();
    let bad_turns = |m: &Member| match &m.last_turn {
        Some((digest, turns)) if m.desired.as_ref() == Some(digest) => (*turns).max(1),
        _ => 0,
    };
    let mut members: Vec<&Member> = facts.members.iter().collect();
    members.sort_by_cached_key(|m| {
        let lapses = m.lapses.max(u32::from(lapsed.contains(&m.name)));
        (lapses, !m.unavailable(), bad_turns(m), m.name.clone())
    });
    members
}
