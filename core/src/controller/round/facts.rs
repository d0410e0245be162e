//! Input for the plans of one pass, from the watched objects. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::membership::Membership;
use berth_api::seeded::Bug;
use berth_api::waves::Waves;
use berth_api::{NodeName, NodeUid, PoolName, keys};

use crate::Moment;
use crate::controller::gates::Gates;
use crate::controller::ledger::Ledger;
use crate::controller::occupied::Occupied;
use crate::controller::offers::Offers;
use crate::controller::plan::failures::failure;
use crate::controller::plan::{AgentState, Failures, Member, NodeState, Place, PoolFacts, Published, SeenBerth};
use crate::controller::pool::{Pool, is_news};
use crate::controller::publish::desired_digest;
use crate::controller::snapshot::Snapshot;
use crate::controller::soaks::Soaks;
use crate::controller::view::{BootcNodeView, LeaseView, NodeView, Report, is_stale};

/// Input for the plans of all pools in one pass.
#[derive(Debug, Clone, Copy)]
pub struct Round<'a> {
    /// Watched objects.
    pub snapshot: &'a Snapshot,
    /// The pool of each node.
    pub membership: &'a Membership,
    /// All berths.
    pub leases: &'a [LeaseView],
    /// The nodes that hold berths or are offered them.
    pub occupied: &'a Occupied,
    /// Names of the Leases that this leader tried to write with an unknown result.
    pub in_doubt: &'a BTreeSet<String>,
    /// Leases that the API server refused to write. They count as used and are not written.
    pub refused: &'a BTreeSet<String>,
    /// UIDs of Nodes that a live read has shown to be gone.
    pub confirmed_gone: &'a BTreeSet<NodeUid>,
    /// Nodes whose agent reported recently.
    pub heard: &'a BTreeSet<NodeName>,
    /// UIDs of BootcNodes whose agents have not released their node within the release deadline.
    pub overdue: &'a BTreeSet<String>,
    /// Pools that must not offer berths, because the controller may not have seen their latest changes.
    pub outdated: &'a BTreeSet<PoolName>,
    /// Age of each open offer.
    pub offers: &'a Offers,
    /// Number of offers that each node has had.
    pub ledger: &'a Ledger,
    /// How long each wave has soaked so far.
    pub soaks: &'a Soaks,
    /// The gates of each pool.
    pub gates: &'a BTreeMap<PoolName, Gates>,
    /// Current time, for the ages of offers and the states of the API servers.
    pub now: Moment,
    /// Epoch of this leader, which fences berths against writes of earlier leaders.
    pub epoch: u64,
}

