//! Leases that the controller cannot write. Each Lease counts as a used berth, and the pool's condition `Degraded`
//! names it. The pool continues with its other berths.

use berth_api::condition::CommonReason;
use berth_api::{PoolName, keys};

/// A Lease that the controller cannot write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwritable {
    /// Pool of the berth.
    pub pool: PoolName,
    /// Name of the Lease.
    pub lease: String,
    /// Why the Lease cannot be written.
    pub why: Obstacle,
}

/// Why a Lease cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The API server refused the write, with this message.
    Refused(String),
    /// The Lease has the name of a berth, but not the pool label.
    NoLabel,
}

impl Unwritable {
    /// Returns the reason for the pool's condition `Degraded`.
    pub fn reason(&self) -> CommonReason {
        match self.why {
            Obstacle::Refused(_) => CommonReason::WriteRefused,
            Obstacle::NoLabel => CommonReason::NameTaken,
        }
    }

    /// Returns the message for the admin.
    pub fn words(&self) -> String {
        let lease = &self.lease;
        match &self.why {
            Obstacle::Refused(words) => format!(
                "the API server refuses to write Lease {lease}, which counts as a used berth until it can be \
                 written: {}",
                words.trim()
            ),
            Obstacle::NoLabel => format!(
                "Lease {lease} is named like a berth but lacks the label {}={}, so it counts as a used berth; add the \
                 label, or delete the Lease if it has no holder",
                keys::LABEL_POOL,
                self.pool
            ),
        }
    }
}
