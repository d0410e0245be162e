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
        image: "r.io/os:1".into(),
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

/// Returns a plan where wave a is done, wave b soaks and wave c waits for it.
fn plan() -> Plan {
    Plan {
        waves: vec![
            wave("a", WaveState::Done),
            wave("b", WaveState::Soaking),
            wave("c", WaveState::Waiting),
        ],
        ..Plan::default()
    }
}

#[test]
fn a_node_waits_for_its_own_reasons() {
    let (plan, target) = (plan(), target());
    let words = Words::of(&plan, Some(&target));
    for (wait, reason, message) in [
        (
            BlockReason::Wave,
            "WaveWaiting",
            "waits until all nodes of wave b are updated and Ready",
        ),
        (
            BlockReason::Soaking,
            "WaveSoaking",
            "waits until the soak time of wave b is over",
        ),
        (
            BlockReason::HeldBack,
            "Held",
            "is held back by an admin; to release it: kubectl berth unhold",
        ),
        (
            BlockReason::FailedBefore,
            "FailedBefore",
            "failed with this image before",
        ),
        (
            BlockReason::ControlPlane(Cause::NoOtherServer),
            "NoOtherAPIServer",
            "waits until another API server answers /readyz",
        ),
        (
            BlockReason::NoClock,
            "ClockNotSynchronized",
            "waits because its clock is not synchronized",
        ),
        (
            BlockReason::TooLate,
            "WindowTooShort",
            "waits for the next window: its drain and reboot would outlast this one",
        ),
        (
            BlockReason::NoImage,
            "NoSuchPlatform",
            "r.io/os:1 has no image for arm64/v8, only for amd64",
        ),
    ] {
        let expected = Waiting::Yes(Word::stored(reason), message.into());
        assert_eq!(words.waiting(&"n1".into(), Some(wait), arm64()), expected, "{wait:?}");
    }
}

#[test]
fn reasons_of_others_are_not_a_wait() {
    let (plan, target) = (plan(), target());
    let words = Words::of(&plan, Some(&target));
    let node: NodeName = "n1".into();
    for wait in [
        BlockReason::Gate,
        BlockReason::Halted,
        BlockReason::Unresolved,
        BlockReason::Fencing,
        BlockReason::ControlPlane(Cause::Unfenced),
        BlockReason::ControlPlane(Cause::NotListed),
    ] {
        let waiting = words.waiting(&node, Some(wait), arm64());
        assert_eq!(waiting, Waiting::Unjudged, "{wait:?}");
    }
    for wait in [
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
    ] {
        assert_eq!(words.waiting(&node, Some(wait), arm64()), Waiting::No, "{wait:?}");
    }
    let offered = words.waiting(&node, None, arm64());
    assert_eq!(offered, Waiting::No);
    let unresolved = Words::of(&plan, None);
    let waiting = unresolved.waiting(&node, Some(BlockReason::NoImage), arm64());
    assert_eq!(waiting, Waiting::Unjudged);
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
    for (variant, expected) in [
        (
            Variant::NotReported,
            Some((
                "CpuLevelUnknown",
                "r.io/os:1 supports amd64/v2, amd64/v3; waiting for the node's agent to report the node's CPU",
            )),
        ),
        (
            Variant::Unknown,
            Some((
                "CpuLevelUnknown",
                "r.io/os:1 supports amd64/v2, amd64/v3, and it is unknown which of them the node's CPU runs; update the \
                 agent, or label the node with berth.dev/platform-variant",
            )),
        ),
        (
            Variant::Known("v1"),
            Some((
                "NoSuchPlatform",
                "r.io/os:1 has no image for amd64/v1, only for amd64/v2, amd64/v3",
            )),
        ),
        // The agent reported its CPU after the plan was made.
        (Variant::Known("v2"), None),
    ] {
        let platform = Platform {
            architecture: "amd64",
            variant,
        };
        let waiting = words.waiting(&"n1".into(), Some(BlockReason::NoImage), platform);
        let expected = expected.map_or(Waiting::No, |(reason, message)| {
            Waiting::Yes(Word::stored(reason), message.into())
        });
        assert_eq!(waiting, expected, "{variant:?}");
    }
}

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
    let host = BootcNodeView::of(serde_json::from_value(host).unwrap());
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

fn in_a() -> Membership {
    let mut membership = Membership::default();
    membership.join("n1".into(), "a".into());
    membership
}

/// Returns status, reason and message of n1's new condition. `before`: its current condition.
fn written(
    before: Option<(&str, &str, &str)>,
    membership: &Membership,
    plan: Option<Plan>,
) -> Option<(Option<bool>, String, String)> {
    let plans = plan.map(|plan| ("a".into(), plan)).into_iter().collect();
    let mut wanted = wanted(&snapshot(before), &[pool()], membership, &plans);
    let verdict = wanted.remove(&NodeName::from("n1"))?;
    Some((verdict.status, verdict.reason.into_string(), verdict.message))
}

fn yes(reason: &str, message: &str) -> Option<(Option<bool>, String, String)> {
    Some((Some(true), reason.to_owned(), message.to_owned()))
}

fn no() -> Option<(Option<bool>, String, String)> {
    Some((Some(false), "NotWaiting".to_owned(), String::new()))
}

