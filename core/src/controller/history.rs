//! History of a pool: the images that were deployed to its nodes. Pure.
//!
//! At any moment, the nodes of a pool may run different images: nodes join with old images, fall back and leave. So
//! each pass merges the nodes' reports into the recorded history. The result does not depend on the order of reports,
//! on repeated reports, or on a change of leader.
//!
//! An admin rolls back to a digest of the history, so no entry depends on the word of one node. For an image that was
//! the pool's target, the digest, the manifests, the version and the place in the history come from the controller.
//! Any other image needs the reports of two members, and comes after all targets.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Digest;
use berth_api::node::NodeDeployment;
use berth_api::pool::{DeployedImage, Target};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::whole_seconds;

/// Maximum number of manifests per image in a pool's status.
const MAX_MANIFESTS: usize = 32;

/// Number of members that must agree on an image that was never the pool's target.
const WITNESSES: usize = 2;

/// Input for a pool's history.
#[derive(Debug)]
pub struct HistoryFacts<'a, Members, Targets> {
    /// History that the pool's status records.
    pub old: &'a [DeployedImage],
    /// Name of the pool.
    pub pool: &'a str,
    /// Images that were deployed to each member, as its agent reports them.
    pub members: Members,
    /// True if the pool has a single member. No other member can confirm the reports of that member.
    pub is_alone: bool,
    /// The pool's previous and current targets.
    pub targets: Targets,
    /// Number of images to keep.
    pub limit: usize,
    /// Current time by the leader's clock.
    pub now: Timestamp,
}

/// An image that is or was the pool's target, as the controller knows it.
struct Known<'a> {
    version: Option<&'a String>,
    manifests: BTreeSet<&'a Digest>,
    publish_time: Time,
    /// Place among the images that were the target; the current target has the lowest place.
    place: usize,
}

/// Report of one member about one image.
struct Report<'a> {
    member: usize,
    version: Option<&'a String>,
    /// Latest deployment time that is not later than now.
    deployed: Option<&'a Time>,
    /// True if the member reports a deployment time that is later than now.
    is_ahead: bool,
}

/// Returns the history with at most `limit` images: first the images that were the pool's target, the latest target
/// first; then the other images, the most recent deployment first, and images without a known deployment time last.
///
/// A deployment time in the future comes from a node whose clock is ahead. If the image has no other deployment time,
/// the current time is used instead.
pub fn history<'a>(
    facts: &HistoryFacts<
        'a,
        impl Iterator<Item = &'a [NodeDeployment]> + Clone,
        impl Iterator<Item = &'a Target> + Clone,
    >,
) -> Vec<DeployedImage> {
    let now = whole_seconds(facts.now);
    let known = known(facts, &now);
    let witnesses = if facts.is_alone { 1 } else { WITNESSES };
    let names = names(facts, &known, witnesses);

    let mut reports: BTreeMap<&Digest, Vec<Report<'_>>> = BTreeMap::new();
    for (member, deployment) in deployments(facts) {
        let of_image = reports.entry(name_of(&names, &deployment.digest)).or_default();
        add(of_image, member, deployment, facts.now);
    }
    let mut recorded: BTreeMap<&Digest, Vec<&DeployedImage>> = BTreeMap::new();
    for before in facts.old {
        recorded
            .entry(name_of(&names, &before.digest))
            .or_default()
            .push(before);
    }
    let digests: BTreeSet<&Digest> = reports.keys().chain(recorded.keys()).copied().collect();
    let mut images = vec![];
    for digest in digests {
        let target = known.get(digest);
        let image = Merged {
            target,
            witnesses,
            reports: reports.get(digest).map(Vec::as_slice).unwrap_or_default(),
            recorded: recorded.get(digest).map(Vec::as_slice).unwrap_or_default(),
        };
        if image.is_credible() {
            let manifests = match target {
                Some(target) => target.manifests.clone(),
                None => manifests(&names, digest),
            };
            images.push((target.map(|target| target.place), image.shown(digest, &manifests, &now)));
        }
    }
    images.sort_by(|(place, one), (place_of_other, other)| {
        let targets = (place.is_none(), place).cmp(&(place_of_other.is_none(), place_of_other));
        targets
            .then_with(|| (&other.last_deployed, other.node_count).cmp(&(&one.last_deployed, one.node_count)))
            .then_with(|| one.digest.cmp(&other.digest))
    });
    images.into_iter().take(facts.limit).map(|(_, image)| image).collect()
}

