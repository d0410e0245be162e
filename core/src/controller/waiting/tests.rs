use std::sync::Arc;

use berth_api::membership::Conflict;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus, PlatformDigest, WaveStatus};
use serde_json::json;

use super::*;
use crate::controller::pool::tests::pool_of;
use crate::controller::snapshot::Entry;
use crate::controller::view::BootcNodeView;

fn target() -> Target {
    let digest: berth_api::Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    Target {
        image: "r/os:1".into(),
        digest: digest.clone(),
        version: None,
        metadata: None,
        platforms: vec![PlatformDigest {
            architecture: "amd64".into(),
            variant: None,
            digest,
        }],
        publish_time: None,
    }
}

fn arm64() -> Platform<'static> {
    Platform {
        architecture: "arm64",
        variant: Variant::Known("v8"),
    }
}

fn wave(name: &str, state: WaveState) -> WaveStatus {
    WaveStatus {
        name: name.into(),
        total: 1,
        updated: 0,
        state,
        soaked_seconds: 0,
    }
}

/// Reason and message; no reason if the node does not wait; nothing if nothing is to be changed.
type Said = Option<(&'static str, &'static str)>;

#[test]
fn waiting_is_about_the_node_alone() {
    let plan = Plan {
        waves: vec![
            wave("a", WaveState::Done),
            wave("b", WaveState::Soaking),
            wave("c", WaveState::Waiting),
        ],
        ..Plan::default()
    };
    let target = target();
    let words = Words::of(&plan, Some(&target));
    let table: [(&[BlockReason], Said); 10] = [
        (
            &[BlockReason::Wave],
            Some(("WaveWaiting", "waits until wave b is proven")),
        ),
        (
            &[BlockReason::Soaking],
            Some(("WaveSoaking", "waits until wave b has soaked")),
        ),
        (
            &[BlockReason::HeldBack],
            Some(("Held", "is held back by an admin; to release it: kubectl berth unhold")),
        ),
        (
            &[BlockReason::FailedBefore],
            Some(("FailedBefore", "failed with this image before")),
        ),
        (
            &[BlockReason::ControlPlane(Cause::NoOtherServer)],
            Some(("NoOtherAPIServer", "waits until another API server answers /readyz")),
        ),
        (
            &[BlockReason::NoClock],
            Some(("ClockNotSynchronized", "waits because its clock is not synchronised")),
        ),
        (
            &[BlockReason::TooLate],
            Some((
                "WindowTooShort",
                "waits for the next window: its drain and reboot would outlast this one",
            )),
        ),
        (
            &[BlockReason::NoImage],
            Some(("NoSuchPlatform", "r/os:1 has no image for arm64/v8; it has: amd64")),
        ),
        (
            &[
                BlockReason::Gate,
                BlockReason::Halted,
                BlockReason::Unresolved,
                BlockReason::Fencing,
                BlockReason::ControlPlane(Cause::Unfenced),
                BlockReason::ControlPlane(Cause::NotListed),
            ],
            None,
        ),
        (
            &[
                BlockReason::UpToDate,
                BlockReason::NotPublished,
                BlockReason::OtherNode,
                BlockReason::NotObserved,
                BlockReason::NotStaged,
                BlockReason::NotPrepared,
                BlockReason::Silent,
                BlockReason::HasBerth,
                BlockReason::Capacity,
                BlockReason::NoBerth,
            ],
            Some(("", "")),
        ),
    ];
    let node: NodeName = "n1".into();
    for (waits, said) in table {
        for wait in waits {
            let expected = match said {
                None => Waiting::Unjudged,
                Some(("", _)) => Waiting::No,
                Some((reason, message)) => Waiting::Yes(Word::stored(reason), message.into()),
            };
            assert_eq!(words.waiting(&node, Some(*wait), arm64()), expected, "{wait:?}");
        }
    }
    assert_eq!(
        words.waiting(&node, None, arm64()),
        Waiting::No,
        "it is offered a berth"
    );
    let unresolved = Words::of(&plan, None);
    assert_eq!(
        unresolved.waiting(&node, Some(BlockReason::NoImage), arm64()),
        Waiting::Unjudged
    );
}

