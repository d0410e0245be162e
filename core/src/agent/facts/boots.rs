use berth_api::digest::Digest;
use berth_api::names::BootId;
use serde::{Deserialize, Serialize};

/// The target of a committed berth that fell back: the host booted another image, without Berth. Before that, the
/// target had run unproven, or a shutdown had finalized it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FellBack {
    /// Digest of the target.
    pub digest: Digest,
    /// ID of the boot that runs the other image.
    pub boot_id: BootId,
    /// True if an agent saw the target run before the host booted the other image.
    #[serde(default)]
    pub ran: bool,
}

/// The image that the host ran when the agent last read its deployments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastBooted {
    /// Booted digest.
    pub digest: Digest,
    /// Digest of the rollback deployment.
    #[serde(default)]
    pub previous: Option<Digest>,
}

/// A boot of an unexpected image while the node held no berth. Kept until the node runs the desired image or the target
/// of a berth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutsideBoot {
    /// Booted digest.
    pub digest: Digest,
    /// Digest that the host ran before this boot.
    pub left: Digest,
    /// True if the host went back to its rollback deployment, and that image has not failed on this node.
    #[serde(default)]
    pub is_rollback: bool,
}
