//! The cluster as the controller sees it: derived from the API objects by the controller's own functions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::{BerthState, HoldPhase};
use berth_api::condition::{self, pool as types};
use berth_api::membership::Membership;
use berth_api::waves::is_control_plane;
use berth_api::{NodeName, PoolName};
use berth_core::Moment;
use berth_core::controller::explain::Rules;
use berth_core::controller::gate::FleetGate;
use berth_core::controller::gates::{Gates, gates};
use berth_core::controller::ledger::Ledger;
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::occupied::Occupied;
use berth_core::controller::offers::Offers;
use berth_core::controller::soaks::Soaks;
use berth_core::controller::usage::{CapacityUse, UseKind};

use berth_core::controller::plan::{FleetUse, Plan, PoolFacts};
use berth_core::controller::pool::Pool;
use berth_core::controller::quorum::ControlPlane;
use berth_core::controller::round::Round;
use berth_core::controller::servers::{Answers, Asked};
use berth_core::controller::snapshot;
use berth_core::controller::view::{LeaseView, NodeView};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::nodes::silence;
use crate::snapshot::Snapshot;
use crate::text::clean;

/// Port that the API servers are assumed to have. No request is sent to it.
const API_PORT: u16 = 6443;

/// Facts that the controller derives from the objects. The controller's memory cannot be read, so it counts as empty:
/// no writes are in flight, and the only offers and soak times are in the statuses.
#[derive(Debug)]
pub(crate) struct World {
    pools: BTreeMap<PoolName, Pool>,
    pub(crate) membership: Arc<Membership>,
    control_plane: ControlPlane,
    fleet_gate: Option<FleetGate>,
    facts: BTreeMap<PoolName, PoolFacts>,
}

impl World {
    pub(crate) fn of(snapshot: &Snapshot, now: Timestamp) -> Self {
        // Freed at the end: in a large cluster, the projections of the BootcNodes need more memory than the facts.
        let seen = snapshot.seen();
        let leases = seen.lease_views();
        let fleet = seen.fleet_spec().unwrap_or_default();
        let pools = Pool::readable(&seen.pools).into_iter();
        let pools: Vec<Pool> = pools.map(|pool| pool.guarded(Some(&fleet))).collect();
        let epochs = leases.iter().filter_map(|lease| Some(lease.berth.as_ref().ok()?.epoch));
        // Assume that the current leader makes the plan. A new leader would first fence every berth.
        let epoch = epochs.max().unwrap_or_default();
        let membership = MembershipCache::default().of(&seen);
        let fleet_gate = seen.fleet_gate();
        let round = Round {
            snapshot: &seen,
            membership: &membership,
            leases: &leases,
            occupied: &Occupied::of(&leases),
            in_doubt: &BTreeSet::new(),
            refused: &BTreeSet::new(),
            confirmed_gone: &BTreeSet::new(),
            heard: &heard(snapshot, now),
            overdue: &BTreeSet::new(),
            outdated: &BTreeSet::new(),
            offers: &Offers::default(),
            ledger: &ledger(&leases),
            soaks: &Soaks::default(),
            gates: &gates_of(&pools, fleet_gate, now),
            now: Moment::default(),
            epoch,
        };
        let facts = round.all(&pools).into_iter();
        Self {
            control_plane: control_plane(&seen, &leases, epoch),
            pools: pools.into_iter().map(|pool| (pool.name.clone(), pool)).collect(),
            membership,
            fleet_gate,
            facts: facts.map(|facts| (facts.pool.clone(), facts)).collect(),
        }
    }

    /// Returns the facts of a pool; `None` if there is no such pool.
    pub(crate) fn facts(&self, pool: &str) -> Option<&PoolFacts> {
        self.facts.get(&PoolName::from(pool))
    }

    /// Returns the rules for the pool's gates; `None` if there is no such pool.
    pub(crate) fn rules(&self, pool: &str, now: Timestamp) -> Option<Rules> {
        let pool = self.pools.get(&PoolName::from(pool))?;
        let inputs = pool.gate_inputs(self.fleet_gate, is_clock_synchronized(pool), now)?;
        Some(Rules {
            spec: inputs.spec.clone(),
            fleet: inputs.fleet,
            clock_synchronized: inputs.clock_synchronized,
            needed: inputs.needed,
        })
    }

    /// Returns the plan that the controller would make, including its rules for the control plane (I11). Assumes that
    /// the API servers of Ready nodes answer.
    pub(crate) fn plan(&self, facts: &PoolFacts, wall: Timestamp) -> Plan {
        self.control_plane.clone().plan(&mut facts.clone(), wall)
    }

    /// True if too many failures halt the pool's rollout.
    pub(crate) fn is_halted(&self, pool: &str, now: Timestamp) -> bool {
        self.facts(pool)
            .is_some_and(|facts| self.plan(facts, now).halt.is_some())
    }

    pub(crate) fn room(&self, pool: &str) -> Room {
        self.facts(pool).map_or_else(Room::default, Room::of)
    }
}

