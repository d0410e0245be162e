//! The samples and the manifests of each distribution: they must match what its installer really sets up.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use berth_agent::cli::Args;
use berth_api::fleet::BootcFleet;
use berth_api::membership::{PoolSelector, Rule, membership};
use berth_api::pool::BootcNodePool;
use berth_tests::manifests::with_components;
use berth_tests::programs::read;
use clap::Parser;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube::core::Selector;
use serde_json::Value;

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const ETCD: &str = "node-role.kubernetes.io/etcd";

/// A kind of node: its labels besides the kubelet's, and the sample pool that selects it.
type Kind = (
    &'static str,
    &'static [(&'static str, &'static str)],
    Option<&'static str>,
);

/// Labels that kubeadm 1.36, k3s, RKE2, the AMI of EKS and the Machine Config Operator put on nodes, by their sources.
const NODES: [Kind; 10] = [
    ("kubeadm's worker", &[], Some("workers")),
    (
        "kubeadm's control plane node",
        &[
            (CONTROL_PLANE, ""),
            ("node.kubernetes.io/exclude-from-external-load-balancers", ""),
        ],
        Some("control-plane"),
    ),
    ("k3s's agent", &[], Some("workers")),
    (
        "k3s's server with embedded etcd",
        &[(CONTROL_PLANE, "true"), (ETCD, "true")],
        Some("control-plane"),
    ),
    (
        "k3s's server with another database",
        &[(CONTROL_PLANE, "true")],
        Some("control-plane"),
    ),
    ("a server of k3s or RKE2 with nothing but etcd", &[(ETCD, "true")], None),
    (
        "RKE2's server",
        &[(CONTROL_PLANE, "true"), (ETCD, "true")],
        Some("control-plane"),
    ),
    (
        "a node of EKS",
        &[("eks.amazonaws.com/nodegroup", "blue")],
        Some("workers"),
    ),
    (
        "OKD's worker",
        &[
            ("node-role.kubernetes.io/worker", ""),
            ("node.openshift.io/os_id", "scos"),
        ],
        Some("workers"),
    ),
    (
        "OKD's master",
        &[(CONTROL_PLANE, ""), ("node-role.kubernetes.io/master", "")],
        Some("control-plane"),
    ),
];

fn sample(name: &str) -> Result<String> {
    read(&format!("manifests/samples/{name}"))
}

fn pool(text: &str) -> Result<(String, Selector)> {
    let pool: BootcNodePool = serde_saphyr::from_str(text)?;
    let selector = pool.spec.selector().map_err(|error| anyhow!("{error}"))?.clone();
    Ok((pool.metadata.name.context("a pool without a name")?, selector))
}

