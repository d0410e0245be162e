//! Plans of all pools, one after the other. Each plan counts the offers of the earlier plans, for the fleet's limit
//! (I1) and for control plane nodes (I11). Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::PoolName;
use berth_api::berth::BerthState;
use berth_api::seeded::Bug;
use berth_api::waves::is_control_plane;
use jiff::Timestamp;

use crate::controller::plan::{self, BerthWrite, Plan, PoolFacts, WriteReason};
use crate::controller::pool::Pool;
use crate::controller::publish::desired_digest;
use crate::controller::quorum::ControlPlane;
use crate::controller::servers::Answers;
use crate::controller::view::{BootcNodeView, NodeView};

pub(super) mod facts;
mod fleet;
mod rereads;

pub use facts::Round;
pub use rereads::Rereads;

impl Round<'_> {
    /// True if the plans need the states of the API servers, because some member of a pool does not run its target. The
    /// member may lack the control plane label: only the list of servers shows whether its node runs an API server.
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
        let host = self.snapshot.bootc_nodes.get(node.name.as_str());
        let host = host.map(|host| host.view.as_ref());
        let report = host.and_then(BootcNodeView::report);
        let desired = desired_digest(pool.target(), node.platform(host));
        desired.is_some() && report.and_then(|r| r.images.booted.as_ref()) != desired
    }

    /// Returns the control plane nodes with their berths. `answers`: states of the API servers; `None` if they are not
    /// needed (see [`Self::needs_servers`]).
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
        control_plane.with_leases(self.leases, |lease, berth| {
            let is_closed = matches!(berth.state, BerthState::Closed(_));
            // A late offer can only open a closed berth, and only for a node of the berth's pool.
            let can_open = is_closed && pools.contains(&lease.pool);
            self.is_fenced(lease, berth) || self.is_refused(lease) && !can_open
        })
    }

    /// Plans all pools, one after the other.
    ///
    /// The control plane may have only one offer at a time. To let the pools take turns, the pool whose control plane
    /// node has had the most offers is planned last. With a fleet limit, the pool with the best candidate is planned
    /// first. Otherwise a pool whose nodes cannot be drained could starve the other pools.
    pub fn plans(&self, pools: &[Pool], mut control_plane: ControlPlane, wall: Timestamp) -> BTreeMap<PoolName, Plan> {
        let mut all = self.all(pools);
        let mut fleet = all.first().and_then(|facts| facts.fleet.clone());
        let servers = self.server_offers(&control_plane);
        all.sort_by_cached_key(|facts| {
            let best = fleet.as_ref().and_then(|_| facts.best_candidate());
            // A pool without a candidate comes last, because it offers nothing.
            (
                best.is_none(),
                best,
                servers.get(&facts.pool).copied().unwrap_or_default(),
            )
        });
        let mut plans = BTreeMap::new();
        for mut facts in all {
            facts.fleet = fleet.take();
            let plan = control_plane.plan(&mut facts, wall);
            fleet = plan.fleet.clone();
            plans.insert(facts.pool, plan);
        }
        plans
    }

    /// Returns, for each pool, the largest number of offers that one of its control plane nodes has had.
    fn server_offers(&self, control_plane: &ControlPlane) -> BTreeMap<&PoolName, u32> {
        let mut most = BTreeMap::new();
        for (name, _) in control_plane.nodes() {
            if let Some(pool) = self.membership.pool_of(name) {
                let offers = most.entry(pool).or_default();
                *offers = self.ledger.most(name).max(*offers);
            }
        }
        most
    }
}

impl ControlPlane {
    /// Plans one pool's berths so that invariant I11 holds, and records the plan's offers. Plan all pools with the same
    /// `ControlPlane`, one after the other, so that each plan counts the offers of the earlier plans.
    pub fn plan(&mut self, facts: &mut PoolFacts, now: Timestamp) -> Plan {
        for member in &mut facts.members {
            member.place.control_plane = self.verdict(&member.uid);
        }
        let mut plan = plan::plan(facts, now);
        for write in &plan.writes {
            if let BerthWrite::Update {
                berth,
                why: WriteReason::Offer,
                ..
            } = write
            {
                self.see(berth, true);
            }
        }
        plan.waited_for = self.waited_for();
        if facts.members.iter().any(|member| member.place.control_plane.is_some()) {
            plan.address_conflicts = self.address_conflicts();
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::berth::{Berth, Offer, lease};
    use serde_json::json;

    use super::*;
    use crate::Moment;
    use crate::controller::ledger::Ledger;
    use crate::controller::membership::MembershipCache;
    use crate::controller::occupied::Occupied;
    use crate::controller::offers::Offers;
    use crate::controller::plan::BlockReason;
    use crate::controller::plan::tests::digest;
    use crate::controller::quorum::Cause;
    use crate::controller::round::fleet::tests::prepared_host;
    use crate::controller::servers::Asked;
    use crate::controller::snapshot::{Entry, Snapshot};
    use crate::controller::soaks::Soaks;
    use crate::controller::view::LeaseView;
    use crate::controller::view::PoolView;

    const EPOCH: u64 = 7;

    fn add_pool(snapshot: &mut Snapshot, name: &str, architecture: &str) {
        let platforms = json!([{ "architecture": architecture, "digest": digest(2) }]);
        let pool = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": name },
            "spec": { "nodeSelector": { "matchLabels": { "pool": name } }, "image": { "ref": "r.io/os:2" } },
            "status": {
                "target": { "image": "r.io/os:2", "digest": digest(2), "platforms": platforms },
                "berths": { "total": 1 },
            },
        });
        let pool = PoolView::of(serde_json::from_value(pool).unwrap());
        Arc::make_mut(&mut snapshot.pools).insert(name.to_owned(), Entry::new(pool));
    }

