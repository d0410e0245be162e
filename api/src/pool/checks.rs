//! Checks of a pool that the boot of a new image must pass.

use kube::KubeSchema;
use kube::core::Selector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Written;

/// A check that the agent makes after the boot of a new image. It has exactly one of `podsReady`, `httpGet` and
/// `nodeCondition`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.podsReady), has(self.httpGet), has(self.nodeCondition)].filter(is, is).size() == 1")
    .message("a check of health.checks must have exactly one of podsReady, httpGet and nodeCondition"))]
pub struct PoolCheck {
    /// Name of the check, for messages; unique in the list.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Pods on the node must be Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods_ready: Option<PodsReady>,
    /// An HTTP GET to the node must succeed, with a status from 200 to 399.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// The Node must have a condition with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_condition: Option<NodeCondition>,
}

/// Pods on the node that must be Ready, with containers that were started in the new boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodsReady {
    /// Namespace of the pods.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Selects the pods. At least one selected pod must be on the node, and all selected pods on the node must be
    /// Ready.
    #[schemars(schema_with = "crate::selector::schema")]
    pub selector: Written<Selector>,
}

/// An HTTP GET by the agent, from the host's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpGet {
    /// Host to connect to. Default 127.0.0.1: the node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$')")
        .message("httpGet.host must be a host name or an IPv4 address"))]
    pub host: Option<String>,
    /// Port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Path, with a leading slash. Default `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^/[!-~]*$')")
        .message("httpGet.path must begin with a slash and have no spaces"))]
    pub path: Option<String>,
    /// `HTTP` or `HTTPS`. Default HTTP. The certificate is not verified, as in a kubelet's probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
}

/// Scheme of an HTTP GET.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Scheme {
    /// Plain HTTP.
    #[default]
    #[serde(rename = "HTTP")]
    Http,
    /// HTTP over TLS.
    #[serde(rename = "HTTPS")]
    Https,
}

/// A condition of the Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Type of the condition, such as `NetworkUnavailable`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// Status that the condition must have. Default `True`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub status: Option<String>,
}

impl HttpGet {
    /// URL of the request, without the path.
    pub fn origin(&self) -> String {
        let scheme = match self.scheme.unwrap_or_default() {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        let host = self.host.as_deref().unwrap_or("127.0.0.1");
        format!("{scheme}://{host}:{}", self.port)
    }

    /// `path`, or its default.
    pub fn path(&self) -> &str {
        self.path.as_deref().unwrap_or("/")
    }
}

impl NodeCondition {
    /// `status`, or its default.
    pub fn status(&self) -> &str {
        self.status.as_deref().unwrap_or("True")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_has_defaults() {
        let get: HttpGet = serde_json::from_str(r#"{"port": 10248}"#).unwrap();
        assert_eq!((get.origin().as_str(), get.path()), ("http://127.0.0.1:10248", "/"));
        let get: HttpGet =
            serde_json::from_str(r#"{"port": 6443, "scheme": "HTTPS", "host": "a.b", "path": "/livez"}"#).unwrap();
        assert_eq!((get.origin().as_str(), get.path()), ("https://a.b:6443", "/livez"));
        let condition: NodeCondition = serde_json::from_str(r#"{"type": "Ready"}"#).unwrap();
        assert_eq!(condition.status(), "True");
        let pods = r#"{"namespace": "kube-system", "selector": {"matchLabels": {"app": "cni"}}}"#;
        let pods: PodsReady = serde_json::from_str(pods).unwrap();
        assert!(pods.selector.get().is_ok());
    }
}
