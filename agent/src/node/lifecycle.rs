//! Writing the lifecycle conditions of the own Node's status.
//!
//! The write carries the Node's UID and resourceVersion, as a cordon does: one that is late loses.

use berth_api::condition::lifecycle::REASON;
use berth_core::agent::lifecycle::{Change, NOTHING};
use berth_core::agent::node::NodeFacts;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::cordon::{NodeError, RawNode, judge, path, read};
use super::{request, send};

/// Makes these changes to the Node as it was read. `message` goes with what is set. Returns the Node after it.
///
/// # Errors
/// [`NodeError::Conflict`] when the Node has changed since; any other when it could not be written.
pub async fn write(
    client: &Client,
    name: &str,
    seen: &NodeFacts,
    changes: &[Change],
    message: &str,
) -> Result<NodeFacts, NodeError> {
    let body = patch(seen, changes, message, Timestamp::now()).to_string().into_bytes();
    let path = format!("{}/status?fieldManager=berth-agent", path(name));
    // Conditions are merged by their type: those of the kubelet and of others stay as they are.
    let request = request("PATCH", &path, body, "application/strategic-merge-patch+json")?;
    let node: RawNode = send(client, request).await.map_err(judge)?;
    Ok(node.into())
}

/// Takes our conditions off a Node that no cordon of ours keeps any more. Other programs write such a Node at the same moment,
/// the one that takes its taints off for instance: when it has changed since, it is read again, and the write tried once more.
///
/// # Errors
/// [`NodeError::Conflict`] when it changed once more meanwhile; any other when it could not be read or written.
pub async fn take_off(client: &Client, name: &str, seen: &NodeFacts) -> Result<(), NodeError> {
    match take_off_once(client, name, seen).await {
        Err(NodeError::Conflict) => {}
        done => return done,
    }
    match read(client, name).await? {
        // Another Node of that name has none of ours.
        Some(again) if again.uid == seen.uid => take_off_once(client, name, &again).await,
        _ => Ok(()),
    }
}

async fn take_off_once(client: &Client, name: &str, seen: &NodeFacts) -> Result<(), NodeError> {
    let changes = seen.signs.lifecycle.changes(NOTHING);
    // Under a cordon they are right.
    if seen.cordon.is_some() || changes.is_empty() {
        return Ok(());
    }
    write(client, name, seen, &changes, "").await.map(drop)
}

fn patch(seen: &NodeFacts, changes: &[Change], message: &str, now: Timestamp) -> Value {
    // The API keeps whole seconds.
    let now = format!("{now:.0}");
    let condition = |change: &Change| match change.set {
        true => json!({
            "type": change.type_,
            "status": "True",
            "reason": REASON,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }),
        false => json!({"type": change.type_, "$patch": "delete"}),
    };
    json!({
        "metadata": {"uid": seen.uid.as_str(), "resourceVersion": seen.resource_version},
        "status": {"conditions": changes.iter().map(condition).collect::<Vec<_>>()},
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use berth_core::agent::node::Signs;
    use http::Method;

    use super::*;
    use crate::fake_api_server;

    /// A Node in its API server, and the writes that came through. Before the first `foreign` requests with a body, somebody
    /// else writes it as well. It is not merged: a write that comes through leaves no conditions of ours.
    #[derive(Default)]
    struct Server {
        version: u32,
        foreign: u32,
        cordoned: bool,
        uid: &'static str,
        clean: bool,
        writes: u32,
    }

    impl Server {
        fn node(&self) -> Value {
            let ours = json!([{"type": "MaintenanceInProgress", "status": "True", "reason": REASON}]);
            let annotations = self.cordoned.then(|| json!({"berth.dev/cordon": "{}"}));
            json!({
                "metadata": {"uid": self.uid, "resourceVersion": self.version.to_string(), "annotations": annotations},
                "status": {"conditions": if self.clean { json!([]) } else { ours }},
            })
        }

        fn answer(&mut self, method: &Method, body: &Value) -> (u16, Value) {
            if *method == Method::GET {
                return (200, self.node());
            }
            self.writes += 1;
            if self.foreign > 0 {
                self.foreign -= 1;
                self.version += 1;
            }
            if body["metadata"]["resourceVersion"] != json!(self.version.to_string()) {
                return (409, json!({"kind": "Status", "status": "Failure", "code": 409}));
            }
            self.version += 1;
            self.clean = true;
            (200, self.node())
        }
    }

    fn client(server: Arc<Mutex<Server>>) -> Client {
        fake_api_server::client(move |call| server.lock().unwrap().answer(&call.method, &call.body))
    }

    /// Takes the conditions off a Node as it was read. `meanwhile` happens after the read, with this many foreign writes to
    /// come. Answers whether that ended well, whether the Node is clean, and how often it was written.
    async fn taken_off(foreign: u32, meanwhile: impl FnOnce(&mut Server)) -> (bool, bool, u32) {
        let server = Arc::new(Mutex::new(Server {
            uid: "u",
            ..Server::default()
        }));
        let client = client(server.clone());
        let seen = read(&client, "n").await.unwrap().unwrap();
        server.lock().unwrap().foreign = foreign;
        meanwhile(&mut server.lock().unwrap());
        let done = take_off(&client, "n", &seen).await;
        assert!(matches!(done, Ok(()) | Err(NodeError::Conflict)), "{done:?}");
        let server = server.lock().unwrap();
        (done.is_ok(), server.clean, server.writes)
    }

    #[tokio::test]
    async fn who_writes_the_node_meanwhile_does_not_keep_the_signs_on_it() {
        assert_eq!(taken_off(0, |_| {}).await, (true, true, 1));
        assert_eq!(
            taken_off(1, |_| {}).await,
            (true, true, 2),
            "one foreign write in between"
        );
        assert_eq!(taken_off(2, |_| {}).await, (false, false, 2), "not for ever");
        // What was cordoned again, or made anew, is not touched.
        assert_eq!(taken_off(1, |s| s.cordoned = true).await, (true, false, 1));
        assert_eq!(taken_off(1, |s| s.uid = "other").await, (true, false, 1));
    }

    #[test]
    fn sets_and_removes_by_type_on_the_node_as_it_was_read() {
        let seen = NodeFacts {
            uid: "u".into(),
            resource_version: "7".into(),
            unschedulable: true,
            ready: true,
            boot_id: None,
            cordon: None,
            excluded: false,
            control_plane: false,
            not_ready_taint: None,
            signs: Signs::default(),
        };
        let change = |type_, set| Change { type_, set };
        let changes = [change("DrainInProgress", false), change("Drained", true)];
        let at = Timestamp::from_millisecond(1_767_225_600_999).unwrap();
        let expected = json!({
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "status": {"conditions": [
                {"type": "DrainInProgress", "$patch": "delete"},
                {
                    "type": "Drained", "status": "True", "reason": "BerthTurn", "message": "why",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
                },
            ]},
        });
        assert_eq!(patch(&seen, &changes, "why", at), expected);
    }
}
