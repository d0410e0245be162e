//! The record of a first-boot check.

use berth_api::Digest;
use berth_api::firstboot::NodeFirstboot;
use serde::{Deserialize, Serialize};

/// Record of a first-boot check, in `/var/lib/berth/firstboot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// True if the check is over for good, because the kubelet may have run.
    pub finished: bool,
    /// Number of reboots into the target so far. Stored before each reboot is requested.
    #[serde(default)]
    pub pivots: u32,
    /// Digest of the target that the machine is rebooting into. `None` if no pivot is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pivots_to: Option<Digest>,
    /// The part of the record that the agent copies to the BootcNode's status.
    pub status: NodeFirstboot,
}