    /// Adds a node of this pool that is prepared for image 2 and runs image `booted`.
    fn add_node(snapshot: &mut Snapshot, name: &str, pool: &str, booted: u8) {
        let node = json!({
            "metadata": { "name": name, "uid": name, "labels": { "pool": pool } },
            "status": {
                "conditions": [{ "type": "Ready", "status": "True" }],
                "addresses": [{ "type": "InternalIP", "address": address(name) }],
                "nodeInfo": { "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": "" },
            },
        });
        let node = NodeView::of(&serde_json::from_value(node).unwrap());
        Arc::make_mut(&mut snapshot.nodes).insert(name.to_owned(), Entry::new(node));
        let host = prepared_host(name, pool, booted);
        Arc::make_mut(&mut snapshot.bootc_nodes).insert(name.to_owned(), Entry::new(host));
    }

    fn address(node: &str) -> String {
        format!("10.0.0.{}", &node[1..])
    }

    fn offer(node: &str) -> BerthWrite {
        let offer = Offer {
            node: node.into(),
            uid: node.into(),
            target: digest(2),
            open_until: None,
        };
        let berth = Berth::new("p".into(), 0, EPOCH).offered(offer).unwrap();
        let (lease, why) = (berth.name(), WriteReason::Offer);
        BerthWrite::Update { lease, berth, why }
    }

    /// Calls `run` with a round. Each pool has one closed berth, and all agents have reported.
    fn with_shared<T>(snapshot: &Snapshot, ledger: &Ledger, run: impl FnOnce(&Round<'_>, &[Pool]) -> T) -> T {
        let pools = Pool::readable(&snapshot.pools);
        let mut leases = vec![];
        for pool in &pools {
            let berth = Berth::new(pool.name.clone(), 0, EPOCH);
            let timeout = std::time::Duration::from_secs(60);
            let lease = lease::create(&berth, "ns", timeout, Timestamp::UNIX_EPOCH);
            leases.push(LeaseView::of(lease));
        }
        let none = BTreeSet::new();
        let shared = Round {
            snapshot,
            membership: &MembershipCache::default().of(snapshot),
            leases: &leases,
            occupied: &Occupied::default(),
            in_doubt: &none,
            refused: &none,
            confirmed_gone: &BTreeSet::new(),
            heard: &snapshot.nodes.keys().map(|name| name.as_str().into()).collect(),
            overdue: &none,
            outdated: &BTreeSet::new(),
            offers: &Offers::default(),
            ledger,
            soaks: &Soaks::default(),
            gates: &BTreeMap::new(),
            now: Moment::default(),
            epoch: EPOCH,
        };
        run(&shared, &pools)
    }

    #[test]
    fn servers_are_asked_only_for_an_update() {
        for (architecture, booted, needs_servers) in [
            ("amd64", &[][..], false),
            // All members run the target.
            ("amd64", &[2, 2], false),
            ("amd64", &[2, 1], true),
            // The target has no image for the member's platform.
            ("arm64", &[1], false),
        ] {
            let mut snapshot = Snapshot::default();
            add_pool(&mut snapshot, "a", architecture);
            for (booted, name) in booted.iter().zip(["n1", "n2"]) {
                add_node(&mut snapshot, name, "a", *booted);
            }
            with_shared(&snapshot, &Ledger::default(), |shared, pools| {
                assert_eq!(shared.needs_servers(pools), needs_servers, "{booted:?}");
            });
        }
    }

    #[test]
    fn a_server_that_takes_no_offer_starves_no_other() {
        let mut snapshot = Snapshot::default();
        for (pool, node) in [("a", "n1"), ("b", "n2")] {
            add_pool(&mut snapshot, pool, "amd64");
            add_node(&mut snapshot, node, pool, 1);
        }
        let mut answers = Answers {
            listed: true,
            ..Answers::default()
        };
        for node in ["n1", "n2"] {
            let asked = Asked {
                since: Moment::default(),
                ready: Some(Moment::default()),
            };
            let address = format!("{}:6443", address(node)).parse().unwrap();
            answers.servers.insert(address, asked);
        }
        let mut ledger = Ledger::default();
        // The offers add up: in the last row, n1 had one and n2 had two.
        for (had, offered) in [(&[][..], "a-0"), (&["n1"], "b-0"), (&["n2", "n2"], "a-0")] {
            had.iter().for_each(|node| ledger.wrote(&offer(node)));
            with_shared(&snapshot, &ledger, |shared, pools| {
                let control_plane = shared.control_plane(Some(&answers));
                let plans = shared.plans(pools, control_plane, Timestamp::UNIX_EPOCH);
                let waits: Vec<BlockReason> = plans.values().flat_map(|plan| plan.waiting.values()).copied().collect();
                assert_eq!(waits, [BlockReason::ControlPlane(Cause::OtherAtWork)]);
                let mut writes = plans.values().flat_map(|plan| &plan.writes);
                let write = writes.find(|write| write.is_offer()).unwrap();
                assert_eq!(write.lease(), offered);
            });
        }
    }
}
