//! Result of the check on a machine's first boot, which `berth-agent firstboot` makes before the kubelet starts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::reasons;

reasons! {
    /// Outcome of the check on a machine's first boot.
    #[derive(Serialize, Deserialize, JsonSchema)]
    pub enum FirstbootOutcome {
        /// The boot image is within the limit, or no limit is set.
        Allowed,
        /// The boot image exceeds the limit or cannot be compared, but an override file on the machine allows the
        /// target.
        Overridden,
        /// The boot image exceeds the limit of the target.
        Refused,
        /// The boot image and the target cannot be compared.
        Unknown,
        /// The registry could not be reached before the deadline.
        RegistryAway,
        /// The registry does not serve the target, or serves an unusable image.
        ImageUnavailable,
        /// The target is allowed, but the machine could not switch to it.
        PivotFailed,
        /// The check was skipped, because an agent or a kubelet has run on the machine before.
        NotFirstBoot,
        /// The configuration file cannot be read.
        InvalidConfig,
        /// The check failed because of a problem of the host.
        HostFailed,
    }
}

impl FirstbootOutcome {
    /// True if an admin should look into the outcome.
    pub fn is_trouble(self) -> bool {
        !matches!(self, Self::Allowed | Self::Overridden | Self::NotFirstBoot)
    }
}

/// Record of the check on a machine's first boot. All times are by the machine's own clock, which may not have been set
/// yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeFirstboot {
    /// Outcome of the check.
    pub outcome: FirstbootOutcome,
    /// Result of the check in one line, with the action that is needed, if any.
    #[schemars(length(max = 1100))]
    #[serde(default)]
    pub message: String,
    /// Reference of the target, as written in the configuration.
    #[schemars(length(max = 512))]
    #[serde(default)]
    pub image: String,
    /// Digest of the target's manifest for this machine; absent if the registry did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Version label of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Version of the image that the machine was installed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub boot_image_version: Option<String>,
    /// True if the machine switched to the target before its kubelet ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pivoted: bool,
    /// True if the check held the kubelet back, in this run or an earlier run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// Time when the check began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time when the check ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

/// Reason of the event for a machine that was refused on its first boot.
pub const EVENT_REFUSED: &str = "FirstBootRefused";
/// Action of an [`EVENT_REFUSED`] event if the machine's kubelet is held back.
pub const EVENT_HOLDS: &str = "HoldKubelet";
