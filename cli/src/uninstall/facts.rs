//! The parts of Berth in the cluster.

use std::collections::BTreeMap;

use anyhow::Result;
use berth_api::keys;
use serde_json::Value;

use super::node::{Traces, traces};
use super::objects::{self, Object, text};
use super::requests::Server;
use crate::text::clean;

/// Path of the API of Berth's objects.
pub(super) fn api(plural: &str) -> String {
    format!("/apis/{}/{}/{plural}", keys::GROUP, keys::VERSION)
}

/// Path of an object, or of all objects, of a kind of this namespace.
pub(super) fn namespaced(group: &str, namespace: &str, rest: &str) -> String {
    format!("{group}/namespaces/{namespace}/{rest}")
}

/// Path of the namespace's Leases.
pub(super) fn leases(namespace: &str) -> String {
    namespaced("/apis/coordination.k8s.io/v1", namespace, "leases")
}

/// Path of the namespace's DaemonSets.
pub(super) fn daemon_sets(namespace: &str) -> String {
    namespaced("/apis/apps/v1", namespace, "daemonsets")
}

/// Selector of the objects that install Berth.
pub(super) fn selector() -> String {
    format!("{}={}", keys::LABEL_PART_OF, keys::PART_OF)
}

/// A pool or a BootcNode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owned {
    /// UID of the object.
    pub(super) uid: String,
    /// resourceVersion of the object.
    pub(super) version: String,
    /// True if the object is being deleted.
    pub(super) is_deleting: bool,
    /// Finalizers of other programs.
    pub(super) other_finalizers: Vec<String>,
    /// True if the object has Berth's finalizer.
    pub(super) has_finalizer: bool,
    /// Time of the last report of a BootcNode's agent, by that host's clock; only compared with itself.
    pub(super) heartbeat: String,
    /// Phase of a BootcNode; empty if it is not known.
    pub(super) phase: String,
    /// True if an image is staged on the host of a BootcNode.
    pub(super) has_staged: bool,
}

/// State of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Controller {
    /// There is no Deployment.
    #[default]
    Absent,
    /// There is a Deployment without an available pod.
    Down,
    /// A pod is available.
    Runs,
}

/// The parts of Berth in the cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    /// Namespace of Berth.
    pub(super) namespace: String,
    /// The pools, by name.
    pub(super) pools: BTreeMap<String, Owned>,
    /// The BootcNodes, by name.
    pub(super) nodes: BTreeMap<String, Owned>,
    /// The controller.
    pub(super) controller: Controller,
    /// The DaemonSets of the agents.
    pub(super) agents: Vec<Value>,
    /// Record on the namespace: the hosts of a deleted DaemonSet are clean.
    pub(super) are_hosts_clean: bool,
    /// Traces on Nodes.
    pub(super) traces: Vec<Traces>,
    /// Names of Berth's Leases in the namespace, with their UIDs.
    pub(super) leases: BTreeMap<String, String>,
    /// The objects that install Berth, in the order of deletion.
    pub(super) objects: Vec<Object>,
    /// Notes on objects that could not be read.
    pub(super) notes: Vec<String>,
}

impl Facts {
    /// Reads everything.
    pub(super) async fn read(server: &Server, namespace: &str) -> Result<Self> {
        let (objects, notes) = objects::find(server).await?;
        let agents = list(server, &daemon_sets(namespace), Some(&selector())).await?;
        let deployments = namespaced("/apis/apps/v1", namespace, "deployments");
        let deployments = list(server, &deployments, Some(&selector())).await?;
        let space = server.get(&format!("/api/v1/namespaces/{namespace}")).await;
        let space = space.map_err(|error| error.while_doing(format!("read namespace {namespace}")))?;
        let annotations = &space.unwrap_or_default()["metadata"]["annotations"];
        Ok(Self {
            namespace: namespace.to_owned(),
            pools: pools(server).await?,
            nodes: bootc_nodes(server).await?,
            controller: controller(&deployments),
            agents,
            are_hosts_clean: annotations.get(keys::ANNOTATION_HOSTS_CLEAN).is_some(),
            traces: list(server, "/api/v1/nodes", None)
                .await?
                .iter()
                .filter_map(traces)
                .collect(),
            leases: Self::read_leases(server, namespace).await?,
            objects,
            notes,
        })
    }

    /// Reads the berths and the controllers' own Lease.
    pub(super) async fn read_leases(server: &Server, namespace: &str) -> Result<BTreeMap<String, String>> {
        Ok(berths(&list(server, &leases(namespace), None).await?))
    }

    /// True if nothing of Berth is left in the cluster.
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty()
            && self.nodes.is_empty()
            && self.traces.is_empty()
            && self.leases.is_empty()
            && self.objects.is_empty()
    }
}

/// Lists objects, with an error for people.
pub(super) async fn list(server: &Server, path: &str, selector: Option<&str>) -> Result<Vec<Value>> {
    let listed = server.list(path, selector).await;
    listed.map_err(|error| error.while_doing(format!("list {}", path.rsplit('/').next().unwrap_or_default())))
}

/// Reads the pools. Without Berth's kinds there are none.
pub(super) async fn pools(server: &Server) -> Result<BTreeMap<String, Owned>> {
    Ok(owned(&list(server, &api("bootcnodepools"), None).await?))
}

/// Reads the BootcNodes. Without Berth's kinds there are none.
pub(super) async fn bootc_nodes(server: &Server) -> Result<BTreeMap<String, Owned>> {
    Ok(owned(&list(server, &api("bootcnodes"), None).await?))
}

fn owned(objects: &[Value]) -> BTreeMap<String, Owned> {
    let mut found = BTreeMap::new();
    for object in objects {
        let metadata = &object["metadata"];
        let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
        let finalizers: Vec<String> = finalizers.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        let others = finalizers.iter().filter(|name| *name != keys::FINALIZER_NODE);
        let one = Owned {
            uid: text(metadata, "uid").to_owned(),
            version: text(metadata, "resourceVersion").to_owned(),
            is_deleting: metadata.get("deletionTimestamp").is_some(),
            other_finalizers: others.cloned().collect(),
            has_finalizer: finalizers.iter().any(|name| name == keys::FINALIZER_NODE),
            heartbeat: object["status"]["heartbeatTime"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            phase: clean(object["status"]["phase"].as_str().unwrap_or_default()),
            has_staged: object["status"]["staged"].is_object(),
        };
        found.insert(clean(text(metadata, "name")), one);
    }
    found
}

fn controller(deployments: &[Value]) -> Controller {
    if deployments.is_empty() {
        return Controller::Absent;
    }
    let mut available = deployments
        .iter()
        .map(|one| one["status"]["availableReplicas"].as_u64());
    if available.any(|count| count.unwrap_or_default() > 0) {
        Controller::Runs
    } else {
        Controller::Down
    }
}

/// Returns the berths and the controllers' own Lease, with their UIDs.
fn berths(leases: &[Value]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for lease in leases {
        let metadata = &lease["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        if metadata["labels"].get(keys::LABEL_POOL).is_some() || name == keys::LEADER_LEASE {
            found.insert(clean(name), metadata["uid"].as_str().unwrap_or_default().to_owned());
        }
    }
    found
}
