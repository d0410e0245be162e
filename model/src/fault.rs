//! Faults, and changes by admins. Each world limits how often each may happen in one history.

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident),+ $(,)?) => {
        /// A fault, or an admin's act.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$doc])* $variant),+
        }

        /// Number of faults.
        pub const FAULTS: usize = [$(Fault::$variant),+].len();
    };
}

faults! {
    /// An agent dies; what it had just sent may still be on its way.
    AgentCrash,
    /// A second agent on the node, which nothing keeps from acting, acts instead of the first, or the other way round.
    Second,
    /// A controller dies; what it had just sent may still be on its way.
    ControllerCrash,
    /// The other controller is elected; the old one does not know it and goes on with what it had decided.
    Election,
    /// A write is made, and its answer is lost.
    LostReply,
    /// A request's answer does not come in time; the request may still land.
    Late,
    /// An agent's reads are old when it acts.
    StaleRead,
    /// A controller plans from what its watches showed some time ago.
    StaleWatch,
    /// The API server refuses every write to a Lease, or does them again.
    Refuse,
    /// A controller closes an offer that was not taken in time.
    Lapse,
    /// The admin asks for another image.
    Edit,
    /// The admin changes the capacity.
    Resize,
    /// The admin pauses the pool, or ends that.
    Pause,
    /// The fleet is paused, or goes on.
    Fleet,
    /// A window closes, or opens.
    Window,
    /// The clock of the controllers' machines is lost, or set again.
    Clock,
    /// Somebody deletes a BootcNode.
    Forget,
    /// Somebody cordons a node, or uncordons it.
    Cordon,
    /// Somebody uncordons a node while it is in its turn.
    Meddle,
    /// A Node is deleted, and perhaps created again.
    Delete,
    /// A node's labels put it into another pool, or none.
    Move,
    /// The admin excludes a node, or ends that.
    Exclude,
    /// The admin holds a node back, or lets it go.
    Hold,
    /// The admin sets another rule for boot images.
    Accept,
    /// The note of a host's boot image cannot be read, or can again.
    Untold,
    /// The wall clock of a host jumps ahead, or is set back.
    Jump,
    /// The agents of a node stop, or go on.
    Mute,
    /// The agents of a node live and do not begin to pull, or do again.
    Idle,
    /// The admin pins the image that the tag points at.
    Approve,
    /// The admin asks to retry what failed.
    Retry,
    /// A host loses power.
    Power,
    /// logind accepts a reboot, and nothing happens.
    Dropped,
    /// `ostree-finalize-staged` fails at shutdown.
    Finalize,
    /// Somebody rolls the host back to what ran before.
    Rollback,
    /// A pull fails.
    Pull,
    /// The staged image of a host cannot be locked, or not removed, or can again.
    Stuck,
    /// Something inhibits shutdowns on a host, or ends that.
    Inhibit,
    /// The bus of a host falls silent, or answers again.
    Silent,
    /// A host does not say what is deployed on it, or does again.
    Unusable,
    /// The agent's memory cannot be written to a host's disk, or can again.
    ReadOnly,
    /// The API server no longer refuses what it must, or does again.
    Unguarded,
    /// Somebody queues a rollback on a host, or takes that back.
    Queue,
    /// Somebody schedules a shutdown of a host, or cancels it.
    Schedule,
    /// A node's pods cannot be moved, or can again; the drain's time passes.
    Block,
    /// Another updater on the host unlocks, removes or stages something.
    Rival,
    /// A Node is NotReady though its host is well, or Ready again.
    NotReady,
}
