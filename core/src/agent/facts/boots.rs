use berth_api::digest::Digest;
use berth_api::names::BootId;
use serde::{Deserialize, Serialize};

/// A boot that fell back under a berth: the target was finalized, and the host booted another image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FellBack {
    /// The target.
    pub digest: Digest,
    /// Boot ID of the boot of the other image.
    pub boot_id: BootId,
    /// True if an agent saw the target run before.
    #[serde(default)]
    pub ran: bool,
}

/// The image that the host ran when the agent last looked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastBooted {
    /// Booted digest.
    pub digest: Digest,
    /// Digest of the rollback deployment.
    #[serde(default)]
    pub previous: Option<Digest>,
}

/// A boot of another image without a berth. Kept until the node runs the desired image, or a berth's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutsideBoot {
    /// Booted digest.
    pub digest: Digest,
    /// Digest that the host ran before.
    pub left: Digest,
    /// True if the host went back to its rollback deployment.
    #[serde(default)]
    pub is_rollback: bool,
}
