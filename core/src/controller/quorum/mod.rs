//! Invariant I11: how many of the nodes that carry the control plane may be away at once. Pure.
//!
//! Each node with a control plane label is taken to run an API server and, since etcd is stacked, one etcd member. A node
//! without the label is taken to run an API server if one is listed at its address and no node with the label has that
//! address. One of these nodes at a time is worked on, whichever pools they are in; none while another one is worse off; and
//! the others must be a majority of the servers and of the members that the cluster has.

use crate::Moment;
use crate::controller::servers::{Answers, State};
use crate::controller::view::{LeaseView, NodeView};
use berth_api::berth::{Berth, BerthState, HoldPhase};
use berth_api::seeded::Bug;
use berth_api::{NodeName, NodeUid, keys};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
mod addresses;
mod carrier;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
mod verdict;
use addresses::{AddressConflict, Owners};
use carrier::{Carrier, Trouble, Work};
pub use verdict::{Cause, Meanwhile, Verdict};

/// The nodes that carry the control plane, across all pools, and what is known of their servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlPlane {
    carriers: Vec<Carrier>,
    /// Addresses of API servers that several nodes have.
    conflicts: Vec<AddressConflict>,
    /// True if a list of the API servers is wanted; false if no member of any pool is to be updated.
    asked: bool,
    /// The API servers were listed.
    listed: bool,
    /// Number of those that are.
    total: usize,
    /// The states of those at an address that no Node has.
    unplaced: Vec<State>,
    /// A write that this leader did not make, or whose fate it does not know, may still open a berth.
    unfenced: bool,
}

fn majority(of: usize) -> usize {
    of / 2 + 1
}

impl ControlPlane {
    /// Returns the control plane among these Nodes, which are all that the cluster has. None of them is at work yet.
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

    /// The same, with the berths of all pools as they were read. `is_fenced`: no late write can open that berth for one of
    /// these nodes.
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

    /// Notes a berth of any pool, and whether no write but the next one of this leader can land on it.
    pub fn see(&mut self, berth: &Berth, fenced: bool) {
        self.unfenced |= !fenced && !Bug::NoEpochStamp.is_awake();
        let work = match &berth.state {
            BerthState::Closed(_) => return,
            BerthState::Offered(_) => Work::Offered,
            BerthState::Held(holding) if holding.phase == HoldPhase::Taken => Work::Taken,
            BerthState::Held(_) => Work::Committed,
        };
        // A Node that was created anew is the same machine.
        if let Some((name, uid)) = berth.node() {
            self.at_work(|c| c.uid == *uid || c.name == *name, work);
        }
    }

    fn at_work(&mut self, is_it: impl Fn(&Carrier) -> bool, work: Work) {
        for carrier in self.carriers.iter_mut().filter(|c| is_it(c)) {
            carrier.at_work = carrier.at_work.max(Some(work));
        }
    }

