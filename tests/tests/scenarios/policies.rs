//! Own node only (I6): the writes that a real API server with our roles and policies allows with an agent's token.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of a test fail like the test"
)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::berth::{Berth, ClosedReason, Offer, Outcome, lease};
use berth_api::{BootId, Digest, NodeName, NodeUid, PoolName, keys};
use berth_tests::controlplane::{Bound, ControlPlane, Options};
use berth_tests::programs::workspace_root;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

mod berths;
mod tokens;

use berths::{forgeries, licences, nonsense, thefts, turns};

const ACCOUNT: &str = "berth-agent";

/// Two nodes, an agent of the first, and an admin.
struct Rig {
    admin: Client,
    /// A token bound to a pod on n1.
    agent: Client,
    /// A token bound to the Node n1, as an agent under systemd has it.
    service: Client,
    /// A token of the same account bound to nothing.
    stray: Client,
    uid: NodeUid,
    other_uid: NodeUid,
    failures: Vec<String>,
}

impl Rig {
    async fn new(control_plane: &ControlPlane) -> Result<Self> {
        // All shipped manifests, applied as a user does: rejected objects show up here.
        control_plane.apply_manifests(&manifests()).await?;
        let admin = control_plane.admin_client();
        let uid = node(&admin, "n1").await?;
        let other_uid = node(&admin, "n2").await?;
        control_plane
            .place_pod(keys::NAMESPACE, ACCOUNT, "n1", "agent-n1")
            .await?;
        let rig = Self {
            agent: agent_client(control_plane, Bound::Pod("agent-n1")).await?,
            service: agent_client(control_plane, Bound::Node("n1")).await?,
            stray: agent_client(control_plane, Bound::Nothing).await?,
            admin,
            uid,
            other_uid,
            failures: Vec::new(),
        };
        for name in ["n1", "n2"] {
            bootc_nodes(&rig.admin)
                .create(&PostParams::default(), &bootc_node(name))
                .await?;
        }
        rig.wait_for_policies().await?;
        Ok(rig)
    }

    /// Waits until new policies take effect: the API server compiles them a moment after they are stored.
    async fn wait_for_policies(&self) -> Result<()> {
        let berth = closed().offered(offer("n2", &self.other_uid))?;
        let mut stolen = self.put(&berth).await?;
        let started = Instant::now();
        loop {
            stolen
                .annotations_mut()
                .insert("try".into(), format!("{:?}", started.elapsed()));
            let status = json!({"status": {"bootID": format!("{:?}", started.elapsed())}});
            let lease = leases(&self.agent)
                .replace(&stolen.name_any(), &PostParams::default(), &stolen)
                .await;
            let node = bootc_nodes(&self.agent)
                .patch_status("n2", &PatchParams::default(), &Patch::Merge(&status))
                .await;
            if lease.is_err() && node.is_err() {
                return Ok(());
            }
            stolen = leases(&self.admin).get(&stolen.name_any()).await?;
            anyhow::ensure!(started.elapsed() < Duration::from_secs(30), "no policy takes effect");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stores a berth unconditionally, and returns the stored Lease.
    async fn put(&self, berth: &Berth) -> Result<Lease> {
        let leases = leases(&self.admin);
        let name = berth.name();
        if leases.get_opt(&name).await?.is_some() {
            leases.delete(&name, &DeleteParams::default()).await?;
        }
        let lease = lease::create(berth, keys::NAMESPACE, Duration::from_secs(900), Timestamp::now());
        leases
            .create(&PostParams::default(), &lease)
            .await
            .context("storing a berth")
    }

    fn record<T>(&mut self, what: &str, answer: kube::Result<T>, refusal: Option<&str>) {
        match (answer, refusal) {
            (Ok(_), None) => {}
            (Ok(_), Some(_)) => self.failures.push(format!("{what}: was allowed")),
            (Err(kube::Error::Api(status)), Some(words)) if status.message.contains(words) => {}
            (Err(error), _) => self.failures.push(format!("{what}: {error}")),
        }
    }

    /// Has n1's agent change a berth, and checks the answer.
    async fn change(&mut self, what: &str, before: &Berth, change: impl Fn(&mut Lease), refusal: Option<&str>) {
        for client in [self.agent.clone(), self.service.clone()] {
            let mut lease = self.put(before).await.unwrap();
            change(&mut lease);
            let answer = leases(&client)
                .replace(&lease.name_any(), &PostParams::default(), &lease)
                .await;
            self.record(what, answer, refusal);
        }
    }

    /// Has n1's agent write each of these steps, and checks the answers.
    async fn steps(&mut self, steps: &[(&str, &Berth, &Berth, Option<&str>)]) {
        for (what, before, after, refusal) in steps {
            self.step(what, before, after, *refusal).await;
        }
    }

    /// Has n1's agent write a step of the protocol, from one state to another, and checks the answer.
    async fn step(&mut self, what: &str, before: &Berth, after: &Berth, refusal: Option<&str>) {
        self.change(
            what,
            before,
            |lease: &mut Lease| lease::write(after, lease, Timestamp::now()),
            refusal,
        )
        .await;
    }
}

async fn agent_client(control_plane: &ControlPlane, bound: Bound<'_>) -> Result<Client> {
    let config = control_plane
        .service_account_kubeconfig(keys::NAMESPACE, ACCOUNT, bound)
        .await?;
    config.client().await
}

fn manifests() -> PathBuf {
    workspace_root().join("manifests")
}

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), keys::NAMESPACE)
}

