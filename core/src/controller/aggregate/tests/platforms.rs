//! Platforms of the members and of the image.

use super::*;

fn reported(variant: Option<&str>) -> Report {
    let mut report = booted(2);
    report.node_uid = Some("u".into());
    report.agent_version = Some("0.1.0".into());
    report.host.platform_variant = variant.map(str::to_owned);
    report
}

#[test]
fn an_image_must_run_on_every_member() {
    let mut case = case(vec![
        up("n1", reported(Some("v2"))),
        up("n2", reported(Some("v2"))),
        up("n3", reported(Some("v3"))),
        // Members with an unknown CPU level get no image, but do not keep the pool from adopting one.
        up("n4", reported(None)),
        up("n5", booted(2)),
    ]);
    case.members[2].0.machine = Machine::default();
    case.news = Some(Target {
        image: "quay.io/os:v3".into(),
        digest: digest(3),
        platforms: vec![PlatformDigest {
            variant: Some("v3".into()),
            digest: digest(3),
            ..target().platforms[0].clone()
        }],
        ..target()
    });
    assert_eq!(
        case.status().target.unwrap().digest,
        digest(2),
        "the new image is not adopted, because n1 and n2 cannot run it"
    );
    assert_eq!(
        case.says("ImageResolved"),
        "False NoSuchPlatform quay.io/os:v3 supports amd64/v3, not n1 (amd64/v2), n2 (amd64/v2); add that platform to \
         the image, or exclude these nodes"
    );
    // Of three or more members, a single one does not keep the others from the image. The pool names it.
    case.members[0] = up("n1", reported(Some("v3")));
    assert_eq!(case.status().target.unwrap().digest, digest(3));
    let named = "True NodesDegraded 1 degraded: n2: NoSuchPlatform: quay.io/os:v3 has no image for amd64/v2";
    assert_eq!(case.says("Degraded"), named);
    let others = case.members.split_off(2);
    assert_eq!(case.status().target.unwrap().digest, digest(2), "one of two members");
    case.members.extend(others);
    case.members[1] = up("n2", reported(Some("v4")));
    let status = case.status();
    assert_eq!(status.target.unwrap().digest, digest(3));
    assert_eq!((status.nodes.pending, status.nodes.updated), (5, 0));
    assert!(case.says("ImageResolved").starts_with("True Resolved"));
}

#[test]
fn a_new_node_of_another_platform_is_named() {
    let mut case = case(vec![up("n1", booted(2)), up("n2", Report::default())]);
    case.members[1].0.machine = Machine::new("arm64", &BTreeMap::new());
    assert_eq!(case.status().nodes.degraded, 1);
    assert_eq!(
        case.says("Degraded"),
        "True NodesDegraded 1 degraded: n2: NoSuchPlatform: quay.io/os:v2 has no image for arm64"
    );
    // A machine that has not reported its platform may be one that the image supports.
    case.members[1].0.machine = Machine::default();
    assert_eq!(case.status().nodes.degraded, 0);
}
