//! Agents without the kubelet's files, which act as their nodes by constrained impersonation, with the role of the
//! component `impersonation`.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;

use super::*;

const NODES: [&str; 2] = ["node1", "node2"];
const ROLE: &str = "components/impersonation/rbac.yaml";

fn impersonating() -> ClusterOptions {
    ClusterOptions {
        impersonation: true,
        manifests: vec![ROLE],
        ..lively(NODES.len())
    }
}

/// Returns the requests that the agents sent as their nodes, except the dry runs that must be refused.
fn requests_as_nodes(cluster: &Cluster) -> Result<Vec<Record>> {
    let log = AuditLog::read(&cluster.control_plane.audit_log())?;
    let mut records = vec![];
    for record in log.records() {
        let is_as_node = record.program() == "berth-agent" && record.user.starts_with("system:node:");
        if is_as_node && !record.uri.contains("dryRun=All") {
            records.push(record.clone());
        }
    }
    Ok(records)
}

/// A rollout with evictions, and one that deletes the pods: the role permits all that the agents need, as their own node
/// and only by constrained impersonation.
#[tokio::test]
async fn agents_update_without_the_kubelets_files() -> Result<()> {
    scenario(impersonating(), async |cluster| {
        cluster.deploy("web", 2).await?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&v2, LONG).await?;
        cluster
            .patch_pool("workers", json!({ "drain": { "disableEviction": true } }))
            .await?;
        let v3 = set_to(cluster, "3.0.0").await?;
        cluster.until_all_run(&v3, LONG).await?;
        let boots = cluster.boots();
        ensure!(boots.values().all(|&n| n == 3), "two reboots of each host: {boots:?}");

        let records = requests_as_nodes(cluster)?;
        let mut seen = BTreeSet::new();
        for record in &records {
            ensure!(record.code != 403, "{record:?}");
            ensure!(
                record.node_claim.as_deref() == record.user.strip_prefix("system:node:"),
                "{record:?}"
            );
            seen.insert(format!("{} {}", record.verb, record.target()));
        }
        let expected = [
            "create pods/eviction",
            "delete pods",
            "get nodes",
            "list pods",
            "patch nodes",
            "patch nodes/status",
        ];
        ensure!(seen == expected.map(str::to_owned).into(), "{seen:?}");
        let log = std::fs::read_to_string(cluster.control_plane.audit_log())?;
        let constraint = r#""impersonationConstraint":"impersonate:associated-node""#;
        let constrained = log.lines().filter(|line| line.contains(constraint)).count();
        ensure!(
            constrained >= records.len(),
            "{constrained} of {} requests",
            records.len()
        );
        let refused = log
            .lines()
            .filter(|line| line.contains(constraint) && line.contains("dryRun=All"));
        ensure!(
            refused.count() > 0,
            "the agents try whether they may write another Node"
        );
        Ok(())
    })
    .await
}

/// Without the role, each node names the component. As soon as the role is there, the rollout continues.
#[tokio::test]
async fn a_missing_role_for_impersonation_is_named() -> Result<()> {
    let options = ClusterOptions {
        manifests: vec![],
        ..impersonating()
    };
    scenario(options, async |cluster| {
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        let said = "cannot impersonate node1: the API server does not permit it; apply \
                    manifests/components/impersonation again";
        until_degraded(cluster, "node1", "ImpersonationRefused", said).await?;
        until_degraded(
            cluster,
            "node2",
            "ImpersonationRefused",
            "impersonate-on:associated-node:get",
        )
        .await?;
        ensure!(cluster.boots().values().all(|&n| n == 1), "{:?}", cluster.boots());
        cluster.control_plane.apply_files(&[ROLE]).await?;
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

/// An API server with the feature gate off answers as an older one does.
#[tokio::test]
async fn an_api_server_without_constrained_impersonation_is_named() -> Result<()> {
    let mut options = impersonating();
    options
        .control_plane
        .apiserver_arguments
        .push("--feature-gates=ConstrainedImpersonation=false".to_owned());
    // Without the judge, which needs a reboot.
    let cluster = Cluster::start(options).await?;
    roll_to(&cluster, "2.0.0", 1).await?;
    let said = "the API server does not support constrained impersonation; upgrade all API servers to Kubernetes 1.36";
    for node in NODES {
        until_degraded(&cluster, node, "ImpersonationRefused", said).await?;
    }
    ensure!(cluster.boots().values().all(|&n| n == 1), "{:?}", cluster.boots());
    Ok(())
}

/// A role lets each agent act as every node. The agents notice, and take no berth until its binding is gone.
#[tokio::test]
async fn agents_that_could_act_as_other_nodes_take_no_berth() -> Result<()> {
    scenario(impersonating(), async |cluster| {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "too-much"},
            "rules": [
                {"apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "verbs": ["impersonate:arbitrary-node"]},
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["impersonate-on:arbitrary-node:patch"]},
            ],
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "too-much"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "too-much"},
            "subjects": [{"kind": "ServiceAccount", "name": "berth-agent", "namespace": "berth-system"}],
        });
        for object in [role, binding] {
            cluster.control_plane.apply_yaml(&object.to_string()).await?;
        }
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        let said = "remove the verbs impersonate and impersonate:arbitrary-node";
        for node in NODES {
            until_degraded(cluster, node, "Unguarded", said).await?;
        }
        ensure!(cluster.boots().values().all(|&n| n == 1), "{:?}", cluster.boots());
        let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client());
        bindings.delete("too-much", &DeleteParams::default()).await?;
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}