/// API client without types, so that a test can write values that the types do not allow.
fn bootc_nodes(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<berth_api::node::BootcNode>(&());
    Api::all_with(client.clone(), &resource)
}

fn bootc_node(name: &str) -> DynamicObject {
    let resource = ApiResource::erase::<berth_api::node::BootcNode>(&());
    DynamicObject::new(name, &resource).data(json!({"spec": {"poolName": "workers"}}))
}

async fn node(client: &Client, name: &str) -> Result<NodeUid> {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
    }))?;
    let nodes: Api<Node> = Api::all(client.clone());
    let created = nodes.create(&PostParams::default(), &node).await?;
    Ok(NodeUid::new(created.uid().unwrap_or_default()))
}

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn closed() -> Berth {
    Berth::new(PoolName::from("workers"), 0, 7)
}

fn offer(node: &str, uid: &NodeUid) -> Offer {
    Offer {
        node: NodeName::from(node),
        uid: uid.clone(),
        target: digest(2),
        open_until: Some(Timestamp::now() + Duration::from_secs(600)),
    }
}

fn take(berth: &Berth, node: &str, uid: &NodeUid) -> Berth {
    berth
        .taken(&NodeName::from(node), uid, Some(digest(1)), BootId::from("boot-1"))
        .unwrap()
}

fn annotate(key: &'static str, value: &'static str) -> impl Fn(&mut Lease) {
    move |lease| {
        lease.annotations_mut().insert(key.to_owned(), value.to_owned());
    }
}

fn hold(lease: &mut Lease, holder: &str) {
    lease.spec.as_mut().unwrap().holder_identity = Some(holder.to_owned());
}

#[tokio::test]
async fn an_agent_writes_its_own_node_only() {
    let control_plane = ControlPlane::start(Options::simulated_nodes()).await.unwrap();
    let mut rig = Rig::new(&control_plane).await.unwrap();
    statuses(&mut rig).await;
    conditions(&mut rig).await;
    turns(&mut rig).await;
    licences(&mut rig).await;
    thefts(&mut rig).await;
    forgeries(&mut rig).await;
    nonsense(&mut rig).await;
    elsewhere(&mut rig).await;
    other_verbs(&mut rig).await;
    admitted(&mut rig).await;
    long_names(&rig).await;
    assert!(
        rig.failures.is_empty(),
        "{} wrong:\n{}",
        rig.failures.len(),
        rig.failures.join("\n")
    );
}

