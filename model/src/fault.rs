//! Faults, including actions of admins. Each world limits how often each may happen in one history.

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident),+ $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$doc])* $variant),+
        }

        pub const FAULTS: usize = [$(Fault::$variant),+].len();
    };
}

faults! {
    /// An agent dies. Its last request may still be in flight.
    AgentCrash,
    /// The second of two agents on a node begins to act, although the first still acts.
    Second,
    /// A controller dies. Its last request may still be in flight.
    ControllerCrash,
    /// The other controller is elected, without notice to the old leader. The old leader still sends the writes that it
    /// has decided.
    Election,
    /// The API server executes a write, but its response is lost.
    LostReply,
    /// A request times out. It may still be executed later.
    Late,
    /// An agent acts some time after its reads.
    StaleRead,
    /// A controller plans from outdated watches.
    StaleWatch,
    /// The API server starts or stops rejecting all writes of a Lease.
    Refuse,
    /// A controller's open offers get old enough to lapse.
    Lapse,
    Edit,
    Resize,
    Pause,
    Fleet,
    Window,
    /// The clock of the controllers' machines loses or regains synchronization.
    Clock,
    Forget,
    Cordon,
    /// An admin uncordons a node during its turn.
    Meddle,
    Delete,
    /// A node's labels move it to another pool, or to none.
    Move,
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
    Retry,
    Power,
    /// logind accepts a reboot, but nothing happens.
    Dropped,
    /// `ostree-finalize-staged` fails at shutdown.
    Finalize,
    /// A host boots its previous image, although the staged one was finalized.
    FallBack,
    /// An admin rolls the host back to the previous image.
    Rollback,
    Pull,
    /// Locking or removing the staged image of a host starts or stops failing.
    Stuck,
    /// Shutdowns of a host become inhibited or allowed.
    Inhibit,
    Silent,
    /// The deployments of a host become unreadable or readable.
    Unusable,
    /// A host's disk becomes read-only or writable for the agent's memory.
    ReadOnly,
    /// The API server stops or resumes rejecting forbidden writes.
    Unguarded,
    /// An admin queues or unqueues a rollback on a host.
    Queue,
    /// An admin schedules or cancels a shutdown of a host.
    Schedule,
    /// A node's pods become impossible or possible to evict. While eviction is impossible, the drain may time out.
    Block,
    /// Another updater on the host unlocks or removes the staged image.
    Rival,
    /// A Node becomes NotReady although its host works.
    NotReady,
    /// A compromised node writes something false into its BootcNode's status or its Node.
    Lie,
}