    /// The nodes of the control plane.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeUid)> {
        self.carriers.iter().map(|c| (&c.name, &c.uid))
    }

    /// Loss while a node of the control plane is down, however carefully it is done.
    pub fn meanwhile(&self) -> Option<Meanwhile> {
        Meanwhile::of(self.carriers.iter().filter(|c| c.member).count())
    }

    /// Returns a message about each address of an API server that several Nodes have.
    pub(super) fn address_conflicts(&self) -> Vec<String> {
        self.conflicts.iter().map(AddressConflict::words).collect()
    }

    /// Returns the nodes that each cause is about.
    pub(super) fn waited_for(&self) -> BTreeMap<Cause, Vec<NodeName>> {
        let mut all: BTreeMap<Cause, Vec<NodeName>> = BTreeMap::new();
        let mut add = |cause: Cause, carrier: &Carrier| all.entry(cause).or_default().push(carrier.name.clone());
        for carrier in &self.carriers {
            if carrier.at_work.is_some() {
                add(Cause::OtherAtWork, carrier);
            }
            if carrier.trouble() != Trouble::Nothing && !carrier.excluded {
                add(Cause::OtherUnavailable, carrier);
            }
            let serves = self.state(carrier).is_none_or(|state| answers(state, true));
            if !carrier.stays_up() || !serves {
                add(Cause::NoMajority, carrier);
                add(Cause::NoOtherServer, carrier);
            }
        }
        all
    }

    /// Returns the verdict of I11 on a node; `None` for one that does not carry the control plane. Until the API servers are
    /// listed, any node may carry it.
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
        // Who is excluded is waited for by nobody, but counts where majorities do.
        let mut heeded = self.others(node).filter(|other| !other.excluded);
        if heeded.any(|other| other.trouble() > node.trouble()) {
            return Some(Cause::OtherUnavailable);
        }
        let known = || self.listed && self.lacking(node, false).is_none();
        self.lacking(node, true)
            .or_else(|| (!known()).then_some(Cause::NotKnown))
            .or(self.unfenced.then_some(Cause::Unfenced))
    }

    fn ask_back(&self, node: &Carrier) -> Option<Cause> {
        let work = node.at_work?;
        // Two at work at once: one of them became a control plane node meanwhile. One goes on.
        let goes_first = |other: &Carrier| {
            other
                .at_work
                .is_some_and(|theirs| theirs > work || theirs == work && other.name < node.name)
        };
        if self.others(node).any(goes_first) {
            return Some(Cause::OtherAtWork);
        }
        let is_down = |other: &Carrier| !other.ready && !other.excluded;
        if node.ready && self.others(node).any(is_down) {
            return Some(Cause::OtherUnavailable);
        }
        self.lacking(node, true)
    }

    /// Majorities that the cluster would lack without the node. `hopeful`: servers of which nothing is known yet are up.
    fn lacking(&self, node: &Carrier, hopeful: bool) -> Option<Cause> {
        if !self.another_answers(node, hopeful) {
            return Some(Cause::NoOtherServer);
        }
        (!self.keeps_majority(node, hopeful)).then_some(Cause::NoMajority)
    }

    /// Says whether another server answers, if the cluster has more than one and the node may run one of them.
    ///
    /// A server leaves the list when it stops, so the list alone does not tell how many there are: every other control
    /// plane node that is not excluded is taken to have one. A node at whose address none is listed runs none, unless
    /// there are servers at addresses that no node has; then one of these may be its own.
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

    /// Says whether the others are a majority of the etcd members and of the servers. None can be kept of two.
    fn keeps_majority(&self, node: &Carrier, hopeful: bool) -> bool {
        // Nothing is taken away by working on what is down already. One that is not Ready may serve all the same.
        let own = self.state(node);
        let serves = own.is_some_and(|state| answers(state, !hopeful));
        if !node.ready && !serves {
            return true;
        }
        let is_up = |other: &&Carrier| match self.state(other) {
            Some(state) => answers(state, hopeful) && (!node.ready || other.stays_up()),
            None => other.stays_up(),
        };
        let members = self.carriers.iter().filter(|c| c.member).count();
        let rest = self.others(node).filter(|o| o.member).filter(is_up).count();
        if node.member && members > 2 && rest < majority(members) {
            return false;
        }
        // One address that no node has is a load balancer's, or somebody else's business.
        if self.total == self.unplaced.len() && self.total < 2 {
            return true;
        }
        let has_server = |c: &&Carrier| c.server.is_some() || self.unplaced.is_empty() && c.member && !c.excluded;
        let servers = self.carriers.iter().filter(has_server).count() + self.unplaced.len();
        let elsewhere = self.unplaced.iter().filter(|s| answers(**s, hopeful)).count();
        let of_its_own = usize::from(!has_server(&node));
        let rest = self.others(node).filter(has_server).filter(is_up).count() + elsewhere.saturating_sub(of_its_own);
        servers <= 2 || rest >= majority(servers)
    }

    /// The state of the node's server; `None` when nothing can be told about it.
    fn state(&self, node: &Carrier) -> Option<State> {
        match node.server {
            _ if !self.listed => Some(State::Unknown),
            Some(state) => Some(state),
            None if self.total == 0 || !self.unplaced.is_empty() => None,
            // It has left the list.
            None => Some(State::Away),
        }
    }
}

fn answers(state: State, hopeful: bool) -> bool {
    state == State::Ready || hopeful && state == State::Unknown
}
