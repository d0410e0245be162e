//! Findings about a pool, from the conditions of its BootcNodePool.

use berth_api::condition::{self, CommonReason, pool as types};
use berth_api::{PoolName, pool::BootcNodePool};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::kind::Kind;
use super::{Finding, Subject};
use crate::controller::image::ResolveReason;

/// Returns the conditions that need attention. If two conditions report the same problem, returns only one of them.
pub fn notable(conditions: &[Condition]) -> impl Iterator<Item = &Condition> {
    let failing = condition::find_true(conditions, types::FEED_FAILING);
    let skew = condition::find_true(conditions, types::BOOT_IMAGE_SKEW);
    let is_refused = skew.is_some_and(|skew| skew.reason == CommonReason::NextImageRefused.as_str());
    conditions
        .iter()
        .filter(move |c| needs_attention(c, failing, is_refused))
}

/// True if a condition needs attention and no other condition reports its problem. `failing`: the condition
/// `FeedFailing`, if it is True. `is_refused`: true if the next image is refused because new machines' boot image is
/// too old for it.
fn needs_attention(c: &Condition, failing: Option<&Condition>, is_refused: bool) -> bool {
    match c.type_.as_str() {
        // The condition BootImageSkew already reports the refused image.
        types::FEED_FAILING if is_refused && c.reason == CommonReason::BootImageSkew.as_str() => false,
        types::IMAGE_RESOLVED
            if is_refused && c.status == "True" && c.reason == CommonReason::BootImageSkew.as_str() =>
        {
            false
        }
        // The condition FeedFailing already reports this reason, and since when the feed fails.
        types::IMAGE_RESOLVED if c.status == "True" && failing.is_some_and(|f| f.reason == c.reason) => false,
        // CannotCompare: new machines may or may not be able to join.
        types::BOOT_IMAGE_SKEW => c.status == "True" || c.reason == CommonReason::CannotCompare.as_str(),
        // The condition is True, but its reason is not Resolved: the registry does not answer, or another image waits.
        types::IMAGE_RESOLVED => c.status != "True" || c.reason != CommonReason::Resolved.as_str(),
        types::PROGRESSING | types::UPDATED | types::WINDOW_OPEN => false,
        type_ if types::SUMMARY.contains(&type_) => false,
        _ => c.status == "True",
    }
}

/// Returns the finding for a condition that needs attention. `is_outdated`: true if the pool is paused and has nodes
/// that need an update.
pub fn finding(pool: &PoolName, c: &Condition, is_outdated: bool) -> Finding {
    let is_true = c.status == "True";
    let kind = match c.type_.as_str() {
        types::PAUSED if is_outdated => Kind::OutdatedPaused,
        types::PAUSED => Kind::PoolPaused,
        types::IMAGE_RESOLVED => of_image(&c.reason, is_true),
        types::FEED_FAILING => of_feed(&c.reason),
        types::BOOT_IMAGE_SKEW if c.reason == CommonReason::NextImageRefused.as_str() => Kind::BootImageRefused,
        types::BOOT_IMAGE_SKEW if is_true => Kind::BootImageTooOld,
        types::BOOT_IMAGE_SKEW => Kind::BootImageUnknown,
        types::ROLLOUT_HALTED => Kind::RolloutHalted,
        types::NODE_CONFLICT if c.reason == CommonReason::AddressShared.as_str() => Kind::AddressShared,
        types::NODE_CONFLICT => Kind::SelectedTwice,
        types::DEGRADED => Kind::PoolDegraded,
        _ => Kind::OfPool,
    };
    Finding::of_condition(kind, Subject::Pool(pool.clone()), c)
}

/// Returns the finding about a paused pool with outdated nodes. Used until the pool's own conditions show the pause.
pub fn paused(pool: &BootcNodePool, name: &PoolName) -> Finding {
    let reason = if pool.spec.is_paused() {
        CommonReason::PausedByAdmin
    } else {
        CommonReason::PausedByFleet
    };
    let subject = Subject::Pool(name.clone());
    Finding::new(Kind::OutdatedPaused, subject, reason, "the pool or the fleet is paused")
}

fn of_image(reason: &str, is_used: bool) -> Kind {
    match CommonReason::from_word(reason) {
        Some(CommonReason::ImageAvailable) => Kind::ImageAvailable,
        Some(CommonReason::MinimumAge | CommonReason::Resolving) => Kind::ImageChecked,
        _ if !is_used => Kind::ImageUnresolved,
        Some(CommonReason::NoSuchPlatform | CommonReason::BootImageSkew) => Kind::ImageNotAdopted,
        _ => Kind::TagUnchecked,
    }
}

fn of_feed(reason: &str) -> Kind {
    match (CommonReason::from_word(reason), ResolveReason::from_word(reason)) {
        // The tag was resolved, but the pool refuses the image.
        (Some(CommonReason::NoSuchPlatform | CommonReason::BootImageSkew), _) => Kind::FeedRefused,
        (_, Some(failure)) if failure.is_passing() => Kind::FeedInterrupted,
        _ => Kind::FeedFailing,
    }
}
