//! Keeps and renews the token of an agent that is a service of its host.
//!
//! The agent's kubeconfig names a file with a token that an admin wrote. The agent copies it to a file in its state
//! directory, and its client reads that copy. The agent replaces the copy by newer tokens, which it requests from the
//! API server, and by a new token in the admin's file. Its client reads the copy at least once a minute.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use berth_core::agent::own_token::{Claims, Given, Kept, LIFETIME, MAX_LENGTH, Next, TokenError, Tokens};
use berth_shell::{retry, sha256};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client, Config};

use crate::clients::{self, OwnClient, REQUEST_TIMEOUT, RequestError, with_deadline};
use crate::host::files;
use crate::host::root::{HostRoot, STATE_DIR};

/// Time between two looks at the tokens.
const INTERVAL: Duration = Duration::from_secs(20);
/// First and longest pause after failed renewals.
const RETRY_MIN: Duration = Duration::from_secs(20);
const RETRY_MAX: Duration = Duration::from_secs(120);

/// Returns a client for the kubeconfig of an agent outside a pod. If the kubeconfig names a file with a token that the
/// agent can renew, the client reads the agent's copy of the token, and a task keeps that copy up to date.
pub async fn renewing_client(path: &Path, host_root: &Path) -> Result<OwnClient> {
    let mut config = clients::config_of(path).await?;
    let mut token = None;
    if let Some(file) = &config.auth_info.token_file {
        token = OwnToken::open(Path::new(file), &HostRoot::new(host_root))?;
    }
    let Some(token) = token else {
        return OwnClient::new(config);
    };
    config.auth_info.token_file = Some(token.kept.to_string_lossy().into_owned());
    // Like kubectl, prefer the file to a token in the kubeconfig. kube does the opposite.
    config.auth_info.token = None;
    let client = OwnClient::noting(config.clone(), token.rejected.clone())?;
    tokio::spawn(token.keep(config));
    Ok(client)
}

/// Files of the agent's token.
#[derive(Debug, Clone)]
struct OwnToken {
    /// The file of the admin.
    given: PathBuf,
    /// The file of the agent, which its client reads.
    kept: PathBuf,
    /// The hash of the admin's token that was copied last.
    copied: PathBuf,
    /// True if the API server has rejected the token of the agent's client, and the agent has got no other one since.
    rejected: Arc<AtomicBool>,
    chance: f64,
}

impl OwnToken {
    /// Copies the admin's token if it is new. Returns `None` if the agent cannot renew this token: it is not bound to a
    /// Node, or cannot be copied. The client must then read the admin's file.
    ///
    /// # Errors
    /// If the agent has no token, and the admin's file is missing or has no whole token yet. The caller must try again.
    fn open(given: &Path, root: &HostRoot) -> Result<Option<Self>> {
        let this = Self::new(given, &root.path(STATE_DIR));
        let Err(error) = this.take_over_if_needed() else {
            return Ok(Some(this));
        };
        if !has_whole_token(given) {
            return Err(error.context("the agent has no token yet; write one into the file (docs/install/service.md)"));
        }
        let error = format!("{error:#}");
        tracing::warn!(
            error,
            file = %given.display(),
            "the agent does not renew this token; correct the cause and restart berth-agent, or replace the file before the token expires"
        );
        Ok(None)
    }

    fn new(given: &Path, directory: &Path) -> Self {
        Self {
            given: given.to_path_buf(),
            kept: directory.join("agent.token"),
            copied: directory.join("agent.token.copied"),
            rejected: Arc::default(),
            chance: fastrand::f64(),
        }
    }

    /// Renews the token for ever. `config`: the configuration of the agent's client.
    async fn keep(self, config: Config) {
        let mut failures: u32 = 0;
        let mut unusable = None;
        loop {
            self.warn_of_given(&mut unusable);
            let tried = self.given_hash();
            let pause = match self.step(&config).await {
                Ok(()) => {
                    failures = 0;
                    INTERVAL
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let pause = retry::delay(failures, RETRY_MIN, RETRY_MAX);
                    self.warn_of_failure(&error, pause);
                    pause
                }
            };
            self.wait(pause, tried.as_deref()).await;
        }
    }