#[test]
fn only_changed_conditions_are_written() {
    let proven = "waits until all nodes of wave b are updated and Ready";
    let wave_waiting = Some(("True", "WaveWaiting", proven));
    let another = Some(("True", "WaveWaiting", "another wave"));
    let not_waiting = Some(("False", "NotWaiting", ""));
    for (before, wait, expected) in [
        (None, BlockReason::Wave, yes("WaveWaiting", proven)),
        (wave_waiting, BlockReason::Wave, None),
        (another, BlockReason::Wave, yes("WaveWaiting", proven)),
        (not_waiting, BlockReason::Wave, yes("WaveWaiting", proven)),
        (wave_waiting, BlockReason::Capacity, no()),
        (None, BlockReason::Capacity, None),
        (not_waiting, BlockReason::Capacity, None),
        (wave_waiting, BlockReason::Gate, None),
        (wave_waiting, BlockReason::Halted, None),
        (wave_waiting, BlockReason::Fencing, None),
        (None, BlockReason::Gate, None),
        (None, BlockReason::Halted, None),
        (None, BlockReason::Fencing, None),
    ] {
        let plan = Plan {
            waves: vec![wave("b", WaveState::Active)],
            waiting: [("n1".into(), wait)].into(),
            ..Plan::default()
        };
        let found = written(before, &in_a(), Some(plan));
        assert_eq!(found, expected, "{before:?} {wait:?}");
    }
    assert_eq!(written(wave_waiting, &in_a(), None), None, "there is no plan yet");
    let nowhere = Membership::default();
    assert_eq!(written(wave_waiting, &nowhere, None), no(), "the node is in no pool");
}

#[test]
fn a_conflict_is_written_once() {
    let mut torn = Membership::default();
    let conflict = Conflict {
        node: "n1".into(),
        pools: vec!["a".into(), "b".into()],
        stays_in: None,
    };
    let words = conflict.message();
    torn.conflicts.insert("n1".into(), conflict);
    assert_eq!(written(None, &torn, None), yes("NodeConflict", &words));
    let told = Some(("True", "NodeConflict", &*words));
    assert_eq!(written(told, &torn, None), None);
    // A long message is cut off when it is stored, so it differs from the wanted message.
    let many = Conflict {
        node: "n1".into(),
        pools: (10..90).map(|n| PoolName::new(format!("pool-number-{n}"))).collect(),
        stays_in: None,
    };
    let kept = one_line(&many.message());
    assert_ne!(kept, many.message());
    torn.conflicts.insert("n1".into(), many);
    let told = Some(("True", "NodeConflict", &*kept));
    assert_eq!(written(told, &torn, None), None);
}

#[test]
fn a_released_hold_ends_behind_a_closed_gate() {
    let no = Some((Some(false), "NotWaiting".to_owned()));
    for (is_held, wait, expected) in [
        (false, BlockReason::Gate, no.clone()),
        (false, BlockReason::Halted, no.clone()),
        (false, BlockReason::Capacity, no),
        (true, BlockReason::Fencing, None),
    ] {
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
        let mut wanted = wanted(&snapshot, &[pool()], &in_a(), &[("a".into(), plan)].into());
        let verdict = wanted.remove(&NodeName::from("n1"));
        let found = verdict.map(|v| (v.status, v.reason.into_string()));
        assert_eq!(found, expected, "{wait:?}");
    }
}

fn at(millis: u64) -> Moment {
    Moment::after(Duration::from_millis(millis))
}

fn wants(names: &[String], why: CommonReason) -> BTreeMap<NodeName, Verdict> {
    let verdicts = names
        .iter()
        .map(|name| (NodeName::new(name.clone()), Verdict::yes(why, "m")));
    verdicts.collect()
}

#[test]
fn a_thousand_conditions_are_written_in_batches() {
    let mut desk = WriteQueue::default();
    let mut left: Vec<String> = (0..1000).map(|n| format!("n{n:04}")).collect();
    let first = desk.pick(wants(&left, CommonReason::WaveWaiting), at(0));
    assert!(first.is_empty(), "a new condition may change back at once");
    assert_eq!(desk.due(), Some(at(1000)));
    let (mut now, mut passes) = (1000, 0);
    while !left.is_empty() {
        // A pass before the next batch is due writes nothing.
        assert!(
            passes == 0
                || desk
                    .pick(wants(&left, CommonReason::WaveWaiting), at(now - 1))
                    .is_empty()
        );
        let picked = desk.pick(wants(&left, CommonReason::WaveWaiting), at(now));
        assert_eq!(picked.len(), 10);
        left.retain(|name| picked.iter().all(|(picked, _)| picked.as_str() != name));
        (now, passes) = (now + 200, passes + 1);
    }
    assert_eq!(passes, 100);
    assert!(desk.pick(BTreeMap::new(), at(now)).is_empty() && desk.due().is_none());
}

#[test]
fn a_failed_write_delays_no_other_node() {
    let mut desk = WriteQueue::default();
    let names: Vec<String> = (0..15).map(|n| format!("n{n:02}")).collect();
    let [none, first, second] = [0, 1000, 2000].map(|millis| {
        let picked = desk.pick(wants(&names, CommonReason::WaveWaiting), at(millis));
        picked.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    });
    assert!(none.is_empty());
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
    let n = ["n".to_owned()];
    assert!(desk.pick(wants(&n, CommonReason::WaveWaiting), at(0)).is_empty());
    assert!(desk.pick(BTreeMap::new(), at(500)).is_empty());
    assert!(desk.pick(wants(&n, CommonReason::WaveWaiting), at(900)).is_empty());
    assert!(
        desk.pick(wants(&n, CommonReason::WaveSoaking), at(1900)).is_empty(),
        "the reason has changed"
    );
    assert_eq!(desk.pick(wants(&n, CommonReason::WaveSoaking), at(2900)).len(), 1);
}
