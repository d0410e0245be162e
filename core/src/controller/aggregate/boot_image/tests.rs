use berth_api::NodeName;
use berth_api::boot_image::ManualBootImage;
use berth_api::pool::ImageMetadata;
use proptest::prelude::*;

use super::*;
use crate::controller::aggregate::tests;
use crate::controller::view::{BootImageNote, BootcNodeView, NodeView, Report};

fn node(name: &str, created: i64) -> NodeView {
    NodeView {
        created,
        ..tests::node(name)
    }
}

fn host(version: Option<&str>) -> BootcNodeView {
    provisioned(version, None)
}

fn provisioned(version: Option<&str>, provisioned: Option<i64>) -> BootcNodeView {
    noted(BootImageNote {
        version: version.map(str::to_owned),
        provisioned,
        error: None,
    })
}

fn noted(note: BootImageNote) -> BootcNodeView {
    let mut report = Report::default();
    report.images.booted = format!("sha256:{}", "a".repeat(64)).parse().ok();
    report.host.boot_image = note;
    tests::host(report)
}

fn image(version: &str, minimum: Option<&str>) -> Target {
    let boot_image = minimum.map(|minimum| BootImageLimit {
        minimum_version: Some(minimum.to_owned()),
        ..BootImageLimit::default()
    });
    Target {
        image: "quay.io/os:1".into(),
        digest: format!("sha256:{}", "b".repeat(64)).parse().unwrap(),
        version: Some(version.to_owned()),
        metadata: Some(ImageMetadata {
            boot_image,
            ..ImageMetadata::default()
        }),
        platforms: vec![],
        publish_time: None,
    }
}

/// Inputs of the checks: the pool's machines, its policy, and its current status and condition.
struct Pool {
    nodes: Vec<(NodeView, BootcNodeView)>,
    policy: BootImagePolicy,
    before: Option<BootImageStatus>,
    excluded: Vec<&'static str>,
    said: Option<Condition>,
}

impl Pool {
    fn of(nodes: &[(&str, i64, Option<&str>)]) -> Self {
        let nodes = nodes
            .iter()
            .map(|(name, created, version)| (node(name, *created), host(*version)));
        Self {
            nodes: nodes.collect(),
            policy: BootImagePolicy::default(),
            before: None,
            excluded: vec![],
            said: None,
        }
    }

