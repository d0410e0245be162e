//! Settings of a pool for its hosts.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::BackendRule;

/// Settings for the hosts of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolHost {
    /// Rule for signatures of the image: `AsBooted` or `Required`. Default AsBooted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureRule>,
    /// Tool that stages and applies the image: `Auto`, `Bootc` or `RpmOstree`. Default Auto: bootc if it can be used,
    /// otherwise rpm-ostree if the host has it. The tool that begins an update also finishes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendRule>,
}

/// Rule for signatures of the image. The accepted signatures are defined by the host's own `policy.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SignatureRule {
    /// If the host's booted image was pulled with an enforced signature policy, the policy is also enforced for
    /// updates. On other hosts, Berth requires no policy.
    #[default]
    AsBooted,
    /// The host must have an enforced signature policy that rejects unsigned images. Without such a policy, the host
    /// does not stage the image.
    Required,
}
