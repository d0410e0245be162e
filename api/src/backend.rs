//! The backend of a host (the tool that stages and applies images), and the rule for its choice.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of layered packages listed in a status.
pub const MAX_PACKAGES: usize = 32;
/// Maximum length of a package name in a status, in characters.
pub const MAX_PACKAGE_NAME: usize = 128;

/// Tool that stages and applies images on a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backend {
    /// bootc.
    #[default]
    Bootc,
    /// rpm-ostree, over D-Bus.
    RpmOstree,
}

impl Backend {
    /// Returns the tool's name, for messages.
    pub fn tool(self) -> &'static str {
        match self {
            Self::Bootc => "bootc",
            Self::RpmOstree => "rpm-ostree",
        }
    }
}

/// Rule for choosing the backend of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendRule {
    /// bootc if it can be used, otherwise rpm-ostree if the host has it.
    #[default]
    Auto,
    /// bootc only.
    Bootc,
    /// rpm-ostree only.
    RpmOstree,
}

/// Backend of a node's host, and the reason for the choice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBackend {
    /// Tool that stages and applies images on this host.
    pub name: Backend,
    /// Reason for the choice: one CamelCase word, such as `LayeredHost`.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Packages that rpm-ostree has layered on the booted image. An update keeps them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 128)))]
    pub layered_packages: Vec<String>,
}
