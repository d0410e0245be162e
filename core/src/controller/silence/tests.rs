use std::time::Duration;

use berth_api::Written;
use berth_api::insight::MAX_MESSAGE;
use serde_json::{Value, json};

use super::*;
use crate::controller::throttle::{BATCH, BATCH_INTERVAL};

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

/// Returns a BootcNode of pool `workers` and its full status. `desired`: the character that the desired digest repeats.
fn host(desired: char, heartbeat: &str, conditions: &Value) -> (Arc<BootcNodeView>, BootcNodeStatus) {
    let [booted, desired] = ['1', desired].map(|c| format!("sha256:{}", c.to_string().repeat(64)));
    let status = json!({
        "phase": "Draining", "heartbeatTime": heartbeat, "booted": {"digest": booted, "version": "1.0"},
        "drainBlockers": [{"pod": "shop/db-0", "reason": "budget", "since": heartbeat}], "conditions": conditions,
    });
    let image = json!({"ref": "quay.io/os", "digest": desired, "indexDigest": desired});
    let object = json!({
        "metadata": {"name": "n1", "uid": "b1", "generation": 2},
        "spec": {"poolName": "workers", "nodeUID": "u1", "image": image},
        "status": status,
    });
    let view = BootcNodeView::of(serde_json::from_value(object).unwrap());
    (Arc::new(view), serde_json::from_value(status).unwrap())
}

fn told(type_: &str) -> Value {
    json!([{"type": type_, "status": "True", "reason": type_, "message": "words", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}

const BEAT: &str = "2026-03-01T12:00:00Z";

/// Formats an insight as the conditions `Updating`, `Available` and `Degraded`, then estimate and message.
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
            "True/Draining True/AsExpected True/AgentSilent: ? its agent does not report",
        ),
        (
            "Unknown",
            &none,
            "True/Draining False/NotReady True/AgentSilent: ? its agent does not report",
        ),
        (
            "True",
            &told("NodeDegraded"),
            "True/Draining True/AsExpected True/AgentSilent: ? its agent does not report",
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
        // Another leader finds that the insight is up to date.
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
    assert_eq!(left.insight(&status, at(100)), None, "the node belongs to no pool");
}

fn all(names: std::ops::Range<usize>) -> BTreeMap<String, Silent> {
    let (host, node) = (host('2', BEAT, &json!([])).0, node("True"));
    let silent = Silent { node, host };
    names.map(|i| (format!("n{i:04}"), silent.clone())).collect()
}

fn silent(ready: &str, desired: char, conditions: &Value) -> Silent {
    let (host, _) = host(desired, BEAT, conditions);
    Silent {
        node: node(ready),
        host,
    }
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
    let (none, given_up) = (json!([]), told("RebootTimedOut"));
    for (what, silent, done, expected) in [
        ("first", Some(silent("True", '2', &none)), false, 1),
        ("the write failed", Some(silent("True", '2', &none)), true, 1),
        ("an equal view", Some(silent("True", '2', &none)), true, 0),
        (
            "the Node is not Ready, too",
            Some(silent("Unknown", '2', &none)),
            true,
            1,
        ),
        ("another image", Some(silent("Unknown", '3', &none)), true, 1),
        (
            "the node is considered lost",
            Some(silent("Unknown", '3', &given_up)),
            true,
            1,
        ),
        ("the same", Some(silent("Unknown", '3', &given_up)), true, 0),
        ("the agent has reported", None, true, 0),
        ("silent again", Some(silent("Unknown", '3', &given_up)), true, 1),
    ] {
        now = now + BATCH_INTERVAL;
        let silent = silent.into_iter().map(|silent| ("n1".to_owned(), silent)).collect();
        let (picked, _) = deputy.pick(silent, now);
        assert_eq!(picked.len(), expected, "{what}");
        for (name, silent) in picked.into_iter().filter(|_| done) {
            deputy.done(name, silent);
        }
    }
}

#[test]
fn either_half_of_a_node_may_change() {
    let (mut deputy, mut now) = (SilentQueue::default(), Moment::default());
    let first = silent("True", '2', &json!([]));
    let another_node = Silent {
        node: node("Unknown"),
        ..first.clone()
    };
    let another_bootc_node = Silent {
        host: host('3', BEAT, &json!([])).0,
        ..another_node.clone()
    };
    for silent in [first, another_node, another_bootc_node] {
        for expected in [1, 0] {
            now = now + BATCH_INTERVAL;
            let (picked, _) = deputy.pick([("n1".to_owned(), silent.clone())].into(), now);
            deputy.done("n1".to_owned(), silent.clone());
            assert_eq!(picked.len(), expected);
        }
    }
}
