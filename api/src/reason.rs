//! Reasons of conditions. Each is a variant of an enum that can be listed, so that `docs/conditions.md` has them all.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use crate::berth::Outcome;
use crate::node::Phase;

/// A set of reasons that can be listed.
pub trait Reason: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// The CamelCase word of a condition.
    fn word(self) -> &'static str;
}

/// Makes an enum whose variants are reasons of conditions, with `ALL` and `as_str`. A variant's word is its name, or the
/// text that stands behind it.
#[macro_export]
macro_rules! reasons {
    ($(#[$of_type:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $variant:ident $(= $word:literal)?,)+ }) => {
        $(#[$of_type])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$of_one])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The CamelCase word of a condition.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $crate::reasons!(@word $variant $($word)?)),+ }
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

/// The word of a reason. It can only be made from a reason that can be listed, or from a condition that has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word(Cow<'static, str>);

impl<R: Reason> From<R> for Word {
    fn from(reason: R) -> Self {
        Self(reason.word().into())
    }
}

impl Word {
    /// The reason of a condition that was read, to be repeated in another one.
    pub fn stored(stored: &str) -> Self {
        Self(stored.to_owned().into())
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

impl Reason for Outcome {
    const ALL: &'static [Self] = Self::ALL;

    fn word(self) -> &'static str {
        self.as_str()
    }
}

impl Reason for Phase {
    const ALL: &'static [Self] = Self::ALL;

    fn word(self) -> &'static str {
        self.as_str()
    }
}

reasons! {
    /// A reason that no enum of its own has.
    pub enum Why {
        /// Nothing is wrong, or done as it should be.
        AsExpected,
        /// Not done yet.
        NotYet,
        /// No image is published for the node.
        NothingDesired,
        /// The node, or each of the pool, runs the desired image.
        Updated,
        /// The next boot would take another deployment than the one that runs.
        RollbackQueued,
        /// The desired image runs, and its boot is not proven or not given back.
        Proving,
        /// The host pulls the image.
        Pulling,
        /// The pull has not begun.
        NotStarted,
        /// Nothing is pulled before something else is repaired.
        Blocked,
        /// The desired image runs.
        Booted,
        /// Staged with finalization locked.
        Locked,
        /// Not staged, or not locked.
        NotStaged,
        /// The berth is not licensed anew while a gate is closed.
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
        /// The last turn ended badly, and the next try is not due yet.
        BackingOff,
        /// The agent has something else to do first.
        NotReady,
        /// The drain has not ended in time.
        DrainTimeout,
        /// Drained but for pods that could not go and do not block the reboot.
        LeftBehind,
        /// A failure whose reason this version does not know.
        Failed,
        /// The digest failed on this node.
        DigestFailed,
        /// A berth names another Node object of this name.
        ForeignBerth,
        /// The turn ended in a way that this version does not know.
        TurnFailed,
        /// The host runs neither the target nor what ran before.
        BootUnproven,
        /// The Node is not Ready under its new boot in time.
        NodeNotReady,
        /// The image of the spec is not resolved.
        ImageNotResolved,
        /// The selector matches no node.
        NoNodes,
        /// All members run the target.
        AllUpdated,
        /// Members have yet to run the target.
        NotAllUpdated,
        /// The pool is being deleted.
        Deleting,
        /// Members reboot, or are proven.
        Rebooting,
        /// Members are drained.
        Draining,
        /// Members pull or stage.
        Staging,
        /// A berth is offered.
        Offered,
        /// Members wait.
        Waiting,
        /// The fleet's limit is used up.
        FleetCapacity,
        /// Berths are being fenced against a former leader.
        Fencing,
        /// The pool's selector is wrong.
        InvalidSelector,
        /// A Lease of the pool cannot be read.
        UnreadableLease,
        /// A Lease that is no berth has the name of one.
        NameTaken,
        /// The API server refuses to write a Lease of the pool.
        WriteRefused,
        /// A holder does not come back.
        RebootTimedOut,
        /// Members say that they are degraded.
        NodesDegraded,
        /// The admin has paused the pool.
        PausedByAdmin,
        /// The admin has paused the fleet.
        PausedByFleet,
        /// Neither the pool nor the fleet is paused.
        NotPaused,
        /// Not judged yet.
        NotJudged,
        /// The image failed on too many nodes.
        TooManyFailures,
        /// No node is selected twice.
        NoConflict,
        /// Nodes are selected by more than one pool.
        SelectedTwice,
        /// Several Nodes have the address of one API server.
        AddressShared,
        /// A person must act first.
        Stalled,
        /// An admin has paused.
        Paused,
        /// On the way.
        Progressing,
        /// The fleet does not allow the reference.
        RegistryNotAllowed,
        /// The BootcFleet cannot be read.
        FleetUnreadable,
        /// The image has nothing for the platform of a member.
        NoSuchPlatform,
        /// Which image of the index the member's CPU runs is not known.
        CpuLevelUnknown,
        /// The boot image in use is too old for the image.
        BootImageSkew,
        /// The boot image in use is too old for the image in force.
        BootImageTooOld,
        /// A new image was not adopted, since the boot image in use is too old for it.
        NextImageRefused,
        /// The versions of the boot image and of the image cannot be compared.
        CannotCompare,
        /// No machine has told yet what it was installed from.
        NotReported,
        /// The boot image in use is new enough.
        WithinLimit,
        /// Nobody limits boot images.
        NoLimit,
        /// The admin wants nobody to look.
        Disabled,
        /// The registry is asked.
        Resolving,
        /// The reference is none.
        InvalidReference,
        /// The reference is resolved.
        Resolved,
        /// The tag points at another image than the pinned one.
        ImageAvailable,
        /// The tag's new image is not old enough.
        MinimumAge,
        /// The pool has no windows.
        AlwaysOpen,
        /// Reboots may start.
        Open,
        /// An earlier wave is not proven.
        WaveWaiting,
        /// An earlier wave soaks.
        WaveSoaking,
        /// An admin holds the node back.
        Held,
        /// The digest failed on this node before.
        FailedBefore,
        /// The node's clock is not synchronised.
        ClockNotSynchronized,
        /// The window is too short for a drain and a reboot.
        WindowTooShort,
        /// More than one pool selects the node.
        NodeConflict,
        /// Nothing about this node keeps it waiting.
        NotWaiting,
        /// The node was heard of again.
        HeardAgain,
        /// The node holds no berth any more.
        NoBerth,
        /// The node's turn has not come.
        Pending,
        /// The node is on its way.
        Updating,
        /// Nobody has told enough of the node.
        CannotDetermine,
        /// The node's agent was not heard of for long.
        AgentSilent,
        /// There is no pool.
        NoPools,
        /// Agents were not heard of for long.
        AgentsSilent,
        /// A registry does not answer.
        RegistryAway,
        /// Machines went wrong on their first boot, or were refused then.
        FirstBootFailed,
        /// Objects of Berth's cannot be read.
        UnreadableObjects,
        /// The pool's tag is looked at on request only.
        NotPolled,
        /// Machines are held back on their first boot, and have not become nodes.
        MachinesHeld,
        /// The events of machines on their first boot cannot be listed.
        EventsUnreadable,
        /// New images do not reach some pools.
        FeedsFailing,
    }
}
