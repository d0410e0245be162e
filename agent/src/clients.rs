//! Clients of the API server. [`kubelet`](crate::kubelet) keeps the client with the
//! kubelet's identity.
//!
//! The clients do not retry: with retries, an eviction that a PodDisruptionBudget blocks would get no answer for
//! minutes. Callers decide when to retry. Every request has a timeout.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use berth_shell::kubeconfig;
use berth_shell::request::{NoAnswer, within};
use http::{StatusCode, Uri};
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions};
use kube::core::Status;
use kube::{Client, Config};

use crate::host::HostRoot;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a connection without data. Longer than kube's watches, which end after 290 s.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// Default timeout of a request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const NO_CLIENT: &str = "cannot create a client for the API server";

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server did not answer in time. It may have carried out the request.
    #[error(transparent)]
    Deadline(#[from] NoAnswer),
    /// The API server rejected the request or cannot be reached.
    #[error("{}", describe(.0))]
    Kube(#[from] kube::Error),
}

impl RequestError {
    /// Returns the error that the API server sent, if it sent one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    /// True if the API server processed the request and rejected it. False if the server is overloaded or does not
    /// accept the agent's credentials.
    pub fn is_answer(&self) -> bool {
        let Some(status) = self.status() else {
            return false;
        };
        (400..500).contains(&status.code) && ![401, 408, 429].contains(&status.code)
    }
}

/// Returns only the server's message, because the text of [`kube::Error`] contains the whole status twice.
fn describe(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else {
        return error.to_string();
    };
    match status.message.as_str() {
        "" => format!("{} ({})", status.reason, status.code),
        message => message.to_owned(),
    }
}

/// Waits for a request, at most for `deadline`.
pub async fn with_deadline<T>(
    deadline: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestError> {
    within(deadline, request).await
}

/// A client with the agent's own identity.
#[expect(missing_debug_implementations, reason = "kube::Client has none")]
pub struct OwnClient {
    /// The client.
    pub client: Client,
    /// URL of the API server. `None` if the client uses the address of the Service `kubernetes`, which no machine has:
    /// each node's kube-proxy directs it to the API servers.
    pub server: Option<Uri>,
}

impl OwnClient {
    pub(crate) fn new(config: Config) -> anyhow::Result<Self> {
        let server = Some(config.cluster_url.clone());
        let client = build(config)?;
        Ok(Self { client, server })
    }

    /// Like [`Self::new`]; sets `rejected` when the API server does not accept the client's credentials (401).
    pub(crate) fn noting(config: Config, rejected: Arc<AtomicBool>) -> anyhow::Result<Self> {
        let server = Some(config.cluster_url.clone());
        let note = move |status| {
            if status == StatusCode::UNAUTHORIZED {
                rejected.store(true, Ordering::Relaxed);
            }
        };
        let client = berth_shell::client::noting_client(prepared(config), note).context(NO_CLIENT)?;
        Ok(Self { client, server })
    }
}

/// Returns the host and the port of an API server; `None` if the URL has no host.
pub(crate) fn address(server: &Uri) -> Option<(String, u16)> {
    let port = server.port_u16().unwrap_or(match server.scheme_str() {
        Some("http") => 80,
        _ => 443,
    });
    Some((server.host()?.to_owned(), port))
}

/// Returns a client with the pod's service account. It takes the API server's address from the kubelet's kubeconfig,
/// because that address works even if service networking is broken.
pub async fn pod_client(kubelet_kubeconfig: &Path, host_root: &Path) -> anyhow::Result<OwnClient> {
    // Read only the server's address and CA, so that an agent with unusable kubelet credentials can start and report
    // them.
    let root = HostRoot::new(host_root);
    let server = kubelet_config(&root, kubelet_kubeconfig, KubeconfigParts::Server).await?;
    OwnClient::new(service_account(server.config, Path::new(SERVICE_ACCOUNT))?)
}

/// Returns a client with the pod's service account, for a pod without the kubelet's kubeconfig. It takes the API
/// server's address from the environment, as all programs in pods do.
pub fn in_cluster_client() -> anyhow::Result<OwnClient> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok();
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok();
    let cluster_ip = std::env::var("KUBERNETES_PORT_443_TCP_ADDR").ok();
    let is_of_service = is_of_service(host.as_deref(), cluster_ip.as_deref());
    let server = Config::new(service_url(host, port)?);
    let mut own = OwnClient::new(service_account(server, Path::new(SERVICE_ACCOUNT))?)?;
    if is_of_service {
        own.server = None;
    }
    Ok(own)
}

/// True if the host is the address of the Service `kubernetes`. The kubelet sets both KUBERNETES_SERVICE_HOST and
/// KUBERNETES_PORT_443_TCP_ADDR to this address. A manifest with an address of the API servers replaces the first one
/// only.
fn is_of_service(host: Option<&str>, cluster_ip: Option<&str>) -> bool {
    host.is_some() && host == cluster_ip
}

/// Returns the API server's URL from the values of these variables.
fn service_url(host: Option<String>, port: Option<String>) -> anyhow::Result<Uri> {
    let (Some(host), Some(port)) = (host, port) else {
        bail!(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: outside a pod, give the agent its own --kubeconfig"
        );
    };
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    let host = if is_bare_ipv6 { format!("[{host}]") } else { host };
    let url = format!("https://{host}:{port}");
    url.parse().with_context(|| {
        format!("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not an address of an API server: {url}")
    })
}

/// Returns a client for a kubeconfig.
pub async fn client_of(path: &Path) -> anyhow::Result<Client> {
    build(config_of(path).await?)
}

/// Reads a kubeconfig.
pub(crate) async fn config_of(path: &Path) -> anyhow::Result<Config> {
    let file = kubeconfig::read_named(path, "the kubeconfig")?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("cannot use the kubeconfig {}", path.display()))
}

