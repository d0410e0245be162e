//! Terms of a pool about what its hosts do with the image.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::BackendRule;

/// Terms about what the hosts do with the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolHost {
    /// Rule for signatures of the image: `AsBooted` or `Required`. Default AsBooted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureRule>,
    /// Tool that stages and applies the image: `Auto`, `Bootc` or `RpmOstree`. Default Auto: bootc where it can be used, else
    /// rpm-ostree where the host has it. An update that was begun with one tool is ended with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendRule>,
}

/// Rule for signatures of the image. The host's own policy, in `policy.json`, says which signatures it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SignatureRule {
    /// A host that was installed under an enforced policy is updated under it; no other is asked for one.
    #[default]
    AsBooted,
    /// The image is staged under an enforced policy, and on no host whose policy takes images that nobody signed.
    Required,
}

impl SignatureRule {
    /// Says whether it is the rule of a pool that says nothing.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
