//! What all parts of the model agree on: where berths are, what a write to an object does to everybody who read it
//! before, and which states are the same but for the names of the nodes.

use berth_api::berth;
use berth_api::seeded::Bug;

use crate::fault::{FAULTS, Fault};
use crate::hash;
use crate::state::{
    Berth, Controller, Held, Lease, NODES, NONE, Node, Phase, Pool, Request, SLOTS, Seen, State, Write,
};

/// A small world to explore: who is in it, and what may go wrong.
#[derive(Debug, Clone)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in a few words.
    pub about: &'static str,
    /// How many nodes it has.
    pub nodes: usize,
    /// The first berth of the second pool; [`SLOTS`] when there is one pool.
    pub split: usize,
    /// The capacity at first, and the other one that a resize goes to.
    pub capacity: (u8, u8),
    /// The images that the admin asks for, one after the other; the first at the start.
    pub images: &'static [u8],
    /// Images under which a node never gets Ready, as bits.
    pub bad: u8,
    /// Nodes begin with the first image staged and reported.
    pub staged: bool,
    /// A node that cannot be drained stays so in the fair schedule, and must not hold up the others.
    pub keep_blocked: bool,
    /// The rollout halts at so many failures.
    pub max_failures: usize,
    /// How often each fault may happen in one history.
    pub faults: Vec<(Fault, u8)>,
}

/// A rule of the design that a history breaks: its number and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Broken(pub &'static str);

/// The berth's number in the world.
pub fn slot(berth: &berth::Berth, split: usize) -> u8 {
    let first = if berth.pool.as_str() == "a" { 0 } else { split };
    u8::try_from(first + berth.index as usize).unwrap_or(NONE)
}

/// The pool and the index of a berth.
pub fn place(slot: usize, split: usize) -> (u8, u8) {
    let (pool, index) = if slot < split { (0, slot) } else { (1, slot - split) };
    (pool, u8::try_from(index).unwrap_or(NONE))
}

impl World {
    /// The state at the start: the berths are there, closed.
    pub fn start(&self) -> State {
        let mut state = State::default();
        for (fault, times) in &self.faults {
            state.left[*fault as usize] += *times;
        }
        let target = self.images.first().copied().unwrap_or(1);
        let pool = Pool {
            capacity: self.capacity.0,
            published: self.capacity.0,
            target,
            ..Pool::default()
        };
        state.pools = [pool, Pool::default()];
        if self.split < SLOTS {
            let capacity = u8::try_from(SLOTS - self.split).unwrap_or(0);
            state.pools[1] = Pool {
                capacity,
                published: capacity,
                target,
                ..Pool::default()
            };
        }
        for (at, lease) in state.slots.iter_mut().enumerate() {
            let (pool, index) = place(at, self.split);
            if index < state.pools[usize::from(pool)].capacity {
                *lease = Lease {
                    epoch: 1,
                    is: crate::planner::closed(),
                };
            }
        }
        for node in state.nodes.iter_mut().take(self.nodes) {
            *node = self.node(target);
        }
        for node in state.nodes.iter_mut().skip(self.nodes) {
            node.ghost.pool = NONE;
        }
        state.controllers[0] = Controller {
            epoch: 1,
            ..Controller::default()
        };
        state
    }

