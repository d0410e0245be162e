//! Rollouts that show each deliberate bug, so that the judge can be tested without a search of hours.

use berth_api::seeded::Bug;

/// Seed of the rollouts that find bugs.
pub const SEED: u64 = 1;

/// Whether the soak finds a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Found in the rollout with this number and the seed [`SEED`]. Some bugs are races, so more than one try may be
    /// necessary.
    FoundBy(u64),
    /// As [`Self::FoundBy`], in the same rollout with a liar.
    FoundBesideLiar(u64),
    /// Not found by any fault of the soak, for this reason.
    OutOfReach(&'static str),
}

/// Bugs that the judge must also find beside a liar, each in its rollout with the seed [`SEED`]. What the judge excuses
/// in a liar must not excuse the controller.
pub const BESIDE_LIAR: [(Bug, u64); 3] = [
    (Bug::NoHeldLimit, 623),
    (Bug::ShrinkAtOnce, 55),
    (Bug::ReopenBeforeRecorded, 41),
];

/// Returns whether the soak finds a bug.
pub fn known(bug: Bug) -> Known {
    use Known::{FoundBesideLiar, FoundBy, OutOfReach};
    match bug {
        Bug::SkipBerth | Bug::NoBootIdCheck | Bug::ReleaseBeforeProof | Bug::ReleaseToOpen => FoundBy(117),
        Bug::GiveBackNotSticky => FoundBy(7534),
        Bug::OwnFlagOnly => FoundBy(723),
        Bug::NoCas => FoundBy(69),
        Bug::ReleaseAfterCommit => FoundBy(1),
        Bug::UncordonAlways => FoundBy(17),
        Bug::NoHeldLimit => FoundBy(73),
        Bug::NoUidCheck => FoundBy(310),
        Bug::ShrinkAtOnce => FoundBy(55),
        Bug::ReopenBeforeRecorded => FoundBy(41),
        Bug::GateIgnored => OutOfReach("no rollout has an offer against its gate that the judge can see"),
        Bug::SecondServer => FoundBesideLiar(433),
        Bug::LabelledServersOnly => OutOfReach("no API server of a rollout runs on a simulated node"),
        Bug::StaleWatchOpens => OutOfReach("no rollout pauses a pool while the watches are silent"),
        Bug::FleetLimitIgnored => FoundBy(81),
        Bug::OrderIgnored => FoundBy(17),
        Bug::BootImageIgnored => OutOfReach("no image of a rollout has a limit for boot images"),
        Bug::HoldIgnored => OutOfReach("no admin of a rollout holds a node back"),
        Bug::LeavingNotCounted => OutOfReach("no rollout deletes the BootcNode of an unproven canary"),
        Bug::OldLookTrusted => OutOfReach("nothing lets two agents act on one host"),
        Bug::OldCommitUsed => OutOfReach("no agent is away between its commit and its reboot while an admin uncordons"),
        Bug::UnlockableLeft => OutOfReach("no host of a rollout repeatedly fails to lock a staged image"),
        Bug::SilentLetsGo => OutOfReach("no host of a rollout falls silent between its boot and its proof"),
        Bug::UnseenLetsGo => OutOfReach("no host of a rollout hides its deployments while an image is unlocked"),
        Bug::MemoryNotNeeded => OutOfReach("no host of a rollout has a disk that cannot be written"),
        Bug::GuardIgnored => OutOfReach("no rollout removes the admission policies"),
        Bug::RollbackIgnored => OutOfReach("no admin of a rollout queues a rollback on a host"),
        Bug::RollbackTwice | Bug::RollbackToAny | Bug::UndoneAlways => {
            OutOfReach("no boot of a rollout waits for its proof until health.deadline")
        }
        Bug::OldReadyTrusted => OutOfReach("no host of a rollout soft-reboots"),
        Bug::PoolChecksIgnored => OutOfReach("no pool of a rollout has checks"),
        Bug::GuardLeftArmed | Bug::GuardToAny | Bug::GuardFiresDisarmed => {
            OutOfReach("no boot of a rollout lasts until the time of the rollback guard is over")
        }
        Bug::FellBackTriedAgain | Bug::RollbackForgotten | Bug::RollbackAnswered => {
            OutOfReach("no host of a rollout boots its previous image without the agent")
        }
        Bug::ScheduledIgnored => OutOfReach("no admin of a rollout schedules a shutdown on a host"),
        Bug::PermitKept => OutOfReach("no node of a rollout leaves its permit to pull unused for 15 minutes"),
        Bug::SilentPulls => OutOfReach("the pools of a rollout let all nodes pull at once"),
        Bug::EndlessPullCounts => OutOfReach("the pools of a rollout let all nodes pull at once"),
        Bug::BadTurnsForgotten => OutOfReach("no node of a rollout gives each berth back without an update"),
        Bug::PermitsUncounted => OutOfReach("the pools of a rollout let all nodes pull at once"),
        Bug::RefusedTriedAgain => OutOfReach("no webhook of a rollout refuses one Lease alone"),
        Bug::RefusedNotCounted => OutOfReach("no webhook of a rollout refuses one Lease alone"),
        Bug::SilenceDisplaces | Bug::BootImageForgotten => {
            OutOfReach("no image of a rollout requires newer boot images")
        }
        Bug::WallClockDrain | Bug::BackoffUnlimited => OutOfReach("no clock of a rollout jumps"),
        Bug::SoakIgnored => OutOfReach("no wave of a rollout soaks"),
        Bug::AgeIgnored | Bug::NotConfirmed => OutOfReach("no pool of a rollout has a minimum age"),
        Bug::PinFollowed => OutOfReach("no pool of a rollout has a tag beside a digest"),
        Bug::ExpiredBerthStolen => OutOfReach("no holder of a rollout is silent for two minutes"),
        Bug::NoEpochStamp => {
            OutOfReach("late writes of a deposed leader fail: the new leader has changed the berth first")
        }
        Bug::OfferForAnotherDigest => OutOfReach("only the agent knows which of two desired digests it has read"),
        Bug::RetryFailedDigest => {
            OutOfReach("no controller offers a berth to a node that reports the digest as failed")
        }
        Bug::SearchInNewPoolOnly => OutOfReach("no controller moves a node to another pool while it holds a berth"),
    }
}
