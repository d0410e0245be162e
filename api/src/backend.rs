//! The backend of a host: the tool that stages and applies images there, and who chose it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of layered packages that a status names.
pub const MAX_PACKAGES: usize = 32;
/// Characters of a package's name that a status shows.
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
    /// The tool's name, for people.
    pub fn tool(self) -> &'static str {
        match self {
            Self::Bootc => "bootc",
            Self::RpmOstree => "rpm-ostree",
        }
    }
}

/// Rule by which the backend of a host is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendRule {
    /// bootc where it can be used, else rpm-ostree where the host has it.
    #[default]
    Auto,
    /// bootc only.
    Bootc,
    /// rpm-ostree only.
    RpmOstree,
}

impl BackendRule {
    /// Says whether it is the rule of a pool that says nothing.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Backend of a node's host, and why it is that one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBackend {
    /// Tool that stages and applies images there.
    pub name: Backend,
    /// Reason for the choice, in one CamelCase word such as `LayeredHost`.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Packages that rpm-ostree layers on the image that runs. An update keeps them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 128)))]
    pub layered_packages: Vec<String>,
}
