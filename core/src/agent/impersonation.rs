//! How an agent acts as its node without the kubelet's credentials: by constrained impersonation, which Kubernetes has
//! since 1.36. The API server permits it only to a token that names the same node, and only for the requests in
//! `manifests/components/impersonation/rbac.yaml`.

use std::fmt;

/// Why the API server does not let an agent impersonate its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The API server is older than Kubernetes 1.36, or its feature gate `ConstrainedImpersonation` is off.
    Unsupported,
    /// The agent's role does not permit it, or the agent's token does not name this node.
    NotPermitted,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => {
                "the API server does not support constrained impersonation; upgrade all API servers to Kubernetes 1.36 \
                 or newer with the feature gate ConstrainedImpersonation, or remove \
                 manifests/components/impersonation from your kustomization.yaml"
            }
            Self::NotPermitted => {
                "the API server does not permit it; apply manifests/components/impersonation again, and check that the \
                 agent's token is bound to its pod or Node"
            }
        })
    }
}

/// Name of the user that the agent of this node impersonates.
pub fn user(node: &str) -> String {
    format!("system:node:{node}")
}

/// Interprets the API server's rejection of a read of the agent's own Node. `resource` is the group and the kind that
/// the rejection names. Returns `None` if the API server rejected something other than the impersonation.
///
/// Every node may read its own Node, so a 403 can only be about the impersonation. An API server without constrained
/// impersonation checks only whether the agent may impersonate any user, and so names the resource `users`. With
/// constrained impersonation, it names `nodes`.
pub fn refusal(code: u16, resource: (&str, &str)) -> Option<Refusal> {
    match (code, resource) {
        (403, ("", "users")) => Some(Refusal::Unsupported),
        (403, _) => Some(Refusal::NotPermitted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_permission_is_about_impersonation() {
        for (code, resource, expected) in [
            (403, ("", "users"), Some(Refusal::Unsupported)),
            (403, ("", "nodes"), Some(Refusal::NotPermitted)),
            (403, ("authentication.k8s.io", "nodes"), Some(Refusal::NotPermitted)),
            (403, ("authentication.k8s.io", "users"), Some(Refusal::NotPermitted)),
            (403, ("", ""), Some(Refusal::NotPermitted)),
            (401, ("", ""), None),
            (404, ("", "nodes"), None),
            (429, ("", ""), None),
        ] {
            assert_eq!(refusal(code, resource), expected, "{code} {resource:?}");
        }
    }

    #[test]
    fn each_refusal_names_the_component() {
        for refusal in [Refusal::Unsupported, Refusal::NotPermitted] {
            let text = refusal.to_string();
            assert!(text.contains("manifests/components/impersonation"), "{text}");
        }
        assert_eq!(user("n1"), "system:node:n1");
    }
}
