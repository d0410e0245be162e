//! Whether a pool's boot image (the disk image that its new machines are installed from) is too old to update from it
//! to the pool's image.
//!
//! Each machine reports its own boot image, so a single machine could report a wrong version. With three or more
//! machines, the median of the three newest counts: a single machine can neither refuse an image nor admit one. The
//! admin outvotes a machine by excluding its Node, and all machines with `bootImage.source: Manual`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use berth_api::boot_image::{
    BootImageEnforcement, BootImageLimit, BootImagePolicy, BootImageSource, BootImageStatus, MAX_NAMED, MAX_NEWEST,
    ReportedBootImage,
};
use berth_api::condition::{CommonReason, Verdict};
use berth_api::pool::Target;
use berth_api::seeded::Bug;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::facts::{BootImageInputs, MemberView};
use crate::controller::image::{Next, Refusal};
use crate::skew::version::median;
use crate::skew::{Skew, skew};

/// Reason for refusing an image because the boot image of new machines is too old for it.
pub(super) const REASON: CommonReason = CommonReason::BootImageSkew;

#[derive(Clone, Copy)]
pub(super) struct BootImageFacts<'a> {
    pub(super) inputs: BootImageInputs<'a>,
    pub(super) members: &'a [MemberView<'a>],
}

/// Result of the check of a pool's boot image.
pub(super) struct Assessment {
    pub(super) status: Option<BootImageStatus>,
    pub(super) verdict: Verdict,
}

/// Boot image of one machine. Also used for a version that the admin recorded; then there is no `node`.
#[derive(Debug, Clone, Copy, Default)]
struct Machine<'a> {
    version: Option<&'a str>,
    node: Option<&'a str>,
    /// Unix time when the Node was created; `None` if an older controller wrote the status without this time.
    created: Option<i64>,
    /// Unix time when the machine was provisioned, capped at `created`.
    provisioned: Option<i64>,
    error: Option<&'a str>,
    /// True if the version comes from the pool's status. The machine itself has left the pool or no longer reports a
    /// version.
    is_remembered: bool,
}

/// Boot image of the next new machine, as far as the controller knows.
#[derive(Debug, Clone, Default)]
struct InUse<'a> {
    /// Machine whose boot image counts.
    machine: Machine<'a>,
    /// The newest machines of known version, newest first: at most [`MAX_NEWEST`].
    newest: Vec<Machine<'a>>,
    /// Number of machines whose boot image version is unknown and that are newer than `machine`.
    newer: usize,
}

impl<'a> Machine<'a> {
    /// Sort key of machines: the time of provisioning, or of the Node's creation if that time is unknown; then the
    /// Node's name.
    fn place(&self) -> (Option<i64>, Option<&'a str>) {
        (self.provisioned.or(self.created), self.node)
    }

    fn is_same_node(&self, other: &Machine<'_>) -> bool {
        self.node == other.node && self.created == other.created
    }

    fn shown(&self) -> Option<ReportedBootImage> {
        Some(ReportedBootImage {
            node: self.node?.to_owned(),
            version: self.version?.to_owned(),
            node_created_time: time(self.created),
            provisioned_time: time(self.provisioned),
        })
    }
}

impl InUse<'_> {
    /// Returns a message about the machine. `why` is a verb phrase with the machine as its subject, such as "was
    /// installed from 9.0, which is older than the minimum 9.2".
    fn words(&self, why: &str) -> String {
        let is_median = self.newest.len() == MAX_NEWEST;
        let words = match (self.machine.node, self.machine.error) {
            (Some(node), _) if is_median && self.machine.is_remembered => {
                format!("{node} (now gone or silent), the median of the three newest machines, {why}")
            }
            (Some(node), _) if is_median => format!("{node}, the median of the three newest machines, {why}"),
            (Some(node), _) if self.machine.is_remembered => {
                format!("the newest machine so far, {node} (now gone or silent), {why}")
            }
            (Some(node), Some(error)) => {
                format!("the boot image record of the newest machine, {node}, cannot be read: {error}")
            }
            (Some(node), None) => format!("the newest machine, {node}, {why}"),
            (None, _) => format!("a machine with the boot image recorded in bootImage.manual {why}"),
        };
        match self.newer {
            0 => words,
            1 => format!("{words}; 1 newer machine does not count, because its boot image is unknown"),
            newer => format!("{words}; {newer} newer machines do not count, because their boot images are unknown"),
        }
    }
}