/// Adds a member's report about an image. A member counts once per image, even if it reports the image under several
/// digests.
fn add<'a>(reports: &mut Vec<Report<'a>>, member: usize, deployment: &'a NodeDeployment, now: Timestamp) {
    let time = deployment.deployed_time.as_ref();
    let is_ahead = time.is_some_and(|time| time.0 > now);
    let new = Report {
        member,
        version: deployment.version.as_ref(),
        deployed: time.filter(|_| !is_ahead),
        is_ahead,
    };
    match reports.last_mut().filter(|last| last.member == member) {
        Some(last) => {
            // `None` sorts before every known value.
            last.version = last.version.max(new.version);
            last.deployed = last.deployed.max(new.deployed);
            last.is_ahead |= is_ahead;
        }
        None => reports.push(new),
    }
}

/// All that is known about one image.
struct Merged<'f, 'a> {
    target: Option<&'f Known<'a>>,
    /// Number of members that must agree on what the controller does not know.
    witnesses: usize,
    reports: &'f [Report<'a>],
    recorded: &'f [&'a DeployedImage],
}

impl<'a> Merged<'_, 'a> {
    /// Returns how many members must report the image. One is enough for an image that was the pool's target.
    fn needed(&self) -> usize {
        if self.target.is_some() { 1 } else { self.witnesses }
    }

    /// True if the image is recorded, or if enough members report it.
    fn is_credible(&self) -> bool {
        !self.recorded.is_empty() || self.reports.len() >= self.needed()
    }

    fn shown(&self, digest: &Digest, manifests: &BTreeSet<&Digest>, now: &Time) -> DeployedImage {
        let recorded = self.recorded.iter().map(|before| before.node_count).max();
        let reported = u32::try_from(self.reports.len()).unwrap_or(u32::MAX);
        DeployedImage {
            digest: digest.clone(),
            manifests: manifests.iter().copied().take(MAX_MANIFESTS).cloned().collect(),
            version: self.version().cloned(),
            publish_time: self.target.map(|target| target.publish_time.clone()),
            node_count: reported.max(recorded.unwrap_or_default()),
            last_deployed: self.last_deployed(now).cloned(),
        }
    }

    fn version(&self) -> Option<&'a String> {
        if let Some(known) = self.target.and_then(|target| target.version) {
            return Some(known);
        }
        let recorded = self.recorded.iter().filter_map(|before| before.version.as_ref()).max();
        self.agreed_version().or(recorded)
    }

    /// Returns the highest version that enough members report.
    fn agreed_version(&self) -> Option<&'a String> {
        let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
        for version in self.reports.iter().filter_map(|report| report.version) {
            *counts.entry(version).or_default() += 1;
        }
        let mut agreed = counts.into_iter().rev().filter(|(_, count)| *count >= self.witnesses);
        agreed.next().map(|(version, _)| version)
    }

    /// Returns the latest time that enough members have reached, or a later recorded time.
    fn last_deployed<'t>(&'t self, now: &'t Time) -> Option<&'t Time> {
        let mut times: Vec<&Time> = self.reports.iter().filter_map(|report| report.deployed).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let last = self.needed().checked_sub(1);
        let agreed = last.and_then(|last| times.get(last)).copied();
        let ahead = self
            .reports
            .iter()
            .filter(|report| report.is_ahead && report.deployed.is_none());
        let has_enough = times.len() + ahead.count() >= self.needed();
        let earliest = times.last().copied().filter(|_| has_enough);
        let recorded = self
            .recorded
            .iter()
            .filter_map(|before| before.last_deployed.as_ref())
            .max();
        let has_ahead = self.reports.iter().any(|report| report.is_ahead);
        let by_fast_clocks = (has_enough && has_ahead).then_some(now);
        agreed.or(earliest).max(recorded).or(by_fast_clocks)
    }
}

