//! Brings states into a canonical form, and hashes them. States that differ only in the numbers of nodes and boots have
//! the same form.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::hash;
use crate::state::{Berth, Lease, Number, PlanInputs, Pool, Request, State, Write};

impl State {
    /// Converts the state to its canonical form: minimal boot numbers, and nodes sorted by content. Returns the hash of
    /// the state and the new number of each node.
    pub fn canonical(&mut self) -> (u64, Vec<Number>) {
        let nodes = self.nodes.len();
        for node in 0..nodes {
            self.settle_boots(node);
        }
        self.sort_air();
        // A node does not refer to other nodes, so its hash does not depend on the numbers.
        let own: Vec<u64> = self.nodes.iter().map(hash::of).collect();
        let mut order: Vec<(u64, Number)> = (0..).zip(&own).map(|(n, own)| (self.key(n, *own) >> 1, n)).collect();
        order.sort_unstable();
        let mut to = vec![0; nodes];
        for (new, (_, old)) in order.iter().enumerate() {
            to[usize::from(*old)] = new as Number;
        }
        if to.iter().enumerate().any(|(old, new)| old != usize::from(*new)) {
            self.rename(&to);
            self.sort_air();
        }
        let mut all = hash::Mix::default();
        for (_, old) in &order {
            all.write_u64(own[usize::from(*old)]);
        }
        (
            &self.slots,
            &self.unwritable,
            &self.pools,
            self.fleet,
            &self.controllers,
        )
            .hash(&mut all);
        (self.leader, &self.air, self.left).hash(&mut all);
        (all.finish(), to)
    }

    fn sort_air(&mut self) {
        if self.air.len() > 1 {
            self.air.sort_by_cached_key(hash::of);
        }
    }

    /// Returns a sort key of a node. The key does not depend on the node's number. `own`: hash of the node's content.
    fn key(&self, number: Number, own: u64) -> u64 {
        let node = usize::from(number);
        let mut key = hash::Mix::default();
        key.write_u64(own);
        for lease in &self.slots {
            let last = matches!(lease.is, Berth::Closed(c) if c.last == number);
            (last, lease.who().is_some_and(|(n, _)| n == number)).hash(&mut key);
        }
        for controller in &self.controllers {
            (controller.offered.has(node), controller.unused.has(node)).hash(&mut key);
            (controller.silent.has(node), controller.endless.has(node)).hash(&mut key);
            for entry in &controller.queue {
                names(&entry.write, node).hash(&mut key);
            }
            if let Some(look) = &controller.look {
                look.nodes[node].hash(&mut key);
            }
        }
        for request in &self.air {
            concerns(request, node).hash(&mut key);
        }
        for failed in self.pools.iter().flat_map(|pool| &pool.failures) {
            failed.has(node).hash(&mut key);
        }
        key.finish()
    }

    /// Renumbers each node `n` to `to[n]`.
    pub(crate) fn rename(&mut self, to: &[Number]) {
        rename_nodes(&mut self.nodes, to);
        self.slots.iter_mut().for_each(|l| rename_lease(l, to));
        rename_pools(&mut self.pools, to);
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
            controller.offered = controller.offered.renamed(to);
            controller.unused = controller.unused.renamed(to);
            controller.endless = controller.endless.renamed(to);
            controller.silent = controller.silent.renamed(to);
            controller.queue.iter_mut().for_each(|e| rename_write(&mut e.write, to));
            if let Some(look) = &mut controller.look {
                rename_nodes(&mut look.nodes, to);
                look.slots.iter_mut().for_each(|l| rename_lease(l, to));
                rename_pools(&mut look.pools, to);
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

/// Reorders a list with one entry per node: moves the entry of each node `n` to `to[n]`.
pub fn rename_nodes<T: Copy>(nodes: &mut [T], to: &[Number]) {
    let old = nodes.to_vec();
    for (here, new) in old.into_iter().zip(to) {
        nodes[usize::from(*new)] = here;
    }
}

pub fn rename_pools(pools: &mut [Pool], to: &[Number]) {
    for failed in pools.iter_mut().flat_map(|p| &mut p.failures).filter(|f| !f.is_empty()) {
        *failed = failed.renamed(to);
    }
}

pub fn rename_lease(lease: &mut Lease, to: &[Number]) {
    let node = match &mut lease.is {
        Berth::Missing => return,
        Berth::Closed(c) => &mut c.last,
        Berth::Offered(o) => &mut o.node,
        Berth::Held(h) => &mut h.node,
    };
    if let Some(new) = to.get(usize::from(*node)) {
        *node = *new;
    }
}

/// Renumbers the nodes in a controller's write.
pub fn rename_write(write: &mut Write, to: &[Number]) {
    match write {
        Write::Berth { lease, offer, .. } => {
            rename_lease(lease, to);
            if let Some(inputs) = offer.as_mut().filter(|s| {
                ***s != PlanInputs {
                    limit: s.limit,
                    closed: s.closed,
                    ..PlanInputs::default()
                }
            }) {
                let inputs = Arc::make_mut(inputs);
                for nodes in [
                    &mut inputs.unavailable,
                    &mut inputs.excluded,
                    &mut inputs.held_back,
                    &mut inputs.away,
                    &mut inputs.waits,
                    &mut inputs.early,
                    &mut inputs.fleet_down,
                ] {
                    *nodes = nodes.renamed(to);
                }
            }
        }
        Write::Publish { node, .. } => *node = to[usize::from(*node)],
        Write::Pool { status, .. } => status.failures.iter_mut().for_each(|f| *f = f.renamed(to)),
    }
}
