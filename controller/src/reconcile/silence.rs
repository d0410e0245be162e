//! Writes the insights of nodes with silent agents. A pass does this after it has written the fleet's status.

use std::collections::BTreeMap;

use berth_api::condition::node::OF_CONTROLLER;
use berth_api::decode::{Decoded, StoredBootcNode};
use berth_api::keys;
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_core::controller::fleet::health::{Agent, silent_after};
use berth_core::controller::silence::Silent;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::phases::{Findings, Observed};
use super::reconciler::Reconciler;
use crate::api::{CallError, Kube};
use crate::leader::Lost;

/// Backoff key of writes of insights.
const KIND: &str = "silence";

impl Reconciler {
    /// Reports silent agents in the insights of their nodes. A new leader counts the silence from the time when its
    /// watch first showed the BootcNode. Nothing is written while a watch is stale.
    pub(super) async fn silence(&mut self, findings: &Findings, agents: &[Agent<'_>]) -> Result<(), Lost> {
        let observed = &findings.observed;
        if !observed.snapshot.stale.is_empty() {
            return Ok(());
        }
        let after = silent_after(self.settings.agent_silence);
        let mut silent = BTreeMap::new();
        for agent in agents.iter().filter(|agent| agent.is_silent(after)) {
            if !self.may_write(KIND, agent.node, observed.now) {
                continue;
            }
            let node = observed.snapshot.nodes.get(agent.node).map(|entry| entry.view.clone());
            let host = observed.snapshot.bootc_nodes.get(agent.node);
            if let Some((node, host)) = node.zip(host) {
                let host = host.view.clone();
                silent.insert(agent.node.to_owned(), Silent { node, host });
            }
        }
        let (picked, due) = self.memory.nodes.silent.pick(silent, observed.now);
        if let Some(due) = due {
            self.again(due);
        }
        let written = self
            .write_nodes(
                KIND,
                picked,
                |(name, _)| name,
                async |kube, (name, silent)| stand_in(kube, observed, name, silent).await,
            )
            .await?;
        for ((name, silent), has_changed) in written {
            if has_changed {
                tracing::info!(node = %name, "recorded in status.insight of the BootcNode that the node's agent is silent");
            }
            self.memory.nodes.silent.done(name, silent);
        }
        Ok(())
    }
}

/// Writes the insight in place of the agent, and returns true if the insight has changed. Fails if the BootcNode has
/// changed since the snapshot, for example because the agent has reported.
async fn stand_in(kube: &Kube, observed: &Observed, name: &str, silent: &Silent) -> Result<bool, CallError> {
    let Some(object) = kube.get(&kube.all::<StoredBootcNode>(), name).await? else {
        return Err(CallError::Conflict(format!("BootcNode {name} is gone")));
    };
    let seen = observed.snapshot.bootc_nodes.get(name).map(|host| &host.version);
    if object.metadata.resource_version.as_ref() != seen {
        return Err(CallError::Conflict(format!(
            "BootcNode {name} has changed since its agent fell silent"
        )));
    }
    let Some(body) = body(&object, silent, observed.wall) else {
        return Ok(false);
    };
    let api = kube.all::<Decoded<BootcNode>>();
    kube.apply_status(keys::MANAGER_AGENT, &api, name, body).await?;
    Ok(true)
}

fn is_of_controller(condition: &Value) -> bool {
    let type_ = condition.get("type").and_then(Value::as_str);
    type_.is_some_and(|type_| OF_CONTROLLER.contains(&type_))
}

/// Body of a server-side apply as the agent's field manager: the agent's whole status with the new insight, including
/// fields that are unknown to this program. `None` if the insight is unchanged or cannot be computed.
fn body(object: &StoredBootcNode, silent: &Silent, now: Timestamp) -> Option<Value> {
    let stored = match &object.status {
        Value::Null => json!({}),
        stored => stored.clone(),
    };
    let known: BootcNodeStatus = serde_json::from_value(stored.clone()).ok()?;
    let insight = silent.insight(&known, now)?;
    if known.insight.as_ref() == Some(&insight) {
        return None;
    }
    let mut status = stored;
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.retain(|c| !is_of_controller(c));
    }
    status
        .as_object_mut()?
        .insert("insight".to_owned(), serde_json::to_value(insight).ok()?);
    Some(json!({
        "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
        "kind": "BootcNode",
        "metadata": {
            "name": object.metadata.name, "uid": object.metadata.uid,
            "resourceVersion": object.metadata.resource_version,
        },
        "status": status,
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_core::controller::view::{BootcNodeView, NodeView};

    use super::*;

    #[test]
    fn an_insight_keeps_the_rest_of_the_status() {
        fn condition(type_: &str) -> Value {
            json!({"type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        }
        let mut object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode",
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7"}, "spec": {"poolName": "workers"},
            "status": {
                "phase": "Draining", "ofALaterVersion": {"x": [1]}, "heartbeatTime": "2026-01-01T00:00:00Z",
                "conditions": [condition("Staged"), condition("Waiting")],
            },
        });
        let node = json!({"metadata": {"name": "n1", "uid": "n"}});
        let silent = Silent {
            node: Arc::new(NodeView::of(&serde_json::from_value(node).unwrap())),
            host: Arc::new(BootcNodeView::of(serde_json::from_value(object.clone()).unwrap())),
        };
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        fn stored(object: &Value) -> StoredBootcNode {
            serde_json::from_value(object.clone()).unwrap()
        }
        let first = body(&stored(&object), &silent, now).unwrap();
        let mut status = first["status"].clone();
        let insight = status.as_object_mut().unwrap().remove("insight").unwrap();
        let mut kept = object["status"].clone();
        kept["conditions"] = json!([condition("Staged")]);
        assert_eq!(status, kept);
        assert_eq!(
            first["metadata"], object["metadata"],
            "another object, or a later one, is not written"
        );
        assert!(
            insight["message"].as_str().unwrap().contains("does not report"),
            "{insight}"
        );

        object["status"]["insight"] = insight;
        // A compromised node may write managed fields that cannot be decoded.
        object["metadata"]["managedFields"] = json!([{ "manager": "x", "time": "9999-12-31T23:59:59Z" }]);
        let later = Timestamp::from_second(1_800_000_100).unwrap();
        assert_eq!(body(&stored(&object), &silent, later), None, "it says so already");
    }
}