/// Returns the images that are or were the pool's target. The recorded history keeps their order, so that no clocks are
/// compared.
fn known<'a, Members>(
    facts: &HistoryFacts<'a, Members, impl Iterator<Item = &'a Target> + Clone>,
    now: &Time,
) -> BTreeMap<&'a Digest, Known<'a>> {
    let mut known = BTreeMap::new();
    // Places 0 and 1 are for the targets.
    for (place, before) in (2..).zip(facts.old) {
        if let Some(publish_time) = &before.publish_time {
            let image = Known {
                version: before.version.as_ref(),
                manifests: before.manifests.iter().collect(),
                publish_time: publish_time.clone(),
                place,
            };
            known.insert(&before.digest, image);
        }
    }
    let current = facts.targets.clone().last();
    for target in facts.targets.clone() {
        let is_current = current.is_some_and(|current| current.digest == target.digest);
        let manifests = target.platforms.iter().map(|platform| &platform.digest);
        let manifests: BTreeSet<&Digest> = manifests.filter(|manifest| **manifest != target.digest).collect();
        let image = known.entry(&target.digest).or_insert(Known {
            version: None,
            manifests: BTreeSet::new(),
            publish_time: now.clone(),
            place: 1,
        });
        image.version = target.version.as_ref().or(image.version);
        image.manifests.extend(manifests);
        if let Some(publish_time) = &target.publish_time {
            image.publish_time = whole_seconds(publish_time.0);
        }
        if is_current {
            image.place = 0;
        }
    }
    known
}

/// Returns the digest of the image that a manifest belongs to, or `digest` itself if it is not a known manifest.
fn name_of<'a>(names: &BTreeMap<&Digest, &'a Digest>, digest: &'a Digest) -> &'a Digest {
    names.get(digest).copied().unwrap_or(digest)
}

/// Returns the deployments of all members in this pool, each with the index of its member.
fn deployments<'a, Targets>(
    facts: &HistoryFacts<'a, impl Iterator<Item = &'a [NodeDeployment]> + Clone, Targets>,
) -> impl Iterator<Item = (usize, &'a NodeDeployment)> {
    let pool = facts.pool;
    let members = facts.members.clone().enumerate();
    members.flat_map(move |(member, all)| all.iter().filter(move |d| d.pool == pool).map(move |d| (member, d)))
}

/// Maps the digest of each platform's manifest to the digest of its image (the index). Some nodes report only the
/// manifest of their platform. The image is then found in the pool's targets, in the recorded history, or in reports of
/// other nodes. What the controller knows about a target wins over the nodes' reports.
fn names<'a, Targets>(
    facts: &HistoryFacts<'a, impl Iterator<Item = &'a [NodeDeployment]> + Clone, Targets>,
    known: &BTreeMap<&'a Digest, Known<'a>>,
    witnesses: usize,
) -> BTreeMap<&'a Digest, &'a Digest> {
    let mut names: BTreeMap<&Digest, &Digest> = BTreeMap::new();
    for (digest, target) in known {
        for manifest in &target.manifests {
            learn(&mut names, manifest, digest);
        }
    }
    let mut others: BTreeMap<&Digest, &Digest> = BTreeMap::new();
    for before in facts.old.iter().filter(|before| !known.contains_key(&before.digest)) {
        for manifest in &before.manifests {
            learn(&mut others, manifest, &before.digest);
        }
    }
    for (manifest, digest) in agreed_names(facts, witnesses) {
        learn(&mut others, manifest, digest);
    }
    for (manifest, digest) in others {
        if !known.contains_key(manifest) && !known.contains_key(digest) {
            names.entry(manifest).or_insert(digest);
        }
    }
    names
}

