//! Deliberate bugs. Each has a world to search, and the rule that the bug breaks there.

use berth_api::seeded::Bug;

use crate::fair::I10;
use crate::fault::Fault;
use crate::judge;
use crate::world::{Broken, Follows, World};
use crate::worlds::calm;

/// A deliberate bug that must be found.
#[derive(Debug, Clone)]
pub struct Seeded {
    /// The bug.
    pub bug: Bug,
    /// World to search.
    pub world: World,
    /// First rule that the bug breaks.
    pub breaks: Broken,
}

/// Returns all deliberate bugs.
pub fn all() -> Vec<Seeded> {
    Bug::ALL.iter().map(|bug| seeded(*bug)).collect()
}

/// Returns a world of two nodes, without faults.
fn small(bug: Bug) -> World {
    let calm = calm(bug.name(), "");
    World { nodes: 2, ..calm }
}

/// Defines for each bug its world (the fields that differ from [`small`], and the faults) and the rule that it breaks.
macro_rules! bugs {
    ($($bug:ident { $($field:ident: $value:expr),* } [$($fault:ident: $times:literal),*] breaks $breaks:expr;)*) => {
        /// Returns the world and the rule of a bug.
        pub fn seeded(bug: Bug) -> Seeded {
            let (world, faults, breaks) = match bug {
                $(Bug::$bug => (
                    World { $($field: $value,)* ..small(bug) },
                    vec![$((Fault::$fault, $times)),*],
                    $breaks,
                ),)*
            };
            let world = World { faults, ..world };
            Seeded { bug, world, breaks }
        }
    };
}

