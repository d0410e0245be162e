//! Requests of a liar, and its knowledge of the cluster.

use http::Method;
use serde_json::Value;

pub(super) use crate::soak::untyped::{BOOTC_NODES, LEASES, NODES, POOLS};

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(super) const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
pub(super) const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// An identity of the compromised node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The agent's token, bound to the Node.
    Agent,
    /// The kubelet's certificate.
    Kubelet,
}

/// A request of a liar.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The identity that it uses.
    pub identity: Identity,
    /// HTTP method.
    pub method: Method,
    /// Path.
    pub path: String,
    /// Body; `Null` for none.
    pub body: Value,
    /// True if the API server must refuse the request.
    pub is_forbidden: bool,
}

impl Request {
    fn new(identity: Identity, method: Method, path: String, body: Value) -> Self {
        Self {
            identity,
            method,
            path,
            body,
            is_forbidden: false,
        }
    }

    pub(super) fn patch(identity: Identity, path: String, body: Value) -> Self {
        Self::new(identity, Method::PATCH, path, body)
    }

    pub(super) fn put(identity: Identity, path: String, body: Value) -> Self {
        Self::new(identity, Method::PUT, path, body)
    }

    pub(super) fn post(identity: Identity, path: &str, body: Value) -> Self {
        Self::new(identity, Method::POST, path.to_owned(), body)
    }

    pub(super) fn delete(identity: Identity, path: String) -> Self {
        Self::new(identity, Method::DELETE, path, Value::Null)
    }

    pub(super) fn forbidden(self) -> Self {
        Self {
            is_forbidden: true,
            ..self
        }
    }

    /// Content type of the body.
    pub fn content_type(&self) -> &'static str {
        if self.method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        }
    }
}

/// Knowledge that a liar has of the cluster when it lies.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Name of its node.
    pub node: String,
    /// UID of its Node.
    pub uid: String,
    /// Boot ID of its host, as the kernel writes it.
    pub boot_id: String,
    /// Names of the other nodes.
    pub others: Vec<String>,
    /// Digest of the rollout's image.
    pub target: String,
    /// Digest of the image before.
    pub before: String,
    /// Its BootcNode; `Null` if there is none.
    pub bootc_node: Value,
    /// The Leases of Berth's namespace.
    pub leases: Vec<Value>,
    /// Names of the pods of its node, in the namespace `default`.
    pub pods: Vec<String>,
    /// Names of the pods of other nodes, in the same namespace.
    pub other_pods: Vec<String>,
    /// Current time, in seconds since 1970.
    pub now: i64,
}

impl View {
    /// Digest that the controller wants on the node, or the rollout's.
    pub(super) fn wanted(&self) -> &str {
        let digest = self.bootc_node.pointer("/spec/image/digest").and_then(Value::as_str);
        digest.unwrap_or(&self.target)
    }

    pub(super) fn generation(&self) -> i64 {
        let generation = self.bootc_node.pointer("/metadata/generation").and_then(Value::as_i64);
        generation.unwrap_or(1)
    }
}