/// Returns the pairs of a manifest and its image that enough members report.
fn agreed_names<'a, Targets>(
    facts: &HistoryFacts<'a, impl Iterator<Item = &'a [NodeDeployment]> + Clone, Targets>,
    witnesses: usize,
) -> impl Iterator<Item = (&'a Digest, &'a Digest)> {
    // For each pair: the last member that reported the pair, and the number of these members.
    let mut counts: BTreeMap<(&Digest, &Digest), (Option<usize>, usize)> = BTreeMap::new();
    for (member, deployment) in deployments(facts) {
        let (last, count) = counts.entry((&deployment.manifest, &deployment.digest)).or_default();
        if last.replace(member) != Some(member) {
            *count += 1;
        }
    }
    let agreed = counts.into_iter().filter(move |(_, (_, count))| *count >= witnesses);
    agreed.map(|(pair, _)| pair)
}

/// Records which image a manifest belongs to. If several images have the manifest, keeps the image with the largest
/// digest, so that the order of the reports does not matter.
fn learn<'a>(names: &mut BTreeMap<&'a Digest, &'a Digest>, manifest: &'a Digest, image: &'a Digest) {
    if manifest != image {
        let name = names.entry(manifest).or_insert(image);
        *name = image.max(name);
    }
}

fn manifests<'a>(names: &BTreeMap<&'a Digest, &Digest>, image: &Digest) -> BTreeSet<&'a Digest> {
    let of_image = names.iter().filter(|(_, name)| **name == image);
    of_image.map(|(manifest, _)| *manifest).collect()
}