/// Writes to BootcNodes. An agent may change only the status of its own node's object.
async fn statuses(rig: &mut Rig) {
    let status: Value = json!({"status": {"bootID": "boot-1"}});
    let merge = Patch::Merge(&status);
    let apply = PatchParams::default();
    for client in [rig.agent.clone(), rig.service.clone()] {
        let nodes = bootc_nodes(&client);
        rig.record("own status", nodes.patch_status("n1", &apply, &merge).await, None);
        let refusal = Some("the berth-agent of node n1 may not write BootcNode n2, only its own");
        rig.record(
            "another's status",
            nodes.patch_status("n2", &apply, &merge).await,
            refusal,
        );

        let moved = json!({"spec": {"poolName": "elsewhere"}});
        let answer = nodes.patch("n1", &apply, &Patch::Merge(&moved)).await;
        rig.record(
            "own pool, by the object",
            answer,
            Some("cannot patch resource \"bootcnodes\""),
        );
        let answer = nodes.patch_status("n1", &apply, &Patch::Merge(&moved)).await;
        rig.record("own pool, by the status", answer, None);
        let answer = nodes.create(&PostParams::default(), &bootc_node("n3")).await;
        rig.record("a new BootcNode", answer, Some("cannot create resource \"bootcnodes\""));
        let answer = nodes.delete("n1", &DeleteParams::default()).await;
        rig.record(
            "own BootcNode away",
            answer,
            Some("cannot delete resource \"bootcnodes\""),
        );
    }
    let kept = bootc_nodes(&rig.admin).get("n1").await.unwrap();
    if kept.data["spec"]["poolName"] != "workers" {
        rig.failures.push("a status write changed spec.poolName".to_owned());
    }
    let answer = bootc_nodes(&rig.stray).patch_status("n1", &apply, &merge).await;
    rig.record(
        "a token without node",
        answer,
        Some("this berth-agent token names no node"),
    );
}

/// An agent can neither change the controller's conditions nor fill up the list so that the controller cannot add one.
async fn conditions(rig: &mut Rig) {
    use berth_api::condition::node::{ALL, OF_CONTROLLER};
    const MOST: usize = 24;
    assert!(
        ALL.len() - OF_CONTROLLER.len() <= MOST,
        "an agent could not write all of its own conditions"
    );
    fn condition(type_: &str, status: &str, message: &str) -> Value {
        json!({
            "type": type_, "status": status, "reason": "R", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }
    let (same, apply) = (condition("Implausible", "True", "m"), PatchParams::default());
    let status = json!({"status": {"conditions": [same]}});
    let stored = bootc_nodes(&rig.admin)
        .patch_status("n1", &apply, &Patch::Merge(&status))
        .await;
    rig.record("the controller's condition", stored, None);
    let own = |count: usize| (0..count).map(|n| condition(&format!("Own{n}"), "True", "m"));
    let refusal = Some("may not change the conditions RebootTimedOut, Waiting, Implausible");
    let long = "m".repeat(2049);
    for (what, written, refusal) in [
        (
            "as many conditions as allowed",
            own(MOST).chain([same.clone()]).collect(),
            None,
        ),
        (
            "the controller's condition last",
            own(1).chain([same.clone()]).collect(),
            None,
        ),
        (
            "too many conditions",
            own(MOST + 1).chain([same.clone()]).collect(),
            Some("may not write more than 24 conditions of its own"),
        ),
        ("a finding removed", own(1).collect(), refusal),
        (
            "a finding denied",
            vec![condition("Implausible", "False", "m")],
            refusal,
        ),
        (
            "a finding reworded",
            vec![condition("Implausible", "True", "")],
            refusal,
        ),
        (
            "a finding invented",
            vec![same.clone(), condition("Waiting", "True", "m")],
            refusal,
        ),
        (
            "a long message",
            vec![same.clone(), condition("Own0", "True", &long)],
            Some("whose message is longer than 2048 characters"),
        ),
    ] {
        let written: Vec<Value> = written;
        let status = json!({"status": {"conditions": written}});
        let answer = bootc_nodes(&rig.agent)
            .patch_status("n1", &apply, &Patch::Merge(&status))
            .await;
        rig.record(what, answer, refusal);
    }
}

/// The berth policy ignores Leases in other namespaces. An admin may grant an agent rights there, and such writes do
/// not depend on the policy.
async fn elsewhere(rig: &mut Rig) {
    let namespace = "default";
    let rights = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "leases", "namespace": namespace},
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]}],
    });
    let roles: Api<Role> = Api::namespaced(rig.admin.clone(), namespace);
    let role = serde_json::from_value(rights).unwrap();
    roles.create(&PostParams::default(), &role).await.unwrap();
    let binding = json!({
        "metadata": {"name": "leases", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leases"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": keys::NAMESPACE}],
    });
    let bindings: Api<RoleBinding> = Api::namespaced(rig.admin.clone(), namespace);
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let lease = json!({"metadata": {"name": "other", "namespace": namespace}, "spec": {"holderIdentity": "x"}});
    let lease: Lease = serde_json::from_value(lease).unwrap();
    let theirs: Api<Lease> = Api::namespaced(rig.admin.clone(), namespace);
    let mut lease = theirs.create(&PostParams::default(), &lease).await.unwrap();
    hold(&mut lease, "y");
    let ours: Api<Lease> = Api::namespaced(rig.agent.clone(), namespace);
    // The API server applies the new Role a little later.
    let started = Instant::now();
    let answer = loop {
        let answer = ours.replace("other", &PostParams::default(), &lease).await;
        let is_refused = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403);
        if !is_refused || started.elapsed() > Duration::from_secs(30) {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    rig.record("a Lease of another namespace", answer, None);
}

