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
/// Maximum number of machines listed in a pool's `newest`.
pub const MAX_NEWEST: usize = 3;

/// Limit on how old a machine's boot image may be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootImageLimit {
    /// Oldest boot image version that is allowed, from the OS image's label `berth.dev/min-boot-image`. If the image
    /// lacks that label, the pool's status shows the pool's `bootImage.minimumVersion` instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub minimum_version: Option<String>,
    /// Maximum number of major versions between boot image and OS image, from the OS image's label
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
    /// True if neither a limit nor an error is set.
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

/// Action when the boot image of new machines is too old for an OS image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootImageEnforcement {
    /// The pool does not adopt the OS image, and keeps its current image.
    #[default]
    ReleaseRecommended,
    /// The pool adopts the OS image, and the condition `BootImageSkew` warns the admin.
    Warn,
    /// Boot images are not checked. For pools that never get new machines.
    Disabled,
}

/// Source of the boot image version of new machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootImageSource {
    /// The reports of the newest machines of the pool: the median of three, or the newest of fewer machines.
    #[default]
    Nodes,
    /// The admin's record in `manual`. Useful, for example, before the first machine is installed from a new boot
    /// image.
    Manual,
}

/// The admin's record of the boot image of new machines.
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
    /// Action when the boot image of new machines is too old for an OS image. Default `ReleaseRecommended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<BootImageEnforcement>,
    /// Source of the boot image version of new machines. Default `Nodes`.
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

/// Boot image of new machines, and the existing machines whose own boot image is too old for the current OS image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootImageStatus {
    /// Version of the boot image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// Name of the Node of the machine whose agent reported this boot image: the median of the machines in `newest`, or
    /// the newest of fewer than three. Absent for a manual record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Time when the API server created the Node in `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_created_time: Option<Time>,
    /// Time when the machine in `node` was provisioned, by its own clock, but at most the creation time of its Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_time: Option<Time>,
    /// The newest machines that reported their boot image, newest first. Machines stay in this list after they are
    /// deleted, but not after they are excluded. Empty for a manual record.
    #[schemars(length(max = 3))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub newest: Vec<ReportedBootImage>,
    /// Time when the controller first saw the manual record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_time: Option<Time>,
    /// Limit that the current OS image sets for boot images. If the image sets no minimum version, the pool's minimum
    /// version is shown.
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

/// Boot image that one machine reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedBootImage {
    /// Name of the machine's Node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Version of the boot image.
    #[schemars(length(max = 128))]
    pub version: String,
    /// Time when the API server created the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_created_time: Option<Time>,
    /// Time when the machine was provisioned, by its own clock, but at most the creation time of its Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_time: Option<Time>,
}
