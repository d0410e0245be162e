//! History of a pool: the images that were deployed to its nodes. Pure.
//!
//! At any moment, the nodes of a pool may run different images: nodes join with old images, fall back and leave. So
//! each pass merges the nodes' reports into the recorded history. The result does not depend on the order of reports,
//! on repeated reports, or on a change of leader.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Digest;
use berth_api::node::NodeDeployment;
use berth_api::pool::{DeployedImage, Target};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::whole_seconds;

/// Maximum number of manifests per image in a pool's status.
const MAX_MANIFESTS: usize = 32;

/// Input for a pool's history.
#[derive(Debug)]
pub struct HistoryFacts<'a, Members, Targets> {
    /// History that the pool's status records.
    pub old: &'a [DeployedImage],
    /// Name of the pool.
    pub pool: &'a str,
    /// Images that were deployed to each member, as its agent reports them.
    pub members: Members,
    /// The pool's previous and current targets.
    pub targets: Targets,
    /// Number of images to keep.
    pub limit: usize,
    /// Current time by the leader's clock.
    pub now: Timestamp,
}

#[derive(Default)]
struct Image<'a> {
    manifests: BTreeSet<&'a Digest>,
    version: Option<&'a String>,
    count: u32,
    last_deployed: Option<&'a Time>,
    /// True if a node reports a deployment time that is later than now.
    is_ahead: bool,
    /// Index of the last counted member. A member counts once per image, even if it reports the image under several
    /// digests.
    counted: Option<usize>,
}

/// Returns the history with at most `limit` images, the most recent deployment first. Images without a known deployment
/// time come last.
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
    let names = names(facts);

    let mut images: BTreeMap<&Digest, Image<'_>> = BTreeMap::new();
    for (member, deployment) in deployments(facts) {
        let image = images.entry(name_of(&names, &deployment.digest)).or_default();
        if image.counted != Some(member) {
            image.counted = Some(member);
            image.count = image.count.saturating_add(1);
        }
        // `None` sorts before every known value.
        image.version = image.version.max(deployment.version.as_ref());
        match &deployment.deployed_time {
            Some(time) if time.0 > facts.now => image.is_ahead = true,
            time => image.last_deployed = image.last_deployed.max(time.as_ref()),
        }
    }
    for before in facts.old {
        let image = images.entry(name_of(&names, &before.digest)).or_default();
        image.count = image.count.max(before.node_count);
        image.version = image.version.max(before.version.as_ref());
        image.last_deployed = image.last_deployed.max(before.last_deployed.as_ref());
    }
    for (manifest, name) in &names {
        if let Some(image) = images.get_mut(name) {
            image.manifests.insert(manifest);
        }
    }
    for image in images.values_mut().filter(|image| image.is_ahead) {
        image.last_deployed = image.last_deployed.or(Some(&now));
    }
    let mut images: Vec<(&Digest, Image<'_>)> = images.into_iter().collect();
    images.sort_by(|(a, one), (b, other)| {
        (other.last_deployed, other.count)
            .cmp(&(one.last_deployed, one.count))
            .then_with(|| a.cmp(b))
    });
    let shown = images
        .into_iter()
        .take(facts.limit)
        .map(|(digest, image)| DeployedImage {
            digest: digest.clone(),
            manifests: image.manifests.into_iter().take(MAX_MANIFESTS).cloned().collect(),
            version: image.version.cloned(),
            node_count: image.count,
            last_deployed: image.last_deployed.cloned(),
        });
    shown.collect()
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
/// manifest of their platform. The image is then found in reports of other nodes, in the pool's targets or in the
/// recorded history.
fn names<'a>(
    facts: &HistoryFacts<
        'a,
        impl Iterator<Item = &'a [NodeDeployment]> + Clone,
        impl Iterator<Item = &'a Target> + Clone,
    >,
) -> BTreeMap<&'a Digest, &'a Digest> {
    let mut names: BTreeMap<&Digest, &Digest> = BTreeMap::new();
    for (_, deployment) in deployments(facts) {
        learn(&mut names, &deployment.manifest, &deployment.digest);
    }
    for target in facts.targets.clone() {
        for platform in &target.platforms {
            learn(&mut names, &platform.digest, &target.digest);
        }
    }
    for before in facts.old {
        for manifest in &before.manifests {
            learn(&mut names, manifest, &before.digest);
        }
    }
    names
}

/// Records which image a manifest belongs to. If several images have the manifest, keeps the image with the largest
/// digest, so that the order of the reports does not matter.
fn learn<'a>(names: &mut BTreeMap<&'a Digest, &'a Digest>, manifest: &'a Digest, image: &'a Digest) {
    if manifest != image {
        let name = names.entry(manifest).or_insert(image);
        *name = image.max(name);
    }
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
            manifest: digest(n + 100),
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
            version: None,
            metadata: None,
            platforms: platforms.into(),
            publish_time: None,
        }
    }

    fn at(
        now: i64,
        limit: usize,
        old: &[DeployedImage],
        targets: &[Target],
        reports: &[Vec<NodeDeployment>],
    ) -> Vec<DeployedImage> {
        history(&HistoryFacts {
            old,
            pool: "p",
            members: reports.iter().map(Vec::as_slice),
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
        let updated = [(Some("v2"), 2, Some(30)), (Some("v1"), 2, None)];
        assert_eq!(shown(&two), updated);
        assert_eq!(shown(&after(&two, &both)), updated, "another pass changes nothing");
        assert_eq!(
            shown(&after(&two, &[])),
            updated,
            "the history stays after all nodes are gone"
        );
        // A new node joins from a disk image that is older than both images.
        let joined = after(&two, &[both[0].clone(), both[1].clone(), vec![found(0)]]);
        assert_eq!(shown(&joined)[..2], updated);
        assert_eq!(shown(&joined)[2], (Some("v0"), 1, None));
        // All nodes roll back to v1 through the pool, so they now report the digest of its index.
        let back = [
            vec![deployed(1, 50), deployed(2, 20)],
            vec![deployed(1, 40), deployed(2, 30)],
        ];
        let rolled_back = after(&two, &back);
        assert_eq!(
            shown(&rolled_back),
            [(Some("v1"), 2, Some(50)), (Some("v2"), 2, Some(30))]
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
        let next = at(NOW + 30, 3, &later, &[], &[ahead.clone(), moved.clone()]);
        assert_eq!(
            shown(&next),
            [(Some("v2"), 1, Some(NOW + 20)), (Some("v1"), 1, Some(NOW))]
        );
        // The time from a correct clock is used, whatever the order of reports.
        let both = [vec![deployed(1, 50)], ahead];
        assert_eq!(shown(&after(&[], &both)), [(Some("v1"), 2, Some(50))]);
        let now = [vec![deployed(1, 50)], vec![deployed(1, NOW)]];
        assert_eq!(shown(&after(&[], &now)), [(Some("v1"), 2, Some(NOW))], "not ahead");
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
            let whole = at(NOW, 10, &[], &[], &all);
            let mut reversed = all.clone();
            reversed.reverse();
            prop_assert_eq!(&at(NOW, 10, &[], &[], &reversed), &whole);
            let some = at(NOW, 10, &[], &[], &all[..cut.min(all.len())]);
            let then = at(NOW, 10, &some, &[], &reversed);
            prop_assert_eq!(&then, &whole);
            prop_assert_eq!(&at(NOW, 10, &then, &[], &all), &whole);
        }
    }
}
