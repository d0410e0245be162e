//! Creates the hosts of a test.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

use super::disk::Disk;
use super::host::RealHost;
use super::machine::{Hardware, Machine};
use super::network::Bridge;
use super::osimage::{OsImage, OsImages};
use super::rpm_ostree::HostFile;
use super::run_dir::{self, RunDirectory, Site};
use super::shell::blocking;
use crate::hosts::HostLog;

/// Settings of the pods' network, with the network of one host.
const CNI: &str = include_str!("../../../osimage/cni.conflist");
const PODS: &str = "10.244.1.0/24";

/// Network of the pods of the host with this address.
fn pods_of(host: Ipv4Addr) -> String {
    let [.., number] = host.octets();
    format!("10.244.{number}.0/24")
}

/// Credentials that make a host a node.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// Self-contained kubeconfig of `system:node:NAME`; its server is an address on the hosts' network.
    pub kubeconfig: String,
    /// Certificate of the cluster's authority, in PEM.
    pub ca: String,
}

/// Options of a host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Name of the host and its Node.
    pub name: String,
    /// Image to install.
    pub image: OsImage,
    /// Reference of the image: by digest, in a registry that the host can reach.
    pub reference: String,
    /// Credentials, if the host is a node. The image must then contain a kubelet.
    pub node: Option<NodeIdentity>,
    /// Registries (`address:port`) that use plain HTTP.
    pub registries: Vec<String>,
    /// Additional files below `/etc` or `/var`, for example from [`super::rpm_ostree`].
    pub files: Vec<HostFile>,
}

impl HostOptions {
    /// Options of a host installed from `REGISTRY/os@digest`.
    pub fn new(name: &str, image: &OsImage, registry: &str) -> Self {
        Self {
            name: name.to_owned(),
            image: image.clone(),
            reference: image.reference(registry, "os"),
            node: None,
            registries: vec![registry.to_owned()],
            files: Vec::new(),
        }
    }
}

/// Hosts of a test, on their own network.
#[derive(Debug, Clone)]
pub struct RealHosts {
    site: Arc<Site>,
    images: OsImages,
    log: HostLog,
}

impl RealHosts {
    /// Creates the network, and removes leftovers of killed tests.
    pub async fn new(images: OsImages, log: HostLog) -> Result<Self> {
        let site = blocking(|| {
            run_dir::sweep()?;
            let bridge = Bridge::new()?;
            let directory = RunDirectory::new(&bridge.name())?;
            Ok(Site {
                directory,
                bridge,
                next: AtomicU8::new(1),
            })
        })
        .await?;
        Ok(Self {
            site: Arc::new(site),
            images,
            log,
        })
    }

    /// Address of this computer on the hosts' network, for the registry and the API server.
    pub fn gateway(&self) -> Ipv4Addr {
        self.site.bridge.gateway()
    }

    /// Connects the pods of these hosts with this machine, and gives the machine another address for them.
    pub async fn connect_pods(&self, hosts: &[RealHost], address: Ipv4Addr) -> Result<()> {
        let (site, hosts): (_, Vec<Ipv4Addr>) = (Arc::clone(&self.site), hosts.iter().map(RealHost::address).collect());
        blocking(move || {
            site.bridge.add_address(address)?;
            for host in hosts {
                site.bridge.add_route(&pods_of(host), host)?;
            }
            Ok(())
        })
        .await
    }

    /// Installs a host. It is off until [`RealHost::start`].
    pub async fn add(&self, options: HostOptions) -> Result<RealHost> {
        let this = self.clone();
        blocking(move || this.install(options)).await
    }

    fn install(&self, options: HostOptions) -> Result<RealHost> {
        let number = self.site.next.fetch_add(1, Ordering::Relaxed);
        let machine = format!("{}-{number}", self.site.bridge.name());
        let directory = self.site.directory.path().join(&machine);
        std::fs::create_dir(&directory)?;
        let sysroot = directory.join("sysroot");
        let disk = Disk::install(&self.images, &options.image, &options.reference, &sysroot)
            .with_context(|| format!("installing {}", options.name))?;
        let address = self.site.bridge.address(number.saturating_add(10));
        let hardware = Hardware {
            host: options.name.clone(),
            machine,
            bridge: self.site.bridge.name(),
            disk,
            directory,
            log: self.log.clone(),
        };
        self.configure(&hardware, &options, address)?;
        Ok(RealHost::new(Machine::new(hardware), address, Arc::clone(&self.site)))
    }

    fn configure(&self, hardware: &Hardware, options: &HostOptions, address: Ipv4Addr) -> Result<()> {
        let (name, gateway) = (&options.name, self.gateway());
        let network = format!("NAME={name}\nADDRESS={address}\nGATEWAY={gateway}\n");
        let mut files: Vec<(String, u32, String)> = vec![
            ("etc/machine-id".to_owned(), 0o444, format!("{}\n", hardware.uuid())),
            ("etc/hostname".to_owned(), 0o644, format!("{name}\n")),
            ("etc/resolv.conf".to_owned(), 0o644, String::new()),
            ("etc/host-network".to_owned(), 0o644, network),
            (
                "etc/cni/net.d/10-pods.conflist".to_owned(),
                0o644,
                CNI.replace(PODS, &pods_of(address)),
            ),
        ];
        let mut insecure = String::new();
        for registry in &options.registries {
            insecure.push_str(&format!("[[registry]]\nlocation = \"{registry}\"\ninsecure = true\n"));
            // Some versions of containerd ignore a file without a host section.
            let plain = format!(
                "server = \"http://{registry}\"\n[host.\"http://{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
            );
            files.push((format!("etc/containerd/certs.d/{registry}/hosts.toml"), 0o644, plain));
        }
        let conf = "etc/containers/registries.conf.d/test.conf";
        files.push((conf.to_owned(), 0o644, insecure));
        if let Some(node) = &options.node {
            files.push(("etc/kubernetes/kubelet.conf".to_owned(), 0o600, node.kubeconfig.clone()));
            files.push(("etc/kubernetes/pki/ca.crt".to_owned(), 0o644, node.ca.clone()));
        }
        for (path, mode, text) in files {
            hardware.disk.put(&path, mode, text.as_bytes())?;
        }
        for (path, mode, bytes) in &options.files {
            hardware.disk.put(path, *mode, bytes)?;
        }
        Ok(())
    }
}
