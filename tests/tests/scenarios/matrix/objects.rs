//! The objects of the matrix: two nodes with their pods, BootcNodes and berths, and what surrounds them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::berth::{Berth, Offer, lease};
use berth_api::{BootId, Digest, NodeName, NodeUid, PoolName, keys};
use berth_tests::controlplane::ControlPlane;
use berth_tests::programs::workspace_root;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Objects that the attempts refer to.
pub struct Objects {
    /// Pod of n1's agent.
    pub agent_pod: String,
    pub agent_pod_uid: String,
    pub other_agent_pod_uid: String,
    /// Pod of the controller, on n2.
    pub controller_pod: String,
    pub controller_pod_uid: String,
    /// Berth held by n1.
    pub own: Value,
    /// The berth `own`, committed.
    pub committed: Value,
    /// Berth held by n2.
    pub other: Value,
    pub closed: Value,
    /// The closed berth, taken by n1.
    pub stolen: Value,
    /// The controller's Lease for leader election.
    pub leader: Value,
    /// n1's own Lease, which its kubelet renews.
    pub heartbeat: Value,
    /// n2's Lease.
    pub other_heartbeat: Value,
    pub uid: String,
    pub other_uid: String,
}

const SURROUNDINGS: &str = r#"
apiVersion: berth.dev/v1alpha1
kind: BootcNodePool
metadata: {name: workers}
spec:
  nodeSelector: {matchLabels: {pool: workers}}
  image: {ref: "example.com/os:stable"}
---
apiVersion: berth.dev/v1alpha1
kind: BootcFleet
metadata: {name: cluster}
spec: {}
---
apiVersion: berth.dev/v1alpha1
kind: BootcNode
metadata: {name: n1}
spec: {poolName: workers}
---
apiVersion: berth.dev/v1alpha1
kind: BootcNode
metadata: {name: n2}
spec: {poolName: workers}
---
apiVersion: v1
kind: Secret
metadata: {name: pull, namespace: berth-system}
---
apiVersion: v1
kind: Secret
metadata: {name: other, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: kube-system}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: app, namespace: default}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
"#;

impl Objects {
    /// Applies the shipped manifests and the role of the component `impersonation`, and creates the objects.
    pub async fn create(control_plane: &ControlPlane) -> Result<Self> {
        control_plane
            .apply_manifests(&workspace_root().join("manifests"))
            .await?;
        control_plane
            .apply_files(&["components/impersonation/rbac.yaml"])
            .await?;
        let admin = control_plane.admin_client();
        let uid = node(&admin, "n1").await?;
        let other_uid = node(&admin, "n2").await?;
        control_plane.apply_yaml(SURROUNDINGS).await?;
        let mut pods = BTreeMap::new();
        for (namespace, account, node, name) in [
            (keys::NAMESPACE, "berth-agent", "n1", "agent-n1"),
            (keys::NAMESPACE, "berth-agent", "n2", "agent-n2"),
            (keys::NAMESPACE, "berth-controller", "n2", "controller-n2"),
            ("default", "default", "n1", "app-n1"),
            ("default", "default", "n2", "app-n2"),
        ] {
            let pod = control_plane.place_pod(namespace, account, node, name).await?;
            pods.insert(name, pod.uid().unwrap_or_default());
        }
        let taken = taken(0, "n1", &uid)?;
        let (own, committed) = stored(&admin, &taken, &taken.committed(BootId::from("boot-1"))?).await?;
        let theirs = self::taken(1, "n2", &other_uid)?;
        let (other, _) = stored(&admin, &theirs, &theirs).await?;
        let closed = Berth::new(PoolName::from("workers"), 2, 7);
        let (closed, stolen) = stored(&admin, &closed, &self::taken(2, "n1", &uid)?).await?;
        Ok(Self {
            agent_pod: "agent-n1".into(),
            agent_pod_uid: pods["agent-n1"].clone(),
            other_agent_pod_uid: pods["agent-n2"].clone(),
            controller_pod: "controller-n2".into(),
            controller_pod_uid: pods["controller-n2"].clone(),
            own,
            committed,
            other,
            closed,
            stolen,
            leader: plain_lease(&admin, keys::NAMESPACE, "berth-controller").await?,
            heartbeat: plain_lease(&admin, "kube-node-lease", "n1").await?,
            other_heartbeat: plain_lease(&admin, "kube-node-lease", "n2").await?,
            uid: uid.to_string(),
            other_uid: other_uid.to_string(),
        })
    }
}

async fn node(client: &Client, name: &str) -> Result<NodeUid> {
    let labels = json!({"kubernetes.io/os": "linux", "pool": "workers"});
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
    let nodes: Api<Node> = Api::all(client.clone());
    let created = nodes.create(&PostParams::default(), &node).await?;
    Ok(NodeUid::new(created.uid().context("the Node has no UID")?))
}

fn taken(index: u32, node: &str, uid: &NodeUid) -> Result<Berth> {
    let target: Digest = format!("sha256:{}", "02".repeat(32)).parse()?;
    let offer = Offer {
        node: NodeName::from(node),
        uid: uid.clone(),
        target,
        open_until: None,
    };
    let offered = Berth::new(PoolName::from("workers"), index, 7).offered(offer)?;
    Ok(offered.taken(&NodeName::from(node), uid, None, BootId::from("boot-1"))?)
}

/// Stores a berth. Returns the Lease, and the same Lease with the berth `next`.
async fn stored(client: &Client, berth: &Berth, next: &Berth) -> Result<(Value, Value)> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), keys::NAMESPACE);
    let new = lease::create(berth, keys::NAMESPACE, Duration::from_secs(900), Timestamp::now());
    let mut lease = leases.create(&PostParams::default(), &new).await?;
    let before = serde_json::to_value(&lease)?;
    lease::write(next, &mut lease, Timestamp::now());
    Ok((before, serde_json::to_value(&lease)?))
}

/// Creates a Lease that is not a berth.
async fn plain_lease(client: &Client, namespace: &str, name: &str) -> Result<Value> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let new = json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"holderIdentity": name}});
    let lease = leases
        .create(&PostParams::default(), &serde_json::from_value(new)?)
        .await?;
    Ok(serde_json::to_value(lease)?)
}