#[test]
fn sample_pools_select_nodes_of_every_distribution() -> Result<()> {
    let pools = ["pool.yaml", "pinned-pool.yaml"].map(|name| {
        let (name, selector) = pool(&sample(name)?)?;
        Ok(PoolSelector {
            name: name.as_str().into(),
            rule: Rule::Select(selector),
        })
    });
    let pools = pools.into_iter().collect::<Result<Vec<_>>>()?;
    for (what, labels, expected) in NODES {
        let of_the_kubelet = [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")];
        let labels: BTreeMap<String, String> = labels
            .iter()
            .chain(&of_the_kubelet)
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let node = "n1".into();
        let result = membership(&pools, [(&node, &labels, None)]);
        ensure!(result.conflicts.is_empty(), "{what} is in two pools");
        let found = result.pool_of(&node).map(|pool| pool.as_str());
        ensure!(found == expected, "{what} is in {found:?}, not in {expected:?}");
    }
    Ok(())
}

/// Users copy the pool from these pages: it must select the same nodes as the sample.
#[test]
fn the_documented_pools_select_like_the_sample() -> Result<()> {
    for file in ["docs/pools.md", "docs/quick-start.md"] {
        let page = read(file)?;
        let mut found = 0;
        for block in page.split("```").filter(|block| block.contains("kind: BootcNodePool")) {
            // A shell block ends the manifest with a line END.
            let (_, text) = block.split_once("apiVersion:").context("no manifest")?;
            let text = text.split("\nEND\n").next().unwrap_or(text);
            ensure!(
                pool(&format!("apiVersion:{text}"))? == pool(&sample("pool.yaml")?)?,
                "{file}: {text}"
            );
            found += 1;
        }
        ensure!(found > 0, "{file} has no pool");
    }
    Ok(())
}

#[test]
fn the_sample_fleet_has_the_right_name() -> Result<()> {
    let fleet: BootcFleet = serde_saphyr::from_str(&sample("fleet-paused.yaml")?)?;
    ensure!(fleet.metadata.name.as_deref() == Some(berth_api::fleet::NAME) && fleet.spec.paused);
    Ok(())
}

#[test]
fn sample_pools_have_an_order_and_a_limit() -> Result<()> {
    let fleet: BootcFleet = serde_saphyr::from_str(&sample("fleet-limit.yaml")?)?;
    ensure!(!fleet.spec.paused && fleet.spec.limit(50) == Some(5));
    let (first, _) = pool(&sample("pool.yaml")?)?;
    let second: BootcNodePool = serde_saphyr::from_str(&sample("pinned-pool.yaml")?)?;
    ensure!(second.spec.after() == [first], "the control plane comes last");
    Ok(())
}

/// The agents' DaemonSet with this component.
fn agent_with(component: &str) -> Result<DaemonSet> {
    let agent = with_components(&[component])?
        .into_iter()
        .find(|document| document["kind"] == "DaemonSet")
        .context("no DaemonSet")?;
    Ok(serde_json::from_value(agent)?)
}

/// Fails unless the probe finds its file, even if a component changes the arguments. Returns the volume of the file.
fn the_probe_finds_its_file<'a>(pod: &PodSpec, container: &'a Container) -> Result<&'a str> {
    let mut env = container.env.iter().flatten();
    let value = env.find(|env| env.name == "BERTH_READY_FILE");
    let file = value.and_then(|env| env.value.as_deref()).context("no ready file")?;
    let mut mounts = container.volume_mounts.iter().flatten();
    let mount = mounts.find(|mount| file.starts_with(&format!("{}/", mount.mount_path)));
    let volume = mount.context("the ready file lies in no volume")?.name.as_str();
    let mut volumes = pod.volumes.iter().flatten();
    let goes_with_the_pod = volumes.any(|v| v.name == volume && v.empty_dir.is_some());
    ensure!(goes_with_the_pod, "{volume} outlives the pod");
    let probe = container.readiness_probe.as_ref().and_then(|probe| probe.exec.as_ref());
    let probe = probe.and_then(|exec| exec.command.clone());
    let probe = probe.context("no readiness probe")?;
    Args::try_parse_from(probe.iter().map(String::as_str).chain([file])).with_context(|| format!("{probe:?}"))?;
    Ok(volume)
}

/// Component of an installer, the path of its kubelet's kubeconfig, and the files that the kubeconfig names.
fn installers() -> Vec<(&'static str, String, Vec<String>)> {
    let mut installers = Vec::new();
    for (name, file) in [
        ("eks", "/etc/kubernetes/pki/ca.crt"),
        ("openshift", "/var/lib/kubelet/pki"),
    ] {
        installers.push((name, "/var/lib/kubelet/kubeconfig".to_owned(), vec![file.to_owned()]));
    }
    for name in ["k3s", "rke2"] {
        let directory = format!("/var/lib/rancher/{name}/agent");
        let files = ["client-kubelet.crt", "client-kubelet.key", "server-ca.crt"];
        installers.push((
            name,
            format!("{directory}/kubelet.kubeconfig"),
            files.map(|file| format!("{directory}/{file}")).to_vec(),
        ));
    }
    installers
}

