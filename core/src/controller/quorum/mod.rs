//! Invariant I11: how many control plane nodes may be down at once. Pure.
//!
//! A node with a control plane label is assumed to run an API server and an etcd member (stacked etcd). A node without
//! the label is assumed to run an API server if one is listed at its address and no labeled node has that address. Over
//! all pools, control plane nodes are updated one at a time. Nodes in the worst state go first. The nodes that stay up
//! must have a majority of all API servers and of all etcd members.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use berth_api::berth::{Berth, BerthState, HoldPhase};
use berth_api::seeded::Bug;
use berth_api::{NodeName, NodeUid, keys};

use crate::Moment;
use crate::controller::servers::{Answers, State};
use crate::controller::view::{LeaseView, NodeView};

mod addresses;
mod carrier;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
mod verdict;

use addresses::{AddressConflict, Owners};
use carrier::{Carrier, Severity, Work};
pub use verdict::{Cause, Meanwhile, Verdict};

/// Control plane nodes of all pools, with the state of their servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlPlane {
    carriers: Vec<Carrier>,
    conflicts: Vec<AddressConflict>,
    /// True if the API servers must be listed; false if no member of any pool needs an update.
    asked: bool,
    listed: bool,
    /// Number of listed API servers.
    total: usize,
    /// States of servers at addresses that no Node has.
    unplaced: Vec<State>,
    /// True if a late write may still open a berth for a control plane node: a write of an earlier leader, or a write
    /// of this leader whose result is unknown.
    unfenced: bool,
}

fn majority(of: usize) -> usize {
    of / 2 + 1
}

