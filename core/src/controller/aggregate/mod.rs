//! Computes a pool's status. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{HoldPhase, Outcome};
use berth_api::boot_image::BootImageStatus;
use berth_api::condition::{self, CommonReason, Verdict};
use berth_api::node::{Phase, Staging};
use berth_api::pool::{BootcNodePoolStatus, DeployedImage, DigestFailures, NodeCounts, PhaseDurations, Target};
use berth_api::{Digest, NodeName};
use jiff::Timestamp;

use crate::controller::history::{self, history};
use crate::controller::image::{self, Refusal};
use crate::controller::plan::MAX_NAMED;
use crate::controller::view::{BootcNodeView, Report};
use crate::text::few;

mod boot_image;
mod conditions;
mod facts;
pub mod pace;
pub mod refused;
mod summary;
#[cfg(test)]
mod tests;
mod trouble;

use facts::MemberState;
pub use facts::{BootImageInputs, MemberView, Polled, PoolStatusFacts};
use trouble::is_served;

/// Decides a pool's target image. A new image is refused if it lacks the platform of a member, or if the current boot
/// image is too old for it.
pub fn adopt(
    image: &image::ImageFacts<'_>,
    members: &[MemberView<'_>],
    inputs: BootImageInputs<'_>,
    now: Timestamp,
) -> image::Decision {
    let boot_image = boot_image::BootImageFacts { inputs, members };
    image::decide(
        image,
        |next| no_such_platform(members, next).or_else(|| boot_image::refusal(&boot_image, next)),
        now,
    )
}

/// Returns the new `status.bootImage`. `image`: decision about the pool's image.
pub fn boot_image(
    image: &image::Decision,
    members: &[MemberView<'_>],
    inputs: BootImageInputs<'_>,
    now: Timestamp,
) -> Option<BootImageStatus> {
    let facts = boot_image::BootImageFacts { inputs, members };
    boot_image::assess(&facts, None, image.target.as_ref(), &image.next, now).status
}

/// Returns the pool's new status.
pub fn status(facts: &PoolStatusFacts<'_>, now: Timestamp) -> BootcNodePoolStatus {
    let image = adopt(&facts.image(), facts.members, facts.boot_image(), now);
    let target = image.target;
    let doing: BTreeMap<&NodeName, MemberState> = facts
        .members
        .iter()
        .map(|m| (&m.node.name, doing(m, target.as_ref())))
        .collect();
    let mut conditions = facts.old.conditions.clone();
    let boot = assess_boot_image(facts, target.as_ref(), &image.next, now);
    let feed = feed(facts, target.as_ref(), &image.next);
    let feed = feed.map(|verdict| (condition::pool::FEED_FAILING, verdict));
    let resolved = match facts.refused {
        Some(words) => Verdict::no(CommonReason::RegistryNotAllowed, words),
        None => image.verdict,
    };
    let own = (condition::pool::IMAGE_RESOLVED, resolved);
    let skew = (condition::pool::BOOT_IMAGE_SKEW, boot.verdict);
    for (type_, verdict) in conditions::all(facts, target.as_ref(), &doing)
        .into_iter()
        .chain([own, skew])
        .chain(feed)
    {
        condition::set(&mut conditions, type_, verdict, facts.generation, now);
    }
    for (type_, verdict) in summary::summary(&conditions, image::follows(facts.spec.image_ref())) {
        condition::set(&mut conditions, type_, verdict, facts.generation, now);
    }
    BootcNodePoolStatus {
        observed_generation: facts.generation,
        available: image.available,
        poll_request: facts.polled.poll_request.clone(),
        nodes: counts(facts, target.as_ref(), &doing),
        berths: facts.plan.counts.clone(),
        failures: failures(facts, target.as_ref()),
        // If the admin removes the retry token from the spec, the status keeps the last token.
        retry_token: match facts.spec.retry_token() {
            "" => facts.old.retry_token.clone(),
            token => Some(token.to_owned()),
        },
        // The soak of a wave with an earlier target does not count.
        waves: if digest(target.as_ref()) == digest(facts.old.target.as_ref()) {
            facts.plan.waves.clone()
        } else {
            vec![]
        },
        deploy_history: deploy_history(facts, target.as_ref(), now),
        boot_image: boot.status,
        phase_durations: durations(facts, &doing),
        target,
        conditions,
    }
}

fn assess_boot_image(
    facts: &PoolStatusFacts<'_>,
    target: Option<&Target>,
    next: &image::Next,
    now: Timestamp,
) -> boot_image::Assessment {
    let boot_image = boot_image::BootImageFacts {
        inputs: facts.boot_image(),
        members: facts.members,
    };
    let said = condition::find(&facts.old.conditions, condition::pool::BOOT_IMAGE_SKEW);
    // Ignore the current condition if it is about another image reference.
    let said = said.filter(|said| facts.image().current().is_some() || said.observed_generation == facts.generation);
    boot_image::assess(&boot_image, said, target, next, now)
}

/// Returns the condition `FeedFailing`: True if the pool gets no new images of the tag that it follows. `None` leaves
/// the current condition unchanged.
fn feed(facts: &PoolStatusFacts<'_>, target: Option<&Target>, next: &image::Next) -> Option<Verdict> {
    if facts.deleting {
        None
    } else if facts.refused.is_some() {
        Some(Verdict::unknown(CommonReason::ImageNotResolved, "see ImageResolved"))
    } else {
        image::feed::assess(&facts.image(), target, next, facts.polled.polled)
    }
}

fn deploy_history(facts: &PoolStatusFacts<'_>, target: Option<&Target>, now: Timestamp) -> Vec<DeployedImage> {
    history(&history::HistoryFacts {
        old: &facts.old.deploy_history,
        pool: facts.pool,
        members: facts
            .members
            .iter()
            .filter_map(|m| Some(m.host?.report()?.images.deployments.as_slice())),
        is_alone: facts.members.len() == 1,
        targets: facts.old.target.iter().chain(target),
        limit: facts.spec.history_limit(),
        now,
    })
}

/// Returns the members that the target has no image for. Members with unknown architecture or CPU are left out.
fn unserved<'m, 'a>(members: &'m [MemberView<'a>], target: &'m Target) -> impl Iterator<Item = &'m MemberView<'a>> {
    members.iter().filter(|member| !is_served(member, target))
}

/// Number of members, at least, of a pool that adopts an image although the image lacks the platform of one member.
const OUTVOTED: usize = 3;

/// Refuses an image that lacks the platform of members. In a pool of three or more, a single such member refuses
/// nothing, because each node reports its own platform: the member keeps its image, and the pool names it.
fn no_such_platform(members: &[MemberView<'_>], image: &Target) -> Option<Refusal> {
    let mut nodes = unserved(members, image).peekable();
    nodes.peek()?;
    if members.len() >= OUTVOTED && unserved(members, image).nth(1).is_none() {
        return None;
    }
    let nodes = few(nodes.map(|member| format!("{} ({})", member.node.name, member.platform())));
    let words = format!(
        "supports {}, not {nodes}; add that platform to the image, or exclude these nodes",
        image.shown_platforms()
    );
    Some(Refusal {
        reason: CommonReason::NoSuchPlatform,
        words,
    })
}

fn doing(member: &MemberView<'_>, target: Option<&Target>) -> MemberState {
    if let Some(holding) = member.holding {
        return match holding.phase {
            HoldPhase::Committed | HoldPhase::Releasing(Outcome::Updated) => MemberState::Rebooting,
            HoldPhase::Taken | HoldPhase::Releasing(_) => MemberState::Draining,
        };
    }
    let desired = target.and_then(|t| t.digest_for(member.platform()));
    let report = member.host.and_then(BootcNodeView::report);
    let (Some(desired), Some(report)) = (desired, report) else {
        return MemberState::Pending;
    };

    let spec = member.host.and_then(BootcNodeView::spec);
    if report.images.booted.as_ref() == Some(desired) {
        MemberState::Updated
    } else if report.images.staged.as_ref() == Some(desired) && report.images.locked {
        MemberState::Staged
    } else if report.phase == Some(Phase::Staging) && spec.is_some_and(|s| s.staging == Staging::Allowed) {
        MemberState::Staging
    } else {
        MemberState::Pending
    }
}

fn counts(
    facts: &PoolStatusFacts<'_>,
    target: Option<&Target>,
    doing: &BTreeMap<&NodeName, MemberState>,
) -> NodeCounts {
    let degraded = facts.members.iter().filter(|m| facts.trouble(m, target).is_some());
    let unavailable = facts.members.iter().filter(|m| m.node.down().is_some());
    NodeCounts {
        total: saturated(facts.members.len()),
        updated: in_state(doing, MemberState::Updated),
        staging: in_state(doing, MemberState::Staging),
        staged: in_state(doing, MemberState::Staged),
        draining: in_state(doing, MemberState::Draining),
        rebooting: in_state(doing, MemberState::Rebooting),
        pending: in_state(doing, MemberState::Pending),
        excluded: saturated(facts.excluded.len()),
        degraded: saturated(degraded.count()),
        unavailable: saturated(unavailable.count()),
    }
}

fn in_state(doing: &BTreeMap<&NodeName, MemberState>, wanted: MemberState) -> u32 {
    saturated(conditions::count(doing, wanted))
}

fn saturated(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn digest(target: Option<&Target>) -> Option<&Digest> {
    target.map(|t| &t.digest)
}

/// Maximum number of digests in `status.failures`, as in the schema.
const MAX_DIGESTS: usize = 8;

/// Returns the failed digests to record in the status. Digests of the target come first, then newly failed digests,
/// then digests that are already recorded. The end of a long list is cut off. A new digest must not be cut off, because
/// a berth that closed with a failure stays closed until the failure is recorded.
fn failures(facts: &PoolStatusFacts<'_>, target: Option<&Target>) -> Vec<DigestFailures> {
    let mut all: Vec<(&Digest, &BTreeSet<NodeName>)> = facts.plan.failures.iter().collect();
    all.sort_by_key(|(digest, _)| {
        let is_wanted = target.is_some_and(|t| t.platforms.iter().any(|p| p.digest == **digest));
        let recorded = facts.old.failures.iter().position(|f| f.digest == **digest);
        (!is_wanted, recorded.map_or(0, |at| at + 1))
    });
    let kept = all.into_iter().take(MAX_DIGESTS);
    kept.map(|(digest, nodes)| DigestFailures {
        digest: digest.clone(),
        nodes: nodes.iter().take(MAX_NAMED).map(ToString::to_string).collect(),
        count: saturated(nodes.len()),
    })
    .collect()
}

/// Minimum number of measurements for a median, since a single slow reboot predicts nothing.
const MEASUREMENTS: usize = 3;

/// Returns the median duration of each phase among members that run the current image. If too few of these members have
/// measured a phase, all members count. A reboot is capped at the reboot timeout, because a longer reboot includes a
/// repair.
fn durations(facts: &PoolStatusFacts<'_>, doing: &BTreeMap<&NodeName, MemberState>) -> PhaseDurations {
    PhaseDurations {
        staging_seconds: latest_median(facts, doing, |report| report.measured.staging),
        drain_seconds: latest_median(facts, doing, |report| report.measured.drain),
        reboot_seconds: latest_median(facts, doing, |report| {
            Some(report.measured.reboot?.min(facts.spec.reboot_timeout()))
        }),
    }
}

/// Returns the median duration in seconds, as measured by updated members. If too few updated members have measured it,
/// all members count.
fn latest_median(
    facts: &PoolStatusFacts<'_>,
    doing: &BTreeMap<&NodeName, MemberState>,
    measured: impl Fn(&Report) -> Option<Duration>,
) -> Option<u32> {
    let (mut updated, mut all) = (vec![], vec![]);
    for member in facts.members {
        let report = member.host.and_then(BootcNodeView::report);
        let Some(duration) = report.and_then(&measured) else {
            continue;
        };
        if doing.get(&member.node.name) == Some(&MemberState::Updated) {
            updated.push(duration);
        }
        all.push(duration);
    }
    median(updated).or_else(|| median(all))
}

fn median(mut durations: Vec<Duration>) -> Option<u32> {
    durations.sort_unstable();
    let middle = durations
        .get(durations.len() / 2)
        .filter(|_| durations.len() >= MEASUREMENTS)?;
    u32::try_from(middle.as_secs()).ok()
}
