//! Gates: reasons why no berth of a pool is opened.

use berth_api::reasons;

/// A closed gate, which keeps all berths of a pool closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// Reason, shown to admins. If a holder must give its berth back because of this gate, the request to the holder
    /// has this reason too.
    pub reason: GateReason,
    /// Message for the admin, one line.
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
        /// A window of the pool cannot be parsed.
        InvalidWindow,
        /// The controller's clock is not synchronized.
        ClockNotSynchronized,
        /// No window is long enough for the expected drain and reboot.
        WindowTooShort,
        /// No window is open.
        OutsideWindows,
        /// An exclusion (`rollout.exclusions`) covers the current time.
        Excluded,
        /// The image failed on too many nodes.
        RolloutHalted,
        /// A pool that `rollout.after` names still has nodes to update.
        EarlierPool,
        /// Pools name each other in `rollout.after`, in a cycle.
        OrderCycle,
        /// A pool that `rollout.after` names does not exist or cannot be read.
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
