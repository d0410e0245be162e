//! Reasons of conditions. Each enum lists its variants in `ALL`, so that a test can check that `docs/conditions.md`
//! explains every reason.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// Maximum length of a reason, in characters.
pub const MAX_REASON: usize = 64;

/// A set of condition reasons, with a list of its members.
pub trait Reason: Copy + 'static {
    /// All reasons of this set.
    const ALL: &'static [Self];

    /// Returns the CamelCase word that a condition shows as its reason.
    fn word(self) -> &'static str;
}

/// Defines an enum of words, such as condition reasons, with `ALL`, `as_str` and `from_word`. A variant's word is its
/// name, or the text after `=`.
#[macro_export]
macro_rules! reasons {
    ($(#[$of_type:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $variant:ident $(= $word:literal)?,)+ }) => {
        $(#[$of_type])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$of_one])* $variant,)+ }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word that an object stores, such as the reason of a condition.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $crate::reasons!(@word $variant $($word)?)),+ }
            }

            /// Returns the variant with this word; `None` for an unknown word, for example from a newer version.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
            }
        }

        impl $crate::reason::Reason for $name {
            const ALL: &'static [Self] = Self::ALL;

            fn word(self) -> &'static str {
                self.as_str()
            }
        }
    };
    (@word $variant:ident) => { stringify!($variant) };
    (@word $variant:ident $word:literal) => { $word };
}

/// Reason of a condition as text: the word of a [`Reason`], or a copy of an existing condition's reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word(Cow<'static, str>);

impl<R: Reason> From<R> for Word {
    fn from(reason: R) -> Self {
        Self(reason.word().into())
    }
}

impl Word {
    /// Copies the reason of an existing condition. Returns [`CommonReason::Other`] instead of a text that is not a
    /// CamelCase word of at most [`MAX_REASON`] characters, because agents may write any text as a reason.
    pub fn stored(stored: &str) -> Self {
        let is_word = stored.starts_with(|c: char| c.is_ascii_uppercase())
            && stored.len() <= MAX_REASON
            && stored.chars().all(|c| c.is_ascii_alphanumeric());
        if is_word {
            Self(stored.to_owned().into())
        } else {
            CommonReason::Other.into()
        }
    }

    /// The text.
    pub fn into_string(self) -> String {
        self.0.into_owned()
    }
}