/// Returns the nodes whose agents have reported recently. Heartbeats are times by the agents' clocks. Here they can only
/// be compared with the local clock.
fn heard(snapshot: &Snapshot, now: Timestamp) -> BTreeSet<NodeName> {
    let heard = snapshot.bootc_nodes.iter().filter(|bootc| {
        let status = bootc.status.as_ref();
        status.is_some_and(|status| silence(status, now).is_none())
    });
    heard.map(|bootc| NodeName::new(bootc.name_any())).collect()
}

/// Returns the ledger of a new leader. The controller's own ledger may have more offers.
fn ledger(leases: &[LeaseView]) -> Ledger {
    let leases = leases.iter();
    Ledger::of(leases.filter_map(|lease| Some((lease.name(), lease.berth.as_ref().ok()?))))
}

fn gates_of(pools: &[Pool], fleet: Option<FleetGate>, now: Timestamp) -> BTreeMap<PoolName, Gates> {
    let gates = pools.iter().filter_map(|pool| {
        let inputs = pool.gate_inputs(fleet, is_clock_synchronized(pool), now)?;
        Some((pool.name.clone(), gates(inputs)))
    });
    gates.collect()
}

fn control_plane(seen: &snapshot::Snapshot, leases: &[LeaseView], epoch: u64) -> ControlPlane {
    // Assume that probing began an hour ago, so that a server without an answer counts as down.
    let now = Moment::after(Duration::from_secs(3600));
    let nodes: Vec<&NodeView> = seen.nodes.values().map(|node| node.view.as_ref()).collect();
    let mut servers = BTreeMap::new();
    for node in nodes.iter().filter(|node| is_control_plane(&node.labels)) {
        let addresses = node
            .addresses
            .iter()
            .filter_map(|address| address.parse::<IpAddr>().ok());
        let asked = Asked {
            since: Moment::default(),
            ready: node.ready.then_some(now),
        };
        // Use a single address, since all addresses of a node belong to one server.
        if let Some(address) = addresses.min() {
            servers.insert(SocketAddr::new(address, API_PORT), asked);
        }
    }
    let answers = Answers { listed: true, servers };
    ControlPlane::of(nodes.into_iter(), &answers, now).with_leases(leases, |_, berth| berth.epoch == epoch)
}

/// A pool's capacity and the nodes that use it.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) capacity: usize,
    /// Use of the fleet's limit by all pools, if there is a limit.
    pub(crate) fleet: Option<FleetUse>,
    /// The nodes that use capacity, each with the reason. Each reason begins with the node's name.
    pub(crate) users: BTreeMap<String, String>,
}

impl Room {
    pub(crate) fn of(facts: &PoolFacts) -> Self {
        let users = facts
            .uses()
            .into_iter()
            .map(|user| (user.who.clone(), words(facts, &user)));
        Self {
            capacity: facts.capacity,
            fleet: facts.fleet.clone(),
            users: users.collect(),
        }
    }

    /// Removes a node from the users, as if its berth were closed.
    pub(crate) fn forget(&mut self, node: &str) {
        let used = self.users.remove(node).is_some();
        if let Some(fleet) = self.fleet.as_mut().filter(|_| used) {
            fleet.all = fleet.all.saturating_sub(1);
            fleet.used_by.retain(|user| user.who != node);
        }
    }

    pub(crate) fn free(&self) -> usize {
        let of_pool = self.capacity.saturating_sub(self.users.len());
        let of_fleet = self.fleet.as_ref().map(|fleet| fleet.limit.saturating_sub(fleet.all));
        of_fleet.map_or(of_pool, |free| free.min(of_pool))
    }
}

/// Returns why a node uses capacity: `n7 holds berth workers-0 (draining)`, `n3 is not Ready`.
fn words(facts: &PoolFacts, user: &CapacityUse) -> String {
    let who = &user.who;
    let of_user = facts.berths.iter().find_map(|seen| {
        let berth = seen.berth.as_ref().ok()?;
        berth.node().filter(|(node, _)| node.as_str() == who)?;
        Some((&seen.lease, &berth.state))
    });
    match (user.how, of_user) {
        (UseKind::Holds, Some((lease, BerthState::Held(holding)))) => {
            let phase = match holding.phase {
                HoldPhase::Taken => "draining",
                HoldPhase::Committed => "rebooting",
                HoldPhase::Releasing(_) => "giving it back",
            };
            format!("{who} holds berth {lease} ({phase})")
        }
        (UseKind::IsOffered, Some((lease, _))) => format!("{who} is offered berth {lease}"),
        (how, _) => format!("{} is {}", clean(who), how.words()),
    }
}

/// True unless the controller reports in the pool's status that its clock is not synchronized.
pub(crate) fn is_clock_synchronized(pool: &Pool) -> bool {
    let status = pool.object.as_ref().and_then(|object| object.status.as_ref());
    let window = status.and_then(|status| condition::find(&status.conditions, types::WINDOW_OPEN));
    window.is_none_or(|window| window.reason != "ClockNotSynchronized")
}
