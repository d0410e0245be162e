use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

mod api_server;
mod properties;

use super::entry::OVERDUE;
use super::*;

fn pod_with(name: &str, owner: &str, change: Value) -> Pod {
    let owners = json!([{"apiVersion": "apps/v1", "kind": owner, "controller": true}]);
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "d", "uid": name,
            "ownerReferences": if owner.is_empty() { json!(null) } else { owners },
        },
        "status": {"phase": "Running"},
    });
    for (part, values) in change.as_object().unwrap() {
        for (key, value) in values.as_object().unwrap() {
            pod[part][key] = value.clone();
        }
    }
    serde_json::from_value(pod).unwrap()
}

fn pod(name: &str, terminating: bool, owner: &str) -> Pod {
    let change = if terminating {
        json!({"metadata": {"deletionTimestamp": "2026-11-01T00:00:00Z", "deletionGracePeriodSeconds": 30}})
    } else {
        json!({})
    };
    pod_with(name, owner, change)
}

fn finished(name: &str) -> Pod {
    pod_with(name, "", json!({"status": {"phase": "Failed"}}))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

const fn settings(despite_obstacles: bool, forced: bool) -> Settings {
    Settings {
        grace_period: None,
        delete_empty_dir_data: false,
        force: false,
        pod_selector: None,
        disable_eviction: false,
        despite_obstacles,
        forced,
    }
}

static PLAIN: Settings = settings(false, false);
static FORCED: Settings = settings(true, true);
/// Settings of a pool with `onTimeout: Force`, before the timeout.
static FORCING: Settings = settings(true, false);

fn given(now: Timestamp) -> Given<'static> {
    Given {
        node: "n",
        settings: &PLAIN,
        node_ready: true,
        left: Duration::from_secs(900),
        now,
        clock: Moment::after(Duration::try_from(now.duration_since(Timestamp::UNIX_EPOCH)).unwrap()),
    }
}

fn waiting(progress: DrainProgress) -> (Vec<DrainBlocker>, Duration) {
    match progress {
        DrainProgress::Waiting { blockers, next } => (blockers, next),
        DrainProgress::Done { .. } => panic!("done"),
    }
}

fn done(progress: DrainProgress) -> Vec<String> {
    match progress {
        DrainProgress::Done { left_behind } => left_behind.into_iter().map(|b| b.pod).collect(),
        DrainProgress::Waiting { blockers, .. } => panic!("waits for {blockers:?}"),
    }
}

fn names(pods: &[&Pod]) -> Vec<String> {
    pods.iter().map(|pod| pod.metadata.name.clone()).collect()
}

#[test]
fn nothing_to_move_is_done_at_once() {
    let pods = [pod("a", false, "DaemonSet"), pod("b", true, "DaemonSet")];
    let mut drain = Drain::default();
    assert!(drain.sort(&pods, &given(at(0))).is_empty());
    assert!(done(drain.progress(&pods, &given(at(0)))).is_empty());
    assert!(done(drain.progress(&[], &given(at(0)))).is_empty());
}

#[test]
fn an_evicted_pod_is_waited_for_and_not_evicted_again() {
    let running = [pod("a", false, "ReplicaSet")];
    let mut drain = Drain::default();
    assert_eq!(names(&drain.sort(&running, &given(at(0)))), ["a"]);
    drain.note(&running[0], Answer::Accepted, &given(at(0)));
    let (blockers, next) = waiting(drain.progress(&running, &given(at(0))));
    assert_eq!((blockers[0].reason.as_str(), next), ("Terminating", LOOK.0));
    assert!(drain.sort(&[pod("a", true, "ReplicaSet")], &given(at(1))).is_empty());
    assert!(
        drain.sort(&running, &given(at(1))).is_empty(),
        "a stale list does not evict twice"
    );
    assert!(drain.sort(&[], &given(at(2))).is_empty());
    assert!(done(drain.progress(&[], &given(at(2)))).is_empty());
}

