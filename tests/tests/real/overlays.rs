//! The other ways to install Berth: each overlay and the Helm charts, on real hosts. An admin follows the quick start, with the file
//! or the commands that the documentation names for the cluster.

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Nodes, PlainCluster};
use berth_tests::programs::read;

use crate::newcomer::{self, Newcomer, Step, scenario, steps};
use crate::service;

const APPLY: &str = "kubectl apply --server-side -f $RELEASE/install.yaml\n";
const AGENTS_ARE_READY: &str = "kubectl -n berth-system rollout status daemonset/berth-agent --timeout=5m\n";

/// Replaces text of the page, if the step has it.
fn replace(step: &mut Step, old: &str, new: &str) {
    step.commands = step.commands.replace(old, new);
}

/// Replaces the install file.
fn with_file(step: &mut Step, overlay: &str) {
    replace(step, "/install.yaml", &format!("/install-{overlay}.yaml"));
}

async fn overlay(name: &str, nodes: Nodes) -> Result<()> {
    scenario(name, nodes, |step| {
        with_file(step, nodes.overlay);
        Ok(())
    })
    .await
}

const fn two_nodes(overlay: &'static str) -> Nodes {
    Nodes {
        overlay,
        has_control_plane: true,
        workers: 1,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_k3s() -> Result<()> {
    overlay("hosts_of_k3s", two_nodes("k3s")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_rke2() -> Result<()> {
    overlay("hosts_of_rke2", two_nodes("rke2")).await
}

/// No node is a control plane, so the controllers run on the workers that they update. The kubelet's kubeconfig has a certificate
/// here, not the program of EKS.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_the_paths_of_eks() -> Result<()> {
    let nodes = Nodes {
        overlay: "eks",
        has_control_plane: false,
        workers: 2,
    };
    overlay("hosts_with_the_paths_of_eks", nodes).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_the_paths_of_openshift() -> Result<()> {
    overlay("hosts_with_the_paths_of_openshift", two_nodes("openshift")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_metrics() -> Result<()> {
    overlay("hosts_with_metrics", two_nodes("monitoring")).await
}

/// The controller runs on the node that it updates. The pool is changed as the page says for this case.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_node() -> Result<()> {
    let nodes = Nodes {
        overlay: "single-node",
        has_control_plane: true,
        workers: 0,
    };
    scenario("a_single_node", nodes, |step| {
        with_file(step, nodes.overlay);
        if let Some((begin, rest)) = step.commands.split_once("    matchExpressions:\n") {
            let lines = rest.lines().skip_while(|line| line.starts_with("    - "));
            let rest: String = lines.map(|line| format!("{line}\n")).collect();
            step.commands = format!("{begin}{rest}");
        }
        Ok(())
    })
    .await
}

/// The commands of a section of docs/helm.md, with the charts of the test's release.
fn of_helm(section: &str) -> Result<String> {
    let steps = steps(&read("docs/helm.md")?);
    let step = steps.into_iter().find(|step| step.title == section);
    let commands = step.with_context(|| format!("docs/helm.md has no commands in its section {section:?}"))?;
    let version = env!("CARGO_PKG_VERSION");
    let mut commands = commands.commands;
    for chart in ["berth-crds", "berth"] {
        let published = format!("oci://ghcr.io/berth-dev/charts/{chart} --version {version}");
        commands = commands.replace(&published, &format!("$RELEASE/{chart}-{version}.tgz"));
    }
    ensure!(!commands.contains("oci://"), "{commands}");
    Ok(commands)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_a_helm_release() -> Result<()> {
    let install = of_helm("")?;
    let remove = of_helm("Taking it away")?;
    scenario("hosts_of_a_helm_release", two_nodes("kubeadm"), |step| {
        replace(step, APPLY, &install);
        replace(step, "kubectl berth uninstall --yes\n", &remove);
        Ok(())
    })
    .await
}

/// Installs the agent on each host after the objects, and does not remove it: that is done by hand, host by host.
async fn with_services(cluster: &PlainCluster, overlay: &str) -> Result<()> {
    let newcomer = Newcomer::to(cluster).await?;
    let mut steps = newcomer::quick_start()?;
    for step in &mut steps {
        with_file(step, overlay);
        replace(step, AGENTS_ARE_READY, "");
        replace(step, "kubectl berth doctor\n", "");
    }
    let [say, install, rollout @ .., _] = steps.as_slice() else {
        anyhow::bail!("the page has {} steps", steps.len());
    };
    newcomer.follow(&[say.clone(), install.clone()]).await?;
    for host in &cluster.hosts {
        service::install(&cluster.control_plane, host, None).await?;
        host.exec(&["systemctl", "enable", "--now", service::UNIT]).await?;
    }
    let said = newcomer.follow(&[std::slice::from_ref(say), rollout].concat()).await?;
    ensure!(
        said.contains("Every node runs its target image"),
        "the rollout is not done"
    );
    let workers: Vec<_> = cluster.hosts.iter().skip(1).collect();
    newcomer.has_updated(&workers)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_the_agent_as_a_service() -> Result<()> {
    let nodes = two_nodes("systemd-agent");
    let Some(cluster) = newcomer::start("hosts_with_the_agent_as_a_service", nodes).await? else {
        return Ok(());
    };
    let outcome = with_services(&cluster, nodes.overlay).await;
    if let Err(error) = &outcome {
        eprintln!("{error:#}\n{}", cluster.describe().await);
    }
    outcome
}
