//! Routes to the API server: one proxy for each agent and each controller, so that a test can cut off any of them alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::controlplane::{Bound, ControlPlane};
use crate::proxy::{Proxy, Weather};

/// The proxies. Without any, all programs connect to the API server itself.
#[derive(Debug, Default)]
pub struct Ways {
    server: String,
    nodes: BTreeMap<String, Proxy>,
    controllers: Vec<Proxy>,
}

impl Ways {
    /// Starts a proxy for each of these nodes and for this many controllers.
    pub(super) async fn start(control_plane: &ControlPlane, nodes: &[String], controllers: usize) -> Result<Self> {
        let server = control_plane.url();
        let target = server.strip_prefix("https://").and_then(|a| a.parse().ok());
        let target = target.with_context(|| format!("{server} is not an address that a proxy can connect to"))?;
        let mut ways = Self {
            server,
            ..Self::default()
        };
        for node in nodes {
            ways.nodes.insert(node.clone(), Proxy::start(target).await?);
        }
        for _ in 0..controllers {
            ways.controllers.push(Proxy::start(target).await?);
        }
        Ok(ways)
    }

    /// Writes a copy of a kubeconfig whose server is a proxy, beside the original.
    fn through(&self, proxy: &Proxy, kubeconfig: &Path, name: &str) -> Result<PathBuf> {
        let text = std::fs::read_to_string(kubeconfig).with_context(|| format!("reading {}", kubeconfig.display()))?;
        let path = kubeconfig.with_extension(format!("{name}.kubeconfig"));
        std::fs::write(
            &path,
            text.replace(&self.server, &format!("https://{}", proxy.address())),
        )
        .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Kubeconfig for the agent of a node: the given one, or a copy whose server is the node's proxy.
    pub(super) fn of_node(&self, node: &str, kubeconfig: &Path) -> Result<PathBuf> {
        match self.nodes.get(node) {
            Some(proxy) => self.through(proxy, kubeconfig, "proxied"),
            None => Ok(kubeconfig.to_owned()),
        }
    }

    pub(super) async fn of_controllers(&self, control_plane: &ControlPlane) -> Result<BTreeMap<usize, PathBuf>> {
        if self.controllers.is_empty() {
            return Ok(BTreeMap::new());
        }
        let config = control_plane
            .service_account_kubeconfig("berth-system", "berth-controller", Bound::Nothing)
            .await?;
        let mut paths = BTreeMap::new();
        for (number, proxy) in self.controllers.iter().enumerate() {
            paths.insert(number, self.through(proxy, &config.path, &format!("proxied-{number}"))?);
        }
        Ok(paths)
    }

    /// Changes the connection between a node's agent and the API server.
    pub fn node(&self, node: &str, change: impl FnOnce(&mut Weather)) {
        if let Some(proxy) = self.nodes.get(node) {
            proxy.weather(change);
        }
    }

    /// Changes the connection between a controller and the API server.
    pub fn controller(&self, number: usize, change: impl FnOnce(&mut Weather)) {
        if let Some(proxy) = self.controllers.get(number) {
            proxy.weather(change);
        }
    }

    /// Changes the connections of all programs.
    pub fn everybody(&self, change: impl Fn(&mut Weather)) {
        self.nodes
            .values()
            .chain(&self.controllers)
            .for_each(|proxy| proxy.weather(&change));
    }
}