/// Makes an HTTP GET, and returns the status code of the answer. The server's certificate is not verified. `origin`:
/// scheme, host and port.
///
/// # Errors
/// When the address is invalid, or no answer arrives within [`REQUEST_TIMEOUT`].
pub async fn http_status(origin: &str, path: &str) -> anyhow::Result<u16> {
    let mut config = Config::new(
        origin
            .parse()
            .with_context(|| format!("{origin} is not a valid address"))?,
    );
    config.accept_invalid_certs = true;
    config.root_cert = Some(vec![]);
    let request = http::Request::get(path).body(Body::empty())?;
    let client = berth_shell::client::direct_client(prepared(config))?;
    let answer = with_deadline(REQUEST_TIMEOUT, client.send(request)).await;
    let answer = answer.with_context(|| format!("GET {origin}{path}"))?;
    Ok(answer.status().as_u16())
}

/// Returns a configuration with this server and the pod's service account. kube reloads the account's token and CA file
/// when they change.
fn service_account(server: Config, directory: &Path) -> anyhow::Result<Config> {
    let token = directory.join("token");
    if !token.exists() {
        bail!(
            "{} does not exist: outside a pod, give the agent its own --kubeconfig",
            token.display()
        );
    }
    let mut config = Config::new(server.cluster_url);
    config.tls_server_name = server.tls_server_name;
    config.proxy_url = server.proxy_url;
    config.root_cert_file = Some(directory.join("ca.crt"));
    // kube verifies the server with this file. But without bytes in `root_cert`, kube first loads the system's
    // certificates, and fails if there are none, as in the agent's image.
    config.root_cert = server.root_cert.or(Some(vec![]));
    config.auth_info.token_file = Some(token.to_string_lossy().into_owned());
    Ok(config)
}

/// Returns a client with this configuration.
pub(crate) fn build(config: Config) -> anyhow::Result<Client> {
    berth_shell::client::client(prepared(config)).context(NO_CLIENT)
}