#[cfg(test)]
mod tests {
    use berth_api::pool::PlatformDigest;
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1000;

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
    }

    fn time(second: i64) -> Time {
        Timestamp::from_second(second).unwrap().into()
    }

    /// Returns a deployment of index `n` at this second. The number of the manifest is `n + 100`.
    fn deployed(n: u8, second: i64) -> NodeDeployment {
        NodeDeployment {
            pool: "p".into(),
            digest: digest(n),
            manifest: digest(n.wrapping_add(100)),
            version: Some(format!("v{n}")),
            deployed_time: Some(time(second)),
        }
    }

    /// Returns a deployment of image `n` that the node was installed with. The node reports only the digest of the
    /// manifest.
    fn found(n: u8) -> NodeDeployment {
        NodeDeployment {
            digest: digest(n + 100),
            deployed_time: None,
            ..deployed(n, 0)
        }
    }

    /// Returns a target with index `n`, which has one manifest for each of two architectures.
    fn target(n: u8) -> Target {
        let platforms = [("amd64", n + 100), ("arm64", n + 200)].map(|(architecture, manifest)| PlatformDigest {
            architecture: architecture.into(),
            variant: None,
            digest: digest(manifest),
        });
        Target {
            image: "r.io/os:1".into(),
            digest: digest(n),
            version: Some(format!("v{n}")),
            metadata: None,
            platforms: platforms.into(),
            publish_time: Some(time(n.into())),
        }
    }

    fn at(
        now: i64,
        limit: usize,
        old: &[DeployedImage],
        targets: &[Target],
        reports: &[Vec<NodeDeployment>],
    ) -> Vec<DeployedImage> {
        among(now, limit, (old, targets), reports, reports.len() == 1)
    }

    fn among(
        now: i64,
        limit: usize,
        (old, targets): (&[DeployedImage], &[Target]),
        reports: &[Vec<NodeDeployment>],
        is_alone: bool,
    ) -> Vec<DeployedImage> {
        history(&HistoryFacts {
            old,
            pool: "p",
            members: reports.iter().map(Vec::as_slice),
            is_alone,
            targets: targets.iter(),
            limit,
            now: Timestamp::from_second(now).unwrap(),
        })
    }

    fn after(old: &[DeployedImage], reports: &[Vec<NodeDeployment>]) -> Vec<DeployedImage> {
        at(NOW, 3, old, &[], reports)
    }

    fn shown(history: &[DeployedImage]) -> Vec<(Option<&str>, u32, Option<i64>)> {
        let mut lines = vec![];
        for image in history {
            let second = image.last_deployed.as_ref().map(|time| time.0.as_second());
            lines.push((version(image), image.node_count, second));
        }
        lines
    }

    fn version(image: &DeployedImage) -> Option<&str> {
        image.version.as_deref()
    }

    #[test]
    fn old_images_stay_in_the_history() {
        let both = [vec![deployed(2, 20), found(1)], vec![deployed(2, 30), found(1)]];
        let two = after(&[], &both);
        let updated = [(Some("v2"), 2, Some(20)), (Some("v1"), 2, None)];
        assert_eq!(shown(&two), updated);
        assert_eq!(shown(&after(&two, &both)), updated, "another pass changes nothing");
        assert_eq!(
            shown(&after(&two, &[])),
            updated,
            "the history stays after all nodes are gone"
        );
        // New nodes join from a disk image that is older than both images.
        let joined = after(&two, &[&both[..], &[vec![found(0)], vec![found(0)]]].concat());
        let found_at_join = [(Some("v0"), 2, None), updated[1]];
        assert_eq!(shown(&joined), [&updated[..1], &found_at_join].concat());
        // All nodes roll back to v1 through the pool, so they now report the digest of its index.
        let back = [
            vec![deployed(1, 50), deployed(2, 20)],
            vec![deployed(1, 40), deployed(2, 30)],
        ];
        let rolled_back = after(&two, &back);
        assert_eq!(
            shown(&rolled_back),
            [(Some("v1"), 2, Some(40)), (Some("v2"), 2, Some(20))],
            "both nodes have reached 40"
        );
        assert_eq!(rolled_back[0].digest, digest(1));
    }

    #[test]
    fn only_the_newest_images_of_the_pool_stay() {
        let mut elsewhere = deployed(9, 90);
        elsewhere.pool = "q".into();
        let all: Vec<_> = (1..6).map(|n| deployed(n, n.into())).chain([elsewhere]).collect();
        let kept = after(&[], std::slice::from_ref(&all));
        assert_eq!(
            kept.iter().map(version).collect::<Vec<_>>(),
            [Some("v5"), Some("v4"), Some("v3")]
        );
        assert!(at(NOW, 0, &kept, &[], &[all]).is_empty());
    }

    fn v1(history: &[DeployedImage]) -> Vec<Digest> {
        let named = history.iter().filter(|image| version(image) == Some("v1"));
        named.map(|image| image.digest.clone()).collect()
    }

    #[test]
    fn an_image_keeps_its_index_digest() {
        // The nodes were installed with the first target, and report only the digest of its manifest.
        let first = at(NOW, 3, &[], &[target(1)], &[vec![found(1)]]);
        assert_eq!(v1(&first), [digest(1)]);
        assert_eq!(first[0].manifests, [digest(101), digest(201)]);
        let second = at(
            NOW,
            3,
            &first,
            &[target(1), target(2)],
            &[vec![deployed(2, 20), found(1)]],
        );
        // All nodes are replaced by machines from the same disk image, on both architectures.
        let arm = NodeDeployment {
            digest: digest(201),
            manifest: digest(201),
            ..found(1)
        };
        let third = at(NOW, 3, &second, &[target(2)], &[vec![found(1)], vec![arm]]);
        assert_eq!(v1(&third), [digest(1)], "{third:?}");
        assert_eq!(v1(&at(NOW, 3, &third, &[target(2)], &[])), [digest(1)]);
        // A recorded digest of a manifest is replaced by the digest of the index as soon as the index is known.
        let old = after(&[], &[vec![found(1)]]);
        assert_eq!(v1(&old), [digest(101)]);
        assert_eq!(v1(&at(NOW, 3, &old, &[target(1)], &[])), [digest(1)]);
    }

    #[test]
    fn a_fast_clock_makes_no_image_newest_forever() {
        let ahead = vec![deployed(1, NOW + 5000)];
        let first = after(&[], std::slice::from_ref(&ahead));
        assert_eq!(
            shown(&first),
            [(Some("v1"), 1, Some(NOW))],
            "a future time counts as now"
        );
        let later = at(NOW + 10, 3, &first, &[], std::slice::from_ref(&ahead));
        assert_eq!(later, first, "the time stays when the leader's clock advances");
        let moved = vec![deployed(2, NOW + 20)];
        let targets = [target(1), target(2)];
        let next = at(NOW + 30, 3, &later, &targets, &[ahead.clone(), moved.clone()]);
        assert_eq!(
            shown(&next),
            [(Some("v2"), 1, Some(NOW + 20)), (Some("v1"), 1, Some(NOW))]
        );
        // The time from a correct clock is used, whatever the order of reports.
        let both = [vec![deployed(1, 50)], ahead];
        assert_eq!(shown(&after(&[], &both)), [(Some("v1"), 2, Some(50))]);
        let now = [vec![deployed(1, 50)], vec![deployed(1, NOW)]];
        let of_target = at(NOW, 3, &[], &[target(1)], &now);
        assert_eq!(shown(&of_target), [(Some("v1"), 2, Some(NOW))], "not ahead");
    }

    /// Returns a pool that went from v1 to v2 to v3, with these reports afterwards.
    fn updated_to_v3(reports: &[Vec<NodeDeployment>]) -> Vec<DeployedImage> {
        let one = at(10, 3, &[], &[target(1)], &[vec![deployed(1, 5)], vec![deployed(1, 6)]]);
        let two = at(
            20,
            3,
            &one,
            &[target(1), target(2)],
            &[vec![deployed(2, 15)], vec![deployed(2, 16)]],
        );
        let three = at(
            30,
            3,
            &two,
            &[target(2), target(3)],
            &[vec![deployed(3, 25)], vec![deployed(3, 26)]],
        );
        at(NOW, 3, &three, &[target(3), target(3)], reports)
    }

    #[test]
    fn one_node_changes_no_entry() {
        let honest = [vec![deployed(3, 25)], vec![deployed(3, 26)]];
        let expected = updated_to_v3(&honest);
        assert_eq!(
            shown(&expected),
            [
                (Some("v3"), 2, Some(26)),
                (Some("v2"), 2, Some(16)),
                (Some("v1"), 2, Some(6))
            ]
        );
        let targets: Vec<_> = expected.iter().map(|image| image.publish_time.clone()).collect();
        assert_eq!(targets, [3, 2, 1].map(|second| Some(time(second))));
        let evil = deployed(250, NOW);
        let renamed = NodeDeployment {
            manifest: digest(3),
            ..evil.clone()
        };
        let remapped = NodeDeployment {
            manifest: digest(103),
            ..evil.clone()
        };
        let adopted = NodeDeployment {
            digest: digest(3),
            manifest: digest(250),
            ..evil.clone()
        };
        for lies in [
            vec![evil.clone()],
            vec![renamed, remapped],
            vec![adopted],
            // Three images of its own, deployed in the future.
            vec![deployed(101, NOW + 5), deployed(252, NOW), deployed(253, NOW - 1)],
            vec![NodeDeployment {
                version: Some("zzz".into()),
                ..deployed(3, 25)
            }],
        ] {
            let all = [&honest[..], std::slice::from_ref(&lies)].concat();
            let found = updated_to_v3(&all);
            let digests = |images: &[DeployedImage]| -> Vec<_> {
                let parts = images
                    .iter()
                    .map(|i| (i.digest.clone(), i.manifests.clone(), i.version.clone()));
                parts.collect()
            };
            assert_eq!(digests(&found), digests(&expected), "{lies:?}");
        }
        // A time of one node moves no target to another place.
        let late = [&honest[..], &[vec![deployed(1, NOW)]]].concat();
        let found: Vec<_> = updated_to_v3(&late).iter().map(|image| image.digest.clone()).collect();
        assert_eq!(found, [3, 2, 1].map(digest));
    }

    #[test]
    fn an_image_that_was_no_target_needs_two_nodes() {
        let old = at(NOW, 9, &[], &[target(3)], &[vec![deployed(3, 5)], vec![deployed(3, 6)]]);
        let one = [vec![deployed(3, 5), found(8)], vec![deployed(3, 6)]];
        assert_eq!(at(NOW, 9, &old, &[target(3)], &one), old);
        let other = NodeDeployment {
            version: Some("other".into()),
            ..found(8)
        };
        let two = [vec![deployed(3, 5), found(8)], vec![deployed(3, 6), other.clone()]];
        let both = at(NOW, 9, &old, &[target(3)], &two);
        assert_eq!(shown(&both[1..]), [(None, 2, None)], "they do not agree on the version");
        assert_eq!(both[1].publish_time, None);
        let three = [&two[..], &[vec![found(8)]]].concat();
        let all = at(NOW, 9, &both, &[target(3)], &three);
        assert_eq!(shown(&all[1..]), [(Some("v8"), 3, None)]);
        assert_eq!(at(NOW, 9, &all, &[target(3)], &one), all, "a recorded image stays");
        // The targets come first, even if the other image was deployed later.
        let later = [vec![deployed(8, 900)], vec![deployed(8, 950)], vec![deployed(3, 6)]];
        let found = at(NOW, 9, &old, &[target(3)], &later);
        assert_eq!(shown(&found), [(Some("v3"), 2, Some(6)), (Some("v8"), 2, Some(900))]);
    }

    #[test]
    fn a_target_keeps_its_place_until_it_is_the_target_again() {
        let nodes = [
            vec![deployed(1, 5), deployed(2, 15)],
            vec![deployed(1, 6), deployed(2, 16)],
        ];
        let one = at(10, 3, &[], &[target(1)], &nodes[..1]);
        let two = at(20, 3, &one, &[target(1), target(2)], &nodes);
        let digests = |images: &[DeployedImage]| -> Vec<_> { images.iter().map(|i| i.digest.clone()).collect() };
        assert_eq!(digests(&two), [2, 1].map(digest));
        // The leader's clock was set back in between.
        let again = Target {
            publish_time: Some(time(0)),
            ..target(1)
        };
        let back = at(30, 3, &two, &[target(2), again.clone()], &nodes);
        assert_eq!(digests(&back), [1, 2].map(digest));
        assert_eq!(
            digests(&at(40, 3, &back, &[again.clone(), again], &nodes)),
            [1, 2].map(digest)
        );
        // A leader of an earlier version has recorded no target.
        let mut earlier = two;
        earlier.iter_mut().for_each(|image| image.publish_time = None);
        let found = at(30, 3, &earlier, &[target(3)], &[vec![deployed(3, 25)], vec![]]);
        assert_eq!(digests(&found), [3, 2, 1].map(digest));
    }

    proptest! {
        #[test]
        fn the_order_and_repetition_of_reports_make_no_difference(
            nodes in proptest::collection::vec(proptest::collection::vec((0u8..4, 0i64..50, any::<bool>()), 0..4), 1..6),
            cut in 0usize..6,
        ) {
            let mut all = vec![];
            for deployments in nodes {
                let mut report = vec![];
                for (n, second, is_found) in deployments {
                    report.push(if is_found { found(n) } else { deployed(n, second) });
                }
                all.push(report);
            }
            for targets in [&[][..], &[target(1), target(2)]] {
                let see = |old: &[DeployedImage], reports: &[_]| among(NOW, 10, (old, targets), reports, false);
                let whole = see(&[], &all);
                let mut reversed = all.clone();
                reversed.reverse();
                prop_assert_eq!(&see(&[], &reversed), &whole);
                let some = see(&[], &all[..cut.min(all.len())]);
                let then = see(&some, &reversed);
                prop_assert_eq!(&then, &whole);
                prop_assert_eq!(&see(&then, &all), &whole);
            }
        }
    }
}
