//! Boot images: the images that machines are first installed from, and the limits on their age.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Default maximum number of major versions between boot image and OS image.
pub const DEFAULT_MAX_MAJOR_SKEW: u32 = 1;
/// Largest value that `maxMajorSkew` accepts.
pub const MAX_SKEW: u32 = 1000;
/// Maximum number of machines listed in a pool's `tooOldNodes`.
pub const MAX_NAMED: usize = 10;

/// Limit on how old a machine's boot image may be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootImageLimit {
    /// Oldest boot image version that is allowed. Set by the OS image's label `berth.dev/min-boot-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub minimum_version: Option<String>,
    /// Maximum number of major versions between boot image and OS image. Set by the OS image's label
    /// `berth.dev/max-boot-image-major-skew`. Default 1 if any limit is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub max_major_skew: Option<u32>,
    /// Why the limit is unknown, for example because a label of the OS image cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub error: Option<String>,
}

impl BootImageLimit {
    /// True if no limit is set.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Image that a machine was first installed from, as recorded by the installer on the machine. It never changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBootImage {
    /// Version of the image, as recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// Name of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image: Option<String>,
    /// Digest of the image's manifest, if the installer recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Time when the machine was provisioned, by its own clock: as reported by Ignition, otherwise the time of the
    /// installer's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_time: Option<Time>,
    /// Path of the installer's record on the host.
    #[schemars(length(max = 128))]
    pub source: String,
    /// Why the installer's record cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub error: Option<String>,
}

/// Action when a boot image limit is exceeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootImageEnforcement {
    /// A new OS image is not adopted while the boot image in use exceeds the limit. The pool keeps its current image.
    #[default]
    ReleaseRecommended,
    /// The OS image is adopted, and the condition `BootImageSkew` warns.
    Warn,
    /// Boot images are not checked. For pools that never get new machines.
    Disabled,
}

/// Where the version of the boot image in use comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootImageSource {
    /// The newest machine of the pool.
    #[default]
    Nodes,
    /// The admin's record in `manual`, for example when new machines are installed from an image that no existing
    /// machine was installed from.
    Manual,
}

/// The admin's record of the boot image in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.version)")
        .message("bootImage.manual.version is missing; write an OS version, such as 9.6.20251023-0"),
)]
#[serde(rename_all = "camelCase")]
pub struct ManualBootImage {
    /// Version of the image that new machines are installed from.
    #[serde(default)]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z]*[0-9][A-Za-z0-9._+~-]*$')")
        .message("bootImage.manual.version must be an OS version, such as 9.6.20251023-0 or 42.20250901.3.0"))]
    pub version: String,
}

/// Rules for the images that the pool's machines are first installed from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.manual) == (has(self.source) && self.source == 'Manual')")
        .message("bootImage.manual is required with source: Manual and forbidden otherwise"),
)]
#[serde(rename_all = "camelCase")]
pub struct BootImagePolicy {
    /// Action when a boot image limit is exceeded. Default `ReleaseRecommended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<BootImageEnforcement>,
    /// Where the version of the boot image in use comes from. Default `Nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<BootImageSource>,
    /// The admin's record, for `source: Manual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualBootImage>,
    /// Oldest boot image version that is allowed. If the OS image sets a limit too, the stricter one applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z]*[0-9][A-Za-z0-9._+~-]*$')")
        .message("bootImage.minimumVersion must be an OS version, such as 9.6 or 42.20250901.3.0"))]
    pub minimum_version: Option<String>,
}

impl BootImagePolicy {
    /// Rules with nothing set.
    pub const UNSET: Self = Self {
        enforcement: None,
        source: None,
        manual: None,
        minimum_version: None,
    };
}

/// The boot image in use, and the machines whose own boot image is too old for the current image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootImageStatus {
    /// Version of the boot image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// Node name of the pool's newest machine, which was installed from this image; absent for a manual record. Stays
    /// after the machine is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Time when the API server created the Node of the pool's newest machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_created_time: Option<Time>,
    /// Time when the pool's newest machine was provisioned, by its own clock, but no later than the creation of its
    /// Node. Only the report of a machine that was provisioned later replaces `version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_time: Option<Time>,
    /// Time when the controller first saw the manual record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_time: Option<Time>,
    /// Limit that applies: the stricter of the current image's and the pool's limit.
    #[serde(default, skip_serializing_if = "BootImageLimit::is_none")]
    pub limit: BootImageLimit,
    /// Number of machines whose own boot image exceeds the limit.
    #[serde(default)]
    pub too_old: u32,
    /// Names of up to 10 machines whose own boot image exceeds the limit.
    #[schemars(length(max = 10))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub too_old_nodes: Vec<String>,
}
