//! Faults, including changes by admins. Each world limits how often each may happen in one history.

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident),+ $(,)?) => {
        /// A fault, or an action of an admin.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$doc])* $variant),+
        }

        /// Number of faults.
        pub const FAULTS: usize = [$(Fault::$variant),+].len();
    };
}

faults! {
    /// An agent dies. Its last request may still be in flight.
    AgentCrash,
    /// The other of two agents on a node starts to act. Nothing keeps both from acting.
    Second,
    /// A controller dies. Its last request may still be in flight.
    ControllerCrash,
    /// The other controller is elected. The old leader does not notice, and still sends its decided writes.
    Election,
    /// A write is executed, but its answer is lost.
    LostReply,
    /// A request times out. It may still be executed later.
    Late,
    /// An agent acts some time after its reads.
    StaleRead,
    /// A controller plans from an old view of its watches.
    StaleWatch,
    /// The API server starts or stops to refuse all writes to a Lease.
    Refuse,
    /// A controller's open offers get old enough to lapse.
    Lapse,
    /// The admin asks for another image.
    Edit,
    /// The admin changes the capacity.
    Resize,
    /// The admin pauses or resumes a pool.
    Pause,
    /// The admin pauses or resumes the fleet.
    Fleet,
    /// The windows open or close.
    Window,
    /// The clock of the controllers' machines loses or regains synchronization.
    Clock,
    /// An admin deletes a BootcNode.
    Forget,
    /// An admin cordons or uncordons a node.
    Cordon,
    /// An admin uncordons a node during its turn.
    Meddle,
    /// A Node is deleted. It may be created again.
    Delete,
    /// A node's labels move it to another pool, or to none.
    Move,
    /// The admin excludes a node, or includes it again.
    Exclude,
    /// The admin holds a node back, or releases it.
    Hold,
    /// The admin sets another policy for boot images.
    Accept,
    /// The installer's record of a host's boot image becomes unreadable or readable.
    Untold,
    /// The wall clock of a host jumps ahead or is set back.
    Jump,
    /// The agents of a node stop or continue.
    Mute,
    /// The running agents of a node stop or resume starting pulls.
    Idle,
    /// The admin pins the image that the tag points to.
    Approve,
    /// The admin asks to retry failed images.
    Retry,
    /// A host loses power.
    Power,
    /// logind accepts a reboot, but nothing happens.
    Dropped,
    /// `ostree-finalize-staged` fails at shutdown.
    Finalize,
    /// An admin rolls the host back to the previous image.
    Rollback,
    /// A pull fails.
    Pull,
    /// Locking or removing the staged image of a host starts or stops failing.
    Stuck,
    /// Shutdowns of a host become inhibited or allowed.
    Inhibit,
    /// The bus of a host stops or resumes answering.
    Silent,
    /// The deployments of a host become unreadable or readable.
    Unusable,
    /// A host's disk becomes read-only or writable for the agent's memory.
    ReadOnly,
    /// The API server stops or resumes refusing the writes that it must refuse.
    Unguarded,
    /// An admin queues or unqueues a rollback on a host.
    Queue,
    /// An admin schedules or cancels a shutdown of a host.
    Schedule,
    /// A node's pods become impossible or possible to evict. While impossible, the drain may time out.
    Block,
    /// Another updater on the host unlocks or removes the staged image.
    Rival,
    /// A Node becomes NotReady although its host works.
    NotReady,
}