impl Deref for Word {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq<&str> for Word {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl PartialEq<Word> for String {
    fn eq(&self, other: &Word) -> bool {
        *self == *other.0
    }
}

reasons! {
    /// Reasons that no other enum defines.
    pub enum CommonReason {
        /// Nothing is wrong, or the step is done.
        AsExpected,
        /// The step is not done yet.
        NotYet,
        /// No image is published for the node.
        NothingDesired,
        /// The node, or every node of the pool, runs the desired image.
        Updated,
        /// The next boot would use another deployment than the booted one.
        RollbackQueued,
        /// The desired image runs, but it is not proven yet or the berth is not given back yet.
        Proving,
        /// The host is pulling the image.
        Pulling,
        /// The pull has not begun.
        NotStarted,
        /// The pull waits until another problem is repaired.
        Blocked,
        /// The desired image runs.
        Booted,
        /// The image is staged, with finalization locked.
        Locked,
        /// The image is not staged, or not locked.
        NotStaged,
        /// A gate of the pool closed during the turn. The node may commit again only after the gate opens.
        Revoked,
        /// The window closed before the reboot.
        WindowClosed,
        /// Something inhibits the reboot.
        Inhibited,
        /// The Node is excluded.
        Excluded,
        /// The node holds a berth.
        InTurn,
        /// A berth may be offered.
        Ready,
        /// The last turn ended without an update, and the next attempt is not due yet.
        BackingOff,
        /// The image is staged and locked. The agent must take another step before the controller may offer a berth.
        NotReady,
        /// The drain did not end in time.
        DrainTimeout,
        /// The node is drained. Some pods could not be moved, but they do not block the reboot.
        LeftBehind,
        /// A failure with a reason that is unknown to this version of Berth.
        Failed,
        /// The digest failed on this node.
        DigestFailed,
        /// The digest was finalized and failed on this node: the host booted the previous image again, and Berth was
        /// not the cause.
        FellBack,
        /// The host went back to its previous image without a berth.
        RolledBackExternally,
        /// Without a berth, the host booted an image that is neither the desired image nor the host's previous image.
        BootedUnexpectedImage,
        /// A berth names a Node with this node's name but another UID.
        ForeignBerth,
        /// The turn ended with an outcome that is unknown to this version of Berth.
        TurnFailed,
        /// The host runs neither the target nor the previous image.
        BootUnproven,
        /// The Node did not become Ready in its new boot in time.
        NodeNotReady,
        /// The host did not reach `boot-complete.target` in its new boot in time.
        BootIncomplete,
        /// Units that had not failed before the reboot failed in the new boot.
        UnitsFailed,
        /// A required health check of the host did not succeed in the new boot in time.
        HealthCheckFailed,
        /// In the new boot, the pods of a pool check were not Ready in time.
        PodsNotReady,
        /// In the new boot, the HTTP GET of a pool check did not succeed in time.
        HttpCheckFailed,
        /// In the new boot, the Node did not have the condition of a pool check in time.
        NodeConditionWrong,
        /// The boot was not proven in time, and the node rolls back.
        RollingBack,
        /// No agent proved the boot in time, so the host's rollback guard rolled it back.
        RollbackGuardFired,
        /// The agent has installed the rollback guard's unit on the host.
        InstalledByAgent,
        /// The host's image has the rollback guard's unit.
        InImage,
        /// The agent could not install the rollback guard's unit on the host.
        NotInstalled,
        /// The pool's `health.onFailure` is `Hold`, so unproven boots are not rolled back.
        NotWanted,
        /// The image of the spec is not resolved.
        ImageNotResolved,
        /// The selector matches no node.
        NoNodes,
        /// All members run the target.
        AllUpdated,
        /// Some members do not run the target yet.
        NotAllUpdated,
        /// The pool is being deleted.
        Deleting,
        /// Members are rebooting or being proven.
        Rebooting,
        /// Members are being drained.
        Draining,
        /// Members are pulling or staging the image.
        Staging,
        /// A berth is offered.
        Offered,
        /// Members are waiting.
        Waiting,
        /// The fleet's limit is used up.
        FleetCapacity,
        /// Berths are being fenced against a former leader.
        Fencing,
        /// The pool's selector is invalid.
        InvalidSelector,
        /// A Lease of the pool cannot be read.
        UnreadableLease,
        /// A Lease that is not a berth has the name of a berth.
        NameTaken,
        /// The API server rejects writes to a Lease of the pool.
        WriteRefused,
        /// The API server rejects what the members' reports would add to the pool's status.
        StatusRefused,
        /// A node that holds a berth is silent or did not come back from its reboot in time.
        RebootTimedOut,
        /// Members report that they are degraded.
        NodesDegraded,
        /// A member has had several turns with the image and does not run it.
        TurnsWithoutUpdate,
        /// The admin has paused the pool.
        PausedByAdmin,
        /// The admin has paused the fleet.
        PausedByFleet,
        /// Neither the pool nor the fleet is paused.
        NotPaused,
        /// The controller has not evaluated the condition yet.
        NotJudged,
        /// The image failed on too many nodes.
        TooManyFailures,
        /// No node is selected by more than one pool.
        NoConflict,
        /// Nodes are selected by more than one pool.
        SelectedTwice,
        /// Several Nodes have the address of one API server.
        AddressShared,
        /// No progress is possible until an admin acts.
        Stalled,
        /// An admin has paused the pool or the fleet.
        Paused,
        /// An update is in progress.
        Progressing,
        /// The fleet's `allowedRegistries` do not allow the reference.
        RegistryNotAllowed,
        /// The BootcFleet cannot be read.
        FleetUnreadable,
        /// The image has no manifest for the platform of a member.
        NoSuchPlatform,
        /// A member's CPU level is not known, so no image of the index can be chosen for it.
        CpuLevelUnknown,
        /// The boot image of new machines is too old for the OS image.
        BootImageSkew,
        /// The boot image of new machines is too old for the current image.
        BootImageTooOld,
        /// The pool does not adopt its next image, because the boot image of new machines is too old for it.
        NextImageRefused,
        /// The versions of the boot image and the OS image cannot be compared.
        CannotCompare,
        /// No machine has reported yet which image it was installed from.
        NotReported,
        /// The boot image of new machines is new enough.
        WithinLimit,
        /// No limit for boot images is set.
        NoLimit,
        /// The admin has disabled the check.
        Disabled,
        /// The registry is being queried.
        Resolving,
        /// The reference is invalid.
        InvalidReference,
        /// The reference is resolved.
        Resolved,
        /// The tag points to an image other than the pinned one.
        ImageAvailable,
        /// The tag's new image is younger than `minimumAge`.
        MinimumAge,
        /// The pool has no windows.
        AlwaysOpen,
        /// Reboots may start.
        Open,
        /// An earlier wave is not proven.
        WaveWaiting,
        /// An earlier wave is soaking.
        WaveSoaking,
        /// An admin holds the node back.
        Held,
        /// The digest failed on this node before.
        FailedBefore,
        /// The node's clock is not synchronized.
        ClockNotSynchronized,
        /// The window is too short for a drain and a reboot.
        WindowTooShort,
        /// More than one pool selects the node.
        NodeConflict,
        /// The node does not wait, or waits only for a reason that concerns the whole pool.
        NotWaiting,
        /// The node's agent reported again.
        HeardAgain,
        /// The node no longer holds a berth.
        NoBerth,
        /// The node's turn has not come.
        Pending,
        /// The node is being updated.
        Updating,
        /// Not enough is known about the node.
        CannotDetermine,
        /// The node's agent has not reported for a long time.
        AgentSilent,
        /// There is no BootcNodePool.
        NoPools,
        /// Agents have not reported for a long time.
        AgentsSilent,
        /// A registry does not answer.
        RegistryAway,
        /// Machines failed or were refused on their first boot.
        FirstBootFailed,
        /// Some of Berth's objects cannot be read.
        UnreadableObjects,
        /// The pool's tag is polled on request only.
        NotPolled,
        /// Machines are held back on their first boot and have not become nodes.
        MachinesHeld,
        /// The events of machines on their first boot cannot be listed.
        EventsUnreadable,
        /// New images do not reach some pools.
        FeedsFailing,
        /// The controller has not read the last change of the pool.
        ControllerBehind,
        /// An agent has reported a reason that is not a valid word.
        Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_reason_is_a_short_word() {
        let longest = "R".repeat(MAX_REASON);
        for (stored, expected) in [
            ("DiskFull", "DiskFull"),
            ("Ipv6Missing", "Ipv6Missing"),
            (&longest, &longest),
            (&format!("{longest}R"), "Other"),
            ("", "Other"),
            ("diskFull", "Other"),
            ("Disk full", "Other"),
            ("Disk\nFull", "Other"),
            ("Ünknown", "Other"),
        ] {
            assert_eq!(Word::stored(stored), expected, "{stored}");
        }
    }
}