    fn node(&self, target: u8) -> Node {
        let mut node = Node::default();
        node.object.there = true;
        node.object.ready = true;
        node.host.booted = 1;
        node.ghost.ready = true;
        node.spec = Some(crate::state::Spec {
            pool: 0,
            uid: 0,
            image: target,
            token: 0,
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

    /// Whether a fault is left.
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

    /// The nodes that hold a berth of the pool, or of any (bits); with those that are offered one.
    pub fn occupied(&self, split: usize, pool: Option<u8>, offered: bool) -> u8 {
        let mut bits = 0;
        for (slot, lease) in self.slots.iter().enumerate() {
            let of_pool = pool.is_none_or(|pool| place(slot, split).0 == pool);
            if let Some((node, _)) = lease.who()
                && of_pool
                && (offered || lease.held().is_some())
            {
                bits |= 1 << node;
            }
        }
        bits
    }

    /// The berth has changed: whoever read it before loses.
    pub fn touch_slot(&mut self, slot: u8) {
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
    fn settle_boots(&mut self, node: usize) {
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
        let mut lease = |lease: &mut Lease| {
            if let Berth::Held(held) = &mut lease.is
                && usize::from(held.node) == node
            {
                change(&mut held.boot);
            }
        };
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

    /// The same state in its one form: the smallest boot IDs, the nodes in the order of what they are. Answers where
    /// each node went.
    pub fn canonical(&mut self, nodes: usize) -> [u8; NODES] {
        for node in 0..nodes {
            self.settle_boots(node);
        }
        self.air.sort_by_key(hash::of);
        let mut order: [(u64, u8); NODES] = [(u64::MAX, 0); NODES];
        for (node, entry) in order.iter_mut().enumerate() {
            entry.1 = node as u8;
            if node < nodes {
                entry.0 = self.key(node) >> 1;
            }
        }
        order.sort();
        let mut to = [0; NODES];
        for (new, (_, old)) in order.iter().enumerate() {
            to[usize::from(*old)] = new as u8;
        }
        if to.iter().enumerate().any(|(old, new)| old != usize::from(*new)) {
            self.rename(to);
            self.air.sort_by_key(hash::of);
        }
        to
    }

    /// What a node is, whatever its number.
    fn key(&self, node: usize) -> u64 {
        let mut roles = vec![];
        for (slot, lease) in self.slots.iter().enumerate() {
            let last = matches!(lease.is, Berth::Closed(c) if usize::from(c.last) == node);
            roles.push((slot, last, lease.who().is_some_and(|(n, _)| usize::from(n) == node)));
        }
        let bit = |bits: u8| bits & (1 << node) != 0;
        let of_controllers = self.controllers.each_ref().map(|c| {
            let queue: Vec<(usize, bool)> = c
                .queue
                .iter()
                .enumerate()
                .map(|(i, e)| (i, names(&e.write, node)))
                .collect();
            (bit(c.lapsed), queue, c.look.as_ref().map(|look| look.nodes[node]))
        });
        let air: Vec<bool> = self.air.iter().map(|r| concerns(r, node)).collect();
        let failures = self.pools.map(|p| p.failures.map(bit));
        hash::of(&(self.nodes[node], roles, of_controllers, air, failures))
    }

    /// The same state with other numbers for the nodes.
    pub(crate) fn rename(&mut self, to: [u8; NODES]) {
        let old = self.nodes;
        for (node, here) in old.iter().enumerate() {
            self.nodes[usize::from(to[node])] = *here;
        }
        self.slots.iter_mut().for_each(|l| rename_lease(l, to));
        for pool in &mut self.pools {
            pool.failures = pool.failures.map(|bits| rename_bits(bits, to));
        }
        for request in &mut self.air {
            match request {
                Request::Berth { lease, node, .. } => {
                    rename_lease(lease, to);
                    *node = to[usize::from(*node)];
                }
                Request::Node { node, .. } => *node = to[usize::from(*node)],
                Request::Controller(write) => rename_write(write, to),
            }
        }
        for controller in &mut self.controllers {
            controller.lapsed = rename_bits(controller.lapsed, to);
            controller.queue.iter_mut().for_each(|e| rename_write(&mut e.write, to));
            if let Some(look) = &mut controller.look {
                let old = look.nodes;
                for (node, here) in old.iter().enumerate() {
                    look.nodes[usize::from(to[node])] = *here;
                }
                look.slots.iter_mut().for_each(|l| rename_lease(l, to));
                for pool in &mut look.pools {
                    pool.failures = pool.failures.map(|bits| rename_bits(bits, to));
                }
            }
        }
    }
}

fn names(write: &Write, node: usize) -> bool {
    match write {
        Write::Berth { lease, .. } => lease.who().is_some_and(|(n, _)| usize::from(n) == node),
        Write::Publish { node: n, .. } => usize::from(*n) == node,
        Write::Pool { .. } => false,
    }
}

fn concerns(request: &Request, node: usize) -> bool {
    match request {
        Request::Berth { node: n, .. } | Request::Node { node: n, .. } => usize::from(*n) == node,
        Request::Controller(write) => names(write, node),
    }
}

/// Bits that stand for nodes, with the nodes' new numbers.
pub fn rename_bits(bits: u8, to: [u8; NODES]) -> u8 {
    (0..NODES)
        .filter(|n| bits & (1 << n) != 0)
        .fold(0, |new, n| new | 1 << to[n])
}

/// A Lease, with the nodes' new numbers.
pub fn rename_lease(lease: &mut Lease, to: [u8; NODES]) {
    let new = |node: &mut u8| {
        if let Some(new) = to.get(usize::from(*node)) {
            *node = *new;
        }
    };
    match &mut lease.is {
        Berth::Missing => {}
        Berth::Closed(c) => new(&mut c.last),
        Berth::Offered(o) => new(&mut o.node),
        Berth::Held(h) => new(&mut h.node),
    }
}

/// A controller's write, with the nodes' new numbers.
pub fn rename_write(write: &mut Write, to: [u8; NODES]) {
    match write {
        Write::Berth { lease, offer, .. } => {
            rename_lease(lease, to);
            if let Some((unavailable, _)) = offer {
                *unavailable = rename_bits(*unavailable, to);
            }
        }
        Write::Publish { node, .. } => *node = to[usize::from(*node)],
        Write::Pool { failures, .. } => *failures = failures.map(|bits| rename_bits(bits, to)),
    }
}
