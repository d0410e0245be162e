//! Conventions of all parts of the model: where berths are, and what a write to an object does to everybody who read it
//! before.

use berth_api::berth;
use berth_api::seeded::Bug;

use crate::fault::{FAULTS, Fault};
use crate::set::Set;
use crate::state::{
    Agent, Berth, BootImage, Controller, Held, Lease, NOBODY, NONE, No, Node, Phase, Pool, Request, Seen, State, Write,
};

/// A world: who is in it, and what may go wrong.
#[derive(Debug, Clone)]
pub struct World {
    /// Name of the world.
    pub name: &'static str,
    /// Subject of the world, in a few words.
    pub about: &'static str,
    /// Number of nodes.
    pub nodes: usize,
    /// Most berths of each pool. All nodes are in the first one at the start, unless they are `spread`.
    pub pools: Vec<usize>,
    /// The nodes are dealt out to the pools.
    pub spread: bool,
    /// The first pool's capacity at first, and the other one that a resize goes to.
    pub capacity: (No, No),
    /// Nodes of all pools that may be unavailable at once; 0: the fleet has no limit.
    pub fleet: No,
    /// Pools that come after another one: the later, the earlier.
    pub after: &'static [(u8, u8)],
    /// The images that the admin asks for, one after the other; the first at the start.
    pub images: &'static [u8],
    /// The pools have windows.
    pub windows: bool,
    /// The pools have a wave `canary`, and the first node of each is in it.
    pub waves: bool,
    /// That wave has to soak.
    pub soaks: bool,
    /// So many zones, which the nodes are dealt out to.
    pub zones: u8,
    /// So many of the nodes, from the first on, are of the control plane.
    pub servers: usize,
    /// The control plane nodes lack its label.
    pub unlabelled: bool,
    /// Images under which a node never gets Ready, as bits.
    pub bad: u8,
    /// Images for which the boot image of every machine is too old, as bits.
    pub too_old: u8,
    /// The first node's machine is newer than the others, and has not reported its boot image yet.
    pub newer: bool,
    /// How a pool follows its reference.
    pub follows: Follows,
    /// Members that may pull at once; 0 is all.
    pub max_staging: No,
    /// Nodes begin with the first image staged and reported.
    pub staged: bool,
    /// A node that cannot be drained, whose host cannot lock, or that is held back stays so in the fair schedule, and must not hold up the others.
    pub keep_blocked: bool,
    /// Agents try whether the API server refuses what it must.
    pub tries_guard: bool,
    /// Image that ran before the one that runs at the start; 0 is none.
    pub previous: u8,
    /// The rollout halts at so many failures.
    pub max_failures: usize,
    /// Number of times that each fault may happen in one history.
    pub faults: Vec<(Fault, u8)>,
}

/// How a pool follows its reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// The admin names an image, which is in force at once.
    AtOnce,
    /// A tag: what it points at is in force once that was known for the minimum age, and confirmed.
    Tag,
    /// A tag and a digest: the tag is only watched.
    Pinned,
}

/// A rule of the design that a history breaks: its number and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Broken(pub &'static str);

impl World {
    /// True if what a tag points at may differ from what is in force.
    pub fn has_tag(&self) -> bool {
        self.too_old != 0 || self.follows != Follows::AtOnce
    }

    /// Most berths of all pools.
    pub fn slots(&self) -> usize {
        self.pools.iter().sum()
    }

    /// The berth's number in the world.
    pub fn slot(&self, berth: &berth::Berth) -> No {
        let pool = usize::from(crate::rich::pool_number(&berth.pool));
        let first: usize = self.pools.iter().take(pool).sum();
        No::try_from(first + berth.index as usize).unwrap_or(NOBODY)
    }

    /// The pool and the index of a berth.
    pub fn place(&self, slot: usize) -> (u8, No) {
        let mut index = slot;
        for (pool, size) in (0..).zip(&self.pools) {
            if index < *size {
                return (pool, No::try_from(index).unwrap_or(NOBODY));
            }
            index -= size;
        }
        (NONE, NOBODY)
    }

    /// The pool of a berth.
    pub fn pool_of(&self, slot: impl Into<usize>) -> u8 {
        self.place(slot.into()).0
    }

