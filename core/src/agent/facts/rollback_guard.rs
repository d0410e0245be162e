//! State of the host's rollback guard: see [`crate::agent::rollback_guard`].

use berth_api::digest::Digest;
use berth_api::names::BootId;

/// State of the guard, as its files show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RollbackGuard {
    /// The guard has no order: the agent left none, or has withdrawn it.
    #[default]
    Disarmed,
    /// The guard has the agent's order. It waits for the proof of the next boot, or of the running one.
    Armed,
    /// The guard has begun to roll the host back.
    Fired(Fired),
}

/// A rollback that the guard began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// Digest that ran without being proven.
    pub digest: Digest,
    /// ID of the boot that the guard undid.
    pub boot_id: BootId,
}

impl Fired {
    /// Reads the file that the guard's script writes when it begins a rollback: the agent's order, and a line with the
    /// boot ID. `None` if a line is missing.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        Some(Self {
            digest: value("target")?.parse().ok()?,
            boot_id: BootId::from(value("fired")?),
        })
    }
}
