//! The plans of all pools: each counts what those before it offer, of the fleet's limit (I1) and to control plane nodes
//! (I11). Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::PoolName;
use berth_api::berth::{Berth, BerthState};
use berth_api::seeded::Bug;
use berth_api::waves::is_control_plane;
use jiff::Timestamp;

use crate::controller::facts::{Pool, Shared};
use crate::controller::plan::{Plan, PoolFacts};
use crate::controller::publish::desired_digest;
use crate::controller::quorum::ControlPlane;
use crate::controller::servers::Answers;
use crate::controller::view::{BootcNodeView, LeaseView, NodeView};

impl Shared<'_> {
    /// True if any member of a pool does not run its target; otherwise no answer of the API servers matters. A node without
    /// the label counts as well: only the list of the servers shows whether it runs one.
    pub fn needs_servers(&self, pools: &[Pool]) -> bool {
        pools.iter().any(|pool| {
            let names = self.membership.members(&pool.name);
            let mut nodes = names.filter_map(|name| self.snapshot.nodes.get(name.as_str()));
            nodes.any(|node| {
                let may_run_one = is_control_plane(&node.view.labels) || !Bug::LabelledServersOnly.is_awake();
                may_run_one && self.is_outdated(pool, node.view.as_ref())
            })
        })
    }

    fn is_outdated(&self, pool: &Pool, node: &NodeView) -> bool {
        let host = self.snapshot.hosts.get(node.name.as_str());
        let host = host.map(|host| host.view.as_ref());
        let report = host.and_then(BootcNodeView::report);
        let desired = desired_digest(pool.target(), node.platform(host));
        desired.is_some() && report.and_then(|r| r.booted.as_ref()) != desired
    }

    /// Returns the control plane with the berths as they were read. `answers` is `None` if they are not needed (see
    /// [`Self::needs_servers`]).
    pub fn control_plane(&self, answers: Option<&Answers>) -> ControlPlane {
        let Some(answers) = answers else {
            return ControlPlane::default();
        };
        let nodes = self.snapshot.nodes.values().map(|node| node.view.as_ref());
        let control_plane = ControlPlane::of(nodes, answers, self.now);
        let pools = control_plane
            .nodes()
            .filter_map(|(name, _)| self.membership.pool_of(name));
        let pools: BTreeSet<PoolName> = pools.cloned().collect();
        let cannot_open = |lease: &LeaseView, berth: &Berth| {
            let is_closed = matches!(berth.state, BerthState::Closed(_));
            // A late offer lands only on a berth that is still closed, and only for a node of its pool.
            self.refused.contains(lease.name()) && !(is_closed && pools.contains(&lease.pool))
        };
        control_plane.with_leases(self.leases, |lease, berth| {
            self.is_fenced(lease, berth) || cannot_open(lease, berth)
        })
    }

    /// Plans all pools. The pool whose control plane nodes let the most offers lapse comes last, or it would get the turn
    /// of the control plane again and again. Under a limit of the fleet the pools come in the order of their best candidates,
    /// so that one whose nodes cannot be drained starves no other.
    pub fn plans(&self, pools: &[Pool], mut control_plane: ControlPlane, wall: Timestamp) -> BTreeMap<PoolName, Plan> {
        let mut all = self.all(pools);
        let mut fleet = all.first().and_then(|facts| facts.fleet.clone());
        let lapses = self.lapses(&control_plane);
        all.sort_by_cached_key(|facts| {
            let best = fleet.as_ref().and_then(|_| facts.best_candidate());
            // A pool without any has nothing to offer.
            (
                best.is_none(),
                best,
                lapses.get(&facts.pool).copied().unwrap_or_default(),
            )
        });
        let plan = |mut facts: PoolFacts| {
            facts.fleet = fleet.take();
            let plan = control_plane.plan(&mut facts, wall);
            fleet = plan.fleet.clone();
            (facts.pool, plan)
        };
        all.into_iter().map(plan).collect()
    }

    /// The most offers that one control plane node of each pool has let lapse.
    fn lapses(&self, control_plane: &ControlPlane) -> BTreeMap<&PoolName, u32> {
        let mut most = BTreeMap::new();
        for (name, uid) in control_plane.nodes() {
            if let Some(pool) = self.membership.pool_of(name) {
                let lapses = most.entry(pool).or_default();
                *lapses = self.offers.lapses_of_any(uid).max(*lapses);
            }
        }
        most
    }
}
