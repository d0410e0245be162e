//! `kubectl berth doctor` against a real API server: before an installation, after it, and with one thing broken after
//! the other. The commands that it prints are run literally.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, SOON};
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::programs::{self, workspace_root};
use berth_tests::tools::{Tool, Tools};
use berth_tests::wait::eventually;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::said::{Said, run};

/// An admin at work: a user of a cluster, and the manifests that Berth is installed from.
struct Admin<'a> {
    plane: &'a ControlPlane,
    user: &'a str,
    groups: &'a [&'a str],
}

impl<'a> Admin<'a> {
    const fn of(plane: &'a ControlPlane) -> Self {
        Self {
            plane,
            user: "tom",
            groups: &["system:masters"],
        }
    }

    async fn berth(&self, arguments: &[&str]) -> Result<Said> {
        let program = tokio::task::spawn_blocking(programs::kubectl).await??;
        let config = self.plane.kubeconfig_for(self.user, self.groups)?;
        let mut command = Command::new(program);
        command.args(arguments).arg("--kubeconfig").arg(&config.path);
        run(command).await
    }

    async fn doctor(&self) -> Result<Said> {
        self.berth(&["doctor"]).await
    }

    /// Runs the commands that `--fix` prints, each as its line is.
    async fn fix(&self) -> Result<Vec<String>> {
        let manifests = workspace_root().join("manifests/base");
        let manifests = manifests.to_str().context("the path is not text")?;
        let said = self.berth(&["doctor", "--fix", "--manifests", manifests]).await?;
        let lines: Vec<String> = said.out.lines().map(str::to_owned).collect();
        ensure!(
            !lines.is_empty() && said.err.is_empty(),
            "--fix prints commands: {said:?}"
        );
        let kubectl = tokio::task::spawn_blocking(|| Tools::ensure(&[Tool::Kubectl])).await??;
        let directory = kubectl
            .path(Tool::Kubectl)?
            .parent()
            .context("no directory")?
            .to_owned();
        let mut path = OsString::from(directory);
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        for line in &lines {
            let mut command = Command::new("sh");
            command.args(["-c", line]).env("PATH", &path);
            run(command).await?.well(&[]).with_context(|| line.clone())?;
        }
        Ok(lines)
    }

    /// Waits until the doctor ends with this status and prints these texts.
    async fn until_ends(&self, code: i32, texts: &[&str]) -> Result<()> {
        eventually(&format!("the doctor says {texts:?}"), SOON, async || {
            self.doctor().await?.ends(code, texts)?;
            Ok(true)
        })
        .await
    }
}

fn manifest(kind: &str, name: &str) -> Result<Value> {
    let text = programs::read(&format!(
        "manifests/base/{}",
        if kind == "CustomResourceDefinition" {
            "crds.yaml"
        } else {
            "admission-policies.yaml"
        }
    ))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let mut found = documents
        .into_iter()
        .filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.next().with_context(|| format!("no {kind} {name}"))
}

async fn join(plane: &ControlPlane, name: &str) -> Result<()> {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::all(plane.admin_client())
        .create(&PostParams::default(), &node)
        .await?;
    Ok(())
}

#[tokio::test]
async fn an_empty_cluster_lacks_everything_and_the_commands_install_it() -> Result<()> {
    tokio::task::spawn_blocking(programs::kubectl).await??;
    let plane = ControlPlane::start(Options::default()).await?;
    let admin = Admin::of(&plane);
    join(&plane, "bare").await?;
    let said = admin.doctor().await?;
    said.ends(
        1,
        &[
            "ok       Kubernetes v1.",
            "ok       the API server serves ValidatingAdmissionPolicies",
            "ok       a kubelet's dry-run write to another Node is refused",
            "note     0 nodes with the label of the control plane",
            "broken   CRDs are not installed: bootcnodepools.berth.dev, bootcnodes.berth.dev, bootcfleets.berth.dev",
            "broken   admission policies are not installed: berth-agent-own-status, berth-agent-own-berth",
            "broken   the controller is not installed",
            "$ kubectl --kubeconfig",
            "/install.yaml",
        ],
    )?;
    ensure!(
        !said.out.contains("unknown  "),
        "an admin may look at everything: {}",
        said.out
    );
    let commands = admin.fix().await?;
    ensure!(commands.len() == 3, "CRDs, policies, and the rest: {commands:#?}");
    // No kubelet runs here, so no pod of the controller does. For a moment, the API server cannot read the new kinds.
    let texts = [
        "ok       CRDs have version",
        "ok       4 admission policies of version",
        "ok       dry-run writes are refused by berth-node-labels",
        "broken   controller: 0 of 2 pods are ready",
    ];
    admin.until_ends(1, &texts).await
}