bugs! {
    SkipBerth {} [] breaks judge::I3_ARMED;
    NoCas {} [Late: 1, Pause: 1] breaks judge::I1A_HOLDER;
    ReleaseToOpen {} [] breaks judge::I1B_WHO;
    NoEpochStamp { capacity: (2, 2) } [Election: 1, Lapse: 1] breaks judge::I1B_OPEN;
    NoBootIdCheck {} [] breaks judge::I2_ONCE;
    ReleaseBeforeProof {} [] breaks judge::I5_PROOF;
    ReleaseAfterCommit {} [Pause: 1] breaks judge::I5_COMMITTED;
    UncordonAlways {} [Cordon: 1] breaks judge::I4_CORDON;
    ExpiredBerthStolen {} [Lapse: 1] breaks judge::I1A_HOLDER;
    OwnFlagOnly {} [Cordon: 1] breaks judge::I1B_OPEN;
    GiveBackNotSticky {} [] breaks judge::I1A_CORDON;
    NoHeldLimit { nodes: 3, capacity: (2, 1) } [Resize: 1, Cordon: 1] breaks judge::I1B_OPEN;
    OfferForAnotherDigest { images: &[2, 3] } [Edit: 1] breaks judge::I2_TAKE;
    SearchInNewPoolOnly { pools: vec![1, 2] } [Move: 2, Election: 1, StaleWatch: 1] breaks I10;
    RetryFailedDigest { images: &[2, 3], bad: 1 << 2 } [Rollback: 1] breaks judge::I8_FAILED;
    NoUidCheck {} [Delete: 1] breaks judge::I1A_CORDON;
    ShrinkAtOnce { nodes: 3, capacity: (2, 1) } [Resize: 1, AgentCrash: 1] breaks judge::I1C_TAKE;
    GateIgnored {} [Pause: 1] breaks judge::GATE;
    SecondServer { nodes: 3, capacity: (2, 2), pools: vec![2, 1], spread: true, servers: 3 }
        [] breaks judge::I11_QUORUM;
    LabelledServersOnly { nodes: 3, capacity: (2, 2), servers: 3, unlabelled: true } [] breaks judge::I11_QUORUM;
    FleetLimitIgnored { pools: vec![1, 1], spread: true, fleet: 1 } [] breaks judge::I1B_FLEET;
    OrderIgnored { pools: vec![1, 1], spread: true, after: &[(0, 1)] } [] breaks judge::ORDER;
    BootImageIgnored { images: &[2, 3], too_old: 1 << 3 } [Edit: 1] breaks judge::BOOT_IMAGE;
    HoldIgnored {} [Hold: 1] breaks judge::HOLD;
    StaleWatchOpens {} [StaleWatch: 1, Pause: 1] breaks judge::GATE;
    LeavingNotCounted { capacity: (2, 2), waves: true } [Forget: 1] breaks judge::WAVE;
    OldLookTrusted {} [Second: 2] breaks judge::I3_ARMED;
    OldCommitUsed {} [AgentCrash: 1, Meddle: 1] breaks judge::I1A_CLEAR;
    UnlockableLeft {} [Stuck: 1, Rival: 1] breaks judge::I3_REST;
    SilentLetsGo {} [Silent: 1] breaks judge::I5_PROOF;
    UnseenLetsGo {} [Unusable: 1, Dropped: 1] breaks judge::I3_ARMED;
    MemoryNotNeeded {} [ReadOnly: 1] breaks judge::I8_MEMORY;
    GuardIgnored { tries_guard: true } [Unguarded: 1] breaks judge::I6_GUARD;
    RollbackIgnored { previous: 2 } [Queue: 1] breaks judge::I2_QUEUED;
    ScheduledIgnored {} [Schedule: 1, Dropped: 1] breaks judge::I2_SCHEDULED;
    PermitKept { staged: false, max_staging: 1, keep_blocked: true } [Idle: 1] breaks I10;
    SilentPulls { staged: false, max_staging: 1, keep_blocked: true } [Mute: 1] breaks I10;
    EndlessPullCounts { capacity: (2, 2), staged: false, max_staging: 1, max_failures: 2, liars: 1 } [Lie: 1] breaks I10;
    BadTurnsForgotten { liars: 1, liars_first: true } [Lie: 2] breaks I10;
    PermitsUncounted { staged: false, max_staging: 1, keep_blocked: true } [] breaks judge::PERMITS;
    RefusedTriedAgain { capacity: (2, 2), keep_blocked: true } [Refuse: 1] breaks I10;
    RefusedNotCounted { capacity: (2, 2), keep_blocked: true } [Refuse: 1, Cordon: 1] breaks judge::I1B_OPEN;
    SilenceDisplaces { images: &[2, 3], too_old: 1 << 3, newer: true } [Edit: 1] breaks judge::BOOT_IMAGE;
    BootImageForgotten { images: &[2, 3], too_old: 1 << 3 } [Untold: 2] breaks judge::BOOT_IMAGE;
    BackoffUnlimited {} [Jump: 2, Block: 1] breaks I10;
    WallClockDrain {} [Jump: 1, Block: 1, AgentCrash: 1] breaks judge::DRAIN;
    SoakIgnored { capacity: (2, 2), waves: true, soaks: true } [] breaks judge::WAVE;
    AgeIgnored { images: &[2, 3], follows: Follows::Tag } [Edit: 1] breaks judge::ADOPTED;
    NotConfirmed { images: &[2, 3], follows: Follows::Tag } [Edit: 1, Election: 1] breaks judge::ADOPTED;
    PinFollowed { images: &[2, 3], follows: Follows::Pinned } [Edit: 1] breaks judge::PINNED;
    RollbackTwice { images: &[2, 3], bad: 1 << 2 } [Queue: 1] breaks judge::I2_UNDO;
    RollbackToAny { images: &[2, 3], bad: 1 << 2 } [Edit: 1] breaks judge::I2_UNDO;
    UndoneAlways {} [] breaks judge::I5_UNDO;
    OldReadyTrusted {} [] breaks judge::I5_PROOF;
    PoolChecksIgnored { images: &[2, 3], failing: 1 << 2 } [] breaks judge::I5_PROOF;
    GuardLeftArmed { guards: true } [] breaks judge::I5_GUARD;
    GuardToAny { nodes: 1, images: &[2, 3], bad: 1 << 2, guards: true } [Edit: 1, Mute: 1] breaks judge::I2_UNDO;
    GuardFiresDisarmed { guards: true } [] breaks judge::I5_GUARD;
    FellBackTriedAgain {} [FallBack: 1] breaks judge::I8_FAILED;
    RollbackForgotten {} [Rollback: 1] breaks judge::I8_FAILED;
    RollbackAnswered {} [Rollback: 1] breaks judge::I2_REBOOT;
    ReopenBeforeRecorded { images: &[2, 3], bad: 1 << 2 } [Rollback: 1] breaks judge::I8_RECORD;
}