impl ControlPlane {
    /// Finds the control plane nodes among all Nodes of the cluster. Their berths are added by [`Self::with_leases`].
    pub fn of<'a>(nodes: impl Iterator<Item = &'a NodeView>, answers: &Answers, now: Moment) -> Self {
        let states = answers.states(now);
        let mut at: BTreeMap<IpAddr, Vec<SocketAddr>> = BTreeMap::new();
        for server in states.keys() {
            at.entry(server.ip()).or_default().push(*server);
        }
        let owners = Owners::of(nodes, &at);
        let mut carriers = vec![];
        let mut placed: BTreeSet<SocketAddr> = BTreeSet::new();
        for (node, addresses) in &owners.nodes {
            let own = addresses.iter().filter_map(|address| at.get(address)).flatten();
            let own: BTreeSet<SocketAddr> = own.copied().collect();
            let own_states: Vec<State> = own.iter().filter_map(|server| states.get(server).copied()).collect();
            carriers.push(Carrier::of(node, &own_states));
            placed.extend(own);
        }
        let unplaced = states.iter().filter(|(server, _)| !placed.contains(server));
        Self {
            carriers,
            conflicts: owners.conflicts(),
            asked: true,
            listed: answers.listed,
            total: states.len(),
            unplaced: unplaced.map(|(_, state)| *state).collect(),
            unfenced: false,
        }
    }

    /// Adds the berths of all pools. `is_fenced`: true if no late write can open the berth for a control plane node.
    #[must_use]
    pub fn with_leases(mut self, leases: &[LeaseView], is_fenced: impl Fn(&LeaseView, &Berth) -> bool) -> Self {
        for lease in leases {
            match &lease.berth {
                Ok(berth) => self.see(berth, is_fenced(lease, berth)),
                Err(_) => {
                    let labels = lease.lease.metadata.labels.as_ref();
                    if let Some(node) = labels.and_then(|l| l.get(keys::LABEL_NODE)) {
                        self.at_work(|c| c.name.as_str() == node, Work::Committed);
                    }
                }
            }
        }
        self
    }

    /// Records a berth. `fenced`: true if no earlier write can still change the berth.
    pub fn see(&mut self, berth: &Berth, fenced: bool) {
        self.unfenced |= !fenced && !Bug::NoEpochStamp.is_awake();
        let work = match &berth.state {
            BerthState::Closed(_) => return,
            BerthState::Offered(_) => Work::Offered,
            BerthState::Held(holding) if holding.phase == HoldPhase::Taken => Work::Taken,
            BerthState::Held(_) => Work::Committed,
        };
        // A Node that was deleted and created again under its name counts as the same machine.
        if let Some((name, uid)) = berth.node() {
            self.at_work(|c| c.uid == *uid || c.name == *name, work);
        }
    }

    fn at_work(&mut self, is_it: impl Fn(&Carrier) -> bool, work: Work) {
        for carrier in self.carriers.iter_mut().filter(|c| is_it(c)) {
            carrier.at_work = carrier.at_work.max(Some(work));
        }
    }

    /// Returns name and UID of the control plane nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeUid)> {
        self.carriers.iter().map(|c| (&c.name, &c.uid))
    }

    /// Returns how the control plane suffers while one of its nodes is down; `None` if the remaining nodes are a
    /// majority.
    pub fn meanwhile(&self) -> Option<Meanwhile> {
        Meanwhile::of(self.carriers.iter().filter(|c| c.member).count())
    }

    pub(super) fn address_conflicts(&self) -> Vec<String> {
        self.conflicts.iter().map(AddressConflict::words).collect()
    }

    /// Returns the control plane nodes that other control plane nodes may wait for, by the cause of the wait.
    pub(super) fn waited_for(&self) -> BTreeMap<Cause, Vec<NodeName>> {
        let mut all: BTreeMap<Cause, Vec<NodeName>> = BTreeMap::new();
        for carrier in &self.carriers {
            let mut causes = vec![];
            if carrier.at_work.is_some() {
                causes.push(Cause::OtherAtWork);
            }
            if carrier.severity() != Severity::Nothing && !carrier.excluded {
                causes.push(Cause::OtherUnavailable);
            }
            let serves = self.state(carrier).is_none_or(|state| answers(state, true));
            if !carrier.stays_up() || !serves {
                causes.extend([Cause::NoMajority, Cause::NoOtherServer]);
            }
            for cause in causes {
                all.entry(cause).or_default().push(carrier.name.clone());
            }
        }
        all
    }

    /// Returns the steps that invariant I11 forbids for a node; `None` if it is not a control plane node. Until the API
    /// servers are listed, any node may be a control plane node.
    pub fn verdict(&self, uid: &NodeUid) -> Option<Verdict> {
        let Some(node) = self.carriers.iter().find(|c| c.uid == *uid) else {
            if self.listed || !self.asked {
                return None;
            }
            return Some(Verdict {
                withhold: Some(Cause::NotListed),
                ..Verdict::default()
            });
        };
        Some(Verdict {
            withhold: self.withhold(node),
            ask_back: self.ask_back(node),
            stay: (!self.another_answers(node, true)).then_some(Cause::NoOtherServer),
        })
    }

    fn others(&self, node: &Carrier) -> impl Iterator<Item = &Carrier> {
        self.carriers.iter().filter(|other| other.uid != node.uid)
    }

    fn withhold(&self, node: &Carrier) -> Option<Cause> {
        if self.others(node).any(|other| other.at_work.is_some()) && !Bug::SecondServer.is_awake() {
            return Some(Cause::OtherAtWork);
        }
        // No node waits for an excluded node, but excluded nodes count for majorities.
        let mut heeded = self.others(node).filter(|other| !other.excluded);
        if heeded.any(|other| other.severity() > node.severity()) {
            return Some(Cause::OtherUnavailable);
        }
        if let Some(cause) = self.lacking(node, true) {
            return Some(cause);
        }
        if !self.listed || self.lacking(node, false).is_some() {
            return Some(Cause::NotKnown);
        }
        self.unfenced.then_some(Cause::Unfenced)
    }

    fn ask_back(&self, node: &Carrier) -> Option<Cause> {
        let work = node.at_work?;
        // Two nodes can have a berth if one became a control plane node after its offer. Only one of the two continues.
        let mut others_at_work = self.others(node).filter_map(|other| Some((other, other.at_work?)));
        if others_at_work.any(|(other, theirs)| theirs > work || theirs == work && other.name < node.name) {
            return Some(Cause::OtherAtWork);
        }
        if node.ready && self.others(node).any(|other| !other.ready && !other.excluded) {
            return Some(Cause::OtherUnavailable);
        }
        self.lacking(node, true)
    }

    /// Returns why the cluster cannot do without the node: no majority, or no other API server. `hopeful`: servers in
    /// an unknown state count as up.
    fn lacking(&self, node: &Carrier, hopeful: bool) -> Option<Cause> {
        if !self.another_answers(node, hopeful) {
            return Some(Cause::NoOtherServer);
        }
        (!self.keeps_majority(node, hopeful)).then_some(Cause::NoMajority)
    }

    /// True if another API server answers, if the cluster has only one API server, or if the node runs none.
    ///
    /// A stopped server disappears from the list. So every other control plane node that is not excluded is assumed to
    /// have a server, listed or not. A node without a listed address is assumed to run no server. The exception is a
    /// list with addresses that no node has: one of them may be the node's.
    fn another_answers(&self, node: &Carrier, hopeful: bool) -> bool {
        let on_nodes = self.others(node).filter_map(|o| o.server);
        let on_nodes = on_nodes.filter(|s| answers(*s, hopeful)).count();
        let elsewhere = self.unplaced.iter().filter(|s| answers(**s, hopeful)).count();
        if node.server.is_some() {
            let more = self.total > node.servers || self.others(node).any(|o| o.member && !o.excluded);
            return !more || on_nodes + elsewhere > 0;
        }
        let may_run_one = node.member && !self.unplaced.is_empty() && self.total > 1;
        !may_run_one || on_nodes + elsewhere.saturating_sub(1) > 0
    }

    /// True if the other nodes are a majority of the etcd members and of the API servers. With only two members or
    /// servers, no majority is required, because one of two is never a majority.
    fn keeps_majority(&self, node: &Carrier, hopeful: bool) -> bool {
        // A node that is already down takes nothing away from the majority. But a node that is not Ready may still
        // serve.
        let own = self.state(node);
        let serves = own.is_some_and(|state| answers(state, !hopeful));
        if !node.ready && !serves {
            return true;
        }
        let members = self.carriers.iter().filter(|c| c.member).count();
        let up: Vec<&Carrier> = self.others(node).filter(|o| self.is_up(o, node, hopeful)).collect();
        let rest = up.iter().filter(|o| o.member).count();
        if node.member && members > 2 && rest < majority(members) {
            return false;
        }
        // A single address that no node has belongs to a load balancer or to another system.
        if self.total == self.unplaced.len() && self.total < 2 {
            return true;
        }
        let servers = self.carriers.iter().filter(|c| self.has_server(c)).count() + self.unplaced.len();
        let elsewhere = self.unplaced.iter().filter(|s| answers(**s, hopeful)).count();
        let of_its_own = usize::from(!self.has_server(node));
        let rest = up.iter().filter(|o| self.has_server(o)).count() + elsewhere.saturating_sub(of_its_own);
        servers <= 2 || rest >= majority(servers)
    }

    /// True if `other` counts as up while `node` is updated.
    fn is_up(&self, other: &Carrier, node: &Carrier, hopeful: bool) -> bool {
        match self.state(other) {
            Some(state) => answers(state, hopeful) && (!node.ready || other.stays_up()),
            None => other.stays_up(),
        }
    }

    /// True if the node runs an API server, or is assumed to run one because it has the control plane label.
    fn has_server(&self, carrier: &Carrier) -> bool {
        carrier.server.is_some() || self.unplaced.is_empty() && carrier.member && !carrier.excluded
    }

    /// Returns the state of the node's API server; `None` if it is not known whether the node has one.
    fn state(&self, node: &Carrier) -> Option<State> {
        match node.server {
            _ if !self.listed => Some(State::Unknown),
            Some(state) => Some(state),
            None if self.total == 0 || !self.unplaced.is_empty() => None,
            // The node's server is no longer listed.
            None => Some(State::Away),
        }
    }
}

fn answers(state: State, hopeful: bool) -> bool {
    state == State::Ready || hopeful && state == State::Unknown
}
