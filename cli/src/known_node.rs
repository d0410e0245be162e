//! The parts of a Node that the commands read.

use std::sync::Arc;

use berth_api::decode::Decoded;
use berth_core::controller::view::NodeView;
use berth_core::finding;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use serde::Deserialize;

/// The parts of a Node that the commands read. In a large cluster, whole Nodes would need most of the memory.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Decoded<Node>")]
pub struct KnownNode {
    /// The controller's projection of the Node. A plan shares it.
    pub view: Arc<NodeView>,
    /// The condition Ready, and the conditions that make the Node unavailable.
    pub conditions: Box<[NodeCondition]>,
}

impl KnownNode {
    /// Name of the Node.
    pub fn name(&self) -> &str {
        self.view.name.as_str()
    }
}

impl From<Decoded<Node>> for KnownNode {
    fn from(mut node: Decoded<Node>) -> Self {
        let view = Arc::new(NodeView::of(&node));
        let conditions = node.status.take().and_then(|status| status.conditions);
        let conditions = conditions.into_iter().flatten();
        Self {
            view,
            conditions: conditions
                .filter(|c| c.type_ == "Ready" || finding::unavailable::reason(c).is_some())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::keys;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_keeps_what_the_plan_and_the_findings_need() {
        let conditions = [
            json!({ "type": "Ready", "status": "True" }),
            json!({ "type": "DiskPressure", "status": "True" }),
            json!({ "type": "PIDPressure", "status": "True" }),
            json!({ "type": "NetworkUnavailable", "status": "False" }),
        ];
        let node = json!({
            "metadata": { "name": "n", "annotations": { keys::ANNOTATION_CORDON: "x", "example.com/large": "x" } },
            "status": { "conditions": conditions },
        });
        let known: KnownNode = serde_json::from_value(node).unwrap();
        let types: Vec<_> = known.conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(types, ["Ready", "DiskPressure"]);
        assert!(known.view.our_cordon && known.view.ready);
        assert_eq!(known.name(), "n");
    }

    #[test]
    fn a_node_that_cannot_be_decoded_is_not_ready() {
        let conditions = [json!({ "type": "Ready", "status": "True" })];
        let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": conditions, "addresses": "none" } });
        let known: KnownNode = serde_json::from_value(node).unwrap();
        let error = known.view.error.as_deref().unwrap();
        assert!(error.starts_with("status.addresses: "), "{error}");
        assert_eq!((known.view.ready, known.conditions.len()), (false, 1));
    }
}
