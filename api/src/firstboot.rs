//! The first boot of a machine: what `berth-agent firstboot` decided before the kubelet ran.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Outcome of a machine's first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FirstbootOutcome {
    /// The target may be booted from here, or nobody has set a limit.
    Allowed,
    /// The target may not be booted from here, or nobody can tell, and the override file says to go on.
    Overridden,
    /// The boot image is too far away from the target.
    Refused,
    /// Nobody can tell whether the boot image is too far away.
    Unknown,
    /// The registry could not be reached before the deadline.
    RegistryAway,
    /// The registry does not give the target, or what it gives is of no use.
    ImageUnavailable,
    /// The target may be booted, and the machine could not change to it.
    PivotFailed,
    /// An agent or a kubelet has run here before: nothing was looked at.
    NotFirstBoot,
    /// The configuration file cannot be read.
    InvalidConfig,
    /// The host did not let the check do its work.
    HostFailed,
}

impl FirstbootOutcome {
    /// The word, as the API shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "Allowed",
            Self::Overridden => "Overridden",
            Self::Refused => "Refused",
            Self::Unknown => "Unknown",
            Self::RegistryAway => "RegistryAway",
            Self::ImageUnavailable => "ImageUnavailable",
            Self::PivotFailed => "PivotFailed",
            Self::NotFirstBoot => "NotFirstBoot",
            Self::InvalidConfig => "InvalidConfig",
            Self::HostFailed => "HostFailed",
        }
    }

    /// Says whether a person should look at it.
    pub fn is_trouble(self) -> bool {
        !matches!(self, Self::Allowed | Self::Overridden | Self::NotFirstBoot)
    }
}

/// Record of a machine's first boot. All times are of the machine's own clock, which may not have been set yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeFirstboot {
    /// Outcome.
    pub outcome: FirstbootOutcome,
    /// One line: what was found, and what to do where something is to be done.
    #[schemars(length(max = 1100))]
    #[serde(default)]
    pub message: String,
    /// Target, as the configuration names it.
    #[schemars(length(max = 512))]
    #[serde(default)]
    pub image: String,
    /// Digest of the target's manifest for this machine; absent where the registry has not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Version label of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Version that the machine was installed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub boot_image_version: Option<String>,
    /// True when the machine changed to the target before its kubelet ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pivoted: bool,
    /// True when the kubelet was held back at first: somebody has let the machine go on since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// Beginning of the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time of the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

/// Reason of the event of a machine that was refused on its first boot.
pub const EVENT_REFUSED: &str = "FirstBootRefused";
/// Action of an event whose machine's kubelet does not start.
pub const EVENT_HOLDS: &str = "HoldKubelet";
