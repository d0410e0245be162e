//! The other ways to install Berth: each overlay and the Helm charts, on real hosts. An admin follows the quick start, with the file
//! or the commands that the documentation names for the cluster.

use std::slice;

use anyhow::{Context, Result, bail, ensure};
use berth_tests::cluster::{Nodes, PlainCluster};
use berth_tests::dist::VERSION;
use berth_tests::programs::read;

use crate::newcomer::{Newcomer, Step, on_cluster, quick_start, scenario, steps};
use crate::service;

const APPLY: &str = "kubectl apply --server-side -f $RELEASE/install.yaml\n";
const AGENTS_ARE_READY: &str = "kubectl -n berth-system rollout status daemonset/berth-agent --timeout=5m\n";
const WORKERS: &str = "    matchExpressions:
    - {key: node-role.kubernetes.io/control-plane, operator: DoesNotExist}
    - {key: node-role.kubernetes.io/etcd, operator: DoesNotExist}
";

/// Replaces text of the page, which must be there.
fn replace(steps: &mut [Step], old: &str, new: &str) -> Result<()> {
    let mut found = steps.iter_mut().filter(|step| step.commands.contains(old));
    let step = found.next().with_context(|| format!("the page has no {old}"))?;
    step.commands = step.commands.replace(old, new);
    Ok(())
}

/// The quick start with the install file of another overlay.
fn with_file(overlay: &str) -> Result<Vec<Step>> {
    let mut steps = quick_start()?;
    replace(&mut steps, "/install.yaml", &format!("/install-{overlay}.yaml"))?;
    Ok(steps)
}

async fn overlay(name: &str, nodes: Nodes) -> Result<()> {
    scenario(name, nodes, with_file(nodes.overlay)?).await
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
    let mut steps = with_file(nodes.overlay)?;
    replace(&mut steps, WORKERS, "")?;
    replace(&mut steps, "\nspec:\n", "\nspec:\n  drain: {enabled: false}\n")?;
    scenario("a_single_node", nodes, steps).await
}

/// The commands of a section of docs/helm.md, with the charts of the test's release.
fn of_helm(section: &str) -> Result<String> {
    let steps = steps(&read("docs/helm.md")?);
    let step = steps.into_iter().find(|step| step.title == section);
    let step = step.with_context(|| format!("docs/helm.md has no commands in its section {section:?}"))?;
    let mut commands = step.commands;
    for chart in ["berth-crds", "berth"] {
        let published = format!("oci://ghcr.io/berth-dev/charts/{chart} --version {VERSION}");
        commands = commands.replace(&published, &format!("$RELEASE/{chart}-{VERSION}.tgz"));
    }
    ensure!(!commands.contains("oci://"), "{commands}");
    Ok(commands)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_a_helm_release() -> Result<()> {
    let mut steps = quick_start()?;
    replace(&mut steps, APPLY, &of_helm("")?)?;
    replace(
        &mut steps,
        "kubectl berth uninstall --yes\n",
        &of_helm("Taking it away")?,
    )?;
    scenario("hosts_of_a_helm_release", two_nodes("kubeadm"), steps).await
}

/// Installs the agent on each host after the objects, and does not remove it: that is done by hand, host by host.
async fn with_services(cluster: &PlainCluster, steps: &[Step]) -> Result<()> {
    let [say, install, rollout @ .., _] = steps else {
        bail!("the page has {} steps", steps.len());
    };
    let newcomer = Newcomer::to(cluster).await?;
    newcomer.follow(&[say.clone(), install.clone()]).await?;
    for host in &cluster.hosts {
        service::install(&cluster.control_plane, host, None).await?;
        host.exec(&["systemctl", "enable", "--now", service::UNIT]).await?;
    }
    let said = newcomer.follow(&[slice::from_ref(say), rollout].concat()).await?;
    let workers: Vec<_> = cluster.hosts.iter().skip(1).collect();
    newcomer.has_updated(&said, &workers)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_the_agent_as_a_service() -> Result<()> {
    let nodes = two_nodes("systemd-agent");
    let mut steps = with_file(nodes.overlay)?;
    replace(&mut steps, AGENTS_ARE_READY, "")?;
    replace(&mut steps, "kubectl berth doctor\n", "")?;
    on_cluster("hosts_with_the_agent_as_a_service", nodes, async |cluster| {
        with_services(cluster, &steps).await
    })
    .await
}
