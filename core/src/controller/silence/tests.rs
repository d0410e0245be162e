use berth_api::Written;
use berth_api::insight::MAX_MESSAGE;
use kube::core::DeserializeGuard;
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn node(ready: &str) -> Arc<NodeView> {
    let node = json!({
        "metadata": {"name": "n1", "uid": "u1"},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    });
    Arc::new(NodeView::of(&serde_json::from_value(node).unwrap()))
}

/// A BootcNode of pool `workers` that waits for the digest of this character, and its status.
fn host(desired: char, heartbeat: &str, conditions: &Value) -> (Arc<BootcNodeView>, BootcNodeStatus) {
    let digest = |c: char| format!("sha256:{}", c.to_string().repeat(64));
    let status = json!({
        "phase": "Draining", "heartbeatTime": heartbeat, "booted": {"digest": digest('1'), "version": "1.0"},
        "drainBlockers": [{"pod": "shop/db-0", "reason": "budget", "since": heartbeat}], "conditions": conditions,
    });
    let image = json!({"ref": "quay.io/os", "digest": digest(desired), "indexDigest": digest(desired)});
    let object = json!({
        "metadata": {"name": "n1", "uid": "b1", "generation": 2},
        "spec": {"poolName": "workers", "nodeUID": "u1", "image": image},
        "status": status,
    });
    let view = BootcNodeView::of(DeserializeGuard(Ok(serde_json::from_value(object).unwrap())));
    (Arc::new(view), serde_json::from_value(status).unwrap())
}