#[test]
fn an_unknown_cpu_level_is_reported() {
    let mut target = target();
    let one = &target.platforms[0];
    target.platforms = ["v2", "v3"]
        .map(|variant| PlatformDigest {
            variant: Some(variant.into()),
            ..one.clone()
        })
        .into();
    let plan = Plan::default();
    let words = Words::of(&plan, Some(&target));
    let said = |variant: Variant<'static>| {
        let platform = Platform {
            architecture: "amd64",
            variant,
        };
        words.waiting(&"n1".into(), Some(BlockReason::NoImage), platform)
    };
    let yes = |reason: &'static str, message: &'static str| Waiting::Yes(Word::stored(reason), message.into());
    assert_eq!(
        said(Variant::NotReported),
        yes(
            "CpuLevelUnknown",
            "r/os:1 supports amd64/v2, amd64/v3; waiting for the node's agent to report its CPU"
        )
    );
    assert_eq!(
        said(Variant::Unknown),
        yes(
            "CpuLevelUnknown",
            "r/os:1 supports amd64/v2, amd64/v3, and it is unknown which of them the node's CPU runs; update the agent, \
             or label the node with berth.dev/platform-variant"
        )
    );
    assert_eq!(
        said(Variant::Known("v1")),
        yes(
            "NoSuchPlatform",
            "r/os:1 has no image for amd64/v1; it has: amd64/v2, amd64/v3"
        )
    );
    assert_eq!(
        said(Variant::Known("v2")),
        Waiting::No,
        "the plan is older than the report"
    );
}