impl Round<'_> {
    /// Returns the input for one pool's plan. [`Round::all`] adds the state that all pools share.
    pub fn of(&self, pool: &Pool) -> PoolFacts {
        let names: Vec<&NodeName> = self.membership.members(&pool.name).collect();
        let capacity = pool.capacity(names.len());
        let waves = pool.object.as_ref().map(|o| o.spec.rollout().waves.as_slice());
        let waves = Waves::of(waves.unwrap_or_default());
        let leaving = self
            .membership
            .leaving(&pool.name)
            .filter(|name| self.has_yet_to_leave(name));
        let leaving = leaving.filter_map(|name| {
            Some(Member {
                leaving: true,
                abandoned: self.is_abandoned(name),
                ..self.member(pool, name, &waves)?
            })
        });
        let members: Vec<Member> = names
            .into_iter()
            .filter_map(|name| self.member(pool, name, &waves))
            .chain(leaving)
            .collect();
        let gates = self.gates.get(&pool.name);
        let berths = self.seen_berths(&pool.name);
        let failures = pool.failures();
        // `elsewhere` and `lost` contain only members and Nodes that are named in the pool's berths.
        let named = berths.iter().filter_map(|seen| seen.berth.as_ref().ok()?.node());
        let named: Vec<(&NodeName, &NodeUid)> = named.collect();
        let uids = members.iter().map(|m| &m.uid).chain(named.iter().map(|(_, uid)| *uid));
        let elsewhere = uids.filter(|uid| self.is_elsewhere(uid, &pool.name)).cloned().collect();
        let lost = named.iter().filter(|(node, uid)| self.is_lost(node, uid));
        let lost = lost.map(|(_, uid)| (*uid).clone()).collect();
        PoolFacts {
            pool: pool.name.clone(),
            epoch: self.epoch,
            capacity,
            published: pool.published(),
            gate: gates.and_then(|g| g.gate.clone()),
            closes: gates.and_then(|g| g.closes),
            waves: pool.waves(self.soaks),
            excluded: self.excluded(&failures, &berths),
            failures,
            max_failures: pool.object.as_ref().map_or(1, |o| o.spec.max_failures()),
            unresolved: pool.is_unresolved(),
            outdated: self.outdated.contains(&pool.name),
            members,
            berths,
            elsewhere,
            confirmed_gone: self.confirmed_gone.clone(),
            lost,
            fleet: None,
            order: None,
        }
    }

    fn seen_berths(&self, pool: &PoolName) -> Vec<SeenBerth> {
        let leases = self.leases.iter().filter(|lease| lease.pool == *pool);
        leases
            .map(|lease| SeenBerth {
                lease: lease.name().to_owned(),
                berth: lease.berth.clone(),
                in_doubt: self.in_doubt.contains(lease.name()),
                refused: self.refused.contains(lease.name()) && !Bug::RefusedTriedAgain.is_awake(),
                age: self.offers.age(lease.name(), self.now),
            })
            .collect()
    }

    /// True if the node holds or is offered a berth of another pool.
    fn is_elsewhere(&self, uid: &NodeUid, pool: &PoolName) -> bool {
        self.occupied
            .by_uid
            .get(uid)
            .is_some_and(|pools| pools.iter().any(|p| p != pool))
    }

    /// True if the node has a BootcNode, and its agent has yet to report that Berth's changes are undone.
    pub(super) fn has_yet_to_leave(&self, name: &NodeName) -> bool {
        let node = self.snapshot.nodes.get(name.as_str()).map(|n| n.view.as_ref());
        let host = self.snapshot.bootc_nodes.get(name.as_str());
        host.is_some_and(|host| !host.view.is_released() && !is_stale(&host.view, node))
    }

    /// True if the node's agent has not released the node within the release deadline, and the node neither holds nor
    /// is offered a berth.
    fn is_abandoned(&self, name: &NodeName) -> bool {
        let node = self.snapshot.nodes.get(name.as_str());
        let has_berth = node.is_some_and(|node| self.occupied.by_uid.contains_key(&node.view.uid));
        let host = self.snapshot.bootc_nodes.get(name.as_str());
        host.is_some_and(|host| self.overdue.contains(&host.view.uid)) && !has_berth
    }

    /// Returns the excluded nodes among those where a digest failed.
    fn excluded(&self, failures: &Failures, berths: &[SeenBerth]) -> BTreeSet<NodeName> {
        let closed = berths.iter().filter_map(|seen| failure(seen.berth.as_ref().ok()?));
        let told = closed.map(|(_, node)| node);
        let nodes = failures.values().flatten().cloned().chain(told);
        let excluded = nodes.filter(|name| {
            let node = self.snapshot.nodes.get(name.as_str());
            node.is_some_and(|node| node.view.labels.contains_key(keys::LABEL_EXCLUDE))
        });
        excluded.collect()
    }

    fn is_lost(&self, node: &NodeName, uid: &NodeUid) -> bool {
        let Some(node) = self.snapshot.nodes.get(node.as_str()) else {
            return false;
        };
        let node = node.view.as_ref();
        node.uid == *uid && !node.ready && node.labels.contains_key(keys::LABEL_EXCLUDE)
    }

    fn member(&self, pool: &Pool, name: &NodeName, waves: &Waves) -> Option<Member> {
        let node = self.snapshot.nodes.get(name.as_str())?.view.as_ref();
        let host = self.snapshot.bootc_nodes.get(name.as_str());
        let mut member = member(pool, node, host.map(|h| h.view.as_ref()), self.heard.contains(name))?;
        member.place.wave = waves.number(&node.labels);
        if let Some(desired) = &member.desired {
            member.offers = self.ledger.offers(name, desired);
            member.turns = self.ledger.turns(name, desired);
        }
        Some(member)
    }
}

/// Returns the plan's input for one member. `heard`: true if the member's agent reported recently.
fn member(pool: &Pool, node: &NodeView, host: Option<&BootcNodeView>, heard: bool) -> Option<Member> {
    // A node that leaves the pool may be down or unproven, so it counts as a member until its agent has undone Berth's
    // changes.
    let leaving = host.is_some_and(|h| h.deleting);
    if leaving && Bug::LeavingNotCounted.is_awake() {
        return None;
    }
    let spec = host.and_then(BootcNodeView::spec);
    let silent = Report::default();
    let report = host.and_then(BootcNodeView::report).unwrap_or(&silent);
    let ours = spec.filter(|s| s.pool_name == pool.name.as_str());
    let asked = pool.object.as_ref().map(|o| &o.spec);
    // After an admin sets a new retry token, the agent's report still has failures and a bad turn from before. They are
    // ignored until the agent has obeyed the token.
    let retried = asked.is_some_and(|s| is_news(s.retry_token(), report.retry_token.as_deref()));
    let zone = asked
        .and_then(|s| node.labels.get(s.zone_key()))
        .cloned()
        .unwrap_or_default();
    Some(Member {
        name: node.name.clone(),
        uid: node.uid.clone(),
        node: NodeState {
            ready: node.ready,
            unschedulable: node.unschedulable,
            our_cordon: node.our_cordon,
            held_back: node.labels.contains_key(keys::LABEL_HOLD) && !Bug::HoldIgnored.is_awake(),
        },
        place: Place {
            wave: 0,
            zone,
            control_plane: None,
        },
        desired: desired_digest(pool.target(), node.platform(host)).cloned(),
        published: Published {
            digest: ours.and_then(|s| s.image.as_ref()).map(|i| i.digest.clone()),
            uid: NodeUid::from(spec.map_or("", |s| s.node_uid.as_str())),
            observed: host.is_some_and(BootcNodeView::is_observed),
        },
        agent: AgentState {
            heard,
            prepared: report.pull.prepared,
            staged: report.images.staged.clone().filter(|_| report.images.locked),
            booted: report.images.booted.clone(),
            failed: if retried { vec![] } else { report.images.failed.clone() },
            last_turn: report
                .last_turn
                .as_ref()
                .filter(|_| !retried)
                .map(|turn| turn.digest.clone()),
            clock_synchronized: report.host.clock_synchronized,
        },
        leaving,
        abandoned: false,
        offers: 0,
        turns: 0,
        estimate: pool.estimate_of(report),
    })
}

#[cfg(test)]
pub(crate) mod tests;