/// Returns a refusal if the pool enforces the boot image limit, and the boot image of new machines is too old for this
/// image. `None` otherwise.
pub(super) fn refusal(facts: &BootImageFacts<'_>, image: &Target) -> Option<Refusal> {
    if enforcement(facts.inputs.policy) != BootImageEnforcement::ReleaseRecommended || Bug::BootImageIgnored.is_awake()
    {
        return None;
    }
    let in_use = in_use(facts)?;
    match skew_of(facts, in_use.machine.version, image) {
        Skew::Exceeded(why) => Some(Refusal {
            reason: REASON,
            words: format!(
                "needs a newer boot image: {}; install new machines from a newer boot image; if you already do, \
                 record its version with bootImage.source: Manual; or set bootImage.enforcement: Warn",
                in_use.words(&why)
            ),
        }),
        Skew::NoLimit | Skew::Within | Skew::Unknown(_) => None,
    }
}

/// Checks the boot image against the current target and the next image. `said` is the pool's current condition
/// `BootImageSkew`; `None` if the condition is about another image reference than the spec.
pub(super) fn assess(
    facts: &BootImageFacts<'_>,
    said: Option<&Condition>,
    target: Option<&Target>,
    next: &Next,
    now: Timestamp,
) -> Assessment {
    let in_use = in_use(facts);
    let machine = in_use.as_ref().map(|in_use| in_use.machine).unwrap_or_default();
    let version = machine.version;
    let newest = in_use.iter().flat_map(|in_use| &in_use.newest);
    let mut status = BootImageStatus {
        version: version.map(str::to_owned),
        node: machine.node.map(str::to_owned),
        node_created_time: time(machine.created),
        provisioned_time: time(machine.provisioned),
        newest: newest.filter_map(Machine::shown).collect(),
        recorded_time: recorded_time(&facts.inputs, version, now),
        ..BootImageStatus::default()
    };
    let is_disabled = enforcement(facts.inputs.policy) == BootImageEnforcement::Disabled;
    let verdict = if is_disabled {
        let words = "bootImage.enforcement is Disabled: boot images are not checked";
        Verdict::no(CommonReason::Disabled, words)
    } else if let Some(refused) = refused(said, next) {
        refused
    } else if let Some(target) = target {
        match (skew_of(facts, version, target), &in_use) {
            (Skew::NoLimit, _) => Verdict::no(CommonReason::NoLimit, ""),
            (_, None) => Verdict::unknown(CommonReason::NotReported, "no machine has reported its boot image"),
            (Skew::Within, _) => Verdict::no(CommonReason::WithinLimit, ""),
            (Skew::Exceeded(why), Some(in_use)) => Verdict::yes(CommonReason::BootImageTooOld, in_use.words(&why)),
            (Skew::Unknown(why), Some(in_use)) => Verdict::unknown(CommonReason::CannotCompare, in_use.words(&why)),
        }
    } else {
        Verdict::unknown(
            CommonReason::ImageNotResolved,
            "the pool has no image yet; see ImageResolved",
        )
    };
    if let Some(target) = target.filter(|_| !is_disabled) {
        let names = too_old(facts, target);
        status.limit = limit_of(facts, target);
        status.too_old = u32::try_from(names.len()).unwrap_or(u32::MAX);
        status.too_old_nodes = names.into_iter().take(MAX_NAMED).collect();
    }
    Assessment {
        status: (status != BootImageStatus::default()).then_some(status),
        verdict,
    }
}

fn too_old(facts: &BootImageFacts<'_>, target: &Target) -> Vec<String> {
    // Thousands of machines have only a few boot image versions, so each version is judged once.
    let mut judged: BTreeMap<Option<&str>, bool> = BTreeMap::new();
    let mut names = vec![];
    for member in facts.members {
        let version = version_of(member);
        let is_too_old = judged
            .entry(version)
            .or_insert_with(|| matches!(skew_of(facts, version, target), Skew::Exceeded(_)));
        if *is_too_old {
            names.push(member.node.name.to_string());
        }
    }
    names
}

