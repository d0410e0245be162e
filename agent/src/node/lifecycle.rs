//! Writes the lifecycle conditions into the status of this agent's Node.
//!
//! Like a cordon, a write carries the Node's UID and resourceVersion, so a write that arrives late fails.

use berth_api::condition::lifecycle::REASON;
use berth_core::agent::lifecycle::{Change, NOTHING};
use berth_core::agent::node::NodeFacts;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::cordon::{NodeError, RawNode, node_error, path, read};
use super::{request, send};

/// Writes these changes to the Node, and returns the Node's new state. `seen` is the Node as it was read. Each
/// condition that is set gets the text `message`.
pub async fn write(
    client: &Client,
    name: &str,
    seen: &NodeFacts,
    changes: &[Change],
    message: &str,
) -> Result<NodeFacts, NodeError> {
    let body = patch(seen, changes, message, Timestamp::now()).to_string().into_bytes();
    let path = format!("{}/status?fieldManager=berth-agent", path(name));
    // A strategic merge patch merges conditions by type, so other programs' conditions stay.
    let request = request("PATCH", &path, body, "application/strategic-merge-patch+json")?;
    let node: RawNode = send(client, request).await.map_err(node_error)?;
    Ok(node.into())
}

/// Removes our conditions from the Node, unless our cordon is on the Node. Another program may write the Node at the
/// same time, for example to remove its taints. So after a conflict, reads the Node and tries once more.
pub async fn take_off(client: &Client, name: &str, seen: &NodeFacts) -> Result<(), NodeError> {
    match take_off_once(client, name, seen).await {
        Err(NodeError::Conflict) => {}
        done => return done,
    }
    match read(client, name).await? {
        // A re-created Node does not have our conditions.
        Some(again) if again.uid == seen.uid => take_off_once(client, name, &again).await,
        _ => Ok(()),
    }
}

async fn take_off_once(client: &Client, name: &str, seen: &NodeFacts) -> Result<(), NodeError> {
    let changes = seen.signs.lifecycle.changes(NOTHING);
    // While our cordon is on the Node, the conditions must stay.
    if seen.cordon.is_some() || changes.is_empty() {
        return Ok(());
    }
    write(client, name, seen, &changes, "").await.map(drop)
}

fn patch(seen: &NodeFacts, changes: &[Change], message: &str, now: Timestamp) -> Value {
    // The API server stores whole seconds.
    let now = format!("{now:.0}");
    let conditions: Vec<Value> = changes.iter().map(|change| condition(change, message, &now)).collect();
    json!({
        "metadata": {"uid": seen.uid.as_str(), "resourceVersion": seen.resource_version},
        "status": {"conditions": conditions},
    })
}

fn condition(change: &Change, message: &str, now: &str) -> Value {
    if !change.set {
        return json!({"type": change.type_, "$patch": "delete"});
    }
    json!({
        "type": change.type_,
        "status": "True",
        "reason": REASON,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use berth_core::agent::node::Signs;
    use http::Method;

    use super::*;
    use crate::fake_api_server;

    /// A fake API server with one Node. The server counts writes. Another client writes the Node before each of the
    /// first `foreign` writes. The server does not merge patches: any successful write removes our conditions.
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

    /// Removes the conditions from a Node that `meanwhile` changes, after `foreign` conflicting writes. Returns whether
    /// this succeeded, whether the conditions are gone, and the number of writes.
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
    async fn signs_are_removed_despite_other_writers() {
        assert_eq!(taken_off(0, |_| {}).await, (true, true, 1));
        assert_eq!(
            taken_off(1, |_| {}).await,
            (true, true, 2),
            "one foreign write in between"
        );
        assert_eq!(taken_off(2, |_| {}).await, (false, false, 2), "not for ever");
        // A Node that was cordoned again or re-created is not touched.
        assert_eq!(taken_off(1, |s| s.cordoned = true).await, (true, false, 1));
        assert_eq!(taken_off(1, |s| s.uid = "other").await, (true, false, 1));
    }

    #[test]
    fn conditions_are_patched_by_type() {
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
            ready_reported: None,
            conditions: Default::default(),
            signs: Signs::default(),
        };
        fn change(type_: &'static str, set: bool) -> Change {
            Change { type_, set }
        }
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