    /// The pools that a pool comes after.
    pub fn goes_after(&self, pool: u8) -> impl Iterator<Item = u8> {
        self.after
            .iter()
            .filter(move |(later, _)| *later == pool)
            .map(|(_, earlier)| *earlier)
    }

    /// The boot image of all machines but the newest, as far as it matters.
    fn known_boot_image(&self) -> BootImage {
        match self.too_old {
            0 => BootImage::Unknown,
            _ => BootImage::Older,
        }
    }

    /// The state at the start: the berths are there, closed.
    pub fn start(&self) -> State {
        let mut state = State::default();
        for (fault, times) in &self.faults {
            state.left[*fault as usize] += *times;
        }
        let target = self.images.first().copied().unwrap_or(1);
        let pool = |(number, most): (usize, &usize)| {
            let most = No::try_from(*most).unwrap_or(NOBODY);
            let capacity = if number == 0 { self.capacity.0.min(most) } else { most };
            Pool {
                capacity,
                published: capacity,
                tagged: target,
                target,
                // The others have reported it before anything begins.
                boot_image: self.known_boot_image(),
                ..Pool::default()
            }
        };
        state.fleet.tries_guard = self.tries_guard;
        state.fleet.counts_pulls = self.max_staging != 0;
        state.fleet.tells_boot_images = self.too_old != 0;
        if self.has_tag() {
            state.fleet.tagged = 1 << target;
            state.fleet.old = state.fleet.tagged;
        }
        state.pools = self.pools.iter().enumerate().map(pool).collect();
        let lease = |at: usize| {
            let (pool, index) = self.place(at);
            let is_there = index < state.pools[usize::from(pool)].capacity;
            let closed = || Lease {
                epoch: 1,
                is: crate::planner::closed(),
            };
            if is_there { closed() } else { Lease::default() }
        };
        state.slots = (0..self.slots()).map(lease).collect();
        let pool = |node: usize| if self.spread { node % self.pools.len() } else { 0 };
        state.nodes = (0..self.nodes)
            .map(|node| self.node(target, u8::try_from(pool(node)).unwrap_or(NONE)))
            .collect();
        for (number, node) in state.nodes.iter_mut().enumerate() {
            let first = if self.spread { self.pools.len() } else { 1 };
            node.labels.canary = self.waves && number < first;
            node.labels.zone = (number.checked_rem(self.zones.into())).map_or(0, |zone| zone as u8 + 1);
            node.labels.server = number < self.servers;
            node.labels.unlabelled = node.labels.server && self.unlabelled;
            node.labels.newer = self.newer && number == 0;
            if !node.labels.newer {
                node.status.boot_image = self.known_boot_image();
            }
            node.agent = Agent::fresh(state.fleet);
            node.other = node.agent;
            (node.ghost.unguarded, node.ghost.other_unguarded) = (self.tries_guard, self.tries_guard);
            node.host.previous = self.previous;
        }
        state.controllers[0] = Controller {
            epoch: 1,
            ..Controller::default()
        };
        state
    }

    fn node(&self, target: u8, pool: u8) -> Node {
        let mut node = Node::default();
        node.labels.pool = pool;
        node.object.there = true;
        node.object.ready = true;
        node.host.booted = 1;
        node.ghost.ready = true;
        node.spec = Some(crate::state::Spec {
            pool,
            uid: 0,
            image: target,
            may_pull: self.max_staging == 0,
            ..crate::state::Spec::default()
        });
        node.status = crate::state::Status {
            booted: 1,
            ..node.status
        };
        if self.staged {
            node.host.staged = target;
            node.host.locked = true;
            node.host.ours = target;
            node.status = crate::state::Status {
                observed: true,
                prepared: true,
                staged: target,
                ..node.status
            };
        }
        node
    }
}

impl State {
    /// Uses one of the faults that are left. `false`: none is left.
    pub fn spend(&mut self, fault: Fault) -> bool {
        let left: &mut [u8; FAULTS] = &mut self.left;
        let left = &mut left[fault as usize];
        let some = *left > 0;
        *left -= u8::from(some);
        some
    }

    /// The state after one of the faults that are left is used; `None` if none is left.
    pub fn spent(&self, fault: Fault) -> Option<Self> {
        if !self.may(fault) {
            return None;
        }
        let mut after = self.clone();
        after.spend(fault);
        Some(after)
    }

