//! `kubectl berth uninstall`: afterwards there is no trace of Berth, neither in the cluster nor on its hosts. The
//! DaemonSet's controller and the pods are real; the test plays the container runtime (see [`Runtime`]).

mod runtime;

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use berth_api::keys;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, soon};
use berth_tests::hosts::sim::{KubeletSettings, Settings, SimHost};
use berth_tests::programs;
use berth_tests::traces::{cluster_is_clean, host_is_clean};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use self::runtime::{Runtime, remove_by_hand};
use crate::said::{Said, berth};
use berth_tests::manifests::with_components;

const GUARD: &str = "etc/systemd/system/berth-rollback-guard.service";
const HEALTH_CHECKS: &str = "etc/berth/health.d/README";

/// Starts a cluster with these hosts and with all shipped objects, workloads included.
async fn start(hosts: usize) -> Result<Cluster> {
    tokio::task::spawn_blocking(programs::kubectl).await??;
    let settings = Settings {
        kubelet: KubeletSettings {
            not_run: ["remove".to_owned()].into(),
            ..KubeletSettings::default()
        },
        ..Settings::default()
    };
    let cluster = Cluster::start(ClusterOptions {
        hosts,
        settings,
        ..ClusterOptions::default()
    })
    .await?;
    for host in &cluster.fleet.hosts {
        cluster.label(host.name(), "kubernetes.io/os", Some("linux")).await?;
    }
    for object in with_components(&["impersonation"])? {
        cluster.control_plane.apply_yaml(&object.to_string()).await?;
    }
    Ok(cluster)
}

/// Rolls an image out to all hosts, and leaves files and marks that an admin would leave.
async fn roll_out(cluster: &Cluster) -> Result<()> {
    let image = cluster.publish("2.0.0").await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
    cluster.pool("workers", &image.reference, rollout).await?;
    cluster.until_all_run(&image, LONG).await?;
    let first = cluster.host(1);
    ensure!(
        first.root().join(GUARD).exists(),
        "the agent installs the rollback guard"
    );
    for file in [
        "etc/systemd/system/berth-pull-.service.d/proxy.conf",
        "etc/systemd/system/kubelet.service.requires/berth-firstboot.service",
        "etc/issue.d/80-berth-firstboot.issue",
        "etc/berth/agent.token",
        HEALTH_CHECKS,
    ] {
        let path = first.root().join(file);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        fs::write(path, "")?;
    }
    cluster.label(first.name(), keys::LABEL_VARIANT, Some("v1")).await?;
    let taints = json!([{ "key": keys::SET_ASIDE, "effect": "PreferNoSchedule" }]);
    let set_aside = json!({ "metadata": { "labels": { keys::SET_ASIDE: "" } }, "spec": { "taints": taints } });
    cluster.patch_node(first.name(), set_aside).await
}