    fn with<T>(&self, ask: impl FnOnce(&BootImageFacts<'_>) -> T) -> T {
        let members = self.nodes.iter().map(|(node, host)| tests::member(node, host));
        let members: Vec<_> = members.collect();
        let excluded: Vec<NodeName> = self.excluded.iter().map(|name| (*name).into()).collect();
        let excluded: Vec<&NodeName> = excluded.iter().collect();
        ask(&BootImageFacts {
            inputs: BootImageInputs {
                policy: &self.policy,
                before: self.before.as_ref(),
                excluded: &excluded,
            },
            members: &members,
        })
    }

    fn refusal(&self, image: &Target) -> Option<String> {
        self.with(|facts| refusal(facts, image)).map(|refusal| {
            assert_eq!(refusal.reason, REASON);
            refusal.words
        })
    }

    fn assess(&self, target: Option<&Target>, next: &Next) -> (String, Option<BootImageStatus>) {
        let now = Timestamp::from_second(1000).unwrap();
        let said = self.said.as_ref();
        let Assessment { status, verdict } = self.with(|facts| assess(facts, said, target, next, now));
        let said = format!("{:?} {} {}", verdict.status, verdict.reason, verdict.message);
        (said.trim_end().to_owned(), status)
    }
}

fn refused() -> Next {
    Next::Refused(Refusal {
        reason: REASON,
        words: "needs a newer".to_owned(),
    })
}

#[test]
fn the_newest_machines_show_the_boot_image_in_use() {
    let mut pool = Pool::of(&[("old", 1, Some("8.6")), ("new", 3, Some("9.4"))]);
    let target = image("9.6", Some("9.2"));
    assert_eq!(pool.refusal(&target), None);
    let (said, status) = pool.assess(Some(&target), &Next::Clear);
    assert_eq!(said, "Some(false) WithinLimit");
    let status = status.unwrap();
    assert_eq!(
        (status.version.as_deref(), status.node.as_deref()),
        (Some("9.4"), Some("new"))
    );
    let newest: Vec<_> = status
        .newest
        .iter()
        .map(|machine| (&*machine.node, &*machine.version))
        .collect();
    assert_eq!(newest, [("new", "9.4"), ("old", "8.6")]);
    assert_eq!((status.too_old, status.too_old_nodes), (1, vec!["old".to_owned()]));
    assert_eq!(status.limit.minimum_version.as_deref(), Some("9.2"));
    pool.nodes.push((node("newest", 4), host(Some("9.1"))));
    let refusal = pool.refusal(&target).unwrap();
    let why =
        "newest, the median of the three newest machines, was installed from 9.1, which is older than the minimum 9.2";
    assert!(refusal.contains(why), "{refusal}");
    let (said, _) = pool.assess(Some(&target), &Next::Clear);
    assert_eq!(said, format!("Some(true) BootImageTooOld {why}"));
}

proptest! {
    /// Machines that agree outvote one other machine. Neither its reports nor its age matter. Machines that have left the
    /// pool still vote.
    #[test]
    fn one_of_three_machines_neither_refuses_nor_admits_an_image(
        is_old in any::<bool>(),
        lie in prop_oneof!["[0-9]{1,4}(\\.[0-9]{1,9}){0,3}", "[a-z]{0,6}[0-9.~+ -]{0,8}", Just("x".repeat(128)), ".{0,9}"],
        (liar, created) in (0usize..4, proptest::collection::vec(0i64..3, 4)),
        gone in proptest::collection::vec(any::<bool>(), 4),
    ) {
        let honest = if is_old { "9.0" } else { "9.4" };
        let names = ["n0", "n1", "n2", "n3"];
        let machines = (0..4).map(|n| (names[n], created[n], Some(if n == liar { lie.as_str() } else { honest })));
        let machines: Vec<_> = machines.collect();
        let target = image("9.6", Some("9.2"));
        let mut pool = Pool::of(&machines);
        prop_assert_eq!(pool.refusal(&target).is_some(), is_old, "{:?}", machines);
        pool.before = pool.assess(Some(&target), &Next::Clear).1;
        let left = machines.iter().zip(&gone).filter(|(_, is_gone)| !**is_gone);
        pool.nodes = Pool::of(&left.map(|(machine, _)| *machine).collect::<Vec<_>>()).nodes;
        prop_assert_eq!(pool.refusal(&target).is_some(), is_old, "{:?} {:?}", machines, gone);
    }
}

#[test]
fn one_of_two_machines_decides_until_the_admin_excludes_it() {
    let target = image("9.6", Some("9.2"));
    let honest = ("honest", 1, Some("9.4"));
    let mut pool = Pool::of(&[honest, ("liar", 2, Some("0.1"))]);
    assert!(pool.refusal(&target).is_some(), "as many machines for it as against it");
    pool.before = pool.assess(Some(&target), &Next::Clear).1;
    // The lie is remembered after the machine has left.
    pool.nodes = Pool::of(&[honest]).nodes;
    assert!(pool.refusal(&target).is_some());
    pool.excluded = vec!["liar"];
    assert_eq!(pool.refusal(&target), None);
    let (said, status) = pool.assess(Some(&target), &Next::Clear);
    let status = status.unwrap();
    assert_eq!(
        (said.as_str(), status.node.as_deref()),
        ("Some(false) WithinLimit", Some("honest"))
    );
    // The lie stays forgotten after the Node is deleted.
    (pool.before, pool.excluded) = (Some(status), vec![]);
    assert_eq!(pool.refusal(&target), None);
    // An older controller recorded only the newest machine.
    pool.nodes.clear();
    pool.before = Some(BootImageStatus {
        version: Some("0.1".to_owned()),
        node: Some("liar".to_owned()),
        ..BootImageStatus::default()
    });
    assert!(pool.refusal(&target).is_some());
    pool.excluded = vec!["liar"];
    let (said, status) = pool.assess(Some(&target), &Next::Clear);
    assert_eq!(said, "None NotReported no machine has reported its boot image");
    assert_eq!(status.and_then(|status| status.version), None);
}

#[test]
fn a_machine_whose_node_was_created_again_counts_once() {
    let target = image("9.6", Some("9.2"));
    let others = [("n1", 1, Some("9.4")), ("n2", 2, Some("9.4"))];
    let mut pool = Pool::of(&[others[0], others[1], ("liar", 3, Some("0.1"))]);
    pool.before = pool.assess(Some(&target), &Next::Clear).1;
    pool.nodes = Pool::of(&[others[0], others[1], ("liar", 4, Some("0.1"))]).nodes;
    assert_eq!(pool.refusal(&target), None);
    let newest = pool.assess(Some(&target), &Next::Clear).1.unwrap().newest;
    let nodes: Vec<_> = newest.iter().map(|machine| machine.node.as_str()).collect();
    assert_eq!(nodes, ["liar", "n2", "n1"]);
}

#[test]
fn unknown_limits_and_versions_refuse_no_image() {
    let mut pool = Pool::of(&[("n1", 1, Some("8.6"))]);
    assert_eq!(pool.refusal(&image("11.0", None)), None);
    let (said, status) = pool.assess(Some(&image("11.0", None)), &Next::Clear);
    assert_eq!(said, "Some(false) NoLimit");
    assert_eq!(
        status.unwrap().version.as_deref(),
        Some("8.6"),
        "without a limit, the status still shows the version"
    );
    pool.nodes[0].1 = host(None);
    let target = image("9.6", Some("9.2"));
    assert_eq!(pool.refusal(&target), None);
    let (said, status) = pool.assess(Some(&target), &Next::Clear);
    assert_eq!(
        said,
        "None CannotCompare the newest machine, n1, has no record of the image it was installed from"
    );
    assert_eq!(status.unwrap().version, None);
    pool.nodes.clear();
    assert_eq!(pool.refusal(&target), None);
    let (said, _) = pool.assess(Some(&target), &Next::Clear);
    assert_eq!(said, "None NotReported no machine has reported its boot image");
    let (said, _) = pool.assess(None, &Next::Unknown);
    assert!(said.starts_with("None ImageNotResolved"), "{said}");
}

#[test]
fn the_admin_decides_what_comes_of_it() {
    let mut pool = Pool::of(&[("n1", 1, Some("9.0"))]);
    let target = image("9.6", Some("9.2"));
    assert!(pool.refusal(&target).is_some());
    let (said, _) = pool.assess(Some(&image("9.5", None)), &refused());
    assert_eq!(said, "Some(true) NextImageRefused the next image needs a newer");
    assert_eq!(pool.assess(None, &refused()).0, said);
    pool.policy.enforcement = Some(BootImageEnforcement::Warn);
    assert_eq!(pool.refusal(&target), None);
    assert!(
        pool.assess(Some(&target), &Next::Clear)
            .0
            .starts_with("Some(true) BootImageTooOld")
    );
    pool.policy.enforcement = Some(BootImageEnforcement::Disabled);
    assert_eq!(pool.refusal(&target), None);
    let (said, status) = pool.assess(Some(&target), &Next::Clear);
    assert!(
        said.starts_with("Some(false) Disabled") && status.is_some_and(|status| status.too_old == 0),
        "{said}"
    );
}

#[test]
fn a_manual_record_replaces_the_machines_reports() {
    let mut pool = Pool::of(&[("n1", 1, Some("9.0"))]);
    let target = image("9.6", Some("9.2"));
    pool.policy.source = Some(BootImageSource::Manual);
    pool.policy.manual = Some(ManualBootImage { version: "9.4".into() });
    assert_eq!(pool.refusal(&target), None);
    let status = pool.assess(Some(&target), &Next::Clear).1.unwrap();
    let [earlier, now] = [5, 1000].map(|second| Some(Timestamp::from_second(second).unwrap().into()));
    assert_eq!((status.version.as_deref(), status.node.clone()), (Some("9.4"), None));
    assert_eq!((&status.recorded_time, status.too_old), (&now, 1));
    pool.before = Some(BootImageStatus {
        recorded_time: earlier.clone(),
        ..status
    });
    let status = pool.assess(Some(&target), &Next::Clear).1.unwrap();
    assert_eq!(status.recorded_time, earlier, "the time of the record is kept");
    pool.policy.manual = Some(ManualBootImage { version: "9.1".into() });
    assert!(
        pool.refusal(&target)
            .unwrap()
            .contains("a machine with the boot image recorded in bootImage.manual was installed from 9.1")
    );
    let status = pool.assess(Some(&target), &Next::Clear).1.unwrap();
    assert_eq!(status.recorded_time, now, "a changed record gets a new time");
}

#[test]
fn the_pools_minimum_counts_as_well() {
    let mut pool = Pool::of(&[("n1", 1, Some("9.4"))]);
    assert_eq!(pool.refusal(&image("9.6", Some("9.2"))), None);
    pool.policy.minimum_version = Some("9.5".into());
    assert!(
        pool.refusal(&image("9.6", Some("9.2")))
            .unwrap()
            .contains("older than the minimum 9.5")
    );
    assert!(
        pool.refusal(&image("9.6", None))
            .unwrap()
            .contains("older than the minimum 9.5")
    );
}

#[test]
fn a_refusal_stays_until_the_registry_answers() {
    let mut pool = Pool::of(&[("n1", 1, Some("9.0"))]);
    let target = image("9.5", None);
    let verdict = pool
        .with(|facts| assess(facts, None, Some(&target), &refused(), Timestamp::UNIX_EPOCH))
        .verdict;
    let mut conditions = vec![];
    berth_api::condition::set(&mut conditions, "BootImageSkew", verdict, None, Timestamp::UNIX_EPOCH);
    pool.said = conditions.pop();
    let (said, _) = pool.assess(Some(&target), &Next::Unknown);
    assert_eq!(said, "Some(true) NextImageRefused the next image needs a newer");
    assert_eq!(pool.assess(Some(&target), &Next::Clear).0, "Some(false) NoLimit");
}

#[test]
fn unreadable_labels_are_not_a_missing_limit() {
    let pool = Pool::of(&[("n1", 1, Some("9.0"))]);
    let mut target = image("9.5", None);
    target.metadata = None;
    let (said, _) = pool.assess(Some(&target), &Next::Clear);
    assert!(
        said.starts_with("None CannotCompare") && said.contains("labels of the OS image"),
        "{said}"
    );
    assert_eq!(pool.refusal(&target), None);
}

#[test]
fn a_deleted_machine_still_counts() {
    let target = image("9.6", Some("9.2"));
    let old = ("old", 1, Some("9.4"));
    let new = ("new", 3, Some("9.0"));
    let gone = "the newest machine so far, new (now gone or silent), was installed from 9.0";
    for (now, refused, by) in [
        (vec![], true, gone),
        (vec![old], true, gone),
        // Two of three machines are new enough.
        (vec![old, ("middle", 2, Some("9.5"))], false, ""),
        (vec![old, new], true, "the newest machine, new, was installed from 9.0"),
        (vec![old, ("new", 3, None)], true, gone),
        // The Node was created again, so the machine counts as reinstalled.
        (vec![("new", 4, Some("9.4"))], false, ""),
        (vec![old, ("newer", 4, Some("9.4"))], false, ""),
        // The boot image versions of these machines are unknown.
        (vec![("new", 4, None)], true, gone),
        (vec![old, ("newer", 4, None)], true, gone),
        (
            vec![old, new, ("newer", 4, None), ("newest", 5, None)],
            true,
            "was installed from 9.0, which is older than the minimum 9.2; 2 newer machines do not count, because",
        ),
    ] {
        let mut pool = Pool::of(&[old, new]);
        pool.before = pool.assess(Some(&target), &Next::Clear).1;
        pool.nodes = Pool::of(&now).nodes;
        let words = pool.refusal(&target).unwrap_or_default();
        assert_eq!(
            (!words.is_empty(), words.contains(by)),
            (refused, true),
            "{now:?}: {words}"
        );
        // A second assessment gives the same result.
        pool.before = pool.assess(Some(&target), &Next::Clear).1;
        assert_eq!(pool.refusal(&target).is_some(), refused, "{now:?}");
    }
}

#[test]
fn a_manual_record_replaces_the_remembered_one() {
    let target = image("9.6", Some("9.2"));
    let mut pool = Pool::of(&[("new", 3, Some("9.0"))]);
    pool.before = pool.assess(Some(&target), &Next::Clear).1;
    pool.nodes[0].1 = tests::host(Report::default());
    assert!(
        pool.refusal(&target).is_some(),
        "a machine that has not reported yet does not replace the remembered one"
    );
    pool.nodes.clear();
    assert!(pool.refusal(&target).is_some());
    let silent = Pool {
        policy: BootImagePolicy {
            enforcement: Some(BootImageEnforcement::Disabled),
            ..BootImagePolicy::default()
        },
        before: pool.before.clone(),
        ..Pool::of(&[])
    };
    assert_eq!(silent.refusal(&target), None);
    pool.policy.source = Some(BootImageSource::Manual);
    pool.policy.manual = Some(ManualBootImage { version: "9.4".into() });
    assert_eq!(pool.refusal(&target), None);
    // The version that the admin recorded counts until the admin removes it from the spec.
    pool.before = pool.assess(Some(&target), &Next::Clear).1;
    pool.policy = BootImagePolicy::default();
    let status = pool.assess(Some(&target), &Next::Clear).1.unwrap();
    assert_eq!((status.version, status.node), (None, None));
    // An older controller recorded no creation time. Its record counts only if no member has a version.
    pool.before = Some(BootImageStatus {
        version: Some("9.0".to_owned()),
        node: Some("new".to_owned()),
        ..BootImageStatus::default()
    });
    assert!(pool.refusal(&target).is_some());
    pool.nodes = Pool::of(&[("old", 1, Some("9.4"))]).nodes;
    assert_eq!(pool.refusal(&target), None);
}

#[test]
fn an_unreadable_record_is_reported() {
    let target = image("9.6", Some("9.2"));
    let mut pool = Pool::of(&[("n1", 1, None)]);
    pool.nodes[0].1 = noted(BootImageNote {
        error: Some("the record is longer than 64 KiB".to_owned()),
        ..BootImageNote::default()
    });
    let (said, _) = pool.assess(Some(&target), &Next::Clear);
    assert_eq!(
        said,
        "None CannotCompare the boot image record of the newest machine, n1, cannot be read: the record is longer than 64 KiB"
    );
    pool.nodes.push((node("n0", 0), host(Some("9.0"))));
    assert!(
        pool.refusal(&target).is_some(),
        "the newest machine that is known decides"
    );
}

#[test]
fn a_node_registered_again_is_not_new() {
    let target = image("9.6", Some("9.2"));
    let mut pool = Pool::of(&[("new", 300, None), ("old", 400, None)]);
    // Machine `new` was provisioned at 290. Machine `old` was provisioned at 100, and its Node was created again at
    // 400.
    pool.nodes[0].1 = provisioned(Some("9.4"), Some(290));
    pool.nodes[1].1 = provisioned(Some("8.6"), Some(100));
    assert_eq!(pool.refusal(&target), None);
    let status = pool.assess(Some(&target), &Next::Clear).1.unwrap();
    let provisioned_time = status.provisioned_time.as_ref().unwrap().0;
    assert_eq!(
        (status.node.as_deref(), provisioned_time.as_second()),
        (Some("new"), 290)
    );
    // The status keeps the provisioning time of a machine that is gone.
    pool.before = Some(status);
    pool.nodes.remove(0);
    assert_eq!(pool.refusal(&target), None);
    pool.nodes.clear();
    pool.before.as_mut().unwrap().newest.truncate(1);
    // If a machine's clock is ahead, the machine does not count as newer than its Node.
    pool.nodes
        .push((node("ahead", 200), provisioned(Some("9.0"), Some(i64::MAX))));
    assert_eq!(pool.refusal(&target), None);
    pool.nodes
        .push((node("newer", 500), provisioned(Some("9.0"), Some(310))));
    assert!(pool.refusal(&target).is_some());
}

#[test]
fn a_record_of_an_earlier_controller_keeps_its_place() {
    let target = image("9.6", Some("9.2"));
    let mut pool = Pool::of(&[("n1", 300, None)]);
    pool.nodes[0].1 = provisioned(Some("9.4"), Some(290));
    let mut before = pool.assess(Some(&target), &Next::Clear).1.unwrap();
    before.provisioned_time = None;
    pool.before = Some(before);
    let (said, status) = pool.assess(Some(&target), &Next::Clear);
    assert_eq!(said, "Some(false) WithinLimit");
    assert!(status.unwrap().provisioned_time.is_some());
    pool.nodes.push((node("n2", 299), provisioned(Some("9.0"), Some(295))));
    assert!(pool.refusal(&target).is_some(), "provisioned later");
}

#[test]
fn missing_bootcnodes_lose_no_record() {
    let target = image("9.6", Some("9.2"));
    let mut pool = Pool::of(&[("old", 1, Some("9.4")), ("new", 3, Some("9.0"))]);
    let before = pool.assess(Some(&target), &Next::Clear).1;
    pool.before.clone_from(&before);
    for (_, host) in &mut pool.nodes {
        *host = tests::host(Report::default());
    }
    let away = pool.assess(Some(&target), &Next::Clear).1.unwrap();
    assert_eq!(
        (away.version.as_deref(), away.node.as_deref()),
        (Some("9.0"), Some("new"))
    );
    pool.before = Some(away);
    pool.nodes = Pool::of(&[("old", 1, Some("9.4")), ("new", 3, None)]).nodes;
    assert!(pool.refusal(&target).is_some());
}

#[test]
fn only_newer_unknown_machines_are_counted() {
    let target = image("9.6", Some("9.2"));
    let known = ("known", 3, Some("9.0"));
    for (nodes, is_counted) in [
        (&[known, ("newer", 4, None)][..], true),
        (&[known, ("older", 2, None)], false),
        (&[known, ("older", 2, Some("9.0"))], false),
        (&[("known", 3, None)], false),
    ] {
        let mut pool = Pool::of(&[known]);
        pool.before = pool.assess(Some(&target), &Next::Clear).1;
        pool.nodes = Pool::of(nodes).nodes;
        let refusal = pool.refusal(&target).unwrap();
        assert_eq!(refusal.contains("1 newer machine "), is_counted, "{nodes:?}");
    }
}

#[test]
fn a_remembered_machine_finds_its_own_time() {
    let target = image("9.6", Some("9.2"));
    let mut pool = Pool::of(&[("z", 300, None), ("new", 300, None)]);
    pool.nodes[0].1 = provisioned(Some("9.4"), Some(150));
    pool.nodes[1].1 = provisioned(None, Some(290));
    // An earlier controller did not record the provisioning time, and the machine no longer reports its boot image.
    pool.before = Some(BootImageStatus {
        version: Some("9.0".to_owned()),
        node: Some("new".to_owned()),
        node_created_time: Some(Timestamp::from_second(300).unwrap().into()),
        ..BootImageStatus::default()
    });
    assert!(pool.refusal(&target).is_some(), "z is older");
    pool.nodes[0].1 = provisioned(Some("9.4"), Some(295));
    assert_eq!(pool.refusal(&target), None, "z is newer");
    pool.nodes[1].0.created = 400;
    assert!(
        pool.refusal(&target).is_some(),
        "another Node has the name, so only the later time of the earlier Node is known"
    );
}

#[test]
fn another_refusal_is_not_for_the_boot_image() {
    let pool = Pool::of(&[("n1", 1, Some("9.0"))]);
    let next = Next::Refused(Refusal {
        reason: CommonReason::NoSuchPlatform,
        words: "has nothing for n1".to_owned(),
    });
    let (said, _) = pool.assess(Some(&image("9.5", None)), &next);
    assert_eq!(said, "Some(false) NoLimit");
}

#[test]
fn a_decision_shows_the_boot_image() {
    let pool = Pool::of(&[("n1", 1, Some("9.0"))]);
    let decision = crate::controller::image::Decision {
        target: Some(image("9.6", Some("9.2"))),
        available: None,
        verdict: Verdict::yes(CommonReason::Resolved, ""),
        next: Next::Clear,
    };
    let now = Timestamp::from_second(1000).unwrap();
    let status =
        pool.with(|facts| crate::controller::aggregate::boot_image(&decision, facts.members, facts.inputs, now));
    let expected = pool.assess(decision.target.as_ref(), &decision.next).1;
    assert_eq!(status, expected);
    assert_eq!(status.unwrap().too_old_nodes, ["n1"]);
}