pub(crate) fn prepared(mut config: Config) -> Config {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // Otherwise a watch of a dead server would hang forever. A live server ends each watch before this timeout.
    config.read_timeout = Some(READ_TIMEOUT);
    // The agent also sends requests with the kubelet's identity. In the audit log, this user agent distinguishes
    // them from the kubelet's own requests.
    let agent = concat!("berth-agent/", env!("CARGO_PKG_VERSION"));
    config
        .headers
        .push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
    config
}

/// Returns the real path of a file. A path under the host's root is resolved as the host would resolve it. Any other
/// path was given on the command line and is used unchanged.
pub(crate) fn locate(root: &HostRoot, path: &Path) -> std::io::Result<PathBuf> {
    if root.contains(path) {
        root.resolve(path)
    } else {
        Ok(path.to_path_buf())
    }
}

pub(crate) struct KubeletConfig {
    pub(crate) config: Config,
    /// The kubeconfig and the files that it names.
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KubeconfigParts {
    Server,
    Credentials,
}

/// Reads the kubelet's kubeconfig. Paths in that file are paths on the host. Does not run the program of an `exec`
/// entry: the caller must do that, and replace the entry by the program's credential.
pub(crate) async fn kubelet_config(
    root: &HostRoot,
    path: &Path,
    wanted: KubeconfigParts,
) -> anyhow::Result<KubeletConfig> {
    let mut files = vec![path.to_path_buf()];
    let path =
        locate(root, path).with_context(|| format!("cannot find the kubelet's kubeconfig {}", path.display()))?;
    let shown = format!("the kubelet's kubeconfig {}", path.display());
    let mut file = kubeconfig::read_named(&path, "the kubelet's kubeconfig")?;
    for cluster in file.clusters.iter_mut().filter_map(|c| c.cluster.as_mut()) {
        resolve_file(root, &mut cluster.certificate_authority, &mut files)?;
    }
    for user in file.auth_infos.iter_mut().filter_map(|u| u.auth_info.as_mut()) {
        if wanted == KubeconfigParts::Server {
            *user = AuthInfo::default();
            continue;
        }
        if user.auth_provider.is_some() {
            bail!(
                "{shown} gets its credentials from an auth-provider, which Kubernetes no longer supports; use exec, a client certificate or a token file there, or pass another kubeconfig with --kubelet-kubeconfig"
            );
        }
        resolve_file(root, &mut user.client_certificate, &mut files)?;
        resolve_file(root, &mut user.client_key, &mut files)?;
        resolve_file(root, &mut user.token_file, &mut files)?;
    }
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options)
        .await
        .with_context(|| format!("cannot use {shown}"))?;
    Ok(KubeletConfig { config, files })
}

