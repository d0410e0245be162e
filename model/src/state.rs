//! The world of the model: everything that may matter to the protocol, in a few hundred bytes. Names, digests, boot
//! IDs and resourceVersions are small numbers here; [`crate::rich`] makes the real types of them.

use std::collections::VecDeque;
use std::sync::Arc;

use berth_api::berth::{ClosedReason, Outcome};

pub use crate::host::{Begun, Ended, Host, Memory};
use crate::set::Set;

/// The number of a node or of a berth.
pub type No = u16;
/// No node, no berth.
pub const NOBODY: No = No::MAX;
/// No pool, no image.
pub const NONE: u8 = 9;

/// An image: 0 is none, 1 is what ran at first.
pub type Image = u8;

/// A Lease, or that there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The leader that last stamped it.
    pub epoch: u8,
    /// State of the berth.
    pub is: Berth,
}

/// State of a berth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Berth {
    /// The Lease does not exist.
    #[default]
    Missing,
    /// Nobody may take it.
    Closed(Closed),
    /// One node may take it.
    Offered(Offer),
    /// A node holds it.
    Held(Held),
}

/// A closed berth. What makes no difference to the plan is left out: see [`Closed::kept`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Closed {
    /// Reason; [`ClosedReason::Released`] stands for every reason but [`ClosedReason::Shrunk`].
    pub reason: ClosedReason,
    /// Node whose turn or offer ended here.
    pub last: No,
    /// Image that it was for.
    pub target: Image,
    /// Outcome of the turn, when that matters.
    pub outcome: Option<Outcome>,
}

/// An offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Node that it is offered to.
    pub node: No,
    /// UID that it is offered to.
    pub uid: u8,
    /// Image that it is offered for.
    pub target: Image,
    /// Until when.
    pub until: Until,
}

/// Until when a reboot may start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Until {
    /// The pool has no windows.
    #[default]
    Ever,
    /// As long as the window is open that is open now.
    Close,
    /// That window is over.
    Over,
}

/// A held berth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// Node that holds it.
    pub node: No,
    /// UID that it is offered to.
    pub uid: u8,
    /// Image that it is offered for.
    pub target: Image,
    /// Image that ran before, proven.
    pub from: Image,
    /// Under this boot; 0 is the one that runs.
    pub boot: u8,
    /// Progress of the holder.
    pub phase: Phase,
    /// Asked back, for this reason ([`crate::rich::word`]).
    pub revoke: u8,
    /// Until when it may reboot.
    pub until: Until,
}

/// Progress of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The holder may cordon and drain.
    Taken,
    /// The holder may unlock and reboot.
    Committed,
    /// Gives back.
    Releasing(Outcome),
}

impl Closed {
    /// A closed berth without what makes no difference. [`crate::rich`] proves by a second plan that it makes none.
    pub fn kept(self) -> Self {
        let reason = match self.reason {
            ClosedReason::Shrunk => ClosedReason::Shrunk,
            _ => ClosedReason::Released,
        };
        match self.outcome {
            Some(Outcome::Lapsed) => Self {
                reason,
                target: 0,
                ..self
            },
            Some(Outcome::Failed) => Self { reason, ..self },
            _ => Self {
                reason,
                last: NOBODY,
                target: 0,
                outcome: None,
            },
        }
    }
}

impl Lease {
    /// The holding, when it is held.
    pub fn held(&self) -> Option<&Held> {
        match &self.is {
            Berth::Held(held) => Some(held),
            _ => None,
        }
    }

    /// Node and UID of who holds it or may take it.
    pub fn who(&self) -> Option<(No, u8)> {
        match self.is {
            Berth::Offered(o) => Some((o.node, o.uid)),
            Berth::Held(h) => Some((h.node, h.uid)),
            Berth::Missing | Berth::Closed(_) => None,
        }
    }
}

/// Our cordon, as the Node records it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Cordon {
    /// There is none.
    #[default]
    No,
    /// There is one; the Node was schedulable before.
    OverSchedulable,
    /// There is one; the Node was cordoned before.
    OverCordoned,
}

/// The Node object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Object {
    /// True if the Node exists.
    pub there: bool,
    /// Counts the Nodes of this name.
    pub uid: u8,
    /// `spec.unschedulable`
    pub unschedulable: bool,
    /// Our annotation.
    pub cordon: Cordon,
    /// Ready, as last reported.
    pub ready: bool,
    /// The boot that the kubelet last reported under.
    pub boot: u8,
    /// The admin's label that takes it out of its pool.
    pub excluded: bool,
}