fn told(type_: &str) -> Value {
    json!([{"type": type_, "status": "True", "reason": type_, "message": "words", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}

const BEAT: &str = "2026-03-01T12:00:00Z";

/// `Updating Available Degraded: estimate message`.
fn line(insight: &NodeInsight) -> String {
    let conditions = insight.conditions.iter().map(|c| format!("{}/{}", c.status, c.reason));
    let conditions: Vec<_> = conditions.collect();
    let estimate = insight.est_to_complete.as_ref().map_or("?", Written::as_str);
    format!("{}: {estimate} {}", conditions.join(" "), insight.message)
}

#[test]
fn an_insight_reports_the_silence() {
    let none = json!([]);
    for (ready, conditions, expected) in [
        (
            "True",
            &none,
            "True/Draining True/AsExpected True/AgentSilent: ? no word from its agent",
        ),
        (
            "Unknown",
            &none,
            "True/Draining False/NotReady True/AgentSilent: ? no word from its agent",
        ),
        (
            "True",
            &told("NodeDegraded"),
            "True/Draining True/AsExpected True/AgentSilent: ? no word from its agent",
        ),
        (
            "Unknown",
            &told("RebootTimedOut"),
            "True/Draining False/NotReady True/RebootTimedOut: ? words",
        ),
    ] {
        let (host, status) = host('2', BEAT, conditions);
        let silent = Silent {
            node: node(ready),
            host,
        };
        let insight = silent.insight(&status, at(100)).unwrap();
        assert!(line(&insight).starts_with(expected), "{expected:?}: {insight:?}");
        assert!(insight.message.chars().count() <= MAX_MESSAGE && !insight.message.ends_with('…'));
        // Another leader finds the insight up to date.
        let stored = BootcNodeStatus {
            insight: Some(insight.clone()),
            ..status
        };
        assert_eq!(silent.insight(&stored, at(200)), Some(insight));
    }
    let (mut host, status) = host('2', BEAT, &none);
    if let Ok(content) = &mut Arc::make_mut(&mut host).content {
        content.spec.pool_name.clear();
    }
    let left = Silent {
        node: node("True"),
        host,
    };
    assert_eq!(left.insight(&status, at(100)), None, "it belongs to no pool");
}

fn all(names: std::ops::Range<usize>) -> BTreeMap<String, Silent> {
    let (host, node) = (host('2', BEAT, &json!([])).0, node("True"));
    let silent = |i| {
        let (node, host) = (node.clone(), host.clone());
        (format!("n{i:04}"), Silent { node, host })
    };
    names.map(silent).collect()
}

#[test]
fn many_silent_nodes_are_handled_in_batches() {
    let (mut deputy, mut now) = (SilentQueue::default(), Moment::default());
    let mut picked = BTreeMap::<String, u32>::new();
    let mut due = Some(now);
    let mut rounds = 0;
    while let Some(next) = due {
        now = next;
        let (batch, then) = deputy.pick(all(0..1000), now);
        assert!(batch.len() <= BATCH, "{} at once", batch.len());
        for (name, silent) in batch {
            *picked.entry(name.clone()).or_default() += 1;
            deputy.done(name, silent);
        }
        let (too_soon, _) = deputy.pick(all(0..1000), now);
        assert!(too_soon.is_empty(), "twice in one interval: {too_soon:?}");
        (due, rounds) = (then, rounds + 1);
    }
    assert_eq!((picked.len(), rounds), (1000, 100));
    assert!(picked.values().all(|times| *times == 1), "{picked:?}");
    let (later, due) = deputy.pick(all(0..1000), now + Duration::from_secs(3600));
    assert!(later.is_empty() && due.is_none(), "nothing changed: {later:?}");
}

#[test]
fn a_changed_node_is_handled_again() {
    let mut now = Moment::default();
    let mut deputy = SilentQueue::default();
    let mut pick = |silent: Option<Silent>, done: bool| {
        now = now + BATCH_INTERVAL;
        let silent = silent.into_iter().map(|silent| ("n1".to_owned(), silent)).collect();
        let (picked, _) = deputy.pick(silent, now);
        let count = picked.len();
        for (name, silent) in picked.into_iter().filter(|_| done) {
            deputy.done(name, silent);
        }
        count
    };
    let silent = |ready: &str, desired: char, conditions: Value| {
        let (host, _) = host(desired, BEAT, &conditions);
        Some(Silent {
            node: node(ready),
            host,
        })
    };
    let quiet = || silent("True", '2', json!([]));
    assert_eq!(pick(quiet(), false), 1);
    assert_eq!(pick(quiet(), true), 1, "the write failed");
    assert_eq!(pick(quiet(), true), 0, "the same, by another view");
    assert_eq!(
        pick(silent("Unknown", '2', json!([])), true),
        1,
        "its Node is down as well"
    );
    assert_eq!(
        pick(silent("Unknown", '3', json!([])), true),
        1,
        "another image is published"
    );
    assert_eq!(
        pick(silent("Unknown", '3', told("RebootTimedOut")), true),
        1,
        "it is given up"
    );
    assert_eq!(pick(silent("Unknown", '3', told("RebootTimedOut")), true), 0);
    assert_eq!(pick(None, true), 0, "it spoke");
    assert_eq!(pick(silent("Unknown", '3', told("RebootTimedOut")), true), 1);
}

#[test]
fn either_half_of_a_node_may_change() {
    let (mut deputy, mut now) = (SilentQueue::default(), Moment::default());
    let mut pick = |silent: &Silent| {
        now = now + BATCH_INTERVAL;
        let (picked, _) = deputy.pick([("n1".to_owned(), silent.clone())].into(), now);
        deputy.done("n1".to_owned(), silent.clone());
        picked.len()
    };
    let mut silent = Silent {
        node: node("True"),
        host: host('2', BEAT, &json!([])).0,
    };
    assert_eq!([pick(&silent), pick(&silent)], [1, 0]);
    silent.node = node("Unknown");
    assert_eq!([pick(&silent), pick(&silent)], [1, 0], "the Node");
    silent.host = host('3', BEAT, &json!([])).0;
    assert_eq!([pick(&silent), pick(&silent)], [1, 0], "the BootcNode");
}
