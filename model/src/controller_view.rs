use crate::canonical::{rename_lease, rename_nodes, rename_pools};
use crate::set::Set;
use crate::state::{Answer, Begun, Berth, Fleet, Image, Labels, Lease, Number, Object, Pool, Spec, Status};

/// Inputs of a controller's pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ControllerView {
    /// Nodes in the watches.
    pub nodes: Vec<SeenNode>,
    pub pools: Vec<Pool>,
    pub fleet: Fleet,
    /// Berths, from a live read.
    pub slots: Vec<SeenBerth>,
    /// For each berth, the node that holds it or is offered it, according to the watches.
    pub shown: Vec<Option<(Number, u8)>>,
    /// Nodes (number, UID) that a Lease or BootcNode in the watches refers to, but a live read does not find.
    pub gone: Vec<(Number, u8)>,
    /// Pools that, according to a live read, have changed since the last watch event.
    pub changed: Vec<u8>,
    /// True if the fleet has changed since the last watch event.
    pub fleet_changed: bool,
    /// Control plane nodes whose API server responds.
    pub answering: Set,
    /// Nodes that had the most offers of the target.
    pub offered: Set,
    /// Nodes that did not use their permit to pull.
    pub unused: Set,
    /// Nodes that have reported a pull for too long.
    pub endless: Set,
    pub silent: Set,
    /// The registry's last answer about the tag.
    pub answer: Option<Answer>,
    /// Image that the canaries soak with, and how long this leader has seen them soak.
    pub soak: (Image, Begun),
    /// The available image whose age this leader counts. The second value is true if the leader has known that image
    /// for the minimum age.
    pub counts: (Image, bool),
    /// True if the open offers are old enough to lapse.
    pub aged: bool,
}

/// A node in the watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeenNode {
    pub object: Object,
    pub labels: Labels,
    pub spec: Option<Spec>,
    pub status: Status,
}

/// A berth, as read by a controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeenBerth {
    pub is: Berth,
    /// True if the berth has this controller's epoch.
    pub stamped: bool,
    /// True if a write of the berth may still be in flight, because its result is unknown.
    pub doubt: bool,
    /// True if the API server recently rejected a write of the berth.
    pub refused: bool,
}

impl ControllerView {
    #[must_use]
    pub fn renamed(&self, to: &[Number]) -> Self {
        let mut new = self.clone();
        rename_nodes(&mut new.nodes, to);
        rename_pools(&mut new.pools, to);
        for slot in &mut new.slots {
            let mut lease = Lease { epoch: 0, is: slot.is };
            rename_lease(&mut lease, to);
            slot.is = lease.is;
        }
        let all = new.shown.iter_mut().flatten().chain(&mut new.gone);
        all.for_each(|(node, _)| *node = to[usize::from(*node)]);
        new.gone.sort_unstable();
        new.offered = self.offered.renamed(to);
        new.unused = self.unused.renamed(to);
        new.endless = self.endless.renamed(to);
        new.silent = self.silent.renamed(to);
        new.answering = self.answering.renamed(to);
        new
    }
}