/// A node of pool `a`, with its condition.
fn snapshot(told: Option<(&str, &str, &str)>) -> Snapshot {
    let conditions: Vec<_> = told
        .into_iter()
        .map(|(status, reason, message)| {
            json!({"type": "Waiting", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let node = json!({"metadata": {"name": "n1", "uid": "u1"}});
    let host = json!({"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": conditions}});
    let host = BootcNodeView::of(kube::core::DeserializeGuard(Ok(serde_json::from_value(host).unwrap())));
    let mut snapshot = Snapshot::default();
    Arc::make_mut(&mut snapshot.nodes).insert(
        "n1".into(),
        Entry::new(NodeView::of(&serde_json::from_value(node).unwrap())),
    );
    Arc::make_mut(&mut snapshot.bootc_nodes).insert("n1".into(), Entry::new(host));
    snapshot
}

fn pool() -> Pool {
    let mut object = BootcNodePool::new("a", berth_api::pool::BootcNodePoolSpec::default());
    object.status = Some(BootcNodePoolStatus {
        target: Some(target()),
        ..BootcNodePoolStatus::default()
    });
    pool_of(object)
}

#[test]
fn only_changed_conditions_are_written() {
    let proven = "waits until wave b is proven";
    let plan = |wait| Plan {
        waves: vec![wave("b", WaveState::Active)],
        waiting: [("n1".into(), wait)].into(),
        ..Plan::default()
    };
    let mut membership = Membership::default();
    membership.join("n1".into(), "a".into());
    let said = |told, plans: &BTreeMap<PoolName, Plan>, membership: &Membership| {
        let mut wanted = wanted(&snapshot(told), &[pool()], membership, plans);
        let verdict = wanted.remove(&NodeName::from("n1"));
        verdict.map(|v| (v.status, v.reason.into_string(), v.message))
    };
    let planned = |told, wait| said(told, &[("a".into(), plan(wait))].into(), &membership);
    let wave_waiting = Some(("True", "WaveWaiting", proven));
    let yes = |reason: &str, message: &str| Some((Some(true), reason.to_owned(), message.to_owned()));
    let no = Some((Some(false), "NotWaiting".to_owned(), String::new()));
    assert_eq!(planned(None, BlockReason::Wave), yes("WaveWaiting", proven));
    assert_eq!(planned(wave_waiting, BlockReason::Wave), None, "it says so");
    assert_eq!(
        planned(Some(("True", "WaveWaiting", "another wave")), BlockReason::Wave),
        yes("WaveWaiting", proven)
    );
    assert_eq!(
        planned(Some(("False", "NotWaiting", "")), BlockReason::Wave),
        yes("WaveWaiting", proven)
    );
    assert_eq!(planned(wave_waiting, BlockReason::Capacity), no);
    assert_eq!(planned(None, BlockReason::Capacity), None, "nothing was said");
    assert_eq!(planned(Some(("False", "NotWaiting", "")), BlockReason::Capacity), None);
    for wait in [BlockReason::Gate, BlockReason::Halted, BlockReason::Fencing] {
        assert_eq!(planned(wave_waiting, wait), None, "{wait:?}");
        assert_eq!(planned(None, wait), None, "{wait:?}");
    }
    assert_eq!(
        said(wave_waiting, &BTreeMap::new(), &membership),
        None,
        "there is no plan yet"
    );
    let nowhere = Membership::default();
    assert_eq!(said(wave_waiting, &BTreeMap::new(), &nowhere), no, "it is in no pool");
    let mut torn = Membership::default();
    let conflict = Conflict {
        node: "n1".into(),
        pools: vec!["a".into(), "b".into()],
        stays_in: None,
    };
    let words = conflict.message();
    torn.conflicts.insert("n1".into(), conflict);
    assert_eq!(said(None, &BTreeMap::new(), &torn), yes("NodeConflict", &words));
    assert_eq!(
        said(Some(("True", "NodeConflict", &words)), &BTreeMap::new(), &torn),
        None
    );
    // A condition keeps only the start of a long message.
    let many = Conflict {
        node: "n1".into(),
        pools: (10..90).map(|n| PoolName::new(format!("pool-number-{n}"))).collect(),
        stays_in: None,
    };
    let kept = one_line(&many.message());
    assert_ne!(kept, many.message());
    torn.conflicts.insert("n1".into(), many);
    assert_eq!(
        said(Some(("True", "NodeConflict", &kept)), &BTreeMap::new(), &torn),
        None
    );
}

#[test]
fn a_released_hold_ends_behind_a_closed_gate() {
    let mut membership = Membership::default();
    membership.join("n1".into(), "a".into());
    let said = |is_held: bool, wait| {
        let mut snapshot = snapshot(Some(("True", "Held", "m")));
        if is_held {
            let node = json!({"metadata": {"name": "n1", "uid": "u1", "labels": {keys::LABEL_HOLD: ""}}});
            let view = NodeView::of(&serde_json::from_value(node).unwrap());
            Arc::make_mut(&mut snapshot.nodes).insert("n1".into(), Entry::new(view));
        }
        let plan = Plan {
            waiting: [("n1".into(), wait)].into(),
            ..Plan::default()
        };
        let mut wanted = wanted(&snapshot, &[pool()], &membership, &[("a".into(), plan)].into());
        let verdict = wanted.remove(&NodeName::from("n1"));
        verdict.map(|v| (v.status, v.reason.into_string()))
    };
    for wait in [BlockReason::Gate, BlockReason::Halted, BlockReason::Capacity] {
        assert_eq!(
            said(false, wait),
            Some((Some(false), "NotWaiting".to_owned())),
            "{wait:?}"
        );
    }
    assert_eq!(said(true, BlockReason::Fencing), None, "it still is");
}

#[test]
fn a_thousand_conditions_are_written_in_batches() {
    let mut desk = WriteQueue::default();
    let start = Moment::default();
    let at = |millis| start + Duration::from_millis(millis);
    let name = |n: usize| NodeName::new(format!("n{n:04}"));
    let wanted = |names: &[usize]| -> BTreeMap<NodeName, Verdict> {
        names
            .iter()
            .map(|n| (name(*n), Verdict::yes(Why::WaveWaiting, "m")))
            .collect()
    };
    let mut left: Vec<usize> = (0..1000).collect();
    assert!(desk.pick(wanted(&left), at(0)).is_empty(), "it may change back at once");
    assert_eq!(desk.due(), Some(at(1000)));
    let (mut now, mut passes) = (1000, 0);
    while !left.is_empty() {
        // A pass that comes early gets nothing.
        assert!(passes == 0 || desk.pick(wanted(&left), at(now - 1)).is_empty());
        let picked = desk.pick(wanted(&left), at(now));
        assert_eq!(picked.len(), 10);
        left.retain(|n| picked.iter().all(|(picked, _)| *picked != name(*n)));
        (now, passes) = (now + 200, passes + 1);
    }
    assert_eq!(passes, 100);
    assert!(desk.pick(BTreeMap::new(), at(now)).is_empty() && desk.due().is_none());
}

#[test]
fn a_failed_write_delays_no_other_node() {
    let mut desk = WriteQueue::default();
    let at = |seconds| Moment::default() + Duration::from_secs(seconds);
    let wanted = || -> BTreeMap<NodeName, Verdict> {
        let name = |n: usize| (NodeName::new(format!("n{n:02}")), Verdict::yes(Why::WaveWaiting, "m"));
        (0..15).map(name).collect()
    };
    let mut picks = |seconds| -> Vec<String> {
        let picked = desk.pick(wanted(), at(seconds));
        picked.into_iter().map(|(name, _)| name.to_string()).collect()
    };
    assert!(picks(0).is_empty());
    let (first, second) = (picks(1), picks(2));
    assert_eq!(first[0], "n00");
    assert_eq!(
        second[..5],
        ["n10", "n11", "n12", "n13", "n14"],
        "the others come first"
    );
    assert_eq!(second[5], "n00");
}

#[test]
fn what_changes_back_is_never_told() {
    let mut desk = WriteQueue::default();
    let at = |millis| Moment::default() + Duration::from_millis(millis);
    let wants = |reason: Why| [(NodeName::from("n"), Verdict::yes(reason, ""))].into();
    assert!(desk.pick(wants(Why::WaveWaiting), at(0)).is_empty());
    assert!(desk.pick(BTreeMap::new(), at(500)).is_empty());
    assert!(desk.pick(wants(Why::WaveWaiting), at(900)).is_empty());
    assert!(
        desk.pick(wants(Why::WaveSoaking), at(1900)).is_empty(),
        "it is another reason"
    );
    assert_eq!(desk.pick(wants(Why::WaveSoaking), at(2900)).len(), 1);
}