    /// Says whether a fault is left.
    pub fn may(&self, fault: Fault) -> bool {
        self.left[fault as usize] > 0
    }

    /// The holding of the node, whatever its UID.
    pub fn held_by(&self, node: usize) -> Option<(usize, &Held)> {
        let held = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, lease)| Some((slot, lease.held()?)));
        held.filter(|(_, h)| usize::from(h.node) == node)
            .min_by_key(|(_, h)| matches!(h.phase, Phase::Taken))
    }

    /// The nodes that hold a berth of the pool.
    pub fn holders(&self, world: &World, pool: u8) -> Set {
        let slots = self.slots.iter().enumerate();
        let of_pool = slots.filter(|(slot, _)| world.pool_of(*slot) == pool);
        of_pool.filter_map(|(_, lease)| Some(lease.held()?.node)).collect()
    }

    /// The berth has changed: whoever read it before loses.
    pub fn touch_slot(&mut self, slot: No) {
        self.outdate(|write| matches!(write, Write::Berth { slot: s, .. } if *s == slot));
        if !Bug::NoCas.is_awake() {
            self.air
                .retain(|r| !matches!(r, Request::Berth { slot: s, .. } if *s == slot));
        }
    }

    /// The Node has changed.
    pub fn touch_node(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        for agent in [&mut here.agent, &mut here.other] {
            if let Seen::Is(_, current) = &mut agent.node {
                *current = false;
            }
        }
        self.air
            .retain(|r| !matches!(r, Request::Node { node: n, .. } if usize::from(*n) == node));
    }

    /// The BootcNode has changed.
    pub fn touch_bootc(&mut self, node: usize) {
        self.outdate(|write| matches!(write, Write::Publish { node: n, .. } if usize::from(*n) == node));
    }

    /// The pool has changed.
    pub fn touch_pool(&mut self, pool: u8) {
        self.outdate(|write| matches!(write, Write::Pool { pool: p, .. } if *p == pool));
    }

    fn outdate(&mut self, which: impl Fn(&Write) -> bool) {
        for controller in &mut self.controllers {
            for entry in controller.queue.iter_mut().filter(|e| which(&e.write)) {
                entry.current = false;
            }
        }
        self.air
            .retain(|r| !matches!(r, Request::Controller(write) if which(write)));
    }

    /// A new boot begins: what was the running boot is an older one now.
    pub fn next_boot(&mut self, node: usize) {
        self.each_boot(node, |boot| *boot = boot.saturating_add(1));
    }

    /// Boot IDs are only ever compared: the same state with the smallest numbers.
    pub(crate) fn settle_boots(&mut self, node: usize) {
        let mut seen = 1u32;
        self.each_boot(node, |boot| seen |= 1 << (*boot).min(31));
        if (seen & (seen + 1)) != 0 {
            self.each_boot(node, |boot| *boot = (seen & ((1 << *boot) - 1)).count_ones() as u8);
        }
    }

    fn each_boot(&mut self, node: usize, mut change: impl FnMut(&mut u8)) {
        let here = &mut self.nodes[node];
        change(&mut here.object.boot);
        for agent in [&mut here.agent, &mut here.other] {
            if let Seen::Is(object, _) = &mut agent.node {
                change(&mut object.boot);
            }
        }
        self.each_lease(|lease| {
            if let Berth::Held(held) = &mut lease.is
                && usize::from(held.node) == node
            {
                change(&mut held.boot);
            }
        });
    }

    /// Every Lease there is, is about to be, or was seen.
    pub fn each_lease(&mut self, mut lease: impl FnMut(&mut Lease)) {
        self.slots.iter_mut().for_each(&mut lease);
        for request in &mut self.air {
            if let Request::Berth { lease: l, .. } | Request::Controller(Write::Berth { lease: l, .. }) = request {
                lease(l);
            }
        }
        for controller in &mut self.controllers {
            for entry in &mut controller.queue {
                if let Write::Berth { lease: l, .. } = &mut entry.write {
                    lease(l);
                }
            }
            if let Some(look) = &mut controller.look {
                look.slots.iter_mut().for_each(&mut lease);
            }
        }
    }
}
