//! State of a world: all that matters to the protocol, in a few hundred bytes. Names, digests, boot IDs and
//! resourceVersions are small numbers, which [`crate::rich`] converts to the real types.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub use crate::habit::Habit;
pub use crate::host::{Begun, Ended, Host, Memory};
pub use crate::knowledge::{Agent, Cordon, Failing, Guard, NodeRead, Object, Os, Reboot};
pub use crate::lease::{Berth, Closed, Held, Lease, Offer, Phase, Until, closed};
pub use crate::number::{Image, NO_NUMBER, NONE, Number};
use crate::set::Set;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// [`NONE`] if the agent should undo all its changes.
    pub pool: u8,
    /// UID of the Node that the BootcNode was created for.
    pub uid: u8,
    pub image: Image,
    pub token: u8,
    pub may_pull: bool,
    /// True if the BootcNode is being deleted. It disappears when the controller removes its finalizer.
    pub deleting: bool,
}

/// Status of a BootcNode, written by the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status {
    /// True if the status describes the current spec.
    pub observed: bool,
    /// UID of the Node that the agent runs on.
    pub uid: u8,
    pub booted: Image,
    /// Staged and locked image.
    pub staged: Image,
    /// True if the node is ready for an offer.
    pub prepared: bool,
    /// True if all changes by Berth are undone.
    pub released: bool,
    /// Bit set of images.
    pub failed: u8,
    /// Image of the last turn, if the turn failed.
    pub turn: Image,
    pub token: u8,
    /// Current work, in worlds that limit concurrent pulls.
    pub work: Work,
    /// The machine's boot image, in worlds where it may be too old.
    pub boot_image: BootImage,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BootImage {
    #[default]
    Unknown,
    Older,
    Newer,
}

/// Work of an agent, reduced to the cases that matter for permits to pull.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Work {
    #[default]
    Other,
    Pulls,
    Proves,
    /// Cannot pull until another problem is fixed.
    Blocked,
}

/// Facts about a node that only the judge uses. Berth's code does not see them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// True if an admin wants the node cordoned.
    pub admin: bool,
    /// UID of the Node plus one, if the agent unlocked the staged image; else 0.
    pub armed: u8,
    /// True if the node rebooted under a berth and was not proven since.
    pub unproven: bool,
    /// The staged image, if its pull failed after staging: the image may be incomplete.
    pub partial: Image,
    /// True if the kubelet reported Ready under the running boot.
    pub ready: bool,
    /// True if the controller closed the node's held berth, because the Node was gone or excluded. Cleared when Berth's
    /// cordon is removed.
    pub abandoned: bool,
    /// True if the agent's process has not tried forbidden writes, or the API server did not reject them at the last
    /// try.
    pub unguarded: bool,
    /// `unguarded` for the second agent's process.
    pub other_unguarded: bool,
    pub drain_over: bool,
    /// True if the agent requested a reboot to undo the running boot.
    pub undoes: bool,
    /// True if a boot was undone in this turn.
    pub undone: bool,
    /// Bit set of images that the host left without Berth, and that no admin has asked to try again.
    pub left: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    pub pool: u8,
    /// True if the node is in the wave `canary`, in pools with that wave.
    pub canary: bool,
    /// 0 if the node has no zone.
    pub zone: u8,
    /// True for a control plane node.
    pub server: bool,
    pub unlabelled: bool,
    /// True if the machine is newer than the others, and was installed from a newer boot image.
    pub newer: bool,
    pub held: bool,
    pub liar: Option<Habit>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Node {
    pub object: Object,
    /// `None` if the BootcNode does not exist.
    pub spec: Option<Spec>,
    pub status: Status,
    pub labels: Labels,
    pub host: Host,
    /// The agent that acts now.
    pub agent: Agent,
    /// The node's second agent. [`Fault::Second`](crate::fault::Fault::Second) swaps it with `agent`.
    pub other: Agent,
    pub mute: bool,
    /// True if the node's agents run but do not start pulls.
    pub idle: bool,
    pub ghost: Ghost,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Capacity in the spec.
    pub capacity: Number,
    pub paused: bool,
    /// True if the pool has windows and all are closed.
    pub outside: bool,
    pub tagged: Image,
    pub boot_images: BootImages,
    pub token: u8,
    pub status: PoolStatus,
}

impl Deref for Pool {
    type Target = PoolStatus;

    fn deref(&self) -> &PoolStatus {
        &self.status
    }
}

