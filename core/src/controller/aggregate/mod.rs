//! A pool's status: what an admin reads at three in the morning. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{HoldPhase, Holding, Outcome};
use berth_api::boot_image::{BootImagePolicy, BootImageStatus};
use berth_api::condition::{self, Verdict, Why};
use berth_api::node::{Phase, Staging};
use berth_api::platform::{Choice, Platform};
use berth_api::pool::{BootcNodePoolStatus, DigestFailures, NodeCounts, PhaseDurations, Target};
use berth_api::{Digest, NodeName};
use jiff::Timestamp;

use crate::controller::gates::Gates;
use crate::controller::history::{self, history};
use crate::controller::image::{self, Answers, Refusal};
use crate::controller::overdue::knows_better;
use crate::controller::plan::{MAX_NAMED, Plan};
use crate::controller::unwritable::Unwritable;
use crate::controller::view::{BootcNodeView, NodeView, Report};
use crate::text::few;
use berth_api::membership::Conflict;

mod boot_image;
mod conditions;
pub mod pace;
mod summary;
#[cfg(test)]
mod tests;

/// A member, as far as the pool's status is concerned.
#[derive(Debug)]
pub struct MemberView<'a> {
    /// Its Node.
    pub node: &'a NodeView,
    /// Its BootcNode, when there is one.
    pub host: Option<&'a BootcNodeView>,
    /// The berth that it holds.
    pub holding: Option<&'a Holding>,
    /// True for a holder that has been silent for so long that it may not come back.
    pub overdue: bool,
    /// True if its agent has been heard of lately.
    pub heard: bool,
}

impl<'a> MemberView<'a> {
    fn platform(&self) -> Platform<'a> {
        self.node.platform(self.host)
    }
}

/// Everything that a pool's status depends on.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Generation of the pool's spec.
    pub generation: Option<i64>,
    /// The status as it is.
    pub old: &'a BootcNodePoolStatus,
    /// Name of the pool.
    pub pool: &'a str,
    /// The reference in the spec.
    pub reference: &'a str,
    /// Number of images that the history keeps.
    pub history_limit: usize,
    /// Words on why the reference may not be used; none when it may.
    pub refused: Option<&'a str>,
    /// `image.minimumAge`
    pub minimum_age: Duration,
    /// Rules for boot images.
    pub boot_image: &'a BootImagePolicy,
    /// Answers of registries about the reference.
    pub answers: &'a Answers,
    /// True if the tag is looked at at intervals.
    pub polled: bool,
    /// Time for which leaders have known of `status.available`.
    pub available_seen: Duration,
    /// The last request for a poll that was acted on.
    pub poll_request: Option<String>,
    /// The admin has paused the pool.
    pub paused: bool,
    /// The gates of the pool.
    pub gates: Option<&'a Gates>,
    /// `rollout.rebootTimeout`
    pub reboot_timeout: Duration,
    /// `rollout.retryToken`
    pub retry_token: &'a str,
    /// Number of nodes that would be members and are excluded.
    pub excluded: usize,
    /// The pool is being deleted.
    pub deleting: bool,
    /// Error in the selector.
    pub bad_selector: Option<&'a str>,
    /// The members.
    pub members: &'a [MemberView<'a>],
    /// Nodes that hold a berth of the pool and are not its members any more.
    pub away: &'a [MemberView<'a>],
    /// Conflicts that concern the pool.
    pub conflicts: Vec<&'a Conflict>,
    /// The plan of its berths.
    pub plan: &'a Plan,
    /// Error of each Lease that cannot be read.
    pub unreadable: Vec<&'a str>,
    /// Leases of the pool that cannot be written.
    pub unwritable: Vec<&'a Unwritable>,
}

/// State of a member, worked out once for counts and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Updated,
    Rebooting,
    Draining,
    Staged,
    Staging,
    Pending,
}

