//! Any pods, any answers and any JSON.

use kube::core::Selector;
use proptest::prelude::*;

use super::*;

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