fn time(second: Option<i64>) -> Option<Time> {
    Timestamp::from_second(second?).ok().map(Time)
}

/// Returns the verdict if the next image is refused because the boot image is too old for it. While the next image is
/// unknown, repeats the earlier refusal in `said`.
fn refused(said: Option<&Condition>, next: &Next) -> Option<Verdict> {
    match next {
        Next::Refused(refusal) if refusal.reason == REASON => {
            let words = format!("the next image {}", refusal.words);
            Some(Verdict::yes(CommonReason::NextImageRefused, words))
        }
        Next::Unknown => {
            let said = said.filter(|said| said.reason == CommonReason::NextImageRefused.as_str())?;
            Some(Verdict::repeats(true, said))
        }
        Next::Refused(_) | Next::Clear => None,
    }
}

/// Returns when the controller first saw the boot image version that an admin recorded in the spec; `None` unless
/// `bootImage.source` is `Manual`.
fn recorded_time(inputs: &BootImageInputs<'_>, version: Option<&str>, now: Timestamp) -> Option<Time> {
    if source(inputs.policy) != BootImageSource::Manual {
        return None;
    }
    let same = inputs.before.filter(|before| before.version.as_deref() == version);
    let since = same.and_then(|same| same.recorded_time.clone());
    Some(since.unwrap_or_else(|| now.into()))
}

fn enforcement(policy: &BootImagePolicy) -> BootImageEnforcement {
    policy.enforcement.unwrap_or_default()
}

fn source(policy: &BootImagePolicy) -> BootImageSource {
    policy.source.unwrap_or_default()
}

/// Returns the current boot image; `None` until a machine has reported.
///
/// The newest machines with a known version decide: the median of three, or the newest of fewer. Machines that have not
/// reported yet, have no record of their boot image or cannot read the record are skipped, because their version is
/// unknown.
fn in_use<'a>(facts: &BootImageFacts<'a>) -> Option<InUse<'a>> {
    if source(facts.inputs.policy) == BootImageSource::Manual {
        let version = facts
            .inputs
            .policy
            .manual
            .as_ref()
            .map(|manual| manual.version.as_str());
        let machine = Machine {
            version,
            ..Machine::default()
        };
        return Some(InUse {
            machine,
            ..InUse::default()
        });
    }
    let reported: Vec<Machine<'_>> = facts.members.iter().filter_map(reported).collect();
    let newest = newest(&facts.inputs, &reported);
    let Some(machine) = decisive(&newest) else {
        // No version is known. The newest machine is returned so that the message can name it.
        let machine = reported.into_iter().max_by_key(|machine| machine.place().0)?;
        return Some(InUse {
            machine,
            ..InUse::default()
        });
    };
    let unknown = reported.iter().filter(|machine| machine.version.is_none());
    let newer = unknown.filter(|unknown| unknown.place() > machine.place()).count();
    Some(InUse { machine, newest, newer })
}

