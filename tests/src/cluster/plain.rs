//! A cluster as an admin has it before Berth: nodes that are real bootc hosts with a kubelet. The release of Berth and an OS image
//! can be downloaded, and nothing of them is installed.

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use serde_json::json;
use tempfile::TempDir;

use super::controllers::Controllers;
use super::installer::kubelet_files;
use super::real::{Servers, are_up, os_version, publish};
use super::site::{Published, Site};
use super::workload::Workload;
use crate::controlplane::SERVICE_ADDRESS;
use crate::controlplane::pki::Authority;
use crate::files::FileServer;
use crate::hosts::real::{GUEST_IMAGE, HostOptions, NodeIdentity, OsImages, RealHost, RealHosts};
use crate::manifests::foreign_kinds;
use crate::proxy::Proxy;
use crate::registry::{Guard, Registry};
use crate::release;
use crate::tools::{Tool, Tools};

const CONTROL: &str = "control";
const CONTROL_LABEL: &str = "node-role.kubernetes.io/control-plane";
/// Timeout until the hosts are ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// The nodes of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Nodes {
    /// Overlay for the installer of the cluster, which decides where a kubelet has its files.
    pub overlay: &'static str,
    /// True if one more node is the control plane. Clusters of a cloud provider show none.
    pub has_control_plane: bool,
    /// Number of workers. Without any, pods run on the control plane node.
    pub workers: usize,
}

/// A cluster without Berth. Dropping it ends everything.
#[derive(Debug)]
pub struct PlainCluster {
    /// The hosts: `control` if there is a control plane node, then the workers `worker1` and so on.
    pub hosts: Vec<RealHost>,
    site: Site,
    images: OsImages,
    /// The registry of the OS images, with TLS.
    pub quay: Registry,
    /// The files of the release.
    pub downloads: FileServer,
    _release: TempDir,
    // Stands in for kube-proxy: pods reach the API server by its service.
    _service: Proxy,
    _network: RealHosts,
}

impl Deref for PlainCluster {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

fn build() -> Result<OsImages> {
    let tools = Tools::ensure(&[Tool::Kubelet, Tool::KubeApiserver, Tool::KubeScheduler, Tool::Registry])?;
    OsImages::ensure(Some(tools.path(Tool::Kubelet)?))
}

impl PlainCluster {
    /// Starts the cluster. The hosts run the OS of version `1.0.0`.
    pub async fn start(nodes: Nodes) -> Result<Self> {
        crate::install_crypto();
        let images = tokio::task::spawn_blocking(build)
            .await
            .context("the build panicked")??;
        let Servers {
            log,
            network,
            control_plane,
            registry,
        } = Servers::start(&images).await?;
        let gateway = network.gateway().into();
        // Clusters that use such an overlay have these kinds.
        if matches!(nodes.overlay, "openshift" | "monitoring") {
            for kind in foreign_kinds() {
                control_plane.apply_yaml(&kind.to_string()).await?;
            }
        }
        let authority = Authority::new()?;
        let certificate = authority.server(&[], &[gateway].into())?;
        let guard = Guard {
            tls: Some(&certificate),
            ..Guard::default()
        };
        let quay = registry.door(&guard).await?;
        let trusted = authority.certificate();
        let release = publish_release(&registry, &trusted).await?;
        let downloads = FileServer::start(gateway, release.path()).await?;
        let controllers = Controllers::on_hosts(&control_plane);
        let mut site = Site::new(controllers, registry, control_plane, log);
        site.workload = Workload {
            image: GUEST_IMAGE.to_owned(),
            ..Workload::default()
        };
        let hosts = add_hosts(&network, &images, &site, (&quay, &trusted), nodes).await?;
        try_join_all(hosts.iter().map(RealHost::start)).await?;
        network.connect_pods(&hosts, SERVICE_ADDRESS).await?;
        let api_server = site.control_plane.url();
        let api_server = api_server.strip_prefix("https://").context("no https")?.parse()?;
        let service = Proxy::start_on(SocketAddr::from((SERVICE_ADDRESS, 443)), api_server).await?;
        let cluster = Self {
            hosts,
            site,
            images,
            quay,
            downloads,
            _release: release,
            _service: service,
            _network: network,
        };
        cluster.until_ready().await?;
        if nodes.has_control_plane {
            cluster.mark_control_plane(nodes.workers > 0).await?;
        }
        Ok(cluster)
    }

    async fn until_ready(&self) -> Result<()> {
        self.until("all nodes are ready", READY_TIMEOUT, || async {
            are_up(self, &self.hosts).await
        })
        .await
    }

    /// Labels the control plane node, and taints it if no workloads may run on it, as kubeadm does. A kubelet may not set this label.
    async fn mark_control_plane(&self, has_taint: bool) -> Result<()> {
        let mut marks = json!({ "metadata": { "labels": { CONTROL_LABEL: "" } } });
        if has_taint {
            marks["spec"]["taints"] = json!([{ "key": CONTROL_LABEL, "effect": "NoSchedule" }]);
        }
        self.patch_node(CONTROL, marks).await
    }

    /// Builds an OS image of this version, and pushes it by this tag.
    pub async fn publish(&self, tag: &str, version: &str) -> Result<Published> {
        publish(&self.images, (&self.registry, &self.quay), tag, os_version(version)).await
    }
}

/// Pushes the images of the release, whose controller trusts these certificates, and returns a directory with its files.
async fn publish_release(registry: &Registry, trusted: &str) -> Result<TempDir> {
    let trusted = trusted.to_owned();
    let images = tokio::task::spawn_blocking(move || release::images(&trusted)).await??;
    release::push(images, &registry.client()).await?;
    let directory = tempfile::tempdir()?;
    let to = directory.path().to_owned();
    tokio::task::spawn_blocking(move || release::write_files(&to)).await??;
    Ok(directory)
}

async fn add_hosts(
    network: &RealHosts,
    images: &OsImages,
    site: &Site,
    (quay, trusted): (&Registry, &str),
    nodes: Nodes,
) -> Result<Vec<RealHost>> {
    publish(images, (&site.registry, quay), "1.0.0", os_version("1.0.0")).await?;
    let first = images.version(&os_version("1.0.0"))?;
    // Berth's images come from the test's registry, by the names that they have in the release.
    let mirror = format!(
        "server = \"{0}\"\n[host.\"{0}\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
        site.registry.url()
    );
    let files = [
        (
            format!("etc/containerd/certs.d/{}/hosts.toml", release::IMAGE_HOST),
            mirror.as_str(),
        ),
        (format!("etc/containers/certs.d/{}/ca.crt", quay.host()), trusted),
    ];
    let control = nodes.has_control_plane.then(|| CONTROL.to_owned());
    let workers = (1..=nodes.workers).map(|number| format!("worker{number}"));
    let mut hosts = vec![];
    for name in control.into_iter().chain(workers) {
        let mut options = HostOptions::new(&name, &first, &quay.host());
        options.registries.clear();
        for (path, content) in &files {
            options.files.push((path.clone(), 0o644, content.as_bytes().to_vec()));
        }
        let identity = NodeIdentity {
            kubeconfig: site.control_plane.node_kubeconfig(&name)?.text,
            ca: site.control_plane.ca_certificate(),
        };
        options.files.extend(kubelet_files(nodes.overlay, &identity)?);
        options.node = Some(identity);
        hosts.push(network.add(options).await?);
    }
    Ok(hosts)
}