#[test]
fn a_budget_is_named_with_its_own_words_and_tried_again_less_and_less_often() {
    let pods = [pod("a", false, "ReplicaSet")];
    let words = "The disruption budget web needs 2 healthy pods and has 2 currently";
    let mut drain = Drain::default();
    let mut now = at(0);
    let mut pauses = vec![];
    for _ in 0..6 {
        assert_eq!(drain.sort(&pods, &given(now)).len(), 1);
        drain.note(&pods[0], Answer::Budget(words.to_owned()), &given(now));
        let (blockers, next) = waiting(drain.progress(&pods, &given(now)));
        assert_eq!((blockers[0].pod.as_str(), blockers[0].reason.as_str()), ("d/a", words));
        assert_eq!(blockers[0].since.0, at(0), "since the first time");
        assert!(drain.sort(&pods, &given(now)).is_empty(), "not before it is due");
        pauses.push(next);
        now += next;
    }
    assert!(pauses[0] <= Duration::from_millis(1200), "{pauses:?}");
    assert!(pauses[5] <= RETRY_WITHIN && pauses[5] >= RETRY_WITHIN / 2, "{pauses:?}");
    let set_back = Given {
        now: at(-3600),
        ..given(now)
    };
    assert_eq!(
        drain.sort(&pods, &set_back).len(),
        1,
        "a clock that was set back holds up nothing"
    );
}

#[test]
fn an_unmanaged_pod_stops_everything_and_is_told_first() {
    let pods = [pod("a", false, "ReplicaSet"), finished("f"), pod("z", false, "")];
    let mut drain = Drain::default();
    assert!(drain.sort(&pods, &given(at(0))).is_empty());
    let (blockers, next) = waiting(drain.progress(&pods, &given(at(0))));
    assert_eq!((blockers[0].pod.as_str(), next), ("d/z", LOOK_BLOCKED));
    assert!(blockers[0].reason.starts_with("Unmanaged"));
    let mended = [pod("a", false, "ReplicaSet")];
    assert_eq!(names(&drain.sort(&mended, &given(at(10)))), ["a"]);
}

#[test]
fn overload_holds_everything_back() {
    let pods = [pod("a", false, "ReplicaSet"), pod("b", false, "ReplicaSet")];
    let mut drain = Drain::default();
    drain.sort(&pods, &given(at(0)));
    drain.note(&pods[0], Answer::Overloaded(Duration::from_secs(3)), &given(at(0)));
    assert_eq!(waiting(drain.progress(&pods, &given(at(0)))).1, Duration::from_secs(3));
    assert!(drain.sort(&pods, &given(at(2))).is_empty());
    assert_eq!(drain.sort(&pods, &given(at(3))).len(), 2);
}

#[test]
fn a_pod_that_comes_again_is_another_one_and_the_list_is_bounded() {
    let mut drain = Drain::default();
    drain.sort(&[pod("a", false, "ReplicaSet")], &given(at(0)));
    let many: Vec<Pod> = (0..20).map(|n| pod(&format!("p{n}"), true, "ReplicaSet")).collect();
    drain.sort(&many, &given(at(5)));
    let (blockers, _) = waiting(drain.progress(&many, &given(at(5))));
    assert_eq!(blockers.len(), MAX_BLOCKERS);
    assert!(blockers.iter().all(|b| b.since.0 == at(5)));
    assert_eq!(drain.known.len(), 20, "a pod that is gone is forgotten");
}

#[test]
fn looks_less_often_while_nothing_changes() {
    let pods = [pod("a", true, "ReplicaSet")];
    let mut drain = Drain::default();
    let mut last = Duration::ZERO;
    for second in 0..10 {
        drain.sort(&pods, &given(at(second)));
        let (_, next) = waiting(drain.progress(&pods, &given(at(second))));
        assert!(next >= last);
        last = next;
    }
    assert_eq!(last, LOOK.1);
}

#[test]
fn a_finished_pod_is_moved_but_holds_nothing_up() {
    let pods = [finished("f")];
    let mut drain = Drain::default();
    assert_eq!(names(&drain.sort(&pods, &given(at(0)))), ["f"]);
    drain.note(&pods[0], Answer::Accepted, &given(at(0)));
    waiting(drain.progress(&pods, &given(at(0))));
    let mut drain = Drain::default();
    drain.sort(&pods, &given(at(0)));
    drain.note(&pods[0], Answer::Failed("a webhook is away".to_owned()), &given(at(0)));
    assert_eq!(done(drain.progress(&pods, &given(at(0)))), ["d/f"]);
    assert!(drain.sort(&pods, &given(at(60))).is_empty(), "it is not asked again");
}

