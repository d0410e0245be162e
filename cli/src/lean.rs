//! Nodes and BootcNodes with only the fields that a command reads. Most bytes of an API response are lists of container
//! images and managed fields, which the parser skips.

use std::collections::BTreeMap;

use berth_api::node::{BootcNode, BootcNodeSpec, BootcNodeStatus};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "NodeFields")]
pub(crate) struct LeanNode(pub(crate) Node);

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "BootcNodeFields")]
pub(crate) struct LeanBootcNode(pub(crate) BootcNode);

#[derive(Deserialize)]
struct BootcNodeFields {
    #[serde(default)]
    metadata: Metadata,
    spec: BootcNodeSpec,
    status: Option<BootcNodeStatus>,
}

impl From<BootcNodeFields> for LeanBootcNode {
    fn from(read: BootcNodeFields) -> Self {
        Self(BootcNode {
            metadata: read.metadata.into(),
            spec: read.spec,
            status: read.status,
        })
    }
}

#[derive(Deserialize)]
struct NodeFields {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<NodeSpec>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Metadata> for ObjectMeta {
    fn from(read: Metadata) -> Self {
        Self {
            name: read.name,
            uid: read.uid,
            resource_version: read.resource_version,
            generation: read.generation,
            creation_timestamp: read.creation_timestamp,
            deletion_timestamp: read.deletion_timestamp,
            labels: read.labels,
            annotations: read.annotations,
            finalizers: read.finalizers,
            owner_references: read.owner_references,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    conditions: Option<Vec<NodeCondition>>,
    addresses: Option<Vec<NodeAddress>>,
    node_info: Option<NodeSystemInfo>,
}

impl From<NodeFields> for LeanNode {
    fn from(read: NodeFields) -> Self {
        let status = read.status.map(|status| NodeStatus {
            conditions: status.conditions,
            addresses: status.addresses,
            node_info: status.node_info,
            ..NodeStatus::default()
        });
        Self(Node {
            metadata: read.metadata.into(),
            spec: read.spec,
            status,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bootc_node_loses_only_managed_fields() {
        let whole = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode",
            "metadata": {
                "name": "n1", "uid": "u1", "resourceVersion": "7", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"berth.dev/pool": "p"}, "finalizers": ["berth.dev/cleanup"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u2"}],
            },
            "spec": {"poolName": "p", "nodeUID": "u2"},
            "status": {"phase": "Updated"},
        });
        let expected: BootcNode = serde_json::from_value(whole.clone()).unwrap();
        let mut fat = whole;
        fat["metadata"]["managedFields"] =
            json!([{"manager": "berth-agent", "fieldsV1": {"f:status": {"f:phase": {}}}}]);
        let LeanBootcNode(bootc) = serde_json::from_value(fat).unwrap();
        assert_eq!(bootc, expected);
    }

    #[test]
    fn a_node_keeps_only_the_fields_read() {
        let mut whole = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "n1", "uid": "u1", "resourceVersion": "7", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-02T00:00:00Z", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"],
            },
            "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": [{"key": "t", "effect": "NoSchedule"}]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "kubeletVersion": "v1", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
                },
            },
        });
        let lean = whole.clone();
        whole["metadata"]["managedFields"] =
            json!([{"manager": "kubelet", "fieldsV1": {"f:status": {"f:images": {}}}}]);
        whole["status"]["images"] = json!([{"names": ["a"], "sizeBytes": 7}]);
        whole["status"]["capacity"] = json!({"cpu": "4"});
        let LeanNode(node) = serde_json::from_value(whole).unwrap();
        assert_eq!(serde_json::to_value(node).unwrap(), lean);
        let LeanNode(bare) = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        assert_eq!(
            (bare.metadata.name.as_deref(), bare.spec, bare.status),
            (Some("n1"), None, None)
        );
    }
}
