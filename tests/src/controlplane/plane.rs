//! A running control plane.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};

use super::apply;
use super::kubeconfig::Kubeconfig;
use super::options::Options;
use super::pki::{Authority, Credential, kubeconfig};
use super::servers::Layout;
use crate::locked::locked;
use crate::ports::Port;
use crate::process::Process;
use crate::programs::workspace_root;
use crate::scratch::Scratch;
use crate::tools::{Tool, Tools};

/// A running control plane. Dropping it ends its servers and removes its files.
pub struct ControlPlane {
    // Stopped in the order of `stop_all`, which Drop calls; the directory is removed last.
    servers: Mutex<Servers>,
    tools: Tools,
    pub(super) layout: Layout,
    pub(super) authority: Authority,
    admin: Client,
    _ports: [Port; 3],
    _directory: Scratch,
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlPlane")
            .field("url", &self.url())
            .field("directory", &self.directory())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Servers {
    etcd: Option<Process>,
    apiserver: Option<Process>,
    controllers: Vec<Process>,
}

impl Servers {
    /// Stops all servers, etcd last: without etcd, the API server would hang at shutdown.
    fn stop_all(&mut self) {
        self.controllers.clear();
        self.stop_apiserver();
        self.etcd = None;
    }

    fn stop_apiserver(&mut self) {
        if let Some(mut server) = self.apiserver.take() {
            server.stop(Duration::from_secs(2));
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        self.etcd
            .iter_mut()
            .chain(&mut self.apiserver)
            .chain(&mut self.controllers)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        locked(&self.servers).stop_all();
    }
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready. Builds the servers first if they are missing.
    pub async fn start(options: Options) -> Result<Self> {
        crate::install_crypto();
        let mut wanted = vec![Tool::Etcd, Tool::KubeApiserver];
        if options.controller_manager {
            wanted.push(Tool::KubeControllerManager);
        }
        if options.scheduler {
            wanted.push(Tool::KubeScheduler);
        }
        let tools = tokio::task::spawn_blocking(move || Tools::ensure(&wanted)).await??;
        let directory = Scratch::new("berth-controlplane-")?;
        let ports = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
        let authority = Authority::new()?;
        let [api, etcd, peer] = &ports;
        let layout = Layout::write(
            directory.path(),
            options,
            &authority,
            [api.number(), etcd.number(), peer.number()],
        )?;
        let admin = admin_kubeconfig(&authority, &layout)?;
        let admin = Kubeconfig::write(layout.directory(), "admin", admin)?.client().await?;
        let this = Self {
            servers: Mutex::default(),
            tools,
            layout,
            authority,
            admin,
            _ports: ports,
            _directory: directory,
        };
        this.start_all().await?;
        Ok(this)
    }

    async fn start_all(&self) -> Result<()> {
        let etcd = self.layout.etcd(self.tools.path(Tool::Etcd)?)?;
        locked(&self.servers).etcd = Some(etcd);
        self.start_apiserver().await?;
        let options = &self.layout.options;
        if options.scheduler {
            let program = self.tools.path(Tool::KubeScheduler)?;
            let scheduler = self.layout.scheduler(program, &self.authority)?;
            locked(&self.servers).controllers.push(scheduler);
        }
        if options.controller_manager {
            let program = self.tools.path(Tool::KubeControllerManager)?;
            let manager = self.layout.controller_manager(program, &self.authority)?;
            locked(&self.servers).controllers.push(manager);
            self.wait("controller manager", async || self.has_default_account().await)
                .await?;
        }
        Ok(())
    }

    /// True if the controller manager has created the account `default`. Without this account, no pod can be created.
    async fn has_default_account(&self) -> bool {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), "default");
        accounts.get("default").await.is_ok()
    }

    /// Stops the API server. Its clients get connection errors until [`Self::start_apiserver`].
    pub async fn stop_apiserver(&self) -> Result<()> {
        let server = locked(&self.servers).apiserver.take();
        if let Some(mut server) = server {
            tokio::task::spawn_blocking(move || server.stop(Duration::from_secs(2))).await?;
        }
        Ok(())
    }

