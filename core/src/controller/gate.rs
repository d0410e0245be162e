//! Gates as a plan knows them: reasons for which no berth of a pool is opened.

use berth_api::reasons;

/// Something that keeps all berths of a pool closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// Reason; also what a holder is revoked with.
    pub reason: GateReason,
    /// One line for people.
    pub message: String,
}

reasons! {
    /// Reason for which all berths of a pool are closed.
    pub enum GateReason {
        /// The pool is paused.
        Paused,
        /// The fleet is paused.
        FleetPaused,
        /// The fleet cannot be read, and may be paused.
        FleetUnreadable,
        /// A window of the pool cannot be read.
        InvalidWindow,
        /// The controller's clock is not synchronised.
        ClockNotSynchronized,
        /// No window is long enough for a drain and a reboot.
        WindowTooShort,
        /// No window is open.
        OutsideWindows,
        /// An exclusion is in force.
        Excluded,
        /// The image failed on too many nodes.
        RolloutHalted,
        /// A pool that goes before this one has nodes left to update.
        EarlierPool,
        /// The pools wait for each other.
        OrderCycle,
        /// A pool that goes before this one does not exist.
        UnknownPool,
    }
}

/// Reasons for which a BootcFleet closes the gates of all pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetGate {
    /// The fleet is paused.
    Paused,
    /// The BootcFleet cannot be read, so that nobody knows whether it is paused.
    Unreadable,
}
