//! Gates: reasons why no berth of a pool is opened.

use berth_api::reasons;

/// A reason that keeps all berths of a pool closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// Reason; holders are revoked with it as well.
    pub reason: GateReason,
    /// Message for the admin, in a line.
    pub message: String,
}

reasons! {
    /// Reason why all berths of a pool stay closed.
    pub enum GateReason {
        /// The pool is paused.
        Paused,
        /// The fleet is paused.
        FleetPaused,
        /// The fleet cannot be read and may be paused.
        FleetUnreadable,
        /// A window of the pool cannot be read.
        InvalidWindow,
        /// The controller's clock is not synchronised.
        ClockNotSynchronized,
        /// No window is long enough for a drain and a reboot.
        WindowTooShort,
        /// No window is open.
        OutsideWindows,
        /// An exclusion applies.
        Excluded,
        /// The image failed on too many nodes.
        RolloutHalted,
        /// A pool that goes before this one has nodes left to update.
        EarlierPool,
        /// The pools wait for each other in a cycle.
        OrderCycle,
        /// A pool that goes before this one does not exist.
        UnknownPool,
    }
}

/// Reason why the BootcFleet closes the gates of all pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetGate {
    /// The fleet is paused.
    Paused,
    /// The BootcFleet cannot be read, so it may be paused.
    Unreadable,
}