/// A terminating pod blocks the drain of a broken node for a limited time. The time depends on the Node's readiness,
/// and on whether the drain is forced.
#[test]
fn a_pod_that_cannot_end_is_left_behind_on_a_broken_node() {
    // The deletion time is far in the past or the future, as with a wrong clock.
    fn deleted(time: &str) -> [Pod; 1] {
        [pod_with(
            "a",
            "ReplicaSet",
            json!({"metadata": {"deletionTimestamp": time, "deletionGracePeriodSeconds": 60}}),
        )]
    }
    fn after(pods: &[Pod], ready: bool, settings: &'static Settings, seconds: i64) -> DrainProgress {
        let mut drain = Drain::default();
        let mut progress = None;
        for second in (0..seconds).step_by(10).chain([seconds]) {
            let given = Given {
                node_ready: ready,
                settings,
                ..given(at(second))
            };
            assert!(drain.sort(pods, &given).is_empty(), "what terminates is not asked");
            progress = Some(drain.progress(pods, &given));
        }
        progress.unwrap()
    }
    let watched = i64::try_from(OVERDUE.as_secs()).unwrap();
    let away = i64::try_from(KUBELET_AWAY.as_secs()).unwrap();
    for (pods, ready, settings, seconds, gone_on) in [
        (&deleted("2023-01-01T00:00:00Z"), true, &PLAIN, 10_000, false),
        // A fast clock does not shorten the grace period.
        (&deleted("2023-01-01T00:00:00Z"), false, &PLAIN, away - 1, false),
        (&deleted("2023-01-01T00:00:00Z"), false, &PLAIN, away, true),
        (&deleted("2026-11-01T00:00:00Z"), false, &PLAIN, away, true),
        (&deleted("2026-11-01T00:00:00Z"), true, &PLAIN, away, false),
        (&deleted("2023-01-01T00:00:00Z"), true, &FORCED, watched + 59, false),
        (&deleted("2026-11-01T00:00:00Z"), true, &FORCED, watched + 60, true),
    ] {
        let progress = after(pods, ready, settings, seconds);
        let says = format!("ready {ready}, forced {}, {seconds} s: {progress:?}", settings.forced);
        if gone_on {
            assert_eq!(done(progress), ["d/a"], "{says}");
        } else {
            assert_eq!(waiting(progress).0[0].reason, "Terminating", "{says}");
        }
    }
    // The pod has no running container, so a ready node does not wait for the pod either.
    let change = json!({"metadata": {"deletionTimestamp": "2023-01-01T00:00:00Z"}, "status": {"phase": "Succeeded"}});
    let ended = [pod_with("a", "Job", change)];
    waiting(after(&ended, true, &PLAIN, watched + 29));
    assert_eq!(done(after(&ended, true, &PLAIN, watched + 30)), ["d/a"]);
}

/// A drain of one pod that never terminates.
struct Passes {
    drain: Drain,
    pods: [Pod; 1],
}

impl Passes {
    /// Makes a pass every five seconds. True if the drain ends.
    fn run(&mut self, seconds: std::ops::Range<i64>, ready: bool) -> bool {
        seconds.step_by(5).any(|second| {
            let given = Given {
                node_ready: ready,
                ..given(at(second))
            };
            self.drain.sort(&self.pods, &given);
            matches!(self.drain.progress(&self.pods, &given), DrainProgress::Done { .. })
        })
    }
}

/// After an outage of the API server, a running kubelet is marked not Ready and needs up to 50 s to watch its pods
/// again.
#[test]
fn a_kubelet_that_lost_the_api_server_for_a_moment_ends_its_pods_itself() {
    let mut passes = Passes {
        drain: Drain::default(),
        pods: [pod("a", true, "ReplicaSet")],
    };
    assert!(!passes.run(0..100, true));
    assert!(!passes.run(100..185, false), "not Ready for less than 90 s");
    assert!(!passes.run(185..190, true));
    assert!(!passes.run(190..250, false), "it begins again");
    // The API server is away from 250 to 300 s, so the kubelet's state in that time is unknown.
    assert!(!passes.run(300..385, false));
    assert!(passes.run(385..400, false), "its kubelet is away");
}