impl DerefMut for Pool {
    fn deref_mut(&mut self) -> &mut PoolStatus {
        &mut self.status
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PoolStatus {
    /// Target that the members should run. Differs from `tagged` only in worlds with a tag
    /// ([`crate::world::World::has_tag`]). In other worlds, an image becomes the target as soon as the admin asks for
    /// it.
    pub target: Image,
    /// Capacity in `status.berths.total`.
    pub published: Number,
    /// Image that the tag points to, if another image is the target.
    pub available: Image,
    /// True if the available image has been known for the minimum age.
    pub known_long: bool,
    /// True if the canaries have soaked with the target.
    pub soaked: bool,
    /// Boot image of the newest machine so far.
    pub boot_image: BootImage,
    pub failures: Failures,
}

/// A pool's policy for boot images that are too old for a new image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum BootImages {
    #[default]
    Refuse,
    /// Use the version that the admin recorded, which is new enough, instead of the machines' reports.
    Recorded,
    Warn,
    Disabled,
}

impl BootImages {
    pub const ALL: [Self; 4] = [Self::Refuse, Self::Recorded, Self::Warn, Self::Disabled];
}

/// Nodes where each image failed, indexed by image.
pub type Failures = [Set; 4];

/// Inputs of a plan, as the watches showed them. The judge checks the plan against them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PlanInputs {
    pub unavailable: Set,
    /// Effective capacity: the lower of spec and status.
    pub limit: Number,
    pub closed: bool,
    pub excluded: Set,
    pub held_back: Set,
    /// Control plane nodes that were NotReady.
    pub away: Set,
    /// Members whose wave had not begun.
    pub waits: Set,
    /// Members whose pool comes after a pool with nodes to update.
    pub early: Set,
    /// Unavailable members of all pools, if the fleet has a limit.
    pub fleet_down: Set,
    /// Berths that the controller did not touch, because their writes are rejected. If such a berth is closed, it
    /// counts as held by an unknown node.
    pub refused: Set,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    Berth {
        slot: Number,
        lease: Lease,
        /// Inputs of the plan. Set for an offer, and for every write if a node is excluded.
        offer: Option<Arc<PlanInputs>>,
    },
    Publish {
        node: Number,
        /// `None` deletes the BootcNode.
        spec: Option<Spec>,
    },
    Pool {
        pool: u8,
        status: PoolStatus,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub write: Write,
    /// True if the object's resourceVersion has not changed since the decision, so that compare-and-swap succeeds.
    pub current: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Controller {
    /// Epoch of the controller's election; 0 if it was never elected.
    pub epoch: u8,
    /// Decided writes that are not sent yet.
    pub queue: VecDeque<Entry>,
    /// Berths whose last write by the controller has an unknown result.
    pub doubt: Set,
    /// Nodes that had the most offers of the target from this controller. The set stands for the numbers of offers,
    /// because only their order matters. Offers that the controller took back because of the pool do not count.
    pub offered: Set,
    /// Nodes that left their permit to pull unused while the controller watched.
    pub unused: Set,
    /// Compromised nodes that have reported a pull for longer than any pull takes.
    pub endless: Set,
    /// Nodes whose agents the controller considers silent.
    pub silent: Set,
    /// Berths that the controller does not touch, because the API server recently rejected writes of their Leases.
    pub refused: Set,
    /// The registry's last answer about the tag.
    pub answer: Option<Answer>,
    /// Available image whose age this leader counts.
    pub counts: Image,
    /// True if the leader has known the image `counts` for the minimum age.
    pub counted: bool,
    /// Image that the canaries soak with, and how long this leader has seen them soak.
    pub soak: (Image, Begun),
    /// Content of the controller's watches, if it is frozen until the controller's next pass.
    pub look: Option<Box<WatchView>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Answer {
    pub image: Image,
    /// True if the leader had known the image for the minimum age when it asked.
    pub late: bool,
    /// For the judge: true if the tag had pointed to the image for the minimum age.
    pub is_old: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fleet {
    pub paused: bool,
    /// True if the clock of the controllers' machines is not synchronized.
    pub clock_lost: bool,
    /// True if the API server accepts forbidden writes.
    pub unguarded: bool,
    /// True if agents test whether the API server rejects forbidden writes. Otherwise agents assume from the start that
    /// it does.
    pub tries_guard: bool,
    pub counts_pulls: bool,
    pub tells_boot_images: bool,
    /// For the judge: bit set of images that the tag has pointed to.
    pub tagged: u8,
    /// For the judge: bit set of images that the tag first pointed to at least a minimum age ago.
    pub old: u8,
    /// For the judge: bit set of images that proven canaries have soaked with.
    pub soaked: u8,
}

/// The content of a controller's watches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WatchView {
    pub nodes: Vec<Node>,
    pub pools: Vec<Pool>,
    pub fleet: Fleet,
    pub slots: Vec<Lease>,
}

/// A request in flight to the API server, whose sender died or gave up. The request may be executed or not. With an
/// outdated resourceVersion, it cannot succeed and is dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// A PUT of a berth by a node's agent.
    Berth {
        slot: Number,
        lease: Lease,
        node: Number,
    },
    /// A PATCH of a Node by the node's agent.
    Node {
        node: Number,
        unschedulable: bool,
        /// New value of Berth's annotation.
        cordon: Cordon,
    },
    Controller(Write),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The nodes. Their order does not matter.
    pub nodes: Vec<Node>,
    pub slots: Vec<Lease>,
    /// Berths whose Leases the API server refuses to write.
    pub unwritable: Set,
    pub pools: Vec<Pool>,
    pub fleet: Fleet,
    pub controllers: [Controller; 2],
    pub leader: u8,
    pub air: Vec<Request>,
    /// How often each fault may still happen.
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
            // Arrays of this length do not implement `Default`.
            left: [0; crate::fault::FAULTS],
        }
    }
}
