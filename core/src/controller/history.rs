//! History of a pool: the images that its nodes were deployed to. Pure.
//!
//! There is no event "all nodes run it" to keep a record of: nodes join with old images, fall back and go away. So the
//! history is added up anew from what each node reports of itself, and joined with what it was. Both only ever add to it,
//! whichever report comes first, twice, or after a change of leader.

use std::collections::BTreeMap;

use berth_api::Digest;
use berth_api::node::NodeDeployment;
use berth_api::pool::DeployedImage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Facts about one image.
#[derive(Default)]
struct Image<'a> {
    version: Option<&'a String>,
    count: u32,
    last_deployed: Option<&'a Time>,
    /// Place of the member that was counted last: one counts once, whatever names it knows the image by.
    counted: Option<usize>,
}

/// The history, given what it was and the deployments of each member, with at most so many images: the one that a node was
/// deployed to last comes first. Images that nodes were only found with come after those.
pub fn history<'a>(
    old: &'a [DeployedImage],
    pool: &str,
    members: impl Iterator<Item = &'a [NodeDeployment]> + Clone,
    limit: usize,
) -> Vec<DeployedImage> {
    let deployments = members
        .enumerate()
        .flat_map(|(member, all)| all.iter().filter(|d| d.pool == pool).map(move |d| (member, d)));
    // A node that was found with an image knows only the manifest of its own platform; others may know the image's name.
    let mut names: BTreeMap<&Digest, &Digest> = BTreeMap::new();
    for (_, deployment) in deployments.clone().filter(|(_, d)| d.digest != d.manifest) {
        let name = names.entry(&deployment.manifest).or_insert(&deployment.digest);
        *name = (&deployment.digest).max(name);
    }
    let name = |digest: &'a Digest| names.get(digest).copied().unwrap_or(digest);
    let mut images: BTreeMap<&Digest, Image<'a>> = BTreeMap::new();
    for (member, deployment) in deployments {
        let image = images.entry(name(&deployment.digest)).or_default();
        if image.counted != Some(member) {
            image.counted = Some(member);
            image.count = image.count.saturating_add(1);
        }
        // None is less than anything that is known.
        image.version = image.version.max(deployment.version.as_ref());
        image.last_deployed = image.last_deployed.max(deployment.deployed_time.as_ref());
    }
    for before in old {
        let image = images.entry(name(&before.digest)).or_default();
        image.count = image.count.max(before.node_count);
        image.version = image.version.max(before.version.as_ref());
        image.last_deployed = image.last_deployed.max(before.last_deployed.as_ref());
    }
    let mut images: Vec<(&Digest, Image<'a>)> = images.into_iter().collect();
    images.sort_by(|(a, one), (b, other)| {
        (other.last_deployed, other.count)
            .cmp(&(one.last_deployed, one.count))
            .then_with(|| a.cmp(b))
    });
    let shown = images.into_iter().take(limit).map(|(digest, image)| DeployedImage {
        digest: digest.clone(),
        version: image.version.cloned(),
        node_count: image.count,
        last_deployed: image.last_deployed.cloned(),
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
    }

    fn time(second: i64) -> Time {
        Timestamp::from_second(second).unwrap().into()
    }

    /// A node's deployment to an image: its index has that number, its manifest a hundred more.
    fn deployed(n: u8, second: i64) -> NodeDeployment {
        NodeDeployment {
            pool: "p".into(),
            digest: digest(n),
            manifest: digest(n + 100),
            version: Some(format!("v{n}")),
            deployed_time: Some(time(second)),
        }
    }

    /// The same, by a node that was found with it.
    fn found(n: u8) -> NodeDeployment {
        NodeDeployment {
            digest: digest(n + 100),
            deployed_time: None,
            ..deployed(n, 0)
        }
    }

    fn after(old: &[DeployedImage], reports: &[Vec<NodeDeployment>]) -> Vec<DeployedImage> {
        history(old, "p", reports.iter().map(Vec::as_slice), 3)
    }

    fn shown(history: &[DeployedImage]) -> Vec<(Option<&str>, u32, Option<i64>)> {
        let second = |image: &DeployedImage| image.last_deployed.as_ref().map(|t| t.0.as_second());
        let line = |image| (version(image), image.node_count, second(image));
        history.iter().map(line).collect()
    }

    fn version(image: &DeployedImage) -> Option<&str> {
        image.version.as_deref()
    }

    #[test]
    fn what_ran_before_stays_when_nodes_go_and_old_images_come() {
        let both = [vec![deployed(2, 20), found(1)], vec![deployed(2, 30), found(1)]];
        let two = after(&[], &both);
        let updated = [(Some("v2"), 2, Some(30)), (Some("v1"), 2, None)];
        assert_eq!(shown(&two), updated);
        assert_eq!(shown(&after(&two, &both)), updated, "a pass more changes nothing");
        assert_eq!(shown(&after(&two, &[])), updated, "they are all gone");
        // A new node joins from a disk image older than both.
        let joined = after(&two, &[both[0].clone(), both[1].clone(), vec![found(0)]]);
        assert_eq!(shown(&joined)[..2], updated);
        assert_eq!(shown(&joined)[2], (Some("v0"), 1, None));
        // All go back: it is no longer the image that they were found with, and is known by its index's digest.
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
    fn only_the_newest_are_kept_and_what_was_done_in_another_pool_is_its_own() {
        let mut elsewhere = deployed(9, 90);
        elsewhere.pool = "q".into();
        let all: Vec<_> = (1..6).map(|n| deployed(n, n.into())).chain([elsewhere]).collect();
        let kept = after(&[], std::slice::from_ref(&all));
        assert_eq!(
            kept.iter().map(version).collect::<Vec<_>>(),
            [Some("v5"), Some("v4"), Some("v3")]
        );
        assert!(history(&kept, "p", [all.as_slice()].into_iter(), 0).is_empty());
    }

    proptest! {
        /// Whatever order reports come in, however often, and wherever a leader takes over in between.
        #[test]
        fn the_order_and_repetition_of_reports_make_no_difference(
            nodes in proptest::collection::vec(proptest::collection::vec((0u8..4, 0i64..50, any::<bool>()), 0..4), 1..6),
            cut in 0usize..6,
        ) {
            let report = |of: &Vec<(u8, i64, bool)>| -> Vec<NodeDeployment> {
                of.iter().map(|(n, second, is_found)| if *is_found { found(*n) } else { deployed(*n, *second) }).collect()
            };
            let all: Vec<_> = nodes.iter().map(report).collect();
            let whole = history(&[], "p", all.iter().map(Vec::as_slice), 10);
            let mut reversed = all.clone();
            reversed.reverse();
            prop_assert_eq!(&history(&[], "p", reversed.iter().map(Vec::as_slice), 10), &whole);
            // Some are heard of first, then all, then all again.
            let some = history(&[], "p", all.iter().take(cut).map(Vec::as_slice), 10);
            let then = history(&some, "p", reversed.iter().map(Vec::as_slice), 10);
            prop_assert_eq!(&then, &whole);
            prop_assert_eq!(&history(&then, "p", all.iter().map(Vec::as_slice), 10), &whole);
        }
    }
}
