//! The hosts of one test, as they are made.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

use super::blocking::blocking;
use super::disk::Disk;
use super::host::RealHost;
use super::machine::{Hardware, Machine};
use super::network::Bridge;
use super::osimage::{OsImage, OsImages};
use super::rpm_ostree::HostFile;
use super::run_dir::{self, RunDirectory};
use super::site::Site;
use crate::hosts::HostLog;

/// Credentials that make the kubelet of a host a node.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// A kubeconfig with everything inside, for `system:node:NAME`, whose server is an address on the hosts' network.
    pub kubeconfig: String,
    /// The cluster's certificate authority, in PEM.
    pub ca: String,
}

/// A host to be.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Its name, and its Node's.
    pub name: String,
    /// Image that it is installed with.
    pub image: OsImage,
    /// Reference of its image: by digest, to a registry that the host reaches.
    pub reference: String,
    /// Makes it a node. Its image must have a kubelet.
    pub node: Option<NodeIdentity>,
    /// Registries (`address:port`) that are spoken to in plain HTTP.
    pub registries: Vec<String>,
    /// More files below `/etc` or `/var`, such as those of [`super::rpm_ostree`].
    pub files: Vec<HostFile>,
}

impl HostOptions {
    /// A host that follows `REGISTRY/os@digest`.
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

/// The hosts of one test, on a network of their own.
#[derive(Debug, Clone)]
pub struct RealHosts {
    site: Arc<Site>,
    images: OsImages,
    log: HostLog,
}

impl RealHosts {
    /// Makes the network. What killed tests left behind goes at this occasion.
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

    /// Address of this computer on the hosts' network, on which registry and API server listen.
    pub fn gateway(&self) -> Ipv4Addr {
        self.site.bridge.gateway()
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

    /// Writes what differs between hosts.
    fn configure(&self, hardware: &Hardware, options: &HostOptions, address: Ipv4Addr) -> Result<()> {
        let put = |path: &str, mode: u32, text: &str| hardware.disk.put(path, mode, text.as_bytes());
        put("etc/machine-id", 0o444, &format!("{}\n", hardware.uuid()))?;
        put("etc/hostname", 0o644, &format!("{}\n", options.name))?;
        put("etc/resolv.conf", 0o644, "")?;
        let gateway = self.gateway();
        let network = format!("NAME={}\nADDRESS={address}\nGATEWAY={gateway}\n", options.name);
        put("etc/host-network", 0o644, &network)?;
        let mut insecure = String::new();
        for registry in &options.registries {
            insecure.push_str(&format!("[[registry]]\nlocation = \"{registry}\"\ninsecure = true\n"));
            // Some versions of containerd ignore a file without any host.
            let plain = format!(
                "server = \"http://{registry}\"\n[host.\"http://{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
            );
            put(&format!("etc/containerd/certs.d/{registry}/hosts.toml"), 0o644, &plain)?;
        }
        put("etc/containers/registries.conf.d/test.conf", 0o644, &insecure)?;
        if let Some(node) = &options.node {
            put("etc/kubernetes/kubelet.conf", 0o600, &node.kubeconfig)?;
            put("etc/kubernetes/pki/ca.crt", 0o644, &node.ca)?;
        }
        for (path, mode, bytes) in &options.files {
            hardware.disk.put(path, *mode, bytes)?;
        }
        Ok(())
    }
}