/// Replaces a path on the host by the file's real path, as this process sees it. Adds the unresolved path, as this
/// process sees it, to `files`.
fn resolve_file(root: &HostRoot, path: &mut Option<String>, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if let Some(path) = path {
        let found = root
            .resolve(&*path)
            .with_context(|| format!("cannot find {path}, which the kubelet's kubeconfig names"))?;
        kubeconfig::check_length(&found)?;
        files.push(root.path(std::mem::replace(path, found.to_string_lossy().into_owned())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_overloaded_server_has_not_answered() {
        for (code, answer) in [
            (403, true),
            (404, true),
            (409, true),
            (401, false),
            (429, false),
            (503, false),
        ] {
            let error = kube::Error::Api(Box::new(Status::failure("no", "Reason").with_code(code)));
            assert_eq!(RequestError::from(error).is_answer(), answer, "{code}");
        }
        assert!(!RequestError::from(kube::Error::LinesCodecMaxLineLengthExceeded).is_answer());
    }

    const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1", certificate-authority: /etc/kubernetes/ca.crt}}]
users: [{name: u, user: {tokenFile: /var/lib/kubelet/current}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"#;

    fn scratch(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("berth-clients-{name}-{}", std::process::id()));
        for directory in ["etc/kubernetes", "var/lib/kubelet"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("etc/kubernetes/kubelet.conf"), KUBECONFIG).unwrap();
        fs::write(root.join("etc/kubernetes/ca.crt"), "").unwrap();
        fs::write(root.join("var/lib/kubelet/token-1"), "one").unwrap();
        fs::write(root.join("var/lib/kubelet/token-2"), "two!").unwrap();
        symlink("/var/lib/kubelet/token-1", root.join("var/lib/kubelet/current")).unwrap();
        root
    }

    #[tokio::test]
    async fn the_kubelets_paths_are_on_the_host() {
        let scratch = scratch("paths");
        let root = HostRoot::new(&scratch);
        let path = &root.path("/etc/kubernetes/kubelet.conf");
        let config = kubelet_config(&root, path, KubeconfigParts::Credentials)
            .await
            .unwrap()
            .config;
        assert_eq!(config.cluster_url.to_string(), "http://127.0.0.1:1/");
        let token = scratch.join("var/lib/kubelet/token-1");
        assert_eq!(config.auth_info.token_file.as_deref(), token.to_str());

        let with_provider = KUBECONFIG.replace("tokenFile: /var/lib/kubelet/current", "auth-provider: {name: gcp}");
        fs::write(scratch.join("etc/kubernetes/kubelet.conf"), with_provider).unwrap();
        let refused = kubelet_config(&root, path, KubeconfigParts::Credentials)
            .await
            .err()
            .unwrap();
        assert!(refused.to_string().contains("--kubelet-kubeconfig"), "{refused:#}");
        let server = kubelet_config(&root, path, KubeconfigParts::Server)
            .await
            .unwrap()
            .config;
        assert_eq!(
            server.cluster_url.to_string(),
            "http://127.0.0.1:1/",
            "the agent can start and say so"
        );
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_pod_without_kubelet_files_uses_the_service() {
        fn url(host: &str, port: &str) -> anyhow::Result<Uri> {
            service_url(Some(host.to_owned()), Some(port.to_owned()))
        }
        for (host, port, expected) in [
            ("10.96.0.1", "443", ("10.96.0.1", 443)),
            ("api.example.com", "6443", ("api.example.com", 6443)),
            ("fd00::1", "6443", ("[fd00::1]", 6443)),
        ] {
            let url = url(host, port).unwrap();
            let expected = (expected.0.to_owned(), expected.1);
            assert_eq!((url.scheme_str(), address(&url)), (Some("https"), Some(expected)));
        }
        let refused = url("not a host", "443").unwrap_err().to_string();
        assert!(refused.contains("KUBERNETES_SERVICE_HOST"), "{refused}");
        let missing = service_url(None, Some("443".to_owned())).unwrap_err().to_string();
        assert!(missing.contains("--kubeconfig"), "{missing}");
    }

    #[test]
    fn an_address_of_the_service_is_recognised() {
        for (host, cluster_ip, expected) in [
            (Some("10.96.0.1"), Some("10.96.0.1"), true),
            (Some("fd00::1"), Some("fd00::1"), true),
            (Some("api.example.com"), Some("10.96.0.1"), false),
            (Some("192.0.2.1"), None, false),
            (None, None, false),
        ] {
            assert_eq!(is_of_service(host, cluster_ip), expected, "{host:?} {cluster_ip:?}");
        }
    }

    #[test]
    fn a_service_account_uses_the_kubelets_server() {
        let scratch = scratch("account");
        fn server() -> Config {
            Config::new("https://192.0.2.1:6443".parse().unwrap())
        }
        assert!(service_account(server(), &scratch).is_err(), "no token there");
        fs::write(scratch.join("token"), "t").unwrap();
        let config = service_account(server(), &scratch).unwrap();
        assert_eq!(config.cluster_url.to_string(), "https://192.0.2.1:6443/");
        assert_eq!(config.root_cert_file, Some(scratch.join("ca.crt")));
        assert!(
            config.root_cert.is_some(),
            "the system's certificates are not asked for"
        );
        fs::remove_dir_all(&scratch).unwrap();
    }
}