    /// Starts the API server, with the same port and data as before, and waits until it is ready.
    pub async fn start_apiserver(&self) -> Result<()> {
        let server = self.layout.apiserver(self.tools.path(Tool::KubeApiserver)?)?;
        locked(&self.servers).apiserver = Some(server);
        self.wait("API server", async || self.is_ready().await).await
    }

    /// Starts another API server of this cluster on this port, on all addresses. Programs use it only if the test adds
    /// it to their lists of API servers. Dropping the value ends the server.
    pub fn another_apiserver(&self, port: u16) -> Result<Process> {
        self.layout
            .another_apiserver(self.tools.path(Tool::KubeApiserver)?, port)
    }

    /// True if the API server reports that it is ready.
    pub async fn is_ready(&self) -> bool {
        let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
            return false;
        };
        let answer = tokio::time::timeout(Duration::from_secs(2), self.admin.request_text(request));
        matches!(answer.await, Ok(Ok(text)) if text == "ok")
    }

    /// Waits for a condition; fails early, with the end of the log, if a server ends.
    async fn wait(&self, what: &str, mut ready: impl AsyncFnMut() -> bool) -> Result<()> {
        let (started, limit) = (Instant::now(), self.layout.options.ready_deadline);
        while !ready().await {
            locked(&self.servers).all().try_for_each(Process::check)?;
            if started.elapsed() > limit {
                let words: Vec<String> = locked(&self.servers).all().map(|server| server.log_tail()).collect();
                bail!("the {what} was not ready within {limit:?}; {}", words.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tracing::debug!(what, time = ?started.elapsed(), "ready");
        Ok(())
    }

    /// Returns a client with all permissions (`system:masters`).
    pub fn admin_client(&self) -> Client {
        self.admin.clone()
    }

    /// `https://…`, with the advertised address if there is one.
    pub fn url(&self) -> String {
        let address = self.layout.options.advertise.unwrap_or(Ipv4Addr::LOCALHOST.into());
        self.layout.url(address)
    }

    /// Certificate of the API server's certificate authority, in PEM.
    pub fn ca_certificate(&self) -> String {
        self.authority.certificate()
    }

    /// The certificate authority, for further certificates (of a kubelet's server or a webhook).
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Private directory of this control plane. Removed together with the control plane.
    pub fn directory(&self) -> &Path {
        self.layout.directory()
    }

    /// Path of the audit log, see [`crate::audit`].
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log()
    }

    /// Applies every YAML document of a file, server-side and in order. For a directory, applies its `*.yaml` files,
    /// sorted by name, or the output of `kubectl kustomize` if it has a `kustomization.yaml`.
    pub async fn apply_manifests(&self, path: &Path) -> Result<()> {
        apply::path(&self.admin, path)
            .await
            .with_context(|| format!("applying {}", path.display()))
    }

    /// Installs Berth as an admin does: everything in `manifests/base` except the workloads, which the harness runs itself.
    pub async fn install(&self) -> Result<()> {
        self.install_from(&workspace_root().join("manifests/base")).await
    }

    /// Installs from the directory with the base of another release.
    pub async fn install_from(&self, directory: &Path) -> Result<()> {
        for name in ["namespace.yaml", "crds.yaml", "rbac.yaml", "admission-policies.yaml"] {
            self.apply_manifests(&directory.join(name)).await?;
        }
        Ok(())
    }

    /// Applies these files of `manifests/`, in this order.
    pub async fn apply_files(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.apply_manifests(&workspace_root().join("manifests").join(name))
                .await?;
        }
        Ok(())
    }

    /// Applies every document of a YAML text, server-side and in order.
    pub async fn apply_yaml(&self, text: &str) -> Result<()> {
        apply::text(&self.admin, text).await
    }
}

/// Text of the admin's kubeconfig. Its server is the loopback address, because a bridge may not exist yet.
fn admin_kubeconfig(authority: &Authority, layout: &Layout) -> Result<String> {
    let pair = authority.client("berth-test-admin", &["system:masters"])?;
    kubeconfig(
        &layout.url(Ipv4Addr::LOCALHOST.into()),
        &authority.certificate(),
        &Credential::Certificate(pair),
    )
}
