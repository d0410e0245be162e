//! The deliberate bugs, each with a world where it is found and the rule that it breaks.

use berth_api::seeded::Bug;

use crate::fault::Fault::{
    self, AgentCrash, Cordon, Delete, Edit, Election, Forget, Hold, Lapse, Late, Move, Pause, Resize, StaleWatch,
};
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
    /// First rule that it breaks.
    pub breaks: Broken,
}

/// All deliberate bugs.
pub fn all() -> Vec<Seeded> {
    Bug::ALL.iter().map(|bug| seeded(*bug)).collect()
}

/// Returns the world and the rule of a bug.
pub fn seeded(bug: Bug) -> Seeded {
    let small = World {
        nodes: 2,
        ..calm("", "")
    };
    let with = |world: &World, faults: &[(Fault, u8)]| World {
        faults: faults.to_vec(),
        ..world.clone()
    };
    let two = World {
        capacity: (2, 2),
        ..small.clone()
    };
    let shrinks = World {
        capacity: (2, 1),
        nodes: 3,
        ..small.clone()
    };
    let bad = World {
        images: &[2, 3],
        bad: 1 << 2,
        ..small.clone()
    };
    let images = World {
        images: &[2, 3],
        ..small.clone()
    };
    let newer = World {
        too_old: 1 << 3,
        ..images.clone()
    };
    let pools = World {
        pools: vec![1, 2],
        ..small.clone()
    };
    let servers = World {
        nodes: 3,
        pools: vec![2, 1],
        spread: true,
        servers: 3,
        ..two.clone()
    };
    let unlabelled = World {
        nodes: 3,
        servers: 3,
        unlabelled: true,
        ..two.clone()
    };
    let fleet = World {
        pools: vec![1, 1],
        spread: true,
        fleet: 1,
        ..small.clone()
    };
    let order = World {
        fleet: 0,
        after: &[(0, 1)],
        ..fleet.clone()
    };
    let canary = World {
        waves: true,
        ..two.clone()
    };
    let guarded = World {
        tries_guard: true,
        ..small.clone()
    };
    let ran_before = World {
        previous: 2,
        ..small.clone()
    };
    let permits = World {
        staged: false,
        max_staging: 1,
        keep_blocked: true,
        ..small.clone()
    };
    let refused = World {
        keep_blocked: true,
        ..two.clone()
    };
    let untold = World {
        newer: true,
        ..newer.clone()
    };
    let soaks = World {
        soaks: true,
        ..canary.clone()
    };
    let tag = World {
        follows: Follows::Tag,
        ..images.clone()
    };
    let pinned = World {
        follows: Follows::Pinned,
        ..images.clone()
    };
    let (world, breaks) = match bug {
        Bug::SkipBerth => (with(&small, &[]), judge::I3_ARMED),
        Bug::NoCas => (with(&small, &[(Late, 1), (Pause, 1)]), judge::I1A_HOLDER),
        Bug::ReleaseToOpen => (with(&small, &[]), judge::I1B_WHO),
        Bug::NoEpochStamp => (with(&two, &[(Election, 1), (Lapse, 1)]), judge::I1B_OPEN),
        Bug::NoBootIdCheck => (with(&small, &[]), judge::I2_ONCE),
        Bug::ReleaseBeforeProof => (with(&small, &[]), judge::I5_PROOF),
        Bug::ReleaseAfterCommit => (with(&small, &[(Pause, 1)]), judge::I5_COMMITTED),
        Bug::UncordonAlways => (with(&small, &[(Cordon, 1)]), judge::I4_CORDON),
        Bug::ExpiredBerthStolen => (with(&small, &[(Lapse, 1)]), judge::I1A_HOLDER),
        Bug::OwnFlagOnly => (with(&small, &[(Cordon, 1)]), judge::I1B_OPEN),
        Bug::GiveBackNotSticky => (with(&small, &[]), judge::I1A_CORDON),
        Bug::NoHeldLimit => (with(&shrinks, &[(Resize, 1), (Cordon, 1)]), judge::I1B_OPEN),
        Bug::OfferForAnotherDigest => (with(&images, &[(Edit, 1)]), judge::I2_TAKE),
        Bug::SearchInNewPoolOnly => (
            with(&pools, &[(Move, 2), (Election, 1), (StaleWatch, 1)]),
            crate::fair::I10,
        ),
        Bug::RetryFailedDigest => (with(&bad, &[(Fault::Rollback, 1)]), judge::I8_FAILED),
        Bug::NoUidCheck => (with(&small, &[(Delete, 1)]), judge::I1A_CORDON),
        Bug::ShrinkAtOnce => (with(&shrinks, &[(Resize, 1), (AgentCrash, 1)]), judge::I1C_TAKE),
        Bug::GateIgnored => (with(&small, &[(Pause, 1)]), judge::GATE),
        Bug::SecondServer => (with(&servers, &[]), judge::I11_QUORUM),
        Bug::LabelledServersOnly => (with(&unlabelled, &[]), judge::I11_QUORUM),
        Bug::FleetLimitIgnored => (with(&fleet, &[]), judge::I1B_FLEET),
        Bug::OrderIgnored => (with(&order, &[]), judge::ORDER),
        Bug::BootImageIgnored => (with(&newer, &[(Edit, 1)]), judge::BOOT_IMAGE),
        Bug::HoldIgnored => (with(&small, &[(Hold, 1)]), judge::HOLD),
        Bug::StaleWatchOpens => (with(&small, &[(StaleWatch, 1), (Pause, 1)]), judge::GATE),
        Bug::LeavingNotCounted => (with(&canary, &[(Forget, 1)]), judge::WAVE),
        Bug::OldLookTrusted => (with(&small, &[(Fault::Second, 2)]), judge::I3_ARMED),
        Bug::OldCommitUsed => (with(&small, &[(AgentCrash, 1), (Fault::Meddle, 1)]), judge::I1A_CLEAR),
        Bug::UnlockableLeft => (with(&small, &[(Fault::Stuck, 1), (Fault::Rival, 1)]), judge::I3_REST),
        Bug::SilentLetsGo => (with(&small, &[(Fault::Silent, 1)]), judge::I5_PROOF),
        Bug::UnseenLetsGo => (
            with(&small, &[(Fault::Unusable, 1), (Fault::Dropped, 1)]),
            judge::I3_ARMED,
        ),
        Bug::MemoryNotNeeded => (with(&small, &[(Fault::ReadOnly, 1)]), judge::I8_MEMORY),
        Bug::GuardIgnored => (with(&guarded, &[(Fault::Unguarded, 1)]), judge::I6_GUARD),
        Bug::RollbackIgnored => (with(&ran_before, &[(Fault::Queue, 1)]), judge::I2_QUEUED),
        Bug::ScheduledIgnored => (
            with(&small, &[(Fault::Schedule, 1), (Fault::Dropped, 1)]),
            judge::I2_SCHEDULED,
        ),
        Bug::PermitKept => (with(&permits, &[(Fault::Idle, 1)]), crate::fair::I10),
        Bug::SilentPulls => (with(&permits, &[(Fault::Mute, 1)]), crate::fair::I10),
        Bug::PermitsUncounted => (with(&permits, &[]), judge::PERMITS),
        Bug::RefusedTriedAgain => (with(&refused, &[(Fault::Refuse, 1)]), crate::fair::I10),
        Bug::RefusedNotCounted => (with(&refused, &[(Fault::Refuse, 1), (Cordon, 1)]), judge::I1B_OPEN),
        Bug::SilenceDisplaces => (with(&untold, &[(Edit, 1)]), judge::BOOT_IMAGE),
        Bug::BootImageForgotten => (with(&newer, &[(Fault::Untold, 2)]), judge::BOOT_IMAGE),
        Bug::BackoffUnlimited => (with(&small, &[(Fault::Jump, 2), (Fault::Block, 1)]), crate::fair::I10),
        Bug::WallClockDrain => (
            with(&small, &[(Fault::Jump, 1), (Fault::Block, 1), (AgentCrash, 1)]),
            judge::DRAIN,
        ),
        Bug::SoakIgnored => (with(&soaks, &[]), judge::WAVE),
        Bug::AgeIgnored => (with(&tag, &[(Edit, 1)]), judge::ADOPTED),
        Bug::NotConfirmed => (with(&tag, &[(Edit, 1), (Election, 1)]), judge::ADOPTED),
        Bug::PinFollowed => (with(&pinned, &[(Edit, 1)]), judge::PINNED),
        Bug::ReopenBeforeRecorded => (with(&bad, &[(Fault::Rollback, 1)]), judge::I8_RECORD),
    };
    Seeded {
        bug,
        world: World {
            name: bug.name(),
            ..world
        },
        breaks,
    }
}
