//! Deliberate bugs, so that the tests and the model checker can show that they would find them. They are compiled in
//! only with the feature `seeded-bugs`, which nothing that is shipped has, and asleep until one is woken: by the
//! environment variable `BERTH_SEEDED_BUG` in a program, by [`wake`] in the model checker.

macro_rules! bugs {
    ($($(#[$doc:meta])* $variant:ident => $name:literal),+ $(,)?) => {
        /// A deliberate bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Bug {
            $($(#[$doc])* $variant),+
        }

        impl Bug {
            /// Every bug there is.
            pub const ALL: &[Bug] = &[$(Bug::$variant),+];

            /// The bug of that name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|bug| bug.name() == name)
            }

            /// Name of the bug, as `BERTH_SEEDED_BUG` gives it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

bugs! {
    /// Unlock and reboot as soon as the image is staged, without a berth.
    SkipBerth => "skip-berth",
    /// Write a berth with another resourceVersion than the one that it was read with.
    NoCas => "no-cas",
    /// Give a berth back open instead of closed.
    ReleaseToOpen => "release-to-open",
    /// A new leader does not stamp its epoch on the berths.
    NoEpochStamp => "no-epoch-stamp",
    /// Go on under a new boot as if it were the one that the berth was committed under.
    NoBootIdCheck => "no-boot-id-check",
    /// Give a berth back after the reboot without waiting for the proof.
    ReleaseBeforeProof => "release-before-proof",
    /// Give a committed berth back when it is revoked.
    ReleaseAfterCommit => "release-after-commit",
    /// Uncordon at the end also a node that was cordoned before.
    UncordonAlways => "uncordon-always",
    /// Close and offer anew a berth whose holder is overdue.
    ExpiredBerthStolen => "expired-berth-stolen",
    /// Count as unavailable only nodes that carry our own cordon.
    OwnFlagOnly => "own-flag-only",
    /// Close a berth in one step, before the Node is restored.
    GiveBackNotSticky => "give-back-not-sticky",
    /// Open a berth for an unavailable node however many are held.
    NoHeldLimit => "no-held-limit",
    /// Take an offer for another digest than the desired one.
    OfferForAnotherDigest => "offer-for-another-digest",
    /// See only the berths of the pool that the node now belongs to.
    SearchInNewPoolOnly => "search-in-new-pool-only",
    /// Try a digest again that failed here.
    RetryFailedDigest => "retry-failed-digest",
    /// Use a berth that names another Node of this name.
    NoUidCheck => "no-uid-check",
    /// Publish a smaller capacity while offers above it are open.
    ShrinkAtOnce => "shrink-at-once",
    /// Reopen a berth whose failure is not recorded yet.
    ReopenBeforeRecorded => "reopen-before-recorded",
    /// Offer berths while a gate is closed.
    GateIgnored => "gate-ignored",
    /// Offer a berth to a control plane node while another one has one.
    SecondServer => "second-server",
    /// Ask for the API servers only while a node with the control plane label is to be updated.
    LabelledServersOnly => "labelled-servers-only",
    /// Open berths whatever the other pools use of the fleet's limit.
    FleetLimitIgnored => "fleet-limit-ignored",
    /// Offer berths of a pool while one that goes before it has nodes to update.
    OrderIgnored => "order-ignored",
    /// Adopt an image for which the boot image in use is too old.
    BootImageIgnored => "boot-image-ignored",
    /// Offer a berth to a node that is held back.
    HoldIgnored => "hold-ignored",
    /// Count a node no more whose BootcNode is being deleted.
    LeavingNotCounted => "leaving-not-counted",
    /// Open berths by a watch that is silent, and by a pool that is no longer as it shows it.
    StaleWatchOpens => "stale-watch-opens",
    /// Go on with what was read of the host before another process wrote the berth.
    OldLookTrusted => "old-look-trusted",
    /// Reboot under an old commit, whatever has become of the cordon and the drain since.
    OldCommitUsed => "old-commit-used",
    /// Give a berth back without the proof of a boot whose host is silent.
    SilentLetsGo => "silent-lets-go",
    /// Take a commit back although the host does not say what is staged.
    UnseenLetsGo => "unseen-lets-go",
    /// Begin a turn that the host cannot remember.
    MemoryNotNeeded => "memory-not-needed",
    /// Take a berth although the API server lets other nodes write it.
    GuardIgnored => "guard-ignored",
    /// Begin a turn although a rollback is queued on the host.
    RollbackIgnored => "rollback-ignored",
    /// Take a commit back while a shutdown is scheduled.
    ScheduledIgnored => "scheduled-ignored",
    /// Leave its permit to pull to a node that does not use it.
    PermitKept => "permit-kept",
    /// Leave its permit to pull to a node whose agent is silent.
    SilentPulls => "silent-pulls",
    /// Give permits to pull without counting the nodes that pull already.
    PermitsUncounted => "permits-uncounted",
    /// Write a Lease again in each pass although the API server refuses it.
    RefusedTriedAgain => "refused-tried-again",
    /// Count a closed berth that cannot be written as free.
    RefusedNotCounted => "refused-not-counted",
    /// Let a newer machine that reports no boot image displace the one that is known.
    SilenceDisplaces => "silence-displaces",
    /// Forget the boot image of machines that are gone or silent.
    BootImageForgotten => "boot-image-forgotten",
    /// Measure a drain by the wall clock after a restart.
    WallClockDrain => "wall-clock-drain",
    /// Wait for the end of a backoff however far away the wall clock says that it is.
    BackoffUnlimited => "backoff-unlimited",
    /// Let a wave begin before the one before it has soaked.
    SoakIgnored => "soak-ignored",
    /// Adopt what a tag points at whatever its age.
    AgeIgnored => "age-ignored",
    /// Adopt what a tag points at without asking once more.
    NotConfirmed => "not-confirmed",
    /// Adopt what the tag beside a digest points at.
    PinFollowed => "pin-followed",
    /// Leave as it is what could not be locked.
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

/// Wakes one bug in this process, or puts all to sleep.
#[cfg(feature = "seeded-bugs")]
pub fn wake(bug: Option<Bug>) {
    awake::wake(bug);
}

impl Bug {
    /// Says whether this program has the bug. Always false in what is shipped.
    #[cfg(feature = "seeded-bugs")]
    pub fn is_awake(self) -> bool {
        awake::is(self)
    }

    /// Says whether this program has the bug. Always false in what is shipped.
    #[cfg(not(feature = "seeded-bugs"))]
    pub const fn is_awake(self) -> bool {
        false
    }
}