/// Spec of a BootcNode: what is published to its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The pool, or [`NONE`]: undo everything.
    pub pool: u8,
    /// UID of the Node that it was made for.
    pub uid: u8,
    /// Image to run.
    pub image: Image,
    /// The retry token.
    pub token: u8,
    /// The node may begin to pull.
    pub may_pull: bool,
    /// The BootcNode is being deleted: it goes when the controller takes its finalizer off.
    pub deleting: bool,
}

/// Report of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status {
    /// True if it describes the spec as it is.
    pub observed: bool,
    /// UID of the Node that the agent runs on.
    pub uid: u8,
    /// Image that runs.
    pub booted: Image,
    /// Image that is staged and locked.
    pub staged: Image,
    /// Ready for an offer.
    pub prepared: bool,
    /// True when what Berth did there is undone.
    pub released: bool,
    /// Failed images, as bits.
    pub failed: u8,
    /// The image of the last turn that ended badly.
    pub turn: Image,
    /// The retry token that was obeyed.
    pub token: u8,
    /// What the agent is at, where permits to pull are counted.
    pub work: Work,
    /// The machine's boot image, where some may be too old.
    pub boot_image: BootImage,
}

/// A boot image: what a machine was installed from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BootImage {
    /// It is not known.
    #[default]
    Unknown,
    /// One that may be too old.
    Older,
    /// One that is new enough for every image.
    Newer,
}

/// What an agent is at, as far as a permit to pull depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Work {
    /// Nothing of these.
    #[default]
    Other,
    /// It pulls.
    Pulls,
    /// It waits for the proof of a boot.
    Proves,
    /// It pulls nothing before something else is repaired.
    Blocked,
}

/// Knowledge of an agent's process, lost when it dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    /// UID of the Node that its BootcNode was published for; before the agent knows any, 0 is as good.
    pub published: u8,
    /// The host's deployments as read.
    pub os: Option<Os>,
    /// Read after the last thing that may have changed them.
    pub fresh: bool,
    /// The image of a pull that ended well, while it was not seen to be staged.
    pub pulled: Image,
    /// The Node as read.
    pub node: Seen,
    /// The last write of its berth was its own, and was answered.
    pub fenced: bool,
    /// True if it has written the Node since it began to give back.
    pub restored: bool,
    /// The drain is done.
    pub drained: bool,
    /// The reboot that it asked for.
    pub reboot: Reboot,
    /// The end of the turn is counted.
    pub counted: bool,
    /// The phase that it wrote last, while anything hangs on that; the outcome is not looked at.
    pub wrote: Option<Phase>,
    /// The staged image could not be locked, time and again.
    pub lock_failure: bool,
    /// The change of what is staged that failed last.
    pub failing: Failing,
    /// The host did not say what is deployed when it was read last.
    pub blind: bool,
    /// It did so long ago that it is read again.
    pub blind_long: bool,
    /// This process knows that it left nothing armed.
    pub disarmed: bool,
    /// The host's bus has not answered since then.
    pub silence: Begun,
    /// The memory could not be written to the disk.
    pub memory_error: bool,
    /// The end of a pull is taken in, and the host still shows it.
    pub told: bool,
    /// The API server's last answer to writes that it must refuse.
    pub guard: Guard,
    /// They are tried again now.
    pub guard_due: bool,
}

impl Agent {
    /// An agent that has just begun.
    pub fn fresh(fleet: Fleet) -> Self {
        Self {
            guard: if fleet.tries_guard {
                Guard::Unknown
            } else {
                Guard::Refuses
            },
            guard_due: fleet.tries_guard,
            ..Self::default()
        }
    }
}

/// Answer of the API server to writes that it must refuse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Guard {
    /// It refuses them.
    #[default]
    Refuses,
    /// It would do one of them.
    Allows,
    /// There was no answer yet.
    Unknown,
}

/// A change of what is staged that fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Failing {
    /// None.
    #[default]
    No,
    /// Its lock, so many times in a row.
    Lock(u8),
    /// Its removal.
    Unstage,
}

/// Deployments as read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Os {
    /// Image that runs.
    pub booted: Image,
    /// Image that is staged.
    pub staged: Image,
    /// True if that is locked.
    pub locked: bool,
    /// Image that the next boot takes in place of the one that runs; 0 if there is none.
    pub queued: Image,
}

/// The Node as read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Seen {
    /// The Node was not read since something changed it.
    #[default]
    Unread,
    /// The Node did not exist.
    Gone,
    /// The Node as read, and whether its resourceVersion is still the current one.
    Is(Object, bool),
}

/// The reboot that an agent asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Reboot {
    /// None.
    #[default]
    No,
    /// A moment ago.
    Asked,
    /// Asked so long ago that it should have begun.
    Late,
    /// Asked so long ago that it may be asked for again.
    Long,
    /// Refused, or never begun.
    Blocked,
    /// Blocked so long ago that it may be asked for again.
    BlockedLong,
}

