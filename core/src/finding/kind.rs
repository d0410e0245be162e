//! Kinds of findings: level, impact and summary of each.

use berth_api::reasons;
use serde::Serialize;

reasons! {
    /// Severity of a finding, the lowest first.
    #[derive(PartialOrd, Ord, Serialize)]
    pub enum Level {
        /// For information only.
        Info,
        /// The update is slower, or the problem may end without an admin's action.
        Warning,
        /// An admin has to act.
        Error,
    }
}

reasons! {
    /// Effect of a finding on the cluster.
    #[derive(Serialize)]
    pub enum Impact {
        /// Nothing is blocked.
        None,
        /// The update takes longer.
        #[serde(rename = "Update Speed")]
        UpdateSpeed = "Update Speed",
        /// The update has stopped, entirely or on some nodes.
        #[serde(rename = "Update Stalled")]
        UpdateStalled = "Update Stalled",
        /// Nodes are missing, or cannot be added.
        #[serde(rename = "Cluster Capacity")]
        ClusterCapacity = "Cluster Capacity",
        /// The effect is not known.
        Unknown,
    }
}

/// Defines `Kind` with one variant per line: level, impact, summary. POOL and REASON are placeholders in the summaries.
macro_rules! kinds {
    ($($kind:ident: $level:ident, $impact:ident, $words:literal;)*) => {
        /// Kind of a finding. Summaries about a node begin with a verb, since the node's name precedes them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $(#[doc = $words] $kind,)* }

        impl Kind {
            pub(super) const fn grade(self) -> (Level, Impact, &'static str) {
                match self { $(Self::$kind => (Level::$level, Impact::$impact, $words),)* }
            }
        }
    };
}

kinds! {
    ObjectsUnreadable: Error, UpdateStalled, "The controller cannot read some objects";
    AgentsSilent: Error, UpdateStalled, "Agents have been silent for a long time";
    RegistryAway: Error, UpdateStalled, "A registry does not answer";
    Unguarded: Error, UpdateStalled, "Agents can write objects of other nodes, so they take no berths";
    MachinesHeld: Error, ClusterCapacity, "Machines are held back on their first boot and have not joined";
    FirstBootFailed: Error, ClusterCapacity, "Some machines had problems on their first boot";
    OfFleet: Error, Unknown, "BootcFleet cluster: REASON";

    PoolPaused: Info, None, "Pool POOL is paused, but no node needs an update";
    OutdatedPaused: Warning, UpdateStalled, "Outdated nodes in a paused pool 'POOL' will not be updated";
    ImageAvailable: Info, None, "Another image is available for pool POOL";
    ImageChecked: Info, None, "The image of pool POOL is being checked (REASON)";
    ImageUnresolved: Error, UpdateStalled, "The image of pool POOL is not resolved (REASON)";
    TagUnchecked: Warning, UpdateSpeed, "The tag of pool POOL cannot be checked (REASON); the pool keeps its current image";
    ImageNotAdopted: Warning, UpdateStalled, "Pool POOL does not adopt the image that its tag points to (REASON)";
    FeedRefused: Error, UpdateStalled, "Pool POOL does not adopt the image that its tag points to (REASON)";
    FeedFailing: Error, UpdateStalled, "Pool POOL gets no new images: its tag cannot be checked (REASON)";
    FeedInterrupted: Warning, UpdateStalled, "Pool POOL gets no new images: its tag cannot be checked (REASON)";
    BootImageTooOld: Error, ClusterCapacity, "New machines could not join pool POOL: their boot image is too old";
    BootImageRefused: Error, UpdateStalled, "Pool POOL will not adopt its next image: new machines' boot image is too old for it";
    BootImageUnknown: Warning, ClusterCapacity, "It is not known whether new machines could join pool POOL (REASON)";
    RolloutHalted: Error, UpdateStalled, "The rollout of pool POOL is halted: its image failed on too many nodes";
    AddressShared: Warning, UpdateStalled, "Several Nodes share the address of an API server; this may block control plane nodes of pool POOL";
    SelectedTwice: Error, UpdateStalled, "Nodes of pool POOL are also selected by another pool, so no pool updates them";
    PoolDegraded: Error, UpdateStalled, "Pool POOL is degraded (REASON)";
    BerthUnreadable: Error, UpdateStalled, "A berth of pool POOL cannot be read";
    ControllerBehind: Warning, UpdateStalled, "The controller has not read the last change of pool POOL yet";
    OfPool: Warning, Unknown, "Pool POOL: REASON";

    Implausible: Error, Unknown, "has reports that cannot be true (REASON); it may be compromised";
    BadTurn: Warning, UpdateStalled, "ended a turn without an update (REASON)";
    NodeDegraded: Error, UpdateStalled, "is degraded (REASON)";
    RebootTimedOut: Error, ClusterCapacity, "has not come back from a reboot";
    PlatformUnsupported: Error, UpdateStalled, "has a platform that the pool's image does not support";
    AgentSilent: Warning, UpdateStalled, "has a silent agent";
    NotReady: Warning, UpdateSpeed, "is not ready";
    DiskPressure: Warning, UpdateSpeed, "has disk pressure";
    NetworkUnavailable: Warning, UpdateSpeed, "has no network";
    DrainBlocked: Warning, UpdateSpeed, "cannot be drained";
}