/// Patch, create, delete, and Leases that are not berths.
async fn other_verbs(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let taken = take(&closed().offered(offer("n1", &uid)).unwrap(), "n1", &uid);
    let own = rig.put(&taken).await.unwrap();
    let mut leader: Lease = serde_json::from_value(json!({
        "metadata": {"name": "berth-controller", "namespace": keys::NAMESPACE},
        "spec": {"holderIdentity": "n1"},
    }))
    .unwrap();
    leader = leases(&rig.admin)
        .create(&PostParams::default(), &leader)
        .await
        .unwrap();
    leader.spec.as_mut().unwrap().lease_duration_seconds = Some(1);

    let client = leases(&rig.agent);
    let name = own.name_any();
    let renewed = json!({"spec": {"renewTime": "2030-01-01T00:00:00.000000Z"}});
    let answer = client
        .patch(&name, &PatchParams::default(), &Patch::Merge(&renewed))
        .await;
    rig.record("patch", answer, Some("cannot patch resource \"leases\""));
    let answer = client.delete(&name, &DeleteParams::default()).await;
    rig.record("delete", answer, Some("cannot delete resource \"leases\""));
    let mut second = lease::create(&taken, keys::NAMESPACE, Duration::from_secs(1), Timestamp::now());
    second.metadata.name = Some("workers-1".to_owned());
    let answer = client.create(&PostParams::default(), &second).await;
    rig.record("create", answer, Some("cannot create resource \"leases\""));
    let answer = client
        .replace("berth-controller", &PostParams::default(), &leader)
        .await;
    rig.record("the controller's leadership", answer, Some("which is not a berth"));
    let adopt = {
        let mut lease = leader.clone();
        lease
            .labels_mut()
            .insert(keys::LABEL_POOL.to_owned(), "workers".to_owned());
        lease
    };
    let answer = client.replace("berth-controller", &PostParams::default(), &adopt).await;
    rig.record(
        "the controller's leadership, relabelled",
        answer,
        Some("which is not a berth"),
    );
}

/// The shipped DaemonSet gets its pods: Pod Security admits them.
async fn admitted(rig: &mut Rig) {
    let sets: Api<DaemonSet> = Api::namespaced(rig.admin.clone(), keys::NAMESPACE);
    let started = Instant::now();
    loop {
        let status = sets.get("berth-agent").await.unwrap().status;
        let scheduled = status.map_or(0, |s| s.current_number_scheduled);
        if scheduled == 2 {
            return;
        }
        if started.elapsed() > Duration::from_secs(30) {
            let events: Api<Event> = Api::namespaced(rig.admin.clone(), keys::NAMESPACE);
            let events = events.list(&ListParams::default()).await.unwrap();
            let said: Vec<_> = events.iter().filter_map(|e| e.message.as_deref()).collect();
            let what = format!("the DaemonSet has {scheduled} pods on 2 nodes: {said:?}");
            return rig.failures.push(what);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A Node's name may be longer than a label: a berth for such a Node can be stored, and its agent's selector finds it.
async fn long_names(rig: &Rig) {
    let name = NodeName::new(format!(
        "n1.{}",
        ["a".repeat(62), "b".repeat(62), "c".repeat(62), "d".repeat(61)].join(".")
    ));
    assert_eq!(name.as_str().len(), 253);
    let berth = closed().offered(offer(name.as_str(), &rig.uid)).unwrap();
    rig.put(&berth).await.unwrap();
    let selector = format!("{}={}", keys::LABEL_NODE, name.label());
    let found = leases(&rig.agent)
        .list(&ListParams::default().labels(&selector))
        .await
        .unwrap()
        .items;
    let found: Vec<_> = found.iter().map(|lease| lease::read(lease).unwrap()).collect();
    assert_eq!(found, [berth]);
}