/// Truth that nobody knows: the judge's own memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// Somebody else wants the node cordoned.
    pub admin: bool,
    /// Mark of a staged image that our agent unlocked: the UID of the Node and one more; 0 if it did not.
    pub armed: u8,
    /// True if it was rebooted under a berth and not proven since.
    pub unproven: bool,
    /// The staged image, when its pull failed after it was staged: it lacks something.
    pub partial: Image,
    /// The kubelet said Ready under this boot.
    pub ready: bool,
    /// True if its berth was closed over its head while it was excluded.
    pub abandoned: bool,
    /// The API server did not refuse what it must when the agent's process tried that last, or was never tried.
    pub unguarded: bool,
    /// The same for the process of the second agent.
    pub other_unguarded: bool,
    /// The time of this turn's drain is over.
    pub drain_over: bool,
}

/// A Node's labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    /// The pool that they put it in.
    pub pool: u8,
    /// True if it is in the wave `canary`, when its pool has that.
    pub canary: bool,
    /// Its zone; 0 is none.
    pub zone: u8,
    /// True if it is of the control plane.
    pub server: bool,
    /// True if it is of the control plane and lacks its label.
    pub unlabelled: bool,
    /// True if the machine is newer than the others, and was installed from a newer boot image.
    pub newer: bool,
    /// An admin holds it back.
    pub held: bool,
}

/// A node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// The Node object.
    pub object: Object,
    /// Its BootcNode, if there is one.
    pub spec: Option<Spec>,
    /// Status of that BootcNode.
    pub status: Status,
    /// Its labels.
    pub labels: Labels,
    /// The host.
    pub host: Host,
    /// The agent that acts: the one that has the host's lock.
    pub agent: Agent,
    /// A second one, which acts after it.
    pub other: Agent,
    /// The agents do nothing.
    pub mute: bool,
    /// The agents live and do not begin to pull.
    pub idle: bool,
    /// Truth that only the judge knows.
    pub ghost: Ghost,
}

/// A pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Capacity by the spec.
    pub capacity: No,
    /// Capacity by `status.berths.total`.
    pub published: No,
    /// `rollout.paused`
    pub paused: bool,
    /// True if it has windows, and none is open.
    pub outside: bool,
    /// The image that its tag points at.
    pub tagged: Image,
    /// The image in force, which its members should run; another one than its tag points at only where a boot image can be
    /// too old ([`crate::world::World::too_old`]): everywhere else the image is in force as soon as somebody asks for it.
    pub target: Image,
    /// Image that the status says the tag points at, while another one is in force.
    pub available: Image,
    /// Leaders have known of that for the minimum age, as the status says.
    pub known_long: bool,
    /// The canaries have soaked with the image in force, as the status says.
    pub soaked: bool,
    /// The admin's rule for boot images.
    pub boot_images: BootImages,
    /// The boot image of the newest machine so far, as the status says.
    pub boot_image: BootImage,
    /// The retry token.
    pub token: u8,
    /// Recorded failures: for each image the nodes.
    pub failures: Failures,
}

/// Rule of a pool for boot images that are too old for a new image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum BootImages {
    /// Refuses the new image.
    #[default]
    Refuse,
    /// Takes the admin's record in place of what machines say; by that, the boot image is new enough.
    Recorded,
    /// Warns, and adopts the image.
    Warn,
    /// Looks at nothing.
    Disabled,
}

impl BootImages {
    /// Every rule there is.
    pub const ALL: [Self; 4] = [Self::Refuse, Self::Recorded, Self::Warn, Self::Disabled];
}

/// Failures on record: for each image the nodes.
pub type Failures = [Set; 4];

/// Part of a plan's inputs that the judge keeps, as the world was when the watches showed it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Sight {
    /// The members that were unavailable.
    pub unavailable: Set,
    /// The capacity in force.
    pub limit: No,
    /// A gate was closed.
    pub closed: bool,
    /// The nodes that were excluded.
    pub excluded: Set,
    /// The nodes that were held back.
    pub held_back: Set,
    /// The control plane nodes that were NotReady.
    pub away: Set,
    /// The members whose wave had not begun.
    pub waits: Set,
    /// The members whose pool goes after one that had nodes to update.
    pub early: Set,
    /// The members of all pools that were unavailable, when the fleet has a limit.
    pub fleet_down: Set,
    /// The berths that the controller left alone: closed ones of them count as held by an unknown node.
    pub refused: Set,
}

