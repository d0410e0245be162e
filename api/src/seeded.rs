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
    /// Continue after a reboot as if the boot that the berth was committed in were still running.
    NoBootIdCheck => "no-boot-id-check",
    /// Give a berth back after the reboot without waiting for the proof.
    ReleaseBeforeProof => "release-before-proof",
    /// Give a committed berth back when it is revoked.
    ReleaseAfterCommit => "release-after-commit",
    /// At the end of a turn, uncordon a node even if it was cordoned before the turn.
    UncordonAlways => "uncordon-always",
    /// Close a berth whose holder is overdue, and offer it again.
    ExpiredBerthStolen => "expired-berth-stolen",
    /// Count as unavailable only nodes with Berth's own cordon.
    OwnFlagOnly => "own-flag-only",
    /// Close a berth before the Node is restored.
    GiveBackNotSticky => "give-back-not-sticky",
    /// Open a berth for an unavailable node regardless of the number of held berths.
    NoHeldLimit => "no-held-limit",
    /// Take an offer for a digest other than the desired one.
    OfferForAnotherDigest => "offer-for-another-digest",
    /// In the agent, look only at berths of the node's current pool.
    SearchInNewPoolOnly => "search-in-new-pool-only",
    /// Retry a digest that failed on this node.
    RetryFailedDigest => "retry-failed-digest",
    /// Use a berth that was offered to another Node of the same name, with another UID.
    NoUidCheck => "no-uid-check",
    /// Publish a smaller capacity while more berths than the new capacity are offered or held.
    ShrinkAtOnce => "shrink-at-once",
    /// Reopen a berth before its failure is recorded.
    ReopenBeforeRecorded => "reopen-before-recorded",
    /// Offer berths while a gate is closed.
    GateIgnored => "gate-ignored",
    /// Offer a berth to a control plane node while another control plane node has a berth.
    SecondServer => "second-server",
    /// Check the API servers only if a node with the control plane label is to be updated.
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
    /// Open berths based on a silent watch, or on a pool that has changed since the last watch event.
    StaleWatchOpens => "stale-watch-opens",
    /// Act on an observation of the host that is older than another process's write of the berth.
    OldLookTrusted => "old-look-trusted",
    /// Reboot under an old commit without checking the cordon and the drain again.
    OldCommitUsed => "old-commit-used",
    /// Give a committed berth back unproven because the host does not answer.
    SilentLetsGo => "silent-lets-go",
    /// Take back a commit although the host does not report its staged image.
    UnseenLetsGo => "unseen-lets-go",
    /// Roll an unproven image back a second time, although the host booted that image again after the first rollback.
    RollbackTwice => "rollback-twice",
    /// Roll back even a proven boot after its deadline.
    UndoneAlways => "undone-always",
    /// Roll back to any deployment of the host.
    RollbackToAny => "rollback-to-any",
    /// After a soft reboot, trust a report that the kubelet made before the reboot.
    OldReadyTrusted => "old-ready-trusted",
    /// Count a boot as proven without the pool's checks.
    PoolChecksIgnored => "pool-checks-ignored",
    /// Leave the host's rollback guard armed after the proof of a boot.
    GuardLeftArmed => "guard-left-armed",
    /// Arm the host's rollback guard although the image that the guard would roll back to is not proven.
    GuardToAny => "guard-to-any",
    /// Let the host's rollback guard roll back although it is not armed.
    GuardFiresDisarmed => "guard-fires-disarmed",
    /// Retry a digest although the host fell back from it to the previous image during the digest's turn.
    FellBackTriedAgain => "fell-back-tried-again",
    /// Stage and boot an image again although a rollback without a berth has replaced it.
    RollbackForgotten => "rollback-forgotten",
    /// After a rollback without a berth, reboot the host at once, again without a berth.
    RollbackAnswered => "rollback-answered",
    /// Begin a turn although the host cannot store the agent's record of the turn.
    MemoryNotNeeded => "memory-not-needed",
    /// Take a berth although the API server lets other nodes write it.
    GuardIgnored => "guard-ignored",
    /// Begin a turn although a rollback is queued on the host.
    RollbackIgnored => "rollback-ignored",
    /// Take back a commit while a shutdown is scheduled.
    ScheduledIgnored => "scheduled-ignored",
    /// Never withdraw the permit to pull from a node that does not use it.
    PermitKept => "permit-kept",
    /// Never withdraw the permit to pull from a node whose agent is silent.
    SilentPulls => "silent-pulls",
    /// Grant permits to pull without counting nodes that are already pulling.
    PermitsUncounted => "permits-uncounted",
    /// Retry a Lease write in every pass although the API server rejects it.
    RefusedTriedAgain => "refused-tried-again",
    /// Count a closed berth as free although the API server rejects writes to it.
    RefusedNotCounted => "refused-not-counted",
    /// Let a newer machine that reports no boot image replace the boot image of an older machine.
    SilenceDisplaces => "silence-displaces",
    /// Forget the boot image of deleted or silent machines.
    BootImageForgotten => "boot-image-forgotten",
    /// Measure a drain by the wall clock after a restart.
    WallClockDrain => "wall-clock-drain",
    /// Wait for the end of a backoff even if the clock was set back and the remaining time is longer than any backoff.
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
