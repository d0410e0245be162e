//! Client with the kubelet's identity. The kubelet's kubeconfig names its credentials, or a program that issues them.
//! Or the agent impersonates its node, and needs none of the kubelet's files.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_api::NodeName;
use berth_api::condition::one_line;
use berth_core::Now;
use berth_core::agent::exec_credential::answer::{self, Credential};
use berth_core::agent::exec_credential::command::{Command, Entry};
use berth_core::agent::exec_credential::renewal::{Next, Renewal};
use berth_core::agent::impersonation::{self, Refusal};
use berth_shell::client::impersonating_client;
use http::StatusCode;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use kube::core::Status;
use kube::{Client, Config};

use crate::clients::{KubeconfigParts, KubeletConfig, OwnClient, address, kubelet_config, locate, prepared};
use crate::host::{CredentialPrograms, HostRoot};
use crate::timers::Clock;

/// The program that issues the kubelet's credentials failed, or its answer cannot be used. The text has no secret.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the program {program}, which issues the kubelet's credentials, {why}; run it on the host as root to find the cause: the kubelet needs it too"
)]
pub struct ProgramFailure {
    program: String,
    why: String,
}

/// The API server does not let the agent impersonate its node.
#[derive(Debug, Clone, thiserror::Error)]
#[error("this node's agent cannot impersonate {node}: {refusal} (its answer: {message})")]
pub struct ImpersonationRefused {
    node: NodeName,
    refusal: Refusal,
    message: String,
}

/// Real path, modification time and size of a file, to detect changes. `None` if the file cannot be read.
type Fingerprint = Option<(PathBuf, SystemTime, u64)>;

fn fingerprints(root: &HostRoot, files: &[PathBuf]) -> Vec<Fingerprint> {
    files.iter().map(|path| fingerprint(root, path)).collect()
}

fn fingerprint(root: &HostRoot, path: &Path) -> Fingerprint {
    let path = locate(root, path).ok()?;
    let metadata = fs::metadata(&path).ok()?;
    Some((path, metadata.modified().ok()?, metadata.len()))
}

/// Client with the kubelet's identity.
pub struct KubeletClient(Way);

enum Way {
    Credentials(Credentials),
    Impersonation(Impersonation),
}

/// The kubelet's credentials. The client is created again when a credential file changes: every few months the kubelet
/// renews its certificate, and points a symbolic link to the new file. With a program that issues credentials, it is
/// created again with each credential.
struct Credentials {
    path: PathBuf,
    root: HostRoot,
    programs: CredentialPrograms,
    clock: Clock,
    made: Option<Source>,
}

/// A client that impersonates the agent's node.
struct Impersonation {
    client: Client,
    node: NodeName,
    server: Option<(String, u16)>,
}

/// The client, and the files that it was made from.
struct Source {
    files: Vec<PathBuf>,
    fingerprints: Vec<Fingerprint>,
    identity: Identity,
}

enum Identity {
    Files(Client),
    Program(Box<Program>),
}

/// A program that issues credentials, and the client with its last one.
struct Program {
    command: Command,
    /// Configuration of the client, without credentials.
    config: Config,
    renewal: Renewal,
    client: Option<Client>,
    verdict: Arc<Verdict>,
    /// The last failure.
    failure: Option<String>,
}

/// Whether the API server accepted the current credential, as its answers show.
#[derive(Debug, Default)]
struct Verdict(AtomicU8);

impl Verdict {
    const ACCEPTED: u8 = 1;
    const REJECTED: u8 = 2;

