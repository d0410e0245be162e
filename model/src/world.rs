//! Defines worlds and their start states. When an object changes, also marks earlier reads and decided writes of it as
//! outdated.

use berth_api::berth;
use berth_api::seeded::Bug;

use crate::fault::{FAULTS, Fault};
use crate::set::Set;
use crate::state::{
    Agent, Berth, BootImage, Habit, Held, Image, Lease, NO_NUMBER, NONE, Node, NodeRead, Number, Phase, Pool,
    PoolStatus, Request, Spec, State, Write, closed,
};

/// A world: its nodes and pools, and its faults.
#[derive(Debug, Clone)]
pub struct World {
    /// Name of the world.
    pub name: &'static str,
    /// Short description of the world.
    pub about: &'static str,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of berths of each pool. All nodes start in the first pool, unless they are `spread`.
    pub pools: Vec<usize>,
    /// True if the nodes are spread over the pools.
    pub spread: bool,
    /// Capacity of the first pool at the start, and after a resize.
    pub capacity: (Number, Number),
    /// How many nodes of all pools may be unavailable at once; 0 if the fleet has no limit.
    pub fleet: Number,
    /// Order of pools, as pairs: a later pool, and the pool that is updated before it.
    pub after: &'static [(u8, u8)],
    /// Images that the admin may ask for. The first is the target at the start.
    pub images: &'static [u8],
    /// True if the pools have windows.
    pub windows: bool,
    /// True if the pools have a wave `canary` with their first node.
    pub waves: bool,
    /// True if the wave `canary` has to soak.
    pub soaks: bool,
    /// Number of zones that the nodes are spread over.
    pub zones: u8,
    /// Number of control plane nodes, which are the first nodes.
    pub servers: usize,
    /// True if the control plane nodes lack the control plane label.
    pub unlabelled: bool,
    /// Bit set of images that never let a node become Ready.
    pub bad: u8,
    /// Bit set of images that let a node become Ready, but fail the pool's check.
    pub failing: u8,
    /// Bit set of images that need a newer boot image than the machines have.
    pub too_old: u8,
    /// True if the first node's machine is newer than the others and has not reported its boot image yet.
    pub newer: bool,
    /// How a pool follows its reference.
    pub follows: Follows,
    /// How many members may pull at once; 0 if unlimited.
    pub max_staging: Number,
    /// True if nodes start with the first image staged and reported.
    pub staged: bool,
    /// True if nodes that cannot have a turn stay so during the fair schedule: for example, nodes that are held back,
    /// or that cannot be drained or lock an image. Such nodes must not block the others.
    pub keep_blocked: bool,
    /// True if agents test whether the API server rejects forbidden writes.
    pub tries_guard: bool,
    /// Image of the hosts' rollback deployment at the start; 0 if none.
    pub previous: u8,
    /// True if the hosts have the rollback guard.
    pub guards: bool,
    /// Number of failures that halts the rollout.
    pub max_failures: usize,
    /// Number of compromised nodes.
    pub liars: usize,
    /// True if the first nodes by name are compromised; otherwise the last ones are.
    pub liars_first: bool,
    /// How often each fault may happen in one history.
    pub faults: Vec<(Fault, u8)>,
}

/// How a pool follows its reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// The admin names an image, which becomes the target at once.
    AtOnce,
    /// A tag. Its image becomes the target after the minimum age, if the registry then confirms it.
    Tag,
    /// A tag and a digest. The digest is the target. The tag is only watched for new images.
    Pinned,
}

/// A rule of the design that was broken, by its number and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Broken(pub &'static str);

impl World {
    /// True if the pools have a tag, whose image may differ from the target.
    pub fn has_tag(&self) -> bool {
        self.too_old != 0 || self.follows != Follows::AtOnce
    }

    /// True if a boot of this image can be proven.
    pub fn is_good(&self, image: Image) -> bool {
        (self.bad | self.failing) & (1 << image) == 0
    }

    /// Returns the number of berths of all pools together.
    pub fn slots(&self) -> usize {
        self.pools.iter().sum()
    }

    /// Returns the number of a berth, which is unique in the world.
    pub fn slot(&self, berth: &berth::Berth) -> Number {
        let pool = usize::from(crate::rich::pool_number(&berth.pool));
        let first: usize = self.pools.iter().take(pool).sum();
        Number::try_from(first + berth.index as usize).unwrap_or(NO_NUMBER)
    }

    /// Returns the pool of a berth, and the berth's index in the pool.
    pub fn place(&self, slot: usize) -> (u8, Number) {
        let mut index = slot;
        for (pool, size) in (0..).zip(&self.pools) {
            if index < *size {
                return (pool, Number::try_from(index).unwrap_or(NO_NUMBER));
            }
            index -= size;
        }
        (NONE, NO_NUMBER)
    }

    /// Returns the pool of a berth.
    pub fn pool_of(&self, slot: impl Into<usize>) -> u8 {
        self.place(slot.into()).0
    }

    /// Returns the pools that are updated before this pool.
    pub fn goes_after(&self, pool: u8) -> impl Iterator<Item = u8> {
        self.after
            .iter()
            .filter(move |(later, _)| *later == pool)
            .map(|(_, earlier)| *earlier)
    }

    /// Returns the boot image of all machines except the newest. Unknown in worlds where boot images do not matter.
    fn known_boot_image(&self) -> BootImage {
        match self.too_old {
            0 => BootImage::Unknown,
            _ => BootImage::Older,
        }
    }

