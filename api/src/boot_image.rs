//! Boot images: what machines are first installed from, and how old that may be.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Major versions that a boot image may be away from the OS image, unless a limit says otherwise.
pub const DEFAULT_MAX_MAJOR_SKEW: u32 = 1;
/// Largest number of major versions that a limit may name.
pub const MAX_SKEW: u32 = 1000;
/// Number of machines that a pool's status names.
pub const MAX_NAMED: usize = 10;

/// Limit for the boot images of the machines that an OS image is deployed to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootImageLimit {
    /// Oldest version that is new enough: the image's label `berth.dev/min-boot-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub minimum_version: Option<String>,
    /// Most major versions between boot image and OS image: the image's label `berth.dev/max-boot-image-major-skew`. Default 1,
    /// where there is any limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub max_major_skew: Option<u32>,
    /// Label of the image that cannot be read, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub error: Option<String>,
}

impl BootImageLimit {
    /// Says whether it limits nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Image that a machine was first installed from, as the installer noted it on the machine. It never changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBootImage {
    /// Version of the image, as it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// Name of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image: Option<String>,
    /// Digest of its manifest, where the installer noted that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Time when the machine was provisioned: what Ignition says, or else when the note was written. By the machine's clock, for
    /// people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_time: Option<Time>,
    /// File with the note, as the host sees it.
    #[schemars(length(max = 128))]
    pub source: String,
    /// Reason for which the note cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub error: Option<String>,
}

/// Consequence of a limit that is exceeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootImageEnforcement {
    /// A new digest whose limit is exceeded is not published. The image in force stays.
    #[default]
    ReleaseRecommended,
    /// The new digest is published, and the condition `BootImageSkew` warns.
    Warn,
    /// Nothing is looked at: these nodes will never be scaled.
    Disabled,
}

/// Where the version of the boot image in use comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootImageSource {
    /// From the newest of the pool's machines.
    #[default]
    Nodes,
    /// From `manual`, since no machine can know: the next ones are installed from another image.
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
        .message("bootImage.manual must be given with source: Manual, and only then"),
)]
#[serde(rename_all = "camelCase")]
pub struct BootImagePolicy {
    /// Consequence of a limit that is exceeded. Default `ReleaseRecommended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<BootImageEnforcement>,
    /// Where the version of the boot image in use comes from. Default `Nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<BootImageSource>,
    /// The admin's record, for `source: Manual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualBootImage>,
    /// Oldest version that is new enough, besides what the OS image itself says: the stricter one counts.
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

/// The boot image in use, and which machines are too old for the image in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootImageStatus {
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub version: Option<String>,
    /// The newest machine of the pool, which was installed from it; absent for a manual record. It may be gone: what the next
    /// machine is installed from does not change with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Time when the API server created its Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_created_time: Option<Time>,
    /// Time when the machine was provisioned, by its own clock, but not after its Node was created. Only a machine that was
    /// provisioned later changes the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_time: Option<Time>,
    /// Time when the manual record was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_time: Option<Time>,
    /// Limit of the image in force, with the pool's own.
    #[serde(default, skip_serializing_if = "BootImageLimit::is_none")]
    pub limit: BootImageLimit,
    /// Number of machines whose own boot image exceeds the limit.
    #[serde(default)]
    pub too_old: u32,
    /// Some of them.
    #[schemars(length(max = 10))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub too_old_nodes: Vec<String>,
}
