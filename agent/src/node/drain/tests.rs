use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::entry::OVERDUE;
use super::*;
use crate::fake_api_server;
use kube::core::Selector;

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

/// A [`Mover`] that returns these answers in order, and records the pods that were asked.
struct Told {
    answers: Vec<Answer>,
    asked: Mutex<Vec<(String, Answer)>>,
}

impl Mover for Told {
    async fn ask(&self, pod: &Pod) -> Answer {
        let mut asked = self.asked.lock().unwrap();
        let answer = self.answers[asked.len() % self.answers.len()].clone();
        asked.push((pod.metadata.uid.clone(), answer.clone()));
        answer
    }
}

fn any_answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Accepted),
        Just(Answer::Gone),
        ".{0,700}".prop_map(Answer::Budget),
        ".{0,20}".prop_map(Answer::Misconfigured),
        ".{0,20}".prop_map(Answer::Ending),
        ".{0,20}".prop_map(Answer::Refused),
        ".{0,20}".prop_map(Answer::Failed),
        (0u64..100_000).prop_map(|s| Answer::Overloaded(Duration::from_secs(s))),
    ]
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let selector = proptest::option::of(Just(Selector::from_iter([("tier", "web")])));
    (any::<[bool; 5]>(), any::<Option<u32>>(), selector).prop_map(|(flags, grace_period, pod_selector)| {
        let [
            delete_empty_dir_data,
            force,
            disable_eviction,
            despite_obstacles,
            forced,
        ] = flags;
        Settings {
            grace_period,
            delete_empty_dir_data,
            force,
            pod_selector,
            disable_eviction,
            despite_obstacles,
            forced,
        }
    })
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let owner = prop_oneof![Just(""), Just("ReplicaSet"), Just("ReplicaSet"), Just("DaemonSet")];
    let phase = prop_oneof![
        Just("Running"),
        Just("Running"),
        Just("Pending"),
        Just("Succeeded"),
        Just("Failed")
    ];
    let deletion = proptest::option::of(prop_oneof![
        Just("2020-01-01T00:00:00Z"),
        Just("2030-01-01T00:00:00Z"),
        Just("?")
    ]);
    (0..12u8, owner, phase, deletion, any::<i64>(), any::<[bool; 3]>()).prop_map(
        |(name, owner, phase, deletion, grace, [mirror, web, data])| {
            let metadata = json!({
                "deletionTimestamp": deletion, "deletionGracePeriodSeconds": grace,
                "labels": web.then(|| json!({"tier": "web"})),
                "annotations": (mirror && grace % 4 == 0).then(|| json!({"kubernetes.io/config.mirror": "h"})),
            });
            let volumes = json!(data.then(|| json!([{"name": "t", "emptyDir": {}}])));
            let change = json!({"metadata": metadata, "status": {"phase": phase}, "spec": {"volumes": volumes}});
            pod_with(&format!("p{name}"), owner, change)
        },
    )
}

/// Any JSON, preferably with field names of a pod.
fn any_json() -> impl Strategy<Value = Value> {
    let words = [
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "uid",
        "labels",
        "annotations",
        "ownerReferences",
        "volumes",
        "phase",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "emptyDir",
        "persistentVolumeClaim",
        "ephemeral",
        "tolerations",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!({"name": "p"})),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        let word = proptest::sample::select(words.to_vec());
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((word, inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

proptest! {
    /// Any JSON from the API server parses as a pod or returns an error.
    #[test]
    fn any_json_is_a_pod_or_an_error(metadata in any_json(), spec in any_json(), status in any_json(), settings in any_settings()) {
        let mut pod = json!({"metadata": metadata, "spec": spec, "status": status});
        if let Some(metadata) = pod["metadata"].as_object_mut() {
            metadata.insert("name".to_owned(), json!("p"));
        }
        for part in ["spec", "status"] {
            if pod[part].as_object().is_none_or(|part| part.is_empty()) {
                pod.as_object_mut().unwrap().remove(part);
            }
        }
        if let Ok(pod) = serde_json::from_value::<Pod>(pod) {
            pod.class(&settings);
            pod.claims();
            let given = Given { settings: &settings, ..given(at(0)) };
            let mut drain = Drain::default();
            drain.sort(std::slice::from_ref(&pod), &given);
            drain.progress(std::slice::from_ref(&pod), &given);
        }
    }

    /// With any pods and any answers, a pass asks only pods that may be moved. The pass that ends the drain moves no
    /// pod.
    #[test]
    fn a_pass_never_both_moves_something_and_is_done(
        lists in proptest::collection::vec(proptest::collection::vec(any_pod(), 0..8), 1..6),
        answers in proptest::collection::vec(any_answer(), 1..8),
        settings in any_settings(),
        node_ready: bool,
        pause in 0i64..100,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut drain = Drain::default();
        for (i, mut pods) in (0i64..).zip(lists) {
            pods.sort_by(|a, b| a.metadata.uid.cmp(&b.metadata.uid));
            pods.dedup_by(|a, b| a.metadata.uid == b.metadata.uid);
            let given = Given { settings: &settings, node_ready, ..given(at(i * pause)) };
            let mover = Told { answers: answers.clone(), asked: Mutex::default() };
            let progress = runtime.block_on(drain.move_pods(&mover, &pods, &given));
            let asked = mover.asked.into_inner().unwrap();
            for pod in pods.iter().filter(|pod| asked.iter().any(|(uid, _)| *uid == pod.metadata.uid)) {
                prop_assert!(matches!(pod.class(&settings), Class::Moves | Class::Finished), "asked {pod:?}");
            }
            let blocked = pods.iter().any(|pod| matches!(pod.class(&settings), Class::Blocked(_)));
            let goes_on = settings.despite_obstacles;
            prop_assert!(!blocked || goes_on || asked.is_empty(), "pods were disturbed for nothing: {asked:?}");
            match progress {
                DrainProgress::Done { left_behind } => {
                    let moved = asked.iter().any(|(_, answer)| matches!(answer, Answer::Accepted | Answer::Gone));
                    prop_assert!(!moved, "done in the pass that moved something: {asked:?}");
                    for pod in &pods {
                        let named = left_behind.iter().any(|b| b.pod == pod.full_name());
                        match pod.class(&settings) {
                            Class::Stays => prop_assert!(!named),
                            Class::Terminating | Class::Finished => prop_assert!(named, "{pod:?} is not named"),
                            Class::Moves | Class::Blocked(_) => prop_assert!(false, "done with {pod:?}"),
                        }
                    }
                }
                DrainProgress::Waiting { blockers, next } => {
                    prop_assert!(!blockers.is_empty() && blockers.len() <= MAX_BLOCKERS);
                    prop_assert!(blockers.iter().all(|b| b.reason.chars().count() <= 512));
                    prop_assert!(next >= LOOK.0 && next <= HOLD_BACK);
                }
            }
        }
    }
}

/// Starts a fake API server with these pages of pods, and a Node that has one attached volume. Returns the server's
/// client and the list of requests that the server receives.
fn api_server(pages: Vec<Value>) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(vec![]));
    let seen = calls.clone();
    let client = fake_api_server::client(move |call| {
        seen.lock().unwrap().push(format!("{} {}", call.method, call.path));
        let page = match call.path.split_once("&continue=page%3D") {
            Some((_, number)) => number.parse().unwrap(),
            None => 0,
        };
        if call.path.starts_with("/api/v1/pods?") {
            (200, pages[page].clone())
        } else if call.path.starts_with("/api/v1/nodes/") {
            (
                200,
                json!({"status": {"volumesAttached": [{"name": "kubernetes.io/csi/d^v"}]}}),
            )
        } else if call.path.contains("/persistentvolumeclaims/") {
            (200, json!({"spec": {"volumeName": "pv"}}))
        } else if call.path.contains("/persistentvolumes/") {
            (200, json!({"spec": {"csi": {"driver": "d", "volumeHandle": "v"}}}))
        } else {
            (200, json!({"kind": "Status"}))
        }
    });
    (client, calls)
}

fn raw_pod(name: &str, owner: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "d", "uid": name,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "controller": true}],
        },
        "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": "Running"},
    })
}