    /// Returns the state at the start. Each pool has closed berths, as many as its capacity.
    pub fn start(&self) -> State {
        let mut state = State::default();
        for (fault, times) in &self.faults {
            state.left[*fault as usize] += *times;
        }
        let target = self.images.first().copied().unwrap_or(1);
        state.fleet.tries_guard = self.tries_guard;
        state.fleet.counts_pulls = self.max_staging != 0;
        state.fleet.tells_boot_images = self.too_old != 0;
        if self.has_tag() {
            state.fleet.tagged = 1 << target;
            state.fleet.old = state.fleet.tagged;
        }
        for (number, most) in self.pools.iter().enumerate() {
            let most = Number::try_from(*most).unwrap_or(NO_NUMBER);
            let capacity = if number == 0 { self.capacity.0.min(most) } else { most };
            let status = PoolStatus {
                published: capacity,
                target,
                // The other machines reported their boot image before the start.
                boot_image: self.known_boot_image(),
                ..PoolStatus::default()
            };
            state.pools.push(Pool {
                capacity,
                tagged: target,
                status,
                ..Pool::default()
            });
        }
        for slot in 0..self.slots() {
            let (pool, index) = self.place(slot);
            let mut lease = Lease::default();
            if index < state.pools[usize::from(pool)].capacity {
                (lease.epoch, lease.is) = (1, closed());
            }
            state.slots.push(lease);
        }
        state.nodes = (0..self.nodes).map(|number| self.node(number, target)).collect();
        state.controllers[0].epoch = 1;
        state
    }

    fn node(&self, number: usize, target: Image) -> Node {
        let (pool, canaries) = if self.spread {
            (number % self.pools.len(), self.pools.len())
        } else {
            (0, 1)
        };
        let mut node = Node::default();
        node.labels.pool = u8::try_from(pool).unwrap_or(NONE);
        node.labels.canary = self.waves && number < canaries;
        node.labels.zone = (number.checked_rem(self.zones.into())).map_or(0, |zone| zone as u8 + 1);
        node.labels.server = number < self.servers;
        node.labels.unlabelled = node.labels.server && self.unlabelled;
        node.labels.newer = self.newer && number == 0;
        let is_liar = if self.liars_first {
            number < self.liars
        } else {
            number + self.liars >= self.nodes
        };
        node.labels.liar = is_liar.then_some(Habit::Any);
        (node.object.exists, node.object.ready, node.ghost.ready) = (true, true, true);
        (node.agent, node.other) = (Agent::fresh(self.tries_guard), Agent::fresh(self.tries_guard));
        (node.ghost.unguarded, node.ghost.other_unguarded) = (self.tries_guard, self.tries_guard);
        (node.host.booted, node.host.previous, node.status.booted) = (1, self.previous, 1);
        node.host.last = (1, self.previous);
        node.spec = Some(Spec {
            pool: node.labels.pool,
            image: target,
            may_pull: self.max_staging == 0,
            ..Spec::default()
        });
        if !node.labels.newer {
            node.status.boot_image = self.known_boot_image();
        }
        if self.staged {
            (node.host.staged, node.host.locked, node.host.ours) = (target, true, target);
            (node.status.staged, node.status.prepared, node.status.observed) = (target, true, true);
        }
        node
    }
}

impl State {
    /// Uses up one occurrence of a fault. False if none is left.
    pub fn spend(&mut self, fault: Fault) -> bool {
        let left: &mut [u8; FAULTS] = &mut self.left;
        let left = &mut left[fault as usize];
        let some = *left > 0;
        *left -= u8::from(some);
        some
    }

    /// Returns the state after it has used up one occurrence of a fault; `None` if none is left.
    pub fn spent(&self, fault: Fault) -> Option<Self> {
        if !self.may(fault) {
            return None;
        }
        let mut after = self.clone();
        after.spend(fault);
        Some(after)
    }

    pub fn may(&self, fault: Fault) -> bool {
        self.left[fault as usize] > 0
    }

    /// Returns the berth held by a node of this name, with any UID. Prefers a berth whose phase is past `Taken`.
    pub fn held_by(&self, node: usize) -> Option<(usize, &Held)> {
        let held = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, lease)| Some((slot, lease.held()?)));
        held.filter(|(_, h)| usize::from(h.node) == node)
            .min_by_key(|(_, h)| matches!(h.phase, Phase::Taken))
    }

    pub fn holders(&self, world: &World, pool: u8) -> Set {
        let slots = self.slots.iter().enumerate();
        let of_pool = slots.filter(|(slot, _)| world.pool_of(*slot) == pool);
        of_pool.filter_map(|(_, lease)| Some(lease.held()?.node)).collect()
    }

    /// Marks a berth as changed, so that writes based on earlier reads fail.
    pub fn touch_slot(&mut self, slot: Number) {
        self.outdate(|write| matches!(write, Write::Berth { slot: s, .. } if *s == slot));
        if !Bug::NoCas.is_awake() {
            self.air
                .retain(|r| !matches!(r, Request::Berth { slot: s, .. } if *s == slot));
        }
    }

    pub fn touch_node(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        for agent in [&mut here.agent, &mut here.other] {
            if let NodeRead::Is(_, current) = &mut agent.node {
                *current = false;
            }
        }
        self.air
            .retain(|r| !matches!(r, Request::Node { node: n, .. } if usize::from(*n) == node));
    }

    pub fn touch_bootc(&mut self, node: usize) {
        self.outdate(|write| matches!(write, Write::Publish { node: n, .. } if usize::from(*n) == node));
    }

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

    /// Starts a new boot of a node. All recorded boots become one boot older.
    pub fn next_boot(&mut self, node: usize) {
        self.each_boot(node, |boot| *boot = boot.saturating_add(1));
    }

    /// Gives a node's boots the smallest possible numbers. The state stays equivalent, because boots are only compared.
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
            if let NodeRead::Is(object, _) = &mut agent.node {
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

    /// Calls a function for every Lease in the API server, in pending writes, and in frozen watches.
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