    fn note(&self, status: StatusCode) {
        if status == StatusCode::UNAUTHORIZED {
            self.0.store(Self::REJECTED, Ordering::Relaxed);
        } else {
            let _ = self
                .0
                .compare_exchange(0, Self::ACCEPTED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

impl KubeletClient {
    /// A client with the credentials of the kubelet's kubeconfig. Reads no file yet, because an agent may start before
    /// its node's kubelet has credentials.
    pub fn new(path: &Path, host_root: &Path, programs: CredentialPrograms) -> Self {
        Self(Way::Credentials(Credentials {
            path: path.to_path_buf(),
            root: HostRoot::new(host_root),
            programs,
            clock: Clock::begin(),
            made: None,
        }))
    }

    /// A client that sends each request with the agent's own client, and impersonates the node.
    ///
    /// # Errors
    /// If the node's name is invalid.
    pub fn impersonating(own: &OwnClient, node: &NodeName) -> anyhow::Result<Self> {
        Ok(Self(Way::Impersonation(Impersonation {
            client: impersonating_client(&own.client, &impersonation::user(node.as_str()))?,
            node: node.clone(),
            server: own.server.as_ref().and_then(address),
        })))
    }

    /// Returns a client with the kubelet's identity.
    ///
    /// # Errors
    /// [`ProgramFailure`] if a program issues the credentials and failed; another error if the kubeconfig cannot be
    /// used.
    pub async fn get(&mut self) -> anyhow::Result<&Client> {
        match &mut self.0 {
            Way::Credentials(credentials) => credentials.client().await,
            Way::Impersonation(impersonation) => Ok(&impersonation.client),
        }
    }

    /// Returns the host and the port of the API server; `None` if the kubelet's kubeconfig cannot be read, or if the
    /// agent knows only the address of the Service `kubernetes`.
    pub async fn server(&self) -> Option<(String, u16)> {
        match &self.0 {
            Way::Credentials(credentials) => credentials.server().await,
            Way::Impersonation(impersonation) => impersonation.server.clone(),
        }
    }

    /// True if the client impersonates the node.
    pub fn impersonates(&self) -> bool {
        matches!(self.0, Way::Impersonation(_))
    }

    /// Interprets the API server's rejection of a read of the agent's own Node. Returns `None` if the client does not
    /// impersonate the node, or if the API server rejected something else.
    pub fn refusal(&self, rejection: &Status) -> Option<ImpersonationRefused> {
        let Way::Impersonation(impersonation) = &self.0 else {
            return None;
        };
        let details = rejection.details.as_ref();
        let resource = details.map_or(("", ""), |details| (details.group.as_str(), details.kind.as_str()));
        let refusal = impersonation::refusal(rejection.code, resource)?;
        Some(ImpersonationRefused {
            node: impersonation.node.clone(),
            refusal,
            message: one_line(&rejection.message),
        })
    }
}

impl Credentials {
    async fn client(&mut self) -> anyhow::Result<&Client> {
        let stale = match &self.made {
            None => true,
            Some(made) => fingerprints(&self.root, &made.files) != made.fingerprints,
        };
        if stale {
            let fresh = self.read().await?;
            if self.made.is_some() {
                tracing::info!("the kubelet's credentials changed; using the new ones");
            }
            self.made = Some(fresh);
        }
        match &mut self.made {
            Some(Source {
                identity: Identity::Files(client),
                ..
            }) => Ok(client),
            Some(Source {
                identity: Identity::Program(program),
                ..
            }) => program.client(&self.programs, &self.clock).await,
            None => bail!("no client was created from the kubelet's credentials"),
        }
    }

    async fn server(&self) -> Option<(String, u16)> {
        let read = kubelet_config(&self.root, &self.path, KubeconfigParts::Server)
            .await
            .ok()?;
        address(&read.config.cluster_url)
    }

    async fn read(&self) -> anyhow::Result<Source> {
        let KubeletConfig { mut config, files } =
            kubelet_config(&self.root, &self.path, KubeconfigParts::Credentials).await?;
        let fingerprints = fingerprints(&self.root, &files);
        let identity = match config.auth_info.exec.take() {
            None => Identity::Files(berth_shell::client::client(prepared(config)).context(NO_CLIENT)?),
            Some(exec) => Identity::Program(Box::new(Program::new(exec, config, &self.path)?)),
        };
        Ok(Source {
            files,
            fingerprints,
            identity,
        })
    }
}

const NO_CLIENT: &str = "cannot create a client for the API server";

impl Program {
    fn new(exec: ExecConfig, mut config: Config, path: &Path) -> anyhow::Result<Self> {
        let entry = entry(exec)?;
        let command = entry.command().with_context(|| {
            format!(
                "cannot run the program (users[].user.exec) that issues the kubelet's credentials in {}",
                path.display()
            )
        })?;
        config.auth_info = AuthInfo::default();
        Ok(Self {
            command,
            config: prepared(config),
            renewal: Renewal::default(),
            client: None,
            verdict: Arc::default(),
            failure: None,
        })
    }

    /// Returns a client with a valid credential. Runs the program if necessary.
    async fn client(&mut self, programs: &CredentialPrograms, clock: &Clock) -> anyhow::Result<&Client> {
        self.heed_answers(&clock.now());
        match self.renewal.next(clock.now().clock) {
            Next::Use => {}
            Next::Pause => self.client = None,
            Next::Renew { is_valid } => {
                if !is_valid {
                    self.client = None;
                }
                if let Err(why) = self.renew(programs, clock).await {
                    let now = clock.now();
                    self.renewal.failed(now.clock, now.chance);
                    tracing::warn!(
                        program = self.command.program,
                        why,
                        is_valid,
                        "the program that issues the kubelet's credentials failed; retrying"
                    );
                    self.failure = Some(why);
                }
            }
        }
        self.client.as_ref().ok_or_else(|| {
            let why = self.failure.clone();
            let why = why.unwrap_or_else(|| "has not issued a credential yet".to_owned());
            let program = self.command.program.clone();
            ProgramFailure { program, why }.into()
        })
    }

    /// Takes over what the API server's answers have shown about the credential.
    fn heed_answers(&mut self, now: &Now) {
        match self.verdict.get() {
            Verdict::ACCEPTED => self.renewal.accepted(),
            Verdict::REJECTED if self.client.take().is_some() => {
                tracing::warn!("the API server rejects the kubelet's credential; getting a new one");
                self.renewal.rejected(now.clock, now.chance);
                self.failure = Some("issued a credential that the API server rejects (401)".to_owned());
            }
            _ => {}
        }
    }

    async fn renew(&mut self, programs: &CredentialPrograms, clock: &Clock) -> Result<(), String> {
        let output = programs.run(&self.command).await?;
        let now = clock.now();
        let credential = answer::parse(&output, &self.command.api_version, now.wall);
        let credential = credential.map_err(|error| format!("gave an answer that cannot be used: {error}"))?;
        let mut config = self.config.clone();
        config.auth_info = auth_info(&credential);
        let verdict = Arc::<Verdict>::default();
        let noted = verdict.clone();
        let client = berth_shell::client::noting_client(config, move |status| noted.note(status));
        // The error may contain parts of the credential.
        let client = client.map_err(|_| "issued a credential that cannot be used for TLS or HTTP".to_owned())?;
        self.client = Some(client);
        self.verdict = verdict;
        self.failure = None;
        self.renewal.renewed(credential.lifetime, now.clock, now.chance);
        tracing::debug!(program = self.command.program, lifetime = ?credential.lifetime, "got a credential of the kubelet");
        Ok(())
    }
}

/// Converts the `exec` entry of a kubeconfig.
fn entry(exec: ExecConfig) -> anyhow::Result<Entry> {
    let mut env = vec![];
    for mut variable in exec.env.unwrap_or_default() {
        env.push((
            variable.remove("name").unwrap_or_default(),
            variable.remove("value").unwrap_or_default(),
        ));
    }
    let cluster = exec.cluster.filter(|_| exec.provide_cluster_info);
    Ok(Entry {
        api_version: exec.api_version,
        command: exec.command,
        args: exec.args.unwrap_or_default(),
        env,
        needs_terminal: exec.interactive_mode == Some(ExecInteractiveMode::Always),
        cluster: cluster.map(serde_json::to_value).transpose()?,
    })
}

fn auth_info(credential: &Credential) -> AuthInfo {
    let mut auth = AuthInfo::default();
    if let Some(token) = &credential.token {
        auth.token = Some(token.expose().to_owned().into());
    }
    if let Some((certificate, key)) = &credential.certificate {
        auth.client_certificate_data = Some(STANDARD.encode(certificate));
        auth.client_key_data = Some(STANDARD.encode(key.expose()).into());
    }
    auth
}

impl fmt::Debug for KubeletClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeletClient")
            .field("impersonates", &self.impersonates())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::fake_api_server;
    use crate::node::cordon::NodeError;

    #[test]
    fn a_link_that_leads_elsewhere_is_a_change() {
        let scratch = std::env::temp_dir().join(format!("berth-kubelet-links-{}", std::process::id()));
        let root = HostRoot::new(&scratch);
        fs::create_dir_all(&scratch).unwrap();
        for (name, text) in [("token-1", "one"), ("token-2", "two!")] {
            fs::write(scratch.join(name), text).unwrap();
        }
        let link = scratch.join("current");
        symlink("/token-1", &link).unwrap();
        let files = [root.path("/current")];
        let before = fingerprints(&root, &files);
        assert_eq!(fingerprints(&root, &files), before);
        fs::remove_file(&link).unwrap();
        symlink("/token-2", &link).unwrap();
        assert_ne!(fingerprints(&root, &files), before);
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn an_exec_entry_is_converted() {
        let text = r#"{"apiVersion": "client.authentication.k8s.io/v1", "command": "aws", "args": ["eks"],
            "env": [{"name": "AWS_REGION", "value": "eu"}, {"name": "B"}], "interactiveMode": "Never"}"#;
        let entry = entry(serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(entry.env[0], ("AWS_REGION".to_owned(), "eu".to_owned()));
        assert_eq!(entry.env[1], ("B".to_owned(), String::new()));
        assert!(!entry.needs_terminal && entry.cluster.is_none());
        assert_eq!(entry.command().unwrap().argv, ["/usr/bin/env", "aws", "eks"]);
    }

    /// Returns a client that impersonates node n1, on an API server that answers each request with this status.
    fn impersonating(code: u16, resource: (&'static str, &'static str)) -> KubeletClient {
        let client = fake_api_server::client(move |call| {
            assert_eq!(call.user.as_deref(), Some("system:node:n1"));
            let (group, kind) = resource;
            let details = json!({"name": "n1", "group": group, "kind": kind});
            let status =
                json!({"kind": "Status", "status": "Failure", "message": "no", "code": code, "details": details});
            (code, status)
        });
        let server = Some("https://192.0.2.1:6443".parse().unwrap());
        KubeletClient::impersonating(&OwnClient { client, server }, &"n1".into()).unwrap()
    }

    #[tokio::test]
    async fn a_refused_impersonation_is_explained() {
        for (code, resource, said) in [
            (403, ("", "users"), Some("upgrade all API servers to Kubernetes 1.36")),
            (
                403,
                ("", "nodes"),
                Some("apply manifests/components/impersonation again"),
            ),
            (401, ("", ""), None),
        ] {
            let mut kubelet = impersonating(code, resource);
            let read = crate::node::cordon::read(kubelet.get().await.unwrap(), "n1").await;
            let Err(NodeError::Forbidden(status)) = read else {
                panic!("{read:?}");
            };
            let text = kubelet.refusal(&status).map(|refused| refused.to_string());
            match (&text, said) {
                (Some(text), Some(said)) => assert!(text.contains(said) && text.contains("(its answer: no)"), "{text}"),
                (None, None) => {}
                _ => panic!("{code}: {text:?}"),
            }
            assert_eq!(kubelet.server().await, Some(("192.0.2.1".to_owned(), 6443)));
        }
    }

    #[test]
    fn a_rejection_outweighs_an_acceptance() {
        let verdict = Verdict::default();
        verdict.note(StatusCode::FORBIDDEN);
        assert_eq!(verdict.get(), Verdict::ACCEPTED);
        verdict.note(StatusCode::UNAUTHORIZED);
        verdict.note(StatusCode::OK);
        assert_eq!(verdict.get(), Verdict::REJECTED);
    }
}
