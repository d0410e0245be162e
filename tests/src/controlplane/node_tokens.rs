//! Short-lived tokens of kubelets, as EKS issues them, and the webhook that checks them for the API server.
//!
//! A token is text that anyone could write: `node-token.EXPIRY.SERIAL.NAME`. A test needs no secret.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::pki::{Credential, kubeconfig};
use crate::locked::locked;
use crate::ports::Port;
use crate::scratch::Scratch;

const PREFIX: &str = "node-token";

/// Returns a new token of a node's kubelet, and its expiry.
pub fn issue(node: &str, lifetime: Duration) -> (String, Timestamp) {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let expiry = Timestamp::now() + lifetime;
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    (format!("{PREFIX}.{}.{serial}.{node}", expiry.as_millisecond()), expiry)
}

struct Token<'a> {
    expiry: i64,
    serial: u64,
    node: &'a str,
}

fn parse(token: &str) -> Option<Token<'_>> {
    let rest = token.strip_prefix(PREFIX)?.strip_prefix('.')?;
    let (expiry, rest) = rest.split_once('.')?;
    let (serial, node) = rest.split_once('.')?;
    Some(Token {
        expiry: expiry.parse().ok()?,
        serial: serial.parse().ok()?,
        node,
    })
}

#[derive(Debug, Default)]
struct State {
    /// Serials of the accepted tokens, by node.
    accepted: BTreeMap<String, BTreeSet<u64>>,
    /// Serials of the refused tokens, by node.
    refused: BTreeMap<String, BTreeSet<u64>>,
    /// Highest serial that is revoked, by node.
    revoked: BTreeMap<String, u64>,
}

/// The webhook that checks tokens. It runs until it is dropped.
#[derive(Debug)]
pub struct NodeTokens {
    state: Arc<Mutex<State>>,
    server: AbortHandle,
    directory: Scratch,
    _port: Port,
}

impl Drop for NodeTokens {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl NodeTokens {
    /// Starts the webhook.
    pub async fn start() -> Result<Self> {
        let port = Port::reserve()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).await?;
        let directory = Scratch::new("berth-node-tokens-")?;
        let text = kubeconfig(&format!("http://127.0.0.1:{}", port.number()), "", &Credential::Nothing)?;
        std::fs::write(directory.path().join("webhook.kubeconfig"), text)?;
        let state = Arc::<Mutex<State>>::default();
        let server = tokio::spawn(serve(listener, state.clone())).abort_handle();
        Ok(Self {
            state,
            server,
            directory,
            _port: port,
        })
    }

    /// Arguments of an API server that asks this webhook about each token, each time.
    pub fn apiserver_arguments(&self) -> Vec<String> {
        let file = self.directory.path().join("webhook.kubeconfig");
        vec![
            format!("--authentication-token-webhook-config-file={}", file.display()),
            "--authentication-token-webhook-version=v1".to_owned(),
            "--authentication-token-webhook-cache-ttl=0s".to_owned(),
        ]
    }

    /// Revokes the tokens of a node that were accepted so far.
    pub fn revoke(&self, node: &str) {
        let mut state = locked(&self.state);
        let last = state.accepted.get(node).and_then(|serials| serials.last().copied());
        state.revoked.insert(node.to_owned(), last.unwrap_or_default());
    }

    /// Number of different tokens of a node that were accepted.
    pub fn accepted(&self, node: &str) -> usize {
        locked(&self.state).accepted.get(node).map_or(0, BTreeSet::len)
    }

    /// Number of different tokens of a node that were refused.
    pub fn refused(&self, node: &str) -> usize {
        locked(&self.state).refused.get(node).map_or(0, BTreeSet::len)
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((connection, _)) = listener.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            if let Err(error) = answer(connection, &state).await {
                tracing::debug!(error = format!("{error:#}"), "token webhook: no answer");
            }
        });
    }
}

/// Answers one request and closes the connection.
async fn answer(connection: TcpStream, state: &Mutex<State>) -> Result<()> {
    let mut connection = BufReader::new(connection);
    let mut length = 0;
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).await?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body)?;
    let status = judge(review["spec"]["token"].as_str().unwrap_or_default(), state);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}).to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        review.len()
    );
    connection.write_all((head + &review).as_bytes()).await?;
    connection.flush().await.context("cannot answer")
}

fn judge(token: &str, state: &Mutex<State>) -> Value {
    let Some(token) = parse(token) else {
        return json!({"authenticated": false});
    };
    let mut state = locked(state);
    let is_revoked = state.revoked.get(token.node).is_some_and(|last| token.serial <= *last);
    if is_revoked || token.expiry <= Timestamp::now().as_millisecond() {
        state
            .refused
            .entry(token.node.to_owned())
            .or_default()
            .insert(token.serial);
        return json!({"authenticated": false, "error": "expired or revoked"});
    }
    state
        .accepted
        .entry(token.node.to_owned())
        .or_default()
        .insert(token.serial);
    json!({
        "authenticated": true,
        "user": {"username": format!("system:node:{}", token.node), "groups": ["system:nodes", "system:authenticated"]},
    })
}