#[tokio::test]
async fn a_user_without_rights_gets_no_verdict() -> Result<()> {
    tokio::task::spawn_blocking(programs::kubectl).await??;
    let plane = ControlPlane::start(Options::default()).await?;
    plane.install().await?;
    let eve = Admin {
        user: "eve",
        groups: &[],
        ..Admin::of(&plane)
    };
    let said = eve.doctor().await?;
    said.ends(
        2,
        &[
            "unknown  not known: CustomResourceDefinition bootcnodepools.berth.dev, CustomResourceDefinition bootcnodes.berth.dev",
            "allow your user to get customresourcedefinitions.apiextensions.k8s.io",
            "unknown  not known: ValidatingAdmissionPolicyBinding berth-agent-own-status, ",
            "allow your user to get deployments.apps in namespace berth-system",
            "allow your user to list bootcnodepools.berth.dev and bootcnodes.berth.dev",
            "allow your user to list poddisruptionbudgets.policy in all namespaces",
        ],
    )?;
    for word in ["CRDs have", "budgets let every", "ok       controller", "refused by"] {
        ensure!(!said.out.contains(word), "{word:?} without a look: {}", said.out);
    }
    let said = eve.berth(&["doctor", "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&said.out)?;
    ensure!(report["result"] == "unknown", "{report:#}");
    Ok(())
}

async fn rolled_out(hosts: usize) -> Result<Cluster> {
    tokio::task::spawn_blocking(programs::kubectl).await??;
    let cluster = Cluster::start(ClusterOptions {
        hosts,
        ..ClusterOptions::default()
    })
    .await?;
    let image = cluster.publish("2.0.0").await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
    cluster.pool("workers", &image.reference, rollout).await?;
    cluster.until_all_run(&image, LONG).await?;
    Ok(cluster)
}

#[tokio::test]
async fn each_broken_thing_is_named_and_mended_by_its_command() -> Result<()> {
    let cluster = rolled_out(2).await?;
    let admin = Admin::of(&cluster.control_plane);
    admin
        .until_ends(0, &[
            "ok       CRDs have version",
            "ok       dry-run writes are refused by berth-agent-own-berth, berth-agent-own-status, berth-node-labels",
            "ok       agents: 2 of 2 members report",
            "ok       the images of 1 pool are resolved",
        ])
        .await?;
    a_binding(&cluster, &admin).await?;
    a_policy(&cluster, &admin).await?;
    a_crd(&cluster, &admin).await?;
    a_budget(&cluster, &admin).await
}

/// A deleted binding is found, and another one that no longer denies.
async fn a_binding(cluster: &Cluster, admin: &Admin<'_>) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client());
    bindings
        .delete("berth-agent-own-status", &DeleteParams::default())
        .await?;
    let audit = Patch::Merge(json!({ "spec": { "validationActions": ["Audit"] } }));
    bindings
        .patch("berth-node-labels", &PatchParams::default(), &audit)
        .await?;
    let texts = [
        "broken   ValidatingAdmissionPolicyBinding berth-agent-own-status is missing",
        "broken   ValidatingAdmissionPolicyBinding berth-node-labels does not deny",
        "fix: apply the admission policies of version",
        // The API server's own answers show it too, as soon as it has seen the change.
        "broken   a dry-run write was accepted that the policy berth-agent-own-status must refuse",
        "broken   a dry-run write was accepted that the policy berth-node-labels must refuse",
    ];
    admin.until_ends(1, &texts).await?;
    admin.fix().await?;
    admin.until_ends(0, &["4 admission policies of version"]).await
}

/// A policy that was weakened is found by its text, and by the write that it lets pass.
async fn a_policy(cluster: &Cluster, admin: &Admin<'_>) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client());
    let weak =
        Patch::Merge(json!({ "spec": { "failurePolicy": "Ignore", "validations": [{ "expression": "true" }] } }));
    policies
        .patch("berth-agent-own-berth", &PatchParams::default(), &weak)
        .await?;
    let texts = [
        "broken   ValidatingAdmissionPolicy berth-agent-own-berth differs from version",
        "in failurePolicy, validations",
        "broken   a dry-run write was accepted that the policy berth-agent-own-berth must refuse",
    ];
    admin.until_ends(1, &texts).await?;
    admin.fix().await?;
    admin
        .until_ends(0, &["dry-run writes are refused by berth-agent-own-berth"])
        .await
}

/// A CRD of an earlier version lacks a field.
async fn a_crd(cluster: &Cluster, admin: &Admin<'_>) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let mut old = manifest("CustomResourceDefinition", "bootcnodepools.berth.dev")?;
    let fields = &mut old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    fields
        .as_object_mut()
        .context("no fields")?
        .remove("historyLimit")
        .context("no historyLimit")?;
    let params = PatchParams::apply("installer").force();
    crds.patch("bootcnodepools.berth.dev", &params, &Patch::Apply(&old))
        .await?;
    let texts = [
        "broken   CRDs are older than version",
        "bootcnodepools.berth.dev lacks spec.historyLimit",
        "fix: apply the CRDs of version",
    ];
    admin.until_ends(1, &texts).await?;
    let commands = admin.fix().await?;
    ensure!(
        commands.len() == 1 && commands[0].ends_with("crds.yaml"),
        "{commands:?}"
    );
    admin.until_ends(0, &["ok       CRDs have version"]).await
}

/// A budget keeps the only pod of a workload on its node.
async fn a_budget(cluster: &Cluster, admin: &Admin<'_>) -> Result<()> {
    cluster.deploy("shop", 1).await?;
    admin
        .until_ends(0, &["note     1 single replica without a budget: default/shop"])
        .await?;
    cluster.budget("shop", 1).await?;
    let texts = [
        "broken   budget default/shop never lets a node go: minAvailable is 1 (of 1 pod)",
        "cause: drains of these nodes time out: node",
        "patch poddisruptionbudget shop",
    ];
    admin.until_ends(1, &texts).await?;
    admin.fix().await?;
    admin
        .until_ends(0, &["disruption budgets let every node go (1 checked)"])
        .await
}

#[tokio::test]
async fn a_member_without_an_agent_is_named() -> Result<()> {
    let cluster = rolled_out(1).await?;
    let admin = Admin::of(&cluster.control_plane);
    join(&cluster.control_plane, "bare").await?;
    admin
        .until_ends(0, &["note     agents of new members have not reported yet: bare"])
        .await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let texts = [
        "broken   no agent reports on node bare, a member of pool workers",
        "cause: no pod of the DaemonSet is there (bare)",
        "kubectl berth exclude NODE",
    ];
    admin.until_ends(1, &texts).await?;
    admin.berth(&["exclude", "bare", "--yes"]).await?.well(&[])?;
    admin.until_ends(0, &["agents: 1 of 1 member report"]).await
}
