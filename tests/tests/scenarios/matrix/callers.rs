//! The callers of the matrix, and the API server's answers to them.

use anyhow::Result;
use berth_api::keys;
use berth_tests::controlplane::{Bound, ControlPlane};
use http::{HeaderName, HeaderValue, Request};
use kube::Client;

use super::attempts::Attempt;
use super::objects::Objects;

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_NODE: HeaderName =
    HeaderName::from_static("impersonate-extra-authentication.kubernetes.io%2fnode-name");
const AGENT: &str = "system:serviceaccount:berth-system:berth-agent";
const CONTROLLER: &str = "system:serviceaccount:berth-system:berth-controller";

/// An identity. All that are a node's belong to n1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// All rights: shows that each request is well-formed.
    Admin,
    /// The agent's token, bound to its pod.
    AgentInPod,
    /// The agent's token, bound to the Node, as an agent under systemd has it.
    AgentAsService,
    /// A token of the agent's account without a node.
    AgentWithoutNode,
    /// The agent in its pod, impersonating its node with the component `impersonation`.
    AgentAsNode,
    /// The agent, impersonating another node.
    AgentAsAnotherNode,
    /// The agent, impersonating the controller.
    AgentAsController,
    /// The agent, impersonating itself with the claim of another node.
    AgentOfAnotherNode,
    /// The kubelet's certificate.
    Kubelet,
    /// The kubelet, impersonating another node's kubelet.
    KubeletOfAnotherNode,
    /// The controller's token.
    Controller,
    /// A token whose signature was changed.
    ForgedToken,
    /// No credentials.
    Anonymous,
}

impl Caller {
    /// All callers but the admin, in the order of the page's columns.
    pub const IN_PAGE: [Self; 12] = [
        Self::AgentInPod,
        Self::AgentAsService,
        Self::AgentAsNode,
        Self::Kubelet,
        Self::Controller,
        Self::AgentWithoutNode,
        Self::AgentAsController,
        Self::AgentAsAnotherNode,
        Self::AgentOfAnotherNode,
        Self::KubeletOfAnotherNode,
        Self::ForgedToken,
        Self::Anonymous,
    ];

    /// Title of the caller's column.
    pub fn title(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::AgentInPod => "agent (pod)",
            Self::AgentAsService => "agent (service)",
            Self::Kubelet => "kubelet",
            Self::Controller => "controller",
            Self::AgentWithoutNode => "agent, no node claim",
            Self::AgentAsNode => "agent as n1",
            Self::AgentAsAnotherNode => "agent as n2",
            Self::AgentAsController => "agent as controller",
            Self::AgentOfAnotherNode => "agent, forged claim",
            Self::KubeletOfAnotherNode => "kubelet as n2",
            Self::ForgedToken => "forged token",
            Self::Anonymous => "anonymous",
        }
    }
}

/// Answer of the API server to an attempt.
pub enum Answer {
    Allowed,
    /// Refused by authentication, authorization, or an admission plugin or policy; with the server's words.
    Refused(String),
    /// Another error, which shows nothing about permissions.
    Failed(String),
}

/// A caller with its credentials.
pub struct Session {
    pub caller: Caller,
    client: Client,
    /// Headers that impersonate another user.
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Session {
    /// Sessions of all callers, the admin first.
    pub async fn all(control_plane: &ControlPlane, objects: &Objects) -> Result<Vec<Self>> {
        let pod = account(control_plane, "berth-agent", Bound::Pod(&objects.agent_pod)).await?;
        let service = account(control_plane, "berth-agent", Bound::Node("n1")).await?;
        let without = account(control_plane, "berth-agent", Bound::Nothing).await?;
        let controller = account(control_plane, "berth-controller", Bound::Pod(&objects.controller_pod)).await?;
        let kubelet = control_plane.node_kubeconfig("n1")?.client().await?;
        let mut token = control_plane
            .service_account_token(keys::NAMESPACE, "berth-controller", Bound::Nothing)
            .await?;
        let changed = if token.ends_with("AAAA") { "BBBB" } else { "AAAA" };
        token.replace_range(token.len() - 4.., changed);
        let forged = control_plane.token_kubeconfig("forged", token)?.client().await?;
        let anonymous = control_plane.anonymous_kubeconfig()?.client().await?;
        let as_controller = vec![(IMPERSONATE_USER, HeaderValue::from_static(CONTROLLER))];
        let as_n1 = vec![(IMPERSONATE_USER, HeaderValue::from_static("system:node:n1"))];
        let as_n2 = vec![(IMPERSONATE_USER, HeaderValue::from_static("system:node:n2"))];
        let of_n2 = vec![
            (IMPERSONATE_USER, HeaderValue::from_static(AGENT)),
            (IMPERSONATE_NODE, HeaderValue::from_static("n2")),
        ];
        let session = |caller, client: &Client, headers| Self {
            caller,
            client: client.clone(),
            headers,
        };
        Ok(vec![
            session(Caller::Admin, &control_plane.admin_client(), vec![]),
            session(Caller::AgentInPod, &pod, vec![]),
            session(Caller::AgentAsService, &service, vec![]),
            session(Caller::AgentWithoutNode, &without, vec![]),
            session(Caller::AgentAsNode, &pod, as_n1),
            session(Caller::AgentAsAnotherNode, &pod, as_n2.clone()),
            session(Caller::AgentAsController, &pod, as_controller),
            session(Caller::AgentOfAnotherNode, &pod, of_n2),
            session(Caller::Kubelet, &kubelet, vec![]),
            session(Caller::KubeletOfAnotherNode, &kubelet, as_n2),
            session(Caller::Controller, &controller, vec![]),
            session(Caller::ForgedToken, &forged, vec![]),
            session(Caller::Anonymous, &anonymous, vec![]),
        ])
    }

    /// Makes an attempt.
    pub async fn answer(&self, attempt: &Attempt) -> Answer {
        let mut request = Request::builder().method(attempt.method.clone()).uri(&attempt.path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(kind) = attempt.content_type() {
            request = request.header(http::header::CONTENT_TYPE, kind);
        }
        let body = attempt
            .body
            .as_ref()
            .map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = request.body(body).expect("the table has valid requests");
        match self.client.request_text(request).await {
            Ok(_) => Answer::Allowed,
            Err(kube::Error::Api(status)) => {
                let by_policy = status.message.contains("ValidatingAdmissionPolicy");
                if matches!(status.code, 401 | 403) || by_policy {
                    Answer::Refused(status.message)
                } else {
                    Answer::Failed(status.message)
                }
            }
            Err(error) => Answer::Failed(error.to_string()),
        }
    }
}

async fn account(control_plane: &ControlPlane, name: &str, bound: Bound<'_>) -> Result<Client> {
    let config = control_plane
        .service_account_kubeconfig(keys::NAMESPACE, name, bound)
        .await?;
    config.client().await
}