    /// Logs that the admin's file has no usable token, once for each cause. An admin may remove the file.
    fn warn_of_given(&self, last: &mut Option<String>) {
        let mut unusable = None;
        if self.given.exists()
            && let Err(error) = read_claims(&self.given)
        {
            unusable = Some(format!("{error:#}"));
        }
        if *last != unusable {
            if let Some(error) = &unusable {
                tracing::warn!(
                    error,
                    "the agent does not use the token in this file, and keeps its current one"
                );
            }
            *last = unusable;
        }
    }

    fn warn_of_failure(&self, error: &anyhow::Error, pause: Duration) {
        let error = format!("{error:#}");
        tracing::warn!(
            error,
            wait_s = pause.as_secs(),
            file = %self.given.display(),
            "cannot renew the agent's token; retrying. If this continues, write a new token to the file (docs/install/service.md)"
        );
    }

    /// Waits for this time, or until the admin's file has a new token other than `tried`, which could not be taken over.
    async fn wait(&self, pause: Duration, tried: Option<&str>) {
        let rounds = pause.as_secs().div_ceil(INTERVAL.as_secs()).max(1);
        for _ in 0..rounds {
            tokio::time::sleep(INTERVAL).await;
            if self.has_another_than(tried) {
                return;
            }
        }
    }

    /// True if the admin's file has a new token, and its hash is not `tried`.
    fn has_another_than(&self, tried: Option<&str>) -> bool {
        self.tokens().given == Given::New && self.given_hash().as_deref() != tried
    }

    /// Returns the hash of the admin's token; `None` if its file has none that is bound to a Node.
    fn given_hash(&self) -> Option<String> {
        let (token, _) = read_claims(&self.given).ok()?;
        Some(hash(&token))
    }

    async fn step(&self, config: &Config) -> Result<()> {
        self.take_over_if_needed()?;
        let tokens = self.tokens();
        let next = if self.rejected.load(Ordering::Relaxed) {
            tokens.next_after_rejection(self.chance)
        } else {
            tokens.next(self.chance)
        };
        if next == Next::Renew {
            self.renew(config).await?;
        }
        self.rejected.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn tokens(&self) -> Tokens {
        let given = read_claims(&self.given).ok();
        let copied = self.copied();
        let (mut kept, mut is_older) = (None, false);
        if let Ok((token, claims)) = read_claims(&self.kept) {
            let mut is_copy = copied == Some(hash(&token));
            if let Some((given, of_given)) = &given {
                is_copy |= *given == token;
                is_older = of_given.issued < claims.issued;
            }
            kept = Some(Kept {
                is_renewed: !is_copy,
                age: age(&self.kept),
                lifetime: claims.lifetime,
            });
        }
        let given = match given {
            None => Given::Missing,
            // Without the hash, the kept token is the better guess: the admin's token may have expired long ago.
            Some(_) if copied.is_none() && kept.is_some() => Given::Known,
            Some((token, _)) if copied == Some(hash(&token)) => Given::Known,
            Some(_) if is_older => Given::Older,
            Some(_) => Given::New,
        };
        Tokens { given, kept }
    }

    /// Returns the hash of the admin's token that was copied last; `None` if its file is missing or broken.
    fn copied(&self) -> Option<String> {
        let text = files::small_text(&self.copied).ok()?;
        let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then_some(text)
    }

    /// Copies the admin's token if it was not copied before, or if the copy was lost.
    fn take_over_if_needed(&self) -> Result<()> {
        if self.tokens().next(self.chance) != Next::TakeOver {
            return Ok(());
        }
        let (token, _) = read_claims(&self.given)?;
        write(&self.kept, token.as_bytes())?;
        write(&self.copied, hash(&token).as_bytes())?;
        tracing::info!(file = %self.given.display(), "using the token in this file, and renewing it");
        Ok(())
    }

    /// Requests a new token with the kept one. If the API server rejects that one, for instance because it expired while
    /// the host was off, requests it with the admin's token.
    async fn renew(&self, config: &Config) -> Result<()> {
        let Err(error) = self.renew_from(config, &self.kept).await else {
            return Ok(());
        };
        if !is_rejected(&error) || !self.tokens().may_use_given() {
            return Err(error);
        }
        tracing::warn!(
            file = %self.given.display(),
            "the API server rejects the agent's token, which may have expired; trying the token in this file"
        );
        self.renew_from(config, &self.given).await
    }

    /// Requests a new token with the token in this file.
    async fn renew_from(&self, config: &Config, file: &Path) -> Result<()> {
        let (token, claims) = read_claims(file)?;
        self.renew_with(&client(config, token)?, &claims).await
    }

    /// Requests a new token. `client` uses a token with these claims.
    async fn renew_with(&self, client: &Client, claims: &Claims) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &claims.namespace);
        let request = request(claims);
        let params = PostParams::default();
        let answer = accounts.create_subresource::<_, TokenRequest>("token", &claims.account, &params, &request);
        let answer = with_deadline(REQUEST_TIMEOUT, answer).await;
        let answer = answer.context("the API server issued no token")?;
        let token = answer.status.context("the API server issued no token")?.token;
        let renewed = Claims::read(&token).context("the API server issued another kind of token")?;
        ensure!(
            claims.is_like(&renewed),
            "the API server issued a token of another account or Node"
        );
        write(&self.kept, token.as_bytes())?;
        if self.copied().is_none()
            && let Ok((given, _)) = read_claims(&self.given)
        {
            write(&self.copied, hash(&given).as_bytes())?;
        }
        tracing::info!(lifetime_s = renewed.lifetime.as_secs(), "renewed the agent's token");
        Ok(())
    }
}