#[tokio::test]
async fn all_pages_of_the_pods_are_read() {
    let (client, calls) = api_server(vec![
        json!({"metadata": {"continue": "page=1"}, "items": [raw_pod("a", "ReplicaSet")]}),
        json!({"metadata": {"continue": "page=2"}, "items": null}),
        json!({"metadata": {"continue": ""}, "items": [raw_pod("b", "ReplicaSet")]}),
    ]);
    let pods = list(&client, "n").await.unwrap();
    assert_eq!(names(&pods.iter().collect::<Vec<_>>()), ["a", "b"]);
    let calls = calls.lock().unwrap();
    assert!(
        calls
            .iter()
            .all(|call| call.contains("fieldSelector=spec.nodeName%3Dn&")),
        "{calls:?}"
    );
}

#[tokio::test]
async fn pods_are_evicted_or_deleted_as_the_pool_says() {
    for (disable_eviction, forced, expected) in [
        (false, false, "POST /api/v1/namespaces/d/pods/a/eviction"),
        (true, false, "DELETE /api/v1/namespaces/d/pods/a"),
        (false, true, "DELETE /api/v1/namespaces/d/pods/a"),
    ] {
        let (client, calls) = api_server(vec![json!({"items": [raw_pod("a", "ReplicaSet")]})]);
        let settings = Settings {
            disable_eviction,
            ..settings(forced, forced)
        };
        let given = Given {
            settings: &settings,
            ..given(at(0))
        };
        waiting(Drain::default().pass(&client, &given).await.unwrap());
        assert_eq!(calls.lock().unwrap().last().map(String::as_str), Some(expected));
    }
}

#[tokio::test]
async fn volumes_count_when_the_pods_are_gone() {
    let attached = ["volume kubernetes.io/csi/d^v".to_owned()];
    for (owner, node_ready, expected) in [
        // A staying pod uses the volume.
        (Some("DaemonSet"), true, &[][..]),
        (None, true, &attached[..]),
        // A kubelet that is not ready unmounts no volumes.
        (None, false, &[][..]),
    ] {
        let pods: Vec<Value> = owner.into_iter().map(|owner| raw_pod("a", owner)).collect();
        let (client, calls) = api_server(vec![json!({ "items": pods })]);
        let given = Given {
            node_ready,
            ..given(at(0))
        };
        let found = match Drain::default().pass(&client, &given).await.unwrap() {
            DrainProgress::Done { .. } => vec![],
            DrainProgress::Waiting { blockers, .. } => blockers.into_iter().map(|blocker| blocker.pod).collect(),
        };
        assert_eq!(found, expected, "{owner:?} {node_ready}");
        let looked = calls.lock().unwrap().iter().any(|call| call.ends_with("/nodes/n"));
        assert_eq!(looked, node_ready);
    }
    let (client, calls) = api_server(vec![json!({"items": [raw_pod("a", "ReplicaSet")]})]);
    waiting(Drain::default().pass(&client, &given(at(0))).await.unwrap());
    let looked = calls.lock().unwrap().iter().any(|call| call.ends_with("/nodes/n"));
    assert!(!looked, "not while a pod is left");
}
