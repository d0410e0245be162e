//! Difference between two states of the page. Does no I/O.

use std::cmp::Ordering;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::frame::{Frame, NodeState};
use crate::status::FleetView;
use crate::watch::Stale;

/// Changes since another state. Parts without a change are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change<'a> {
    now: Timestamp,
    stale: Option<&'a Stale>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<&'a FleetView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<&'a [String]>,
    /// All pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pools: Option<&'a [Value]>,
    /// All findings.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<&'a [Value]>,
    /// Nodes that are new or have changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<&'a NodeState>,
    /// Names of nodes that are no longer shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<&'a str>,
    /// Pools whose timeline has changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timeline: Vec<String>,
}

/// Returns the change from `before` to `after`; `None` if nothing but the time has changed.
pub(super) fn change<'a>(before: &'a Frame, after: &'a Frame, timeline: Vec<String>) -> Option<Change<'a>> {
    let same = Change {
        now: after.now,
        stale: after.stale.as_ref(),
        ..Change::default()
    };
    let mut change = Change {
        fleet: (before.fleet != after.fleet).then_some(&after.fleet),
        notes: (before.notes != after.notes).then_some(&*after.notes),
        pools: (before.pools != after.pools).then_some(&*after.pools),
        health: (before.health != after.health).then_some(&*after.health),
        timeline,
        ..same.clone()
    };
    compare(before, after, &mut change);
    (change != same || before.stale != after.stale).then_some(change)
}

/// Adds the nodes that differ. Both states have their nodes sorted by name.
fn compare<'a>(before: &'a Frame, after: &'a Frame, change: &mut Change<'a>) {
    let mut old = before.nodes.iter().peekable();
    let mut new = after.nodes.iter().peekable();
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some(old), Some(new)) => old.name.cmp(&new.name),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        match order {
            Ordering::Less => change.gone.extend(old.next().map(|node| node.name.as_str())),
            Ordering::Greater => change.nodes.extend(new.next()),
            Ordering::Equal => {
                let same = old.next() == new.peek().copied();
                change.nodes.extend(new.next().filter(|_| !same));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, berth: &'static str) -> NodeState {
        let mut node = NodeState::default();
        name.clone_into(&mut node.name);
        node.berth = berth;
        node
    }

    fn frame(nodes: Vec<NodeState>) -> Frame {
        Frame {
            now: Timestamp::from_second(1).unwrap(),
            nodes,
            ..Frame::default()
        }
    }

    fn shown(before: &Frame, after: &Frame) -> Value {
        let change = change(before, after, vec![]);
        change.map_or(Value::Null, |change| serde_json::to_value(change).unwrap())
    }

    #[test]
    fn only_what_changed_is_sent() {
        let before = frame(vec![node("a", ""), node("b", ""), node("d", "")]);
        let mut after = before.clone();
        after.now = Timestamp::from_second(2).unwrap();
        assert_eq!(shown(&before, &after), Value::Null, "only the time has changed");
        after.nodes = vec![node("a", ""), node("b", "held"), node("c", "")];
        let found = shown(&before, &after);
        assert_eq!(found["now"], "1970-01-01T00:00:02Z");
        assert_eq!(found["gone"], json!(["d"]));
        let nodes = found["nodes"].as_array().unwrap();
        let nodes: Vec<_> = nodes.iter().map(|node| (&node["name"], &node["berth"])).collect();
        assert_eq!(nodes, [(&json!("b"), &json!("held")), (&json!("c"), &json!(""))]);
        for part in ["fleet", "notes", "pools", "health", "timeline"] {
            assert!(found.get(part).is_none(), "{part}: {found}");
        }
        assert!(shown(&before, &frame(vec![]))["gone"].as_array().unwrap().len() == 3);
    }

    #[test]
    fn each_other_part_is_sent_whole() {
        let before = Frame {
            pools: vec![json!({ "name": "a" }), json!({ "name": "b" })],
            ..frame(vec![node("a", "")])
        };
        let after = Frame {
            pools: vec![json!({ "name": "a" }), json!({ "name": "b", "percent": 1 })],
            health: vec![json!({ "message": "m" })],
            notes: vec!["n".to_owned()],
            ..before.clone()
        };
        let found = shown(&before, &after);
        assert_eq!(found["pools"], json!([{ "name": "a" }, { "name": "b", "percent": 1 }]));
        assert_eq!(
            (&found["health"], &found["notes"]),
            (&json!([{ "message": "m" }]), &json!(["n"]))
        );
        assert!(found.get("nodes").is_none());
        let timeline = change(&before, &before, vec!["a".to_owned()]).unwrap();
        assert_eq!(timeline.timeline, ["a"]);
    }

    #[test]
    fn stale_data_is_a_change_and_stays_in_each_event() {
        let before = frame(vec![]);
        let stale = Stale {
            kinds: "Nodes".to_owned(),
            since: before.now,
            why: "connection refused".to_owned(),
        };
        let after = Frame {
            stale: Some(stale),
            ..before.clone()
        };
        let found = shown(&before, &after);
        assert_eq!(found["stale"]["kinds"], "Nodes");
        assert_eq!(shown(&after, &after), Value::Null);
        assert_eq!(
            shown(&after, &before)["stale"],
            Value::Null,
            "the data is current again"
        );
        let later = Frame {
            notes: vec!["n".to_owned()],
            ..after.clone()
        };
        assert_eq!(shown(&after, &later)["stale"]["why"], "connection refused");
    }
}