/// Begins another rollout, and returns a host whose drain does not end. All hosts have staged an image.
async fn begin_turn(cluster: &Cluster) -> Result<&SimHost> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "default");
    for host in &cluster.fleet.hosts {
        // No drain evicts a pod without an owner.
        let pod = json!({
            "metadata": { "name": format!("block-{}", host.name()) },
            "spec": {
                "nodeName": host.name(), "automountServiceAccountToken": false,
                "containers": [{ "name": "app", "image": "registry.test/app:1" }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
    }
    let image = cluster.publish("3.0.0").await?;
    cluster.set_image("workers", &image.reference).await?;
    let digest = image.digest.to_string();
    let found = std::cell::RefCell::new(None);
    soon(cluster, "a host is drained, and all have staged", || async {
        let holder = cluster.held().await?.pop();
        let are_staged = cluster
            .fleet
            .hosts
            .iter()
            .all(|host| host.facts().staged.as_ref() == Some(&digest));
        let Some(holder) = holder.filter(|_| are_staged) else {
            return Ok(false);
        };
        let is_draining = cluster.phase(&holder).await? == "Draining" && cluster.is_cordoned(&holder).await?;
        *found.borrow_mut() = Some(holder);
        Ok(is_draining)
    })
    .await?;
    let name = found.into_inner().context("no host holds a berth")?;
    cluster.fleet.host(&name).context("the holder is an unknown host")
}

/// Runs the command while the runtime runs pods.
async fn uninstall(cluster: &Cluster, more: &[&str]) -> Result<Said> {
    let words = [&["uninstall", "--yes"], more].concat();
    tokio::select! {
        said = berth(cluster, &words) => said,
        error = Runtime::of(cluster).run() => bail!("the runtime has ended: {error:?}"),
    }
}

/// Starts the command, and kills it as soon as it prints this text. Returns false if it ended before.
async fn uninstall_until(cluster: &Cluster, text: &str) -> Result<bool> {
    let config = cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
    let mut command = Command::new(programs::kubectl()?);
    command.args(["uninstall", "--yes", "--kubeconfig"]).arg(&config.path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let found = tokio::select! {
        found = tokio::time::timeout(LONG, read_until(&mut child, text)) => found.context("no such line")??,
        error = Runtime::of(cluster).run() => bail!("the runtime has ended: {error:?}"),
    };
    child.kill().await?;
    Ok(found)
}

async fn read_until(child: &mut Child, text: &str) -> Result<bool> {
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    while let Some(line) = lines.next_line().await? {
        if line.starts_with('[') && line.contains(text) {
            return Ok(true);
        }
    }
    ensure!(child.wait().await?.success(), "it fails before it prints {text:?}");
    Ok(false)
}

#[tokio::test]
async fn an_uninstall_leaves_no_trace() -> Result<()> {
    let cluster = start(3).await?;
    roll_out(&cluster).await?;
    let draining = begin_turn(&cluster).await?.name();
    berth(&cluster, &["uninstall", "--dry-run"]).await?.well(&[
        "1. pools: deletes 1 pool (workers)",
        "ClusterRole: berth-agent, berth-agent-as-node, berth-controller\n",
        "Role: berth-agent, berth-controller, berth-controller (namespace default)\n",
        "CustomResourceDefinition: bootcfleets.berth.dev, bootcnodepools.berth.dev, bootcnodes.berth.dev\n",
    ])?;
    ensure!(cluster.is_cordoned(draining).await?, "a dry run changes nothing");
    uninstall(&cluster, &[]).await?.well(&[
        "[1/4] pools",
        "3 hosts are clean",
        "Berth is removed from this cluster",
    ])?;
    cluster_is_clean(&cluster.client()).await?;
    for host in &cluster.fleet.hosts {
        let kept: &[&str] = if host.name() == cluster.host(1).name() {
            &[HEALTH_CHECKS]
        } else {
            &[]
        };
        host_is_clean(host, kept)?;
        ensure!(host.facts().staged.is_none(), "{} has a staged image", host.name());
        ensure!(!cluster.is_cordoned(host.name()).await?, "{} is cordoned", host.name());
    }
    berth(&cluster, &["uninstall", "--yes"])
        .await?
        .well(&["nothing to do"])?;
    cluster.judge()
}

#[tokio::test]
async fn an_interrupted_uninstall_is_continued() -> Result<()> {
    let cluster = start(2).await?;
    roll_out(&cluster).await?;
    for text in [
        "pools: waiting",
        "hosts: ",
        "hosts: done",
        "Nodes: done",
        "deleting Deployment",
        "deleting CustomResourceDefinition",
        "deleting DaemonSet",
        "deleting Namespace",
    ] {
        uninstall_until(&cluster, text).await?;
    }
    let said = uninstall(&cluster, &[]).await?;
    ensure!(said.is_well(), "{said:?}");
    cluster_is_clean(&cluster.client()).await?;
    host_is_clean(cluster.host(1), &[HEALTH_CHECKS])?;
    host_is_clean(cluster.host(2), &[])
}

/// Without the programs, no agent gives its node back: the command removes what the API has, and names the rest.
#[tokio::test]
async fn what_is_left_after_the_programs_is_removed_or_named() -> Result<()> {
    let cluster = start(2).await?;
    roll_out(&cluster).await?;
    let draining = begin_turn(&cluster).await?.name();
    cluster.controllers.stop(0);
    for host in &cluster.fleet.hosts {
        host.stop_agent().await;
    }
    let spaces: Api<Namespace> = Api::all(cluster.client());
    spaces.delete(keys::NAMESPACE, &DeleteParams::default()).await?;
    soon(&cluster, "the namespace is gone", || async {
        Ok(spaces.get_opt(keys::NAMESPACE).await?.is_none())
    })
    .await?;
    ensure!(cluster.is_cordoned(draining).await?, "no program has uncordoned it");

    uninstall(&cluster, &[]).await?.well(&[
        "The controller is gone",
        "Hosts keep staged images (node1, node2)",
        "On each host: berth-agent remove",
        &format!("uncordoned: {draining}"),
    ])?;
    cluster_is_clean(&cluster.client()).await?;
    ensure!(!cluster.is_cordoned(draining).await?, "it is still cordoned");
    for host in &cluster.fleet.hosts {
        ensure!(
            host_is_clean(host, &[HEALTH_CHECKS]).is_err(),
            "the hosts keep their files"
        );
        remove_by_hand(host).await?;
        remove_by_hand(host).await?;
        host_is_clean(host, &[HEALTH_CHECKS])?;
    }
    Ok(())
}

/// A lost node is named with the remedies, and the command can continue without it.
#[tokio::test]
async fn a_lost_node_is_named_and_can_be_left() -> Result<()> {
    let cluster = start(2).await?;
    roll_out(&cluster).await?;
    let lost = cluster.host(2);
    cluster.excuse(lost.name());
    lost.power_loss().await;
    let said = uninstall(&cluster, &["--timeout", "10s"]).await?;
    said.ends(1, &["not given back within 10s: ", lost.name(), "--leave node2"])?;
    berth(&cluster, &["uninstall", "--yes", "--leave", "node9"])
        .await?
        .ends(1, &["there is no Node \"node9\" to leave"])?;
    let said = uninstall(&cluster, &["--leave", "node2"]).await?;
    said.well(&["Node node2 is not waited for", "1 host is clean", "Berth is removed"])?;
    cluster_is_clean(&cluster.client()).await?;
    host_is_clean(cluster.host(1), &[HEALTH_CHECKS])
}

/// An admin who may not do a step reads which right is missing, and another one continues.
#[tokio::test]
async fn a_missing_right_is_named() -> Result<()> {
    let cluster = start(1).await?;
    let program = programs::kubectl()?;
    let config = cluster.control_plane.kubeconfig_for("reader", &["readers"])?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "readers" },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "readers" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "readers" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers" }],
    });
    for object in [role, binding] {
        cluster.control_plane.apply_yaml(&object.to_string()).await?;
    }
    let mut command = Command::new(program);
    command.args(["uninstall", "--yes", "--kubeconfig"]).arg(&config.path);
    let said = crate::said::run(command).await?;
    said.ends(
        1,
        &[
            "cannot change DaemonSet berth-agent",
            "cannot update resource \"daemonsets\"",
            "it continues here",
        ],
    )?;
    Ok(())
}