/// A controller replaces each moved pod by a new one that tolerates the cordon.
#[test]
fn a_drain_ends_although_pods_that_tolerate_the_cordon_come_again() {
    fn tolerant(name: &str, owner: &str, phase: &str) -> Pod {
        let change = json!({"spec": {"tolerations": [{"operator": "Exists"}]}, "status": {"phase": phase}});
        pod_with(name, owner, change)
    }
    let mut drain = Drain::default();
    let first = [
        tolerant("a1", "ReplicaSet", "Running"),
        tolerant("d1", "DaemonSet", "Failed"),
    ];
    assert_eq!(
        names(&drain.sort(&first, &given(at(0)))),
        ["a1", "d1"],
        "those that were there are moved"
    );
    waiting(drain.progress(&first, &given(at(0))));
    let later = [
        tolerant("a2", "ReplicaSet", "Pending"),
        tolerant("d2", "DaemonSet", "Failed"),
        tolerant("o", "", "Running"),
    ];
    let plain = [pod("p", false, "ReplicaSet")];
    let both: Vec<Pod> = later.iter().chain(&plain).cloned().collect();
    assert_eq!(
        names(&drain.sort(&both, &given(at(1)))),
        ["p"],
        "the scheduler was late, and the next one will not come"
    );
    assert_eq!(waiting(drain.progress(&both, &given(at(1)))).0.len(), 1);
    assert!(drain.sort(&later, &given(at(2))).is_empty());
    assert_eq!(done(drain.progress(&later, &given(at(2)))), ["d/a2", "d/d2", "d/o"]);
}

#[test]
fn force_asks_at_once_overrules_budgets_alone_and_says_so() {
    let pods = [pod("a", false, "ReplicaSet"), pod("z", false, "")];
    assert!(
        Drain::default().sort(&pods, &given(at(0))).is_empty(),
        "a drain that cannot end disturbs no pod"
    );
    let mut drain = Drain::default();
    let forcing = Given {
        settings: &FORCING,
        ..given(at(0))
    };
    assert_eq!(
        names(&drain.sort(&pods, &forcing)),
        ["a"],
        "from the first second, beside an obstacle"
    );
    drain.note(&pods[0], Answer::Budget("a budget".to_owned()), &forcing);
    assert!(waiting(drain.progress(&pods, &forcing)).1 < LOOK_BLOCKED);
    fn forced(second: i64) -> Given<'static> {
        Given {
            settings: &FORCED,
            ..given(at(second))
        }
    }
    assert_eq!(
        names(&drain.sort(&pods, &forced(0))),
        ["a"],
        "the budget's pause does not count, the obstacle does"
    );
    drain.note(&pods[0], Answer::Accepted, &forced(0));
    waiting(drain.progress(&pods, &forced(0)));
    let ending = [pod("a", true, "ReplicaSet"), pod("z", false, "")];
    assert!(drain.sort(&ending, &forced(1)).is_empty());
    let (blockers, _) = waiting(drain.progress(&ending, &forced(1)));
    fn says(blockers: &[DrainBlocker], name: &str, words: &str) -> bool {
        blockers.iter().any(|b| b.pod == name && b.reason.contains(words))
    }
    assert!(
        blockers.len() == 2 && says(&blockers, "d/a", "by force") && says(&blockers, "d/z", "drain.force"),
        "{blockers:?}"
    );
}

fn given_left(left: u64, second: i64) -> Given<'static> {
    Given {
        left: Duration::from_secs(left),
        ..given(at(second))
    }
}

#[test]
fn volumes_are_waited_for_and_not_for_ever() {
    fn nothing() -> DrainProgress {
        DrainProgress::Done { left_behind: vec![] }
    }
    let volumes = ["kubernetes.io/csi/x^1".to_owned()];
    for (left, most) in [(0, 120), (900, 120), (60, 30)] {
        let mut drain = Drain::default();
        let (blockers, next) = waiting(drain.wait_for_volumes(nothing(), &volumes, &given_left(left, 0)));
        assert_eq!(
            (blockers[0].pod.as_str(), next),
            ("volume kubernetes.io/csi/x^1", LOOK.1)
        );
        let (blockers, next) = waiting(drain.wait_for_volumes(nothing(), &volumes, &given_left(left, most - 1)));
        assert_eq!((blockers[0].since.0, next), (at(0), Duration::from_secs(1)));
        let left_behind = done(drain.wait_for_volumes(nothing(), &volumes, &given_left(left, most)));
        assert_eq!(left_behind, ["volume kubernetes.io/csi/x^1"], "{left} s left");
        assert!(done(drain.wait_for_volumes(nothing(), &[], &given_left(left, 1))).is_empty());
    }
}