/// Decides which image is a pool's target, with the reasons that its members give against a new one: it has nothing for the
/// platform of some, or the boot image in use is too old for it. `before` is `status.bootImage`.
pub fn adopt(
    image: &image::Facts<'_>,
    members: &[MemberView<'_>],
    (policy, before): (&BootImagePolicy, Option<&BootImageStatus>),
    now: Timestamp,
) -> image::Decision {
    let boot_image = boot_image::Facts {
        policy,
        members,
        before,
    };
    let refusal = |image: &Target| no_such_platform(members, image).or_else(|| boot_image::refusal(&boot_image, image));
    image::decide(image, refusal, now)
}

/// Returns `status.bootImage` as it should be after a decision about the pool's image. `before` is what it is.
pub fn boot_image(
    image: &image::Decision,
    members: &[MemberView<'_>],
    (policy, before): (&BootImagePolicy, Option<&BootImageStatus>),
    now: Timestamp,
) -> Option<BootImageStatus> {
    let facts = boot_image::Facts {
        policy,
        members,
        before,
    };
    boot_image::assess(&facts, None, image.target.as_ref(), &image.next, now).status
}

/// The status as it should be now.
pub fn status(facts: &Facts<'_>, now: Timestamp) -> BootcNodePoolStatus {
    let before = facts.old.boot_image.as_ref();
    let image = adopt(&facts.image(), facts.members, (facts.boot_image, before), now);
    let target = image.target;
    let doing: BTreeMap<&NodeName, Doing> = facts
        .members
        .iter()
        .map(|m| (&m.node.name, doing(m, target.as_ref())))
        .collect();
    let mut conditions = facts.old.conditions.clone();
    let boot_image = boot_image::Facts {
        policy: facts.boot_image,
        members: facts.members,
        before,
    };
    let said = condition::find(&facts.old.conditions, condition::pool::BOOT_IMAGE_SKEW);
    // What was said of another reference says nothing of this one.
    let said = said.filter(|said| facts.image().current().is_some() || said.observed_generation == facts.generation);
    let boot = boot_image::assess(&boot_image, said, target.as_ref(), &image.next, now);
    let feed = if facts.deleting {
        None
    } else if facts.refused.is_some() {
        Some(Verdict::unknown(Why::ImageNotResolved, "see ImageResolved"))
    } else {
        image::feed::assess(&facts.image(), target.as_ref(), &image.next, facts.polled)
    };
    let feed = feed.map(|verdict| (condition::pool::FEED_FAILING, verdict));
    let resolved = match facts.refused {
        Some(words) => Verdict::no(Why::RegistryNotAllowed, words),
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
    for (type_, verdict) in summary::summary(&conditions, image::follows(facts.reference)) {
        condition::set(&mut conditions, type_, verdict, facts.generation, now);
    }
    BootcNodePoolStatus {
        observed_generation: facts.generation,
        available: image.available,
        poll_request: facts.poll_request.clone(),
        nodes: counts(facts, target.as_ref(), &doing),
        berths: facts.plan.counts.clone(),
        failures: failures(facts, target.as_ref()),
        // One that is taken away was obeyed all the same.
        retry_token: match facts.retry_token {
            "" => facts.old.retry_token.clone(),
            token => Some(token.to_owned()),
        },
        // What has soaked on the way to another image says nothing about this one.
        waves: match digest(target.as_ref()) == digest(facts.old.target.as_ref()) {
            true => facts.plan.waves.clone(),
            false => vec![],
        },
        deploy_history: history(&history::Facts {
            old: &facts.old.deploy_history,
            pool: facts.pool,
            members: facts
                .members
                .iter()
                .filter_map(|m| Some(m.host?.report()?.deployments.as_slice())),
            targets: facts.old.target.iter().chain(&target),
            limit: facts.history_limit,
            now,
        }),
        boot_image: boot.status,
        phase_durations: durations(facts, &doing),
        target,
        conditions,
    }
}

/// Members that cannot run any image of a target. A machine that has not reported its architecture or CPU is not counted:
/// it waits for the report.
fn unserved<'m, 'a>(members: &'m [MemberView<'a>], target: &'m Target) -> impl Iterator<Item = &'m MemberView<'a>> {
    members.iter().filter(|member| !is_served(member, target))
}

/// Refusal of an image that has nothing for some members.
fn no_such_platform(members: &[MemberView<'_>], image: &Target) -> Option<Refusal> {
    let mut nodes = unserved(members, image).peekable();
    nodes.peek()?;
    let nodes = few(nodes.map(|member| format!("{} ({})", member.node.name, member.platform())));
    let words = format!(
        "has images for {}, not for {nodes}; add that platform to the image, or exclude these nodes",
        image.shown_platforms()
    );
    Some(Refusal {
        reason: Why::NoSuchPlatform,
        words,
    })
}

impl<'a> Facts<'a> {
    fn image(&self) -> image::Facts<'a> {
        image::Facts {
            reference: self.reference,
            minimum_age: self.minimum_age,
            target: self.old.target.as_ref(),
            available: self.old.available.as_ref(),
            seen: self.available_seen,
            answers: self.answers,
        }
    }
}

fn doing(member: &MemberView<'_>, target: Option<&Target>) -> Doing {
    if let Some(holding) = member.holding {
        return match holding.phase {
            HoldPhase::Committed | HoldPhase::Releasing(Outcome::Updated) => Doing::Rebooting,
            HoldPhase::Taken | HoldPhase::Releasing(_) => Doing::Draining,
        };
    }
    let desired = target.and_then(|t| t.digest_for(member.platform()));
    let report = member.host.and_then(BootcNodeView::report);
    let (Some(desired), Some(report)) = (desired, report) else {
        return Doing::Pending;
    };
    let is = |digest: &Option<Digest>| digest.as_ref() == Some(desired);
    let spec = member.host.and_then(BootcNodeView::spec);
    if is(&report.booted) {
        Doing::Updated
    } else if is(&report.staged) && report.locked {
        Doing::Staged
    } else if report.phase == Some(Phase::Staging) && spec.is_some_and(|s| s.staging == Staging::Allowed) {
        Doing::Staging
    } else {
        Doing::Pending
    }
}

fn counts(facts: &Facts<'_>, target: Option<&Target>, doing: &BTreeMap<&NodeName, Doing>) -> NodeCounts {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let in_state = |wanted: Doing| count(doing.values().filter(|d| **d == wanted).count());
    let members = |f: &dyn Fn(&MemberView<'_>) -> bool| count(facts.members.iter().filter(|m| f(m)).count());
    NodeCounts {
        total: count(facts.members.len()),
        updated: in_state(Doing::Updated),
        staging: in_state(Doing::Staging),
        staged: in_state(Doing::Staged),
        draining: in_state(Doing::Draining),
        rebooting: in_state(Doing::Rebooting),
        pending: in_state(Doing::Pending),
        excluded: count(facts.excluded),
        degraded: members(&|m| trouble(m, target).is_some()),
        unavailable: members(&|m| m.node.down().is_some()),
    }
}

fn digest(target: Option<&Target>) -> Option<&Digest> {
    target.map(|t| &t.digest)
}

/// Digests of which failures are kept; the schema allows no more.
const MAX_DIGESTS: usize = 8;

/// The failures to keep: of the target first, then those that are news, then what was on record before. News must not be
/// what is left out: the berth that tells of it stays closed until it is on record.
fn failures(facts: &Facts<'_>, target: Option<&Target>) -> Vec<DigestFailures> {
    let wanted = |digest: &Digest| target.is_some_and(|t| t.platforms.iter().any(|p| p.digest == *digest));
    let before = |digest: &Digest| facts.old.failures.iter().position(|f| f.digest == *digest);
    let mut all: Vec<_> = facts.plan.failures.iter().collect();
    all.sort_by_key(|(digest, _)| (!wanted(digest), before(digest).map_or(0, |at| at + 1)));
    let one = |(digest, nodes): (&Digest, &BTreeSet<NodeName>)| DigestFailures {
        digest: digest.clone(),
        nodes: nodes.iter().take(MAX_NAMED).map(ToString::to_string).collect(),
        count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
    };
    all.into_iter().take(MAX_DIGESTS).map(one).collect()
}

/// Number of measurements that a median is made of at least: one slow reboot tells nothing of the next one.
const MEASUREMENTS: usize = 3;

/// Medians of what the members measured with the image that they should run. As long as too few have, what others measured
/// with another image stands in; after that it has no say any more. A node that was repaired for a day has not rebooted for
/// a day.
fn durations(facts: &Facts<'_>, doing: &BTreeMap<&NodeName, Doing>) -> PhaseDurations {
    let lately = |took: &dyn Fn(&Report) -> Option<Duration>| {
        let of = |updated_only: bool| {
            let is_updated = |m: &&MemberView<'_>| doing.get(&m.node.name) == Some(&Doing::Updated);
            let members = facts.members.iter().filter(|m| !updated_only || is_updated(m));
            median(members.filter_map(|m| took(m.host?.report()?)).collect())
        };
        of(true).or_else(|| of(false))
    };
    PhaseDurations {
        staging_seconds: lately(&|report| report.staging),
        drain_seconds: lately(&|report| report.drain),
        reboot_seconds: lately(&|report| Some(report.reboot?.min(facts.reboot_timeout))),
    }
}

fn median(mut durations: Vec<Duration>) -> Option<u32> {
    durations.sort_unstable();
    let middle = durations
        .get(durations.len() / 2)
        .filter(|_| durations.len() >= MEASUREMENTS)?;
    u32::try_from(middle.as_secs()).ok()
}

/// Trouble of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trouble {
    /// Effect on the pool.
    kind: Kind,
    /// CamelCase reason.
    reason: String,
    /// One line.
    message: String,
}

/// Effect of a member's trouble on the pool, the most telling last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Turns end without an update, with this outcome.
    Turn(&'static str),
    /// The member reports that something is wrong.
    Degraded,
    /// The member does not come back.
    TimedOut,
}

fn trouble(member: &MemberView<'_>, target: Option<&Target>) -> Option<Trouble> {
    let content = member.host.map(|h| &h.content);
    let own = match content {
        Some(Ok(content)) => content.report.degraded.clone(),
        Some(Err(error)) => Some(("Unreadable".to_owned(), error.clone())),
        None => None,
    };
    let knows_better = |holding: &Holding| knows_better(member.node, member.host, holding, member.heard);
    if let Some(holding) = member
        .holding
        .filter(|holding| member.overdue && !knows_better(holding))
    {
        let what = match holding.phase {
            HoldPhase::Committed => "has not come back from its reboot",
            HoldPhase::Taken | HoldPhase::Releasing(_) => "holds a berth and is silent",
        };
        let message = format!("{what}; it keeps its berth until it is proven, deleted or excluded");
        return Some(Trouble {
            kind: Kind::TimedOut,
            reason: "RebootTimedOut".to_owned(),
            message,
        });
    }
    if let Some((reason, message)) = own {
        return Some(Trouble {
            kind: Kind::Degraded,
            reason,
            message,
        });
    }
    let target = target?;
    unserved_trouble(member, target).or_else(|| bad_turn(member, target))
}

/// The target has nothing for the member's platform, as of a node that joined after it was adopted. Its agent is asked for
/// nothing and so has nothing to report.
fn unserved_trouble(member: &MemberView<'_>, target: &Target) -> Option<Trouble> {
    if is_served(member, target) {
        return None;
    }
    Some(Trouble {
        kind: Kind::Degraded,
        reason: Why::NoSuchPlatform.as_str().to_owned(),
        message: format!("{} has no image for {}", target.image, member.platform()),
    })
}

/// True unless the member cannot run any image of the target. One that has not reported its architecture or CPU counts as
/// served: it waits for the report.
fn is_served(member: &MemberView<'_>, target: &Target) -> bool {
    let platform = member.platform();
    platform.architecture.is_empty() || target.choose(platform) != Choice::NoSuchPlatform
}

/// The member's turns end without an update. It is tried again and again, and somebody may have to help.
fn bad_turn(member: &MemberView<'_>, target: &Target) -> Option<Trouble> {
    let desired = target.digest_for(member.platform())?;
    let report = member.host.and_then(BootcNodeView::report)?;
    let turn = report
        .last_turn
        .as_ref()
        .filter(|t| t.digest == *desired && report.booted.as_ref() != Some(desired))?;
    let outcome = Outcome::from_word(&turn.outcome)?;
    let telling = match outcome {
        Outcome::DrainTimeout | Outcome::RebootBlocked | Outcome::NotApplied | Outcome::Failed => true,
        // Once is an unrelated reboot, and mends itself.
        Outcome::NotStaged => turn.attempts > 1,
        Outcome::Updated | Outcome::Revoked | Outcome::Withdrawn | Outcome::Lapsed => false,
    };
    let message = format!("{} (turn {})", turn.message, turn.attempts);
    telling.then(|| Trouble {
        kind: Kind::Turn(outcome.as_str()),
        reason: turn.outcome.clone(),
        message,
    })
}
