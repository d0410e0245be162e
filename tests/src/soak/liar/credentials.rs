//! The stolen credentials of a node, and the requests that use them.

use std::time::Duration;

use anyhow::Result;
use berth_api::keys;
use http::header::{CONTENT_TYPE, USER_AGENT};
use kube::Client;
use serde_json::Value;

use super::request::{Identity, Request};
use crate::controlplane::{Bound, ControlPlane};

/// Longest wait for an answer: a lie must not end the liar's loop.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answer to a request of a liar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The write was stored.
    Accepted,
    /// Authorization, admission or validation refused the request, with this message.
    Refused(String),
    /// The object has changed or gone, or a program that answers is not there.
    Missed(String),
    /// The API server did not read the request: an error of the harness.
    Invalid(String),
}

/// The identities of a node.
#[derive(Clone)]
pub struct Credentials {
    agent: Client,
    kubelet: Client,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Takes the identities of a node: an agent's token bound to the Node, and the kubelet's certificate.
    pub async fn of(control_plane: &ControlPlane, node: &str) -> Result<Self> {
        let token = control_plane
            .service_account_kubeconfig(keys::NAMESPACE, "berth-agent", Bound::Node(node))
            .await?;
        Ok(Self {
            agent: token.client().await?,
            kubelet: control_plane.node_kubeconfig(node)?.client().await?,
        })
    }

    fn client(&self, identity: Identity) -> &Client {
        match identity {
            Identity::Agent => &self.agent,
            Identity::Kubelet => &self.kubelet,
        }
    }

    /// Reads an object or a list; `Null` if that fails.
    pub async fn read(&self, identity: Identity, path: &str) -> Value {
        let Ok(request) = http::Request::get(path).body(vec![]) else {
            return Value::Null;
        };
        let read = self.client(identity).request::<Value>(request);
        let answer = tokio::time::timeout(TIMEOUT, read).await;
        answer.ok().and_then(Result::ok).unwrap_or(Value::Null)
    }

    /// Sends a request.
    pub async fn send(&self, request: &Request) -> Result<Answer> {
        let body = if request.body.is_null() {
            vec![]
        } else {
            request.body.to_string().into_bytes()
        };
        // The liar says that it is the agent.
        let sent = http::Request::builder()
            .method(request.method.clone())
            .uri(&request.path)
            .header(CONTENT_TYPE, request.content_type())
            .header(USER_AGENT, "berth-agent/1")
            .body(body)?;
        let send = self.client(request.identity).request_text(sent);
        Ok(match tokio::time::timeout(TIMEOUT, send).await {
            Ok(Ok(_)) => Answer::Accepted,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                // The agent's token ends with its Node, which an admin may have deleted.
                401 if request.identity == Identity::Agent => Answer::Missed(status.message),
                403 | 405 | 413 | 422 => Answer::Refused(status.message),
                400 | 401 => Answer::Invalid(format!("{}: {}", status.code, status.message)),
                _ => Answer::Missed(status.message),
            },
            Ok(Err(error)) => Answer::Missed(error.to_string()),
            Err(_) => Answer::Missed(format!("no answer in {TIMEOUT:?}")),
        })
    }
}
