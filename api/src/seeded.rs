//! Deliberate bugs that the tests and the model checker must find. Compiled in only with the feature `seeded-bugs`,
//! which no shipped program has. A bug is active only if the environment variable `BERTH_SEEDED_BUG` names it (in a
//! program) or [`wake`] activates it (in the model checker).

macro_rules! bugs {
    ($($(#[$doc:meta])* $variant:ident => $name:literal),+ $(,)?) => {
        /// A deliberate bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Bug {
            $($(#[$doc])* $variant),+
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$variant),+];

            /// Returns the bug with this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|bug| bug.name() == name)
            }

            /// Name of the bug, as used in `BERTH_SEEDED_BUG`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

bugs! {
    /// Unlock and reboot as soon as the image is staged, without a berth.
    SkipBerth => "skip-berth",
    /// Write a berth with a resourceVersion other than the one that was read.
    NoCas => "no-cas",
    /// Give a berth back as open instead of closed.
    ReleaseToOpen => "release-to-open",
    /// Skip stamping a new leader's epoch on the berths.
    NoEpochStamp => "no-epoch-stamp",
    /// After a reboot, act as if the host had not rebooted since the commit.
    NoBootIdCheck => "no-boot-id-check",
    /// Give a berth back after the reboot without waiting for the proof.
    ReleaseBeforeProof => "release-before-proof",
    /// Give a committed berth back when it is revoked.
    ReleaseAfterCommit => "release-after-commit",
    /// At the end of a turn, uncordon a node even if it was cordoned before the turn.
    UncordonAlways => "uncordon-always",
    /// Close a held berth because its holder is overdue, and offer the berth again.
    ExpiredBerthStolen => "expired-berth-stolen",
    /// Count a node as unavailable only if it has Berth's own cordon.
    OwnFlagOnly => "own-flag-only",
    /// Close a berth before the agent has undone its changes to the Node.
    GiveBackNotSticky => "give-back-not-sticky",
    /// Offer a berth to an unavailable node even if the held and offered berths already use up the capacity.
    NoHeldLimit => "no-held-limit",
    /// Take an offer for a digest other than the desired one.
    OfferForAnotherDigest => "offer-for-another-digest",
    /// Make the agent ignore the berths that the node holds in other pools.
    SearchInNewPoolOnly => "search-in-new-pool-only",
    /// Retry a digest that failed on this node.
    RetryFailedDigest => "retry-failed-digest",
    /// Use a berth that was offered to another Node with the same name but a different UID.
    NoUidCheck => "no-uid-check",
    /// Publish a smaller capacity while more berths than the new capacity are offered or held.
    ShrinkAtOnce => "shrink-at-once",
    /// Reopen a berth before its failure is recorded.
    ReopenBeforeRecorded => "reopen-before-recorded",
    /// Offer berths while a gate is closed.
    GateIgnored => "gate-ignored",
    /// Offer a berth to a control plane node while another control plane node has a berth.
    SecondServer => "second-server",
    /// Check the API servers only if a node with the control plane label needs an update.
    LabelledServersOnly => "labelled-servers-only",
    /// Open berths without counting the other pools' use of the fleet's limit.
    FleetLimitIgnored => "fleet-limit-ignored",
    /// Offer berths of a pool while an earlier pool has nodes to update.
    OrderIgnored => "order-ignored",
    /// Adopt an image although the boot image in use is too old for it.
    BootImageIgnored => "boot-image-ignored",
    /// Offer a berth to a node that is held back.
    HoldIgnored => "hold-ignored",
    /// Do not count a node as a member while its BootcNode is being deleted.
    LeavingNotCounted => "leaving-not-counted",
    /// Open berths although the watch is silent, or although the pool has changed since the last watch event.
    StaleWatchOpens => "stale-watch-opens",
    /// Act on a reading of the host that is older than another agent process's write of the berth.
    OldLookTrusted => "old-look-trusted",
    /// Reboot under an old commit without a new check that the node is cordoned and drained.
    OldCommitUsed => "old-commit-used",
    /// Give back a committed, unproven berth because the host does not answer.
    SilentLetsGo => "silent-lets-go",
    /// Take back a commit although the host's deployments cannot be read.
    UnseenLetsGo => "unseen-lets-go",
    /// Roll back an unproven image a second time, after the host has booted that image again.
    RollbackTwice => "rollback-twice",
    /// Roll back a boot after its deadline even if the boot is proven.
    UndoneAlways => "undone-always",
    /// Roll back even if the host's rollback deployment is not the previous image.
    RollbackToAny => "rollback-to-any",
    /// After a soft reboot, trust a report that the kubelet made before the reboot.
    OldReadyTrusted => "old-ready-trusted",
    /// Count a boot as proven without the pool's checks.
    PoolChecksIgnored => "pool-checks-ignored",
    /// Leave the host's rollback guard armed after the proof of a boot.
    GuardLeftArmed => "guard-left-armed",
    /// Arm the host's rollback guard even if the image for the rollback is not proven.
    GuardToAny => "guard-to-any",
    /// Let the host's rollback guard roll back even if the guard is not armed.
    GuardFiresDisarmed => "guard-fires-disarmed",
    /// Retry a digest although the host has fallen back from this digest to the previous image.
    FellBackTriedAgain => "fell-back-tried-again",
    /// Stage and boot an image again after a rollback without a berth has replaced that image.
    RollbackForgotten => "rollback-forgotten",
    /// After a rollback without a berth, immediately reboot the host without a berth.
    RollbackAnswered => "rollback-answered",
    /// Begin a turn although the agent cannot store its record of the turn on the host.
    MemoryNotNeeded => "memory-not-needed",
    /// Take a berth although the API server lets other nodes write that berth.
    GuardIgnored => "guard-ignored",
    /// Begin a turn although a rollback is queued on the host.
    RollbackIgnored => "rollback-ignored",
    /// Take back a commit while a shutdown is scheduled.
    ScheduledIgnored => "scheduled-ignored",
    /// Never withdraw an unused permit to pull.
    PermitKept => "permit-kept",
    /// Never withdraw the permit to pull if the node's agent is silent.
    SilentPulls => "silent-pulls",
    /// Grant permits to pull without counting nodes that are already pulling.
    PermitsUncounted => "permits-uncounted",
    /// Count a pull against `maxStaging` however long the node reports it.
    EndlessPullCounts => "endless-pull-counts",
    /// Offer berths without regard to the offers that each node has had.
    BadTurnsForgotten => "bad-turns-forgotten",
    /// Retry a Lease write in every pass although the API server rejects it.
    RefusedTriedAgain => "refused-tried-again",
    /// Count a closed berth as free although the API server rejects writes to it.
    RefusedNotCounted => "refused-not-counted",
    /// Let a newer machine that reports no boot image replace the boot image of an older machine.
    SilenceDisplaces => "silence-displaces",
    /// Forget the boot image of deleted or silent machines.
    BootImageForgotten => "boot-image-forgotten",
    /// After a restart of the agent, measure the drain's duration by the wall clock.
    WallClockDrain => "wall-clock-drain",
    /// After the clock was set back, wait for the end of a backoff even if the remaining time is longer than any
    /// backoff.
    BackoffUnlimited => "backoff-unlimited",
    /// Begin a wave before the previous wave has soaked.
    SoakIgnored => "soak-ignored",
    /// Adopt the image of a tag regardless of its age.
    AgeIgnored => "age-ignored",
    /// Adopt the image of a tag without querying the registry a second time.
    NotConfirmed => "not-confirmed",
    /// Adopt the image of the tag although the reference has a digest.
    PinFollowed => "pin-followed",
    /// Keep a staged image that could not be locked.
    UnlockableLeft => "unlockable-left",
}

#[cfg(feature = "seeded-bugs")]
mod awake {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Bug;

    static WOKEN: AtomicU32 = AtomicU32::new(0);
    static FROM_ENVIRONMENT: OnceLock<Option<Bug>> = OnceLock::new();

    pub fn is(bug: Bug) -> bool {
        let named = FROM_ENVIRONMENT.get_or_init(|| Bug::named(&std::env::var("BERTH_SEEDED_BUG").ok()?));
        *named == Some(bug) || WOKEN.load(Ordering::Relaxed) == bug as u32 + 1
    }

    pub fn wake(bug: Option<Bug>) {
        WOKEN.store(bug.map_or(0, |b| b as u32 + 1), Ordering::Relaxed);
    }
}

/// Activates one bug in this process; `None` deactivates it.
#[cfg(feature = "seeded-bugs")]
pub fn wake(bug: Option<Bug>) {
    awake::wake(bug);
}

impl Bug {
    /// True if this bug is active in this process. Always false in shipped programs.
    #[cfg(feature = "seeded-bugs")]
    pub fn is_awake(self) -> bool {
        awake::is(self)
    }

    /// True if this bug is active in this process. Always false in shipped programs.
    #[cfg(not(feature = "seeded-bugs"))]
    pub const fn is_awake(self) -> bool {
        false
    }
}