/// Returns a client that uses this token. A client that reads the file itself may use an older token for a minute, and
/// cannot use a file that ends with a newline.
fn client(config: &Config, token: String) -> Result<Client> {
    let mut config = config.clone();
    config.auth_info.token_file = None;
    config.auth_info.token = Some(token.into());
    clients::build(config)
}

/// True if the API server did not accept the token.
fn is_rejected(error: &anyhow::Error) -> bool {
    let status = error.downcast_ref::<RequestError>().and_then(RequestError::status);
    status.is_some_and(|status| status.code == 401)
}

/// Request for a token that is bound to the same Node as the current one, for the API server's default audience.
fn request(claims: &Claims) -> TokenRequest {
    TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: i64::try_from(LIFETIME.as_secs()).ok(),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(claims.node.clone()),
                uid: Some(claims.node_uid.clone()),
            }),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    }
}

/// True if the file has a token, even one that the agent cannot renew.
fn has_whole_token(path: &Path) -> bool {
    let Err(error) = read_claims(path) else {
        return true;
    };
    let reason = error.downcast_ref::<TokenError>();
    reason.is_some_and(|reason| !reason.may_be_a_part())
}

/// Reads a token that is bound to a Node.
fn read_claims(path: &Path) -> Result<(String, Claims)> {
    let text = files::bounded_text(path, MAX_LENGTH);
    let text = text.with_context(|| format!("cannot read the token in {}", path.display()))?;
    let token = text.trim().to_owned();
    let claims = Claims::read(&token).with_context(|| format!("cannot use the token in {}", path.display()))?;
    Ok((token, claims))
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    files::replace(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the time since a file was written, by the host's clock; `None` if it was written in the future.
fn age(path: &Path) -> Option<Duration> {
    let modified = std::fs::metadata(path).ok()?.modified().ok()?;
    SystemTime::now().duration_since(modified).ok()
}

fn hash(token: &str) -> String {
    let mut text = String::new();
    for byte in sha256(token.as_bytes()) {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::fake_api_server;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// A token of this Node. `id`: makes the token differ from others. A larger one was issued later.
    fn token(node: &str, id: u32) -> String {
        let issued = 1000 + id;
        let payload = json!({
            "iat": issued, "exp": issued + 7 * 24 * 3600, "jti": id.to_string(),
            "kubernetes.io": {
                "namespace": "berth-system",
                "serviceaccount": {"name": "berth-agent", "uid": "a"},
                "node": {"name": node, "uid": format!("uid-{node}")},
            },
        });
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()))
    }

    /// An empty host with token 1 in the admin's file.
    fn host(name: &str) -> (HostRoot, PathBuf) {
        let root = std::env::temp_dir().join(format!("berth-own-token-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("etc")).unwrap();
        let given = root.join("etc/agent.token");
        fs::write(&given, token("n1", 1) + "\n").unwrap();
        (HostRoot::new(root), given)
    }

    /// An API server that answers each request for a token with this code and token.
    fn server(code: u16, token: &str) -> Client {
        let token = token.to_owned();
        fake_api_server::client(move |call| {
            assert_eq!(
                call.path.trim_end_matches('?'),
                "/api/v1/namespaces/berth-system/serviceaccounts/berth-agent/token"
            );
            let bound = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"});
            assert_eq!(call.body["spec"]["boundObjectRef"], bound);
            assert_eq!(call.body["spec"]["expirationSeconds"], json!(604_800));
            if code != 201 {
                let status = json!({"kind": "Status", "status": "Failure", "message": "no", "code": code});
                return (code, status);
            }
            let status = json!({"token": token, "expirationTimestamp": "2030-01-01T00:00:00Z"});
            (
                code,
                json!({"metadata": {}, "spec": {"audiences": []}, "status": status}),
            )
        })
    }

    async fn renew(own: &OwnToken, code: u16, token: &str) -> Result<()> {
        own.renew_with(&server(code, token), &read_claims(&own.kept)?.1).await
    }

    fn open(given: &Path, root: &HostRoot) -> OwnToken {
        OwnToken::open(given, root).unwrap().unwrap()
    }

    fn is_kept(own: &OwnToken, node: &str, id: u32) -> bool {
        fs::read_to_string(&own.kept).unwrap() == token(node, id)
    }

    #[tokio::test]
    async fn a_token_is_copied_then_renewed() {
        let (root, given) = host("renewed");
        let own = open(&given, &root);
        assert!(is_kept(&own, "n1", 1));
        assert_eq!(own.tokens().next(0.0), Next::Renew);
        renew(&own, 201, &token("n1", 2)).await.unwrap();
        assert!(is_kept(&own, "n1", 2));
        assert_eq!(own.tokens().next(0.0), Next::Wait);
        assert_eq!(fs::metadata(&own.kept).unwrap().permissions().mode() & 0o777, 0o600);
        let file = fs::File::options().write(true).open(&own.kept).unwrap();
        file.set_modified(SystemTime::now() - DAY).unwrap();
        assert_eq!(own.tokens().next(0.0), Next::Renew, "a day later");
        let again = open(&given, &root);
        assert!(is_kept(&again, "n1", 2), "after a restart");
        fs::write(&given, token("n1", 3)).unwrap();
        assert_eq!(own.tokens().next(0.0), Next::TakeOver);
        own.take_over_if_needed().unwrap();
        assert!(is_kept(&own, "n1", 3));
        fs::remove_file(&given).unwrap();
        assert!(
            OwnToken::open(&given, &root).unwrap().is_some(),
            "an admin may remove the file"
        );
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    #[tokio::test]
    async fn a_failed_renewal_keeps_the_token() {
        let (root, given) = host("failed");
        let own = open(&given, &root);
        for (code, answer, said) in [
            (403, token("n1", 2), "no"),
            (201, token("n2", 2), "another account or Node"),
            (201, "opaque".to_owned(), "not a token of a service account"),
        ] {
            let error = format!("{:#}", renew(&own, code, &answer).await.unwrap_err());
            assert!(error.contains(said) && !error.contains(&answer), "{error}");
            assert!(is_kept(&own, "n1", 1), "{error}");
        }
        assert!(is_rejected(&renew(&own, 401, "").await.unwrap_err()));
        assert!(!is_rejected(&renew(&own, 403, "").await.unwrap_err()));
        // A directory in place of the temporary file makes the file unwritable, even for root.
        fs::create_dir(files::temporary(&own.kept)).unwrap();
        let error = renew(&own, 201, &token("n1", 2)).await.unwrap_err();
        assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
        assert!(is_kept(&own, "n1", 1));
        fs::remove_dir(files::temporary(&own.kept)).unwrap();
        renew(&own, 201, &token("n1", 2)).await.unwrap();
        assert!(is_kept(&own, "n1", 2));
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    #[tokio::test]
    async fn a_broken_copy_is_replaced_by_the_admins_token() {
        let (root, given) = host("broken");
        let own = open(&given, &root);
        for broken in ["", "opaque", "\u{0}\u{0}"] {
            renew(&own, 201, &token("n1", 2)).await.unwrap();
            fs::write(&own.kept, broken).unwrap();
            own.take_over_if_needed().unwrap();
            assert!(is_kept(&own, "n1", 1), "{broken:?}");
            fs::write(&own.kept, broken).unwrap();
            open(&given, &root);
            assert!(is_kept(&own, "n1", 1), "{broken:?} at the start");
        }
        fs::remove_file(&own.kept).unwrap();
        own.take_over_if_needed().unwrap();
        assert!(is_kept(&own, "n1", 1), "lost");
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    /// The admin's token may have expired long ago, so it must not replace a renewed one only because the hash is lost.
    #[tokio::test]
    async fn a_lost_hash_does_not_bring_back_the_admins_token() {
        let (root, given) = host("hash");
        let own = open(&given, &root);
        fs::write(&own.copied, "broken").unwrap();
        assert_eq!(own.tokens().next(0.0), Next::Renew, "a copy is renewed at once");
        renew(&own, 201, &token("n1", 2)).await.unwrap();
        assert!(own.copied().is_some(), "the hash is written again");
        fs::remove_file(&own.copied).unwrap();
        own.take_over_if_needed().unwrap();
        assert!(is_kept(&own, "n1", 2));
        assert!(own.tokens().may_use_given(), "after a rejection");
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    /// Starts an API server that rejects each GET, and answers each POST with this token. Returns a configuration for it.
    async fn rejecting_server(token: String) -> Config {
        berth_shell::install_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = String::new();
                // The body of a POST ends with the specification.
                let mut is_complete = false;
                while !is_complete {
                    let mut part = [0; 4096];
                    let length = stream.read(&mut part).await.unwrap();
                    request.push_str(std::str::from_utf8(&part[..length]).unwrap());
                    let end = if request.starts_with("POST") { "}}" } else { "\r\n\r\n" };
                    is_complete = length == 0 || request.ends_with(end);
                }
                let status = json!({"token": token, "expirationTimestamp": "2030-01-01T00:00:00Z"});
                let (code, body) = if request.starts_with("POST") {
                    (
                        "201 Created",
                        json!({"metadata": {}, "spec": {"audiences": []}, "status": status}),
                    )
                } else {
                    (
                        "401 Unauthorized",
                        json!({"kind": "Status", "status": "Failure", "code": 401}),
                    )
                };
                let body = body.to_string();
                let length = body.len();
                let answer = format!("HTTP/1.1 {code}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Config::new(format!("http://{address}").parse().unwrap())
    }

    #[tokio::test]
    async fn a_rejected_token_is_renewed_at_once() {
        let (root, given) = host("rejected");
        let own = open(&given, &root);
        renew(&own, 201, &token("n1", 2)).await.unwrap();
        let hour = SystemTime::now() - Duration::from_secs(3600);
        let file = fs::File::options().write(true).open(&own.kept).unwrap();
        file.set_modified(hour).unwrap();
        let config = rejecting_server(token("n1", 3)).await;
        own.step(&config).await.unwrap();
        assert!(is_kept(&own, "n1", 2), "not due");
        let client = OwnClient::noting(config.clone(), own.rejected.clone()).unwrap().client;
        assert!(client.apiserver_version().await.is_err());
        assert!(own.rejected.load(Ordering::Relaxed));
        own.step(&config).await.unwrap();
        assert!(is_kept(&own, "n1", 3));
        assert!(!own.rejected.load(Ordering::Relaxed), "once for each rejection");
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    /// The agent's client would use the admin's file for ever, without a renewal.
    #[test]
    fn an_agent_without_a_token_waits_for_a_whole_one() {
        let (root, given) = host("part");
        let whole = token("n1", 1);
        for text in ["", &whole[..whole.len() / 2]] {
            fs::write(&given, text).unwrap();
            let error = format!("{:#}", OwnToken::open(&given, &root).unwrap_err());
            assert!(
                error.contains("no token yet") && error.contains("not a token"),
                "{error}"
            );
            assert!(!error.contains("restart") && !error.contains("e30"), "{error}");
        }
        fs::remove_file(&given).unwrap();
        let error = format!("{:#}", OwnToken::open(&given, &root).unwrap_err());
        assert!(error.contains("cannot read the token in"), "{error}");
        fs::write(&given, whole).unwrap();
        let own = open(&given, &root);
        fs::write(&given, "").unwrap();
        open(&given, &root);
        assert!(is_kept(&own, "n1", 1), "later, its own copy is enough");
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    /// The pause after a failure ends early only for a token that the agent has not tried.
    #[test]
    fn a_token_that_cannot_be_taken_over_is_not_tried_at_once() {
        let (root, given) = host("tried");
        let own = open(&given, &root);
        let tried = own.given_hash();
        assert!(!own.has_another_than(tried.as_deref()), "it was taken over");
        fs::write(&given, token("n1", 2)).unwrap();
        assert!(own.has_another_than(tried.as_deref()));
        fs::create_dir(files::temporary(&own.kept)).unwrap();
        let tried = own.given_hash();
        assert!(own.take_over_if_needed().is_err());
        assert!(!own.has_another_than(tried.as_deref()), "it failed");
        fs::write(&given, token("n1", 3)).unwrap();
        assert!(own.has_another_than(tried.as_deref()), "another one");
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    /// A rollback of the host brings back an older file in /etc. That token may have expired long ago.
    #[tokio::test]
    async fn an_older_token_of_the_admin_replaces_no_newer_one() {
        let (root, given) = host("older");
        fs::write(&given, token("n1", 3)).unwrap();
        let own = open(&given, &root);
        fs::write(&given, token("n1", 2)).unwrap();
        assert_eq!(own.tokens().given, Given::Older);
        own.take_over_if_needed().unwrap();
        assert!(is_kept(&own, "n1", 3), "a copy stays");
        renew(&own, 201, &token("n1", 4)).await.unwrap();
        own.take_over_if_needed().unwrap();
        open(&given, &root);
        assert!(is_kept(&own, "n1", 4), "a renewed token stays");
        assert_eq!(own.tokens().next(0.0), Next::Wait);
        assert!(own.tokens().may_use_given(), "after a rejection");
        fs::write(&given, token("n1", 5)).unwrap();
        own.take_over_if_needed().unwrap();
        assert!(is_kept(&own, "n1", 5), "a newer one is taken over");
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    #[test]
    fn a_token_that_cannot_be_renewed_is_used_as_it_is() {
        let (root, given) = host("unusable");
        let payload = json!({
            "iat": 1000, "exp": 2000,
            "kubernetes.io": {"namespace": "berth-system", "serviceaccount": {"name": "berth-agent", "uid": "a"}},
        });
        let unbound = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()));
        fs::write(&given, unbound).unwrap();
        assert!(OwnToken::open(&given, &root).unwrap().is_none(), "bound to nothing");
        fs::write(&given, token("n1", 1)).unwrap();
        fs::create_dir_all(root.path("/var/lib")).unwrap();
        fs::write(root.path(STATE_DIR), "").unwrap();
        assert!(
            OwnToken::open(&given, &root).unwrap().is_none(),
            "the state directory is unwritable"
        );
        fs::remove_file(root.path(STATE_DIR)).unwrap();
        let own = open(&given, &root);
        fs::write(&given, "half of a tok").unwrap();
        own.take_over_if_needed().unwrap();
        assert!(is_kept(&own, "n1", 1), "a broken file of the admin changes nothing");
        let mut last = None;
        own.warn_of_given(&mut last);
        assert!(last.is_some_and(|text| text.contains("not a token") && !text.contains("half")));
        fs::remove_dir_all(root.path("/")).unwrap();
    }
}