/// A write that a controller is about to make.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    /// A berth: created, changed, or an offer.
    Berth {
        /// Number of the berth.
        slot: No,
        /// New content of the Lease.
        lease: Lease,
        /// For an offer: the world that it was decided on.
        offer: Option<Arc<Sight>>,
    },
    /// A BootcNode's spec; `None` deletes it.
    Publish {
        /// Number of the node.
        node: No,
        /// New spec.
        spec: Option<Spec>,
    },
    /// A pool's status.
    Pool {
        /// Number of the pool.
        pool: u8,
        /// The image to put in force.
        target: Image,
        /// The capacity to publish.
        total: No,
        /// The image to call available.
        available: Image,
        /// True if that was known for the minimum age.
        known_long: bool,
        /// True if the canaries have soaked.
        soaked: bool,
        /// The boot image to remember.
        boot_image: BootImage,
        /// The failures to record.
        failures: Failures,
    },
}

/// A write in a queue, and whether what it was decided on is still what is there (its resourceVersion).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The write.
    pub write: Write,
    /// Compare-and-swap would succeed.
    pub current: bool,
}

/// A controller process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Controller {
    /// The epoch that it was elected with; 0: never.
    pub epoch: u8,
    /// Writes that are decided and not yet sent.
    pub queue: VecDeque<Entry>,
    /// Berths with a write of its own of unknown fate.
    pub doubt: Set,
    /// Nodes that it saw let an offer lapse.
    pub lapsed: Set,
    /// Nodes that it saw not use their permit to pull.
    pub unused: Set,
    /// Nodes whose agents it has not heard of for long.
    pub silent: Set,
    /// Berths that it leaves alone, since the API server refused to write their Leases a short time ago.
    pub refused: Set,
    /// The registry's last answer about the tag.
    pub answer: Option<Answer>,
    /// The image that the tag points at and that is not in force, since this leader knows of it.
    pub counts: Image,
    /// It has known of that for the minimum age.
    pub counted: bool,
    /// The image that the canaries soak with, and since when this leader has seen that.
    pub soak: (Image, Begun),
    /// View of its watches when it last looked, while it has not acted on that.
    pub look: Option<Box<Look>>,
}

/// Answer of the registry about a tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Image that the tag points at.
    pub image: Image,
    /// The leader had known of the image for the minimum age when it asked.
    pub late: bool,
    /// The judge's own memory: the tag had pointed there, or been seen to, that long ago.
    pub is_old: bool,
}

/// State that concerns all pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fleet {
    /// The BootcFleet is paused.
    pub paused: bool,
    /// The clock of the controllers' machines is not synchronised.
    pub clock_lost: bool,
    /// The API server does not refuse what it must.
    pub unguarded: bool,
    /// Agents try whether it does. Elsewhere they know that from the start.
    pub tries_guard: bool,
    /// Members need permits to pull.
    pub counts_pulls: bool,
    /// Agents report boot images.
    pub tells_boot_images: bool,
    /// The judge's own memory: images that the tag has pointed at, as bits.
    pub tagged: u8,
    /// Those that it first pointed at a minimum age ago.
    pub old: u8,
    /// Likewise: images that proven canaries have soaked with, as bits.
    pub soaked: u8,
}

/// View of the watches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Look {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The pools.
    pub pools: Vec<Pool>,
    /// The fleet.
    pub fleet: Fleet,
    /// The berths.
    pub slots: Vec<Lease>,
}

/// A request on its way to the API server, whose sender is gone or has given up. It lands, or never does. One whose
/// resourceVersion is no longer current can never land, and is forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// A PUT of a berth by this node's agent.
    Berth {
        /// Number of the berth.
        slot: No,
        /// New content of the Lease.
        lease: Lease,
        /// Node of the agent.
        node: No,
    },
    /// A PATCH of this Node by its agent.
    Node {
        /// Number of the node.
        node: No,
        /// `spec.unschedulable` after it.
        unschedulable: bool,
        /// Our annotation after it.
        cordon: Cordon,
    },
    /// A write of a controller.
    Controller(Write),
}

/// The world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The nodes; interchangeable.
    pub nodes: Vec<Node>,
    /// The berths.
    pub slots: Vec<Lease>,
    /// Berths whose Leases the API server refuses to write.
    pub unwritable: Set,
    /// The pools.
    pub pools: Vec<Pool>,
    /// The fleet.
    pub fleet: Fleet,
    /// The controllers.
    pub controllers: [Controller; 2],
    /// Number of the leader.
    pub leader: u8,
    /// Requests on their way.
    pub air: Vec<Request>,
    /// Number of times that each fault may still happen.
    pub left: [u8; crate::fault::FAULTS],
}

impl Default for State {
    fn default() -> Self {
        Self {
            nodes: vec![],
            slots: vec![],
            unwritable: Set::default(),
            pools: vec![],
            fleet: Fleet::default(),
            controllers: Default::default(),
            leader: 0,
            air: vec![],
            // Longer than the arrays that have a default.
            left: [0; crate::fault::FAULTS],
        }
    }
}