/// Returns the newest machines of known version, newest first.
///
/// Machines are ordered by provisioning time, because a Node can be registered again years later. The provisioning time
/// is capped at the creation time of the Node, because the machine's clock may be ahead.
///
/// A machine stays in this list after it or its BootcNode is deleted, because the next machine is installed from the
/// same image. Newer machines displace it, and it is removed if the admin excludes its Node.
fn newest<'a>(inputs: &BootImageInputs<'a>, reported: &[Machine<'a>]) -> Vec<Machine<'a>> {
    let known = reported
        .iter()
        .filter(|machine| machine.version.is_some() || Bug::SilenceDisplaces.is_awake());
    let mut known: Vec<Machine<'_>> = known.copied().collect();
    for mut last in remembered(inputs.before) {
        if last
            .node
            .is_some_and(|node| inputs.excluded.iter().any(|name| name.as_str() == node))
        {
            continue;
        }
        // A status written by an older controller lacks the provisioning time, so it is taken from the machine's
        // report.
        let same = reported.iter().find(|machine| machine.is_same_node(&last));
        last.provisioned = last.provisioned.or(same.and_then(|same| same.provisioned));
        // A machine whose Node was created again has one entry, not two.
        match known.iter_mut().find(|machine| machine.node == last.node) {
            Some(now) if now.is_same_node(&last) || now.place() >= last.place() => {}
            Some(now) => *now = last,
            None => known.push(last),
        }
    }
    known.sort_unstable_by_key(|machine| Reverse(machine.place()));
    known.truncate(MAX_NEWEST);
    known
}

/// Returns the machine whose boot image counts, out of the newest ones.
fn decisive<'a>(newest: &[Machine<'a>]) -> Option<Machine<'a>> {
    match newest {
        [first, second, third] => {
            let versions = [first, second, third].map(|machine| machine.version.unwrap_or_default());
            newest.get(median(versions)).copied()
        }
        _ => newest.first().copied(),
    }
}

/// Returns the member's boot image; `None` until its agent has reported on the host's images.
fn reported<'a>(member: &MemberView<'a>) -> Option<Machine<'a>> {
    let report = member.host?.report()?;
    report.images.booted.as_ref()?;
    let created = member.node.created;
    Some(Machine {
        version: report.host.boot_image.version.as_deref(),
        node: Some(member.node.name.as_str()),
        created: Some(created),
        provisioned: report
            .host
            .boot_image
            .provisioned
            .map(|provisioned| provisioned.min(created)),
        error: report.host.boot_image.error.as_deref(),
        is_remembered: false,
    })
}

/// Returns the boot images that machines reported earlier, from the pool's status. Ignores a version that an admin
/// recorded, because such a version counts only while it is in the spec.
fn remembered(before: Option<&BootImageStatus>) -> Vec<Machine<'_>> {
    let Some(before) = before.filter(|_| !Bug::BootImageForgotten.is_awake()) else {
        return vec![];
    };
    let seconds = |time: &Option<Time>| time.as_ref().map(|time| time.0.as_second());
    let newest = before.newest.iter().map(|machine| Machine {
        version: Some(machine.version.as_str()),
        node: Some(machine.node.as_str()),
        created: seconds(&machine.node_created_time),
        provisioned: seconds(&machine.provisioned_time),
        is_remembered: true,
        error: None,
    });
    let newest: Vec<_> = newest.collect();
    if !newest.is_empty() || before.version.is_none() || before.node.is_none() {
        return newest;
    }
    // An older controller recorded only the newest machine.
    vec![Machine {
        version: before.version.as_deref(),
        node: before.node.as_deref(),
        created: seconds(&before.node_created_time),
        provisioned: seconds(&before.provisioned_time),
        is_remembered: true,
        error: None,
    }]
}

fn version_of<'a>(member: &MemberView<'a>) -> Option<&'a str> {
    member.host?.report()?.host.boot_image.version.as_deref()
}

fn skew_of(facts: &BootImageFacts<'_>, boot: Option<&str>, image: &Target) -> Skew {
    let own = BootImageLimit {
        minimum_version: facts.inputs.policy.minimum_version.clone(),
        ..BootImageLimit::default()
    };
    skew(boot, image.version.as_deref(), &[&of_image(image), &own])
}

/// Returns the boot image limit from the labels of the OS image. If the labels could not be read, only `error` is set.
fn of_image(image: &Target) -> BootImageLimit {
    match &image.metadata {
        Some(metadata) => metadata.boot_image.clone().unwrap_or_default(),
        None => BootImageLimit {
            error: Some("the labels of the OS image could not be read".to_owned()),
            ..BootImageLimit::default()
        },
    }
}

/// Returns the boot image limit to show in the status. If the OS image has no minimum version, the pool's minimum
/// version applies.
fn limit_of(facts: &BootImageFacts<'_>, image: &Target) -> BootImageLimit {
    let mut limit = of_image(image);
    limit.minimum_version = limit.minimum_version.or(facts.inputs.policy.minimum_version.clone());
    limit
}

#[cfg(test)]
mod tests;