/// The agent sees the kubelet's kubeconfig and the files that the kubeconfig names, and no other secret of the host.
#[test]
fn components_expose_only_the_kubelets_identity() -> Result<()> {
    for (name, kubeconfig, files) in installers() {
        let agent = agent_with(name)?;
        let pod = agent.spec.and_then(|spec| spec.template.spec).context("no pod")?;
        let container = pod.containers.first().context("no container")?;
        let args = container.args.iter().flatten();
        let flags: Vec<&str> = args
            .filter_map(|arg| arg.strip_prefix("--kubelet-kubeconfig="))
            .collect();
        ensure!(flags == [format!("/host{kubeconfig}")], "{flags:?}");

        let volume = the_probe_finds_its_file(&pod, container)?;
        let mounts = container.volume_mounts.iter().flatten();
        let paths: BTreeMap<&str, &str> = pod
            .volumes
            .iter()
            .flatten()
            .filter_map(|volume| Some((volume.name.as_str(), volume.host_path.as_ref()?.path.as_str())))
            .collect();
        let mut seen = Vec::new();
        // Besides the host's paths: the pod's own volume, the only Secret, and the agent's token.
        let others = pod.volumes.iter().flatten();
        let others: Vec<_> = others.filter(|v| v.secret.is_some() || v.projected.is_some()).collect();
        for mount in mounts.filter(|mount| mount.name != volume && others.iter().all(|v| v.name != mount.name)) {
            let path = paths.get(mount.name.as_str()).context("a mount without a volume")?;
            ensure!(mount.mount_path == format!("/host{path}"), "{}", mount.mount_path);
            seen.push(*path);
        }
        ensure!(seen.len() == paths.len(), "some volume is not mounted: {paths:?}");
        // Paths of the host itself; the remaining ones belong to the kubelet.
        let here = "/run /proc/ /usr /etc/berth /etc/containers /etc/ostree /var/lib/berth";
        seen.retain(|path| !here.split(' ').any(|prefix| path.starts_with(prefix)));
        seen.sort_unstable();
        let mut expected = [files, vec![kubeconfig]].concat();
        expected.sort_unstable();
        ensure!(seen == expected, "{name}: {seen:?}");
    }
    Ok(())
}

/// The agent serves the port that the PodMonitor scrapes, and is otherwise unchanged.
#[test]
fn the_pod_monitor_scrapes_the_agents_port() -> Result<()> {
    let agent = agent_with("monitoring")?;
    let pod = agent.spec.and_then(|spec| spec.template.spec).context("no pod")?;
    let container = pod.containers.first().context("no container")?;
    let mut ports = container.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some("metrics"));
    let port = port.context("no port named metrics")?.container_port;
    let mut env = container.env.iter().flatten();
    let address = env.find(|env| env.name == "BERTH_METRICS_ADDRESS");
    let address = address.and_then(|env| env.value.as_deref()).context("no address")?;
    ensure!(address == format!(":{port}"), "{address}, {port}");
    let args = container.args.iter().flatten().map(String::as_str);
    Args::try_parse_from(["berth-agent"].into_iter().chain(args)).context("the agent's arguments")?;
    ensure!(pod.host_network == Some(true), "the port must be a port of the node");
    let names = ["NODE_NAME", "BERTH_READY_FILE", "BERTH_AUTH_FILE"];
    ensure!(
        names
            .iter()
            .all(|name: &&str| container.env.iter().flatten().any(|env| env.name == *name)),
        "the rest of the environment stays"
    );
    let monitors = read("manifests/components/monitoring/pod-monitors.yaml")?;
    let monitors: Vec<Value> = serde_saphyr::from_multiple(&monitors)?;
    for monitor in &monitors {
        ensure!(
            monitor["spec"]["podMetricsEndpoints"][0]["port"] == "metrics",
            "{monitor}"
        );
    }
    ensure!(monitors.len() == 2, "{monitors:?}");
    Ok(())
}
