//! Kubeconfigs for the identities that a test needs: users, nodes, service accounts.

use std::path::PathBuf;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::kubeconfig::Kubeconfig;
use super::pki::{self, Credential, kubeconfig};
use super::plane::ControlPlane;
use crate::hosts::sim::credentials;

/// Object that a token is bound to. The token becomes invalid when the object is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound<'a> {
    /// No object: the token has no claim for a node.
    Nothing,
    /// A pod in the account's namespace. The token has a claim for the pod's node.
    Pod(&'a str),
    /// A Node, as for an agent under systemd. The token has a claim for that node.
    Node(&'a str),
}

impl ControlPlane {
    /// Kubeconfig of a user with a client certificate, in at most one group.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<Kubeconfig> {
        let pair = self.authority.client(user, groups)?;
        self.kubeconfig_with(user, &Credential::Certificate(pair))
    }

    /// Kubeconfig of a node's kubelet.
    pub fn node_kubeconfig(&self, node: &str) -> Result<Kubeconfig> {
        self.kubeconfig_for(&format!("system:node:{node}"), &["system:nodes"])
    }

    /// Kubeconfig of a node's kubelet that names a program that issues its tokens, as on EKS.
    pub fn node_kubeconfig_with_program(&self, node: &str) -> Result<Kubeconfig> {
        let (name, value) = credentials::VARIABLE;
        let exec = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "aws",
            "args": credentials::ARGUMENTS,
            "env": [{"name": name, "value": value}],
            "interactiveMode": "Never",
            "provideClusterInfo": true,
        });
        self.kubeconfig_with(&format!("{node}-program"), &Credential::Program(exec))
    }

    /// Kubeconfig of a service account, with a token. Creates the account if it is missing.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        bound: Bound<'_>,
    ) -> Result<Kubeconfig> {
        let token = self.service_account_token(namespace, name, bound).await?;
        let file = match bound {
            Bound::Nothing => format!("{namespace}-{name}"),
            Bound::Pod(object) => format!("{namespace}-{name}-pod-{object}"),
            Bound::Node(object) => format!("{namespace}-{name}-node-{object}"),
        };
        self.kubeconfig_with(&file, &Credential::Token(token))
    }

    /// Kubeconfig of an agent that is a service of this node. Its token, bound to the Node, is in a file,
    /// which this replaces.
    pub async fn agent_service_kubeconfig(&self, node: &str) -> Result<Kubeconfig> {
        let token = self
            .service_account_token("berth-system", "berth-agent", Bound::Node(node))
            .await?;
        let path = self.agent_token_file(node);
        std::fs::write(&path, token + "\n")?;
        self.kubeconfig_with(&format!("{node}-agent-service"), &Credential::TokenFile(path))
    }

    /// The file of [`Self::agent_service_kubeconfig`] with the token.
    pub fn agent_token_file(&self, node: &str) -> PathBuf {
        self.layout.directory().join(format!("{node}.agent.token"))
    }

    /// Token of a service account, valid for a day. Creates the account if it is missing.
    pub async fn service_account_token(&self, namespace: &str, name: &str, bound: Bound<'_>) -> Result<String> {
        self.ensure_account(namespace, name).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin_client(), namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec!["https://kubernetes.default.svc".to_owned()],
                expiration_seconds: Some(24 * 3600),
                bound_object_ref: self.reference(namespace, bound).await?,
            },
            ..TokenRequest::default()
        };
        let answer: TokenRequest = accounts
            .create_subresource("token", name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("requesting a token for {namespace}/{name}"))?;
        Ok(answer.status.context("the TokenRequest has no status")?.token)
    }

    /// A copy of a service account's token with these times of issue and expiry, signed with the control plane's key.
    /// The API server issues no token for less than ten minutes.
    pub fn with_times(&self, token: &str, issued: Timestamp, expires: Timestamp) -> Result<String> {
        let payload = token.split('.').nth(1).context("the token has no payload")?;
        let mut payload: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?;
        for (name, time) in [("iat", issued), ("nbf", issued), ("exp", expires)] {
            payload[name] = time.as_second().into();
        }
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#);
        let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload.to_string()));
        let signature = pki::sign_token(self.layout.directory(), text.as_bytes())?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    async fn reference(&self, namespace: &str, bound: Bound<'_>) -> Result<Option<BoundObjectReference>> {
        let client = self.admin_client();
        let (kind, name, uid) = match bound {
            Bound::Nothing => return Ok(None),
            Bound::Pod(name) => {
                let pods: Api<Pod> = Api::namespaced(client, namespace);
                ("Pod", name, pods.get(name).await?.uid())
            }
            Bound::Node(name) => {
                let nodes: Api<Node> = Api::all(client);
                ("Node", name, nodes.get(name).await?.uid())
            }
        };
        Ok(Some(BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            uid,
        }))
    }

    /// Creates the account if it is missing. An existing account must keep the content of its manifest.
    async fn ensure_account(&self, namespace: &str, name: &str) -> Result<()> {
        let client = self.admin_client();
        let mut space = Namespace::default();
        space.metadata.name = Some(namespace.to_owned());
        ensure(&Api::all(client.clone()), &space).await?;
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(name.to_owned());
        ensure(&Api::namespaced(client, namespace), &account).await
    }

    /// Creates a pod of this account on a node without a kubelet, to bind a token to.
    pub async fn place_pod(&self, namespace: &str, account: &str, node: &str, name: &str) -> Result<Pod> {
        self.ensure_account(namespace, account).await?;
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "example.com/none"}],
            },
        }))?;
        let pods: Api<Pod> = Api::namespaced(self.admin_client(), namespace);
        pods.create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("placing pod {name} on {node}"))
    }

    /// Kubeconfig without credentials.
    pub fn anonymous_kubeconfig(&self) -> Result<Kubeconfig> {
        self.kubeconfig_with("anonymous", &Credential::Nothing)
    }

    /// Kubeconfig with this bearer token.
    pub fn token_kubeconfig(&self, name: &str, token: String) -> Result<Kubeconfig> {
        self.kubeconfig_with(name, &Credential::Token(token))
    }

    fn kubeconfig_with(&self, name: &str, credential: &Credential) -> Result<Kubeconfig> {
        let text = kubeconfig(&self.url(), &self.authority.certificate(), credential)?;
        Kubeconfig::write(self.layout.directory(), name, text)
    }
}

async fn ensure<K>(api: &Api<K>, object: &K) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("creating {}", object.meta().name.as_deref().unwrap_or("?"))),
    }
}
