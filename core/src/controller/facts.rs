//! Makes facts for the pure functions from the snapshot of the watches. Pure.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::Holding;
use berth_api::pool::{
    BootcNodePool, BootcNodePoolSpec, BootcNodePoolStatus, DEFAULT_REBOOT_TIMEOUT, DigestFailures, PhaseDurations,
};
use berth_api::seeded::Bug;
use berth_api::{NodeName, NodeUid, PoolName, duration, keys};
use jiff::Timestamp;

use crate::Moment;
use crate::controller::gates::{FleetGate, Gates, Inputs};
use crate::controller::memory::{Offers, Soaks};
use crate::controller::plan::{Estimate, Failures, Member, PoolFacts, SeenBerth, Wave};
use crate::controller::publish::{Terms, desired_digest, is_stale, made_for};
use crate::controller::snapshot::{Objects, Snapshot};
use crate::controller::view::{BootcNodeView, LeaseView, NodeView, PoolView, Report};
use berth_api::membership::{self, Membership};
use berth_api::waves::{self, Waves};

/// A pool as this pass sees it.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// The object; `None` for a pool that is gone while its berths are still there.
    pub object: Option<BootcNodePool>,
    /// True if it is being deleted, or gone.
    pub deleting: bool,
    /// Error in its selector.
    pub bad_selector: Option<String>,
    /// Words on why its reference may not be used; none when it may.
    pub refused: Option<String>,
}

/// Says whether a pool is still what the watch showed of it, as far as the admin writes it. `now`: as it was just read.
pub fn is_as_shown(shown: &Pool, now: Option<&BootcNodePool>) -> bool {
    let key = |pool: &BootcNodePool| {
        let metadata = &pool.metadata;
        let deleting = metadata.deletion_timestamp.is_some();
        (metadata.uid.clone(), metadata.generation, deleting)
    };
    shown.object.as_ref().map(key) == now.map(key)
}

impl Pool {
    /// The pools that can be read. Berths and members of one that cannot are left as they are.
    pub fn readable(pools: &Objects<PoolView>) -> Vec<Pool> {
        pools
            .values()
            .filter_map(|entry| {
                let object = entry.view.object.as_ref().ok()?.clone();
                let selector = membership::selector(object.spec.node_selector.as_ref());
                Some(Pool {
                    name: entry.view.name.clone(),
                    deleting: object.metadata.deletion_timestamp.is_some(),
                    bad_selector: selector.err(),
                    refused: None,
                    object: Some(object),
                })
            })
            .collect()
    }

    /// A pool that only its berths still name.
    pub fn orphaned(name: PoolName) -> Pool {
        Pool {
            name,
            object: None,
            deleting: true,
            bad_selector: None,
            refused: None,
        }
    }

    /// The target in force.
    pub fn target(&self) -> Option<&berth_api::pool::Target> {
        self.object.as_ref()?.status.as_ref().and_then(|s| s.target.as_ref())
    }

    /// Medians of what its members measured.
    fn estimates(&self) -> PhaseDurations {
        let status = self.object.as_ref().and_then(|object| object.status.as_ref());
        status.map(|status| status.phase_durations).unwrap_or_default()
    }

    /// The request for a poll of its tag. One that the status has no room to repeat is none.
    pub fn poll_request(&self) -> Option<&str> {
        let annotations = self.object.as_ref()?.metadata.annotations.as_ref()?;
        let request = annotations.get(keys::ANNOTATION_POLL_REQUESTED_AT)?;
        (1..=64).contains(&request.len()).then_some(request)
    }

    /// The spec names another reference than the one that the target was resolved from, or one that is not allowed: what is
    /// published is no longer wanted, and what is wanted instead is not known yet.
    pub fn unresolved(&self) -> bool {
        let reference = self.object.as_ref().map(|o| o.spec.image_ref());
        self.target()
            .is_some_and(|target| self.refused.is_some() || Some(target.image.as_str()) != reference)
    }

    /// Says whether the pool waits for the one of that name.
    pub fn comes_after(&self, name: &PoolName) -> bool {
        let object = self.object.as_ref();
        object.is_some_and(|object| object.spec.after().iter().any(|after| after == name.as_str()))
    }

    /// The pool's capacity for so many members.
    pub fn capacity(&self, members: usize) -> usize {
        match &self.object {
            Some(object) if !self.deleting => object.spec.capacity(members),
            _ => 0,
        }
    }

    fn published(&self) -> usize {
        let status = self.object.as_ref().and_then(|o| o.status.as_ref());
        status.map_or(0, |s| s.berths.total as usize)
    }

    fn status(&self) -> Option<&BootcNodePoolStatus> {
        self.object.as_ref()?.status.as_ref()
    }

    /// The failures on record, unless the admin has asked to forget them.
    pub fn failures(&self) -> Failures {
        let (Some(object), Some(status)) = (&self.object, self.status()) else {
            return Failures::new();
        };
        if is_news(object.spec.retry_token(), status.retry_token.as_deref()) {
            return Failures::new();
        }
        let nodes = |f: &DigestFailures| f.nodes.iter().map(|n| NodeName::from(n.as_str())).collect();
        status.failures.iter().map(|f| (f.digest.clone(), nodes(f))).collect()
    }

    /// Time after which a reboot counts as failed.
    pub fn reboot_timeout(&self) -> Duration {
        let object = self.object.as_ref();
        object.map_or(DEFAULT_REBOOT_TIMEOUT, |object| object.spec.reboot_timeout())
    }

    /// Longest time for which pods are waited with, unless they are to be waited with for ever.
    fn drain_timeout(&self) -> Duration {
        let object = self.object.as_ref();
        object.map_or(Duration::MAX, |object| object.spec.drain().timeout())
    }

    /// Expected length of a drain and a reboot of a node that measured these: what it did itself, with an earlier image, but
    /// no longer than what its pool has measured, or the pool's timeouts before that. One slow turn must not shut it out of
    /// its windows for ever; nor may a slow pool, since only those that fit measure anew.
    fn estimate_of(&self, report: &Report) -> Estimate {
        let either = |expected: Duration, own: Option<Duration>, timeout: Duration| match (expected, own) {
            (Duration::ZERO, own) => own.unwrap_or_default().min(timeout),
            (expected, own) => own.unwrap_or(expected).min(expected),
        };
        let expected = self.estimate();
        Estimate {
            drain: either(expected.drain, report.drain, self.drain_timeout()),
            reboot: either(expected.reboot, report.reboot, self.reboot_timeout()),
        }
    }

    /// Expected length of a drain and a reboot in this pool, as far as it is known.
    pub fn estimate(&self) -> Estimate {
        let seconds = |s: Option<u32>| Duration::from_secs(s.unwrap_or_default().into());
        let medians = self.status().map(|s| s.phase_durations).unwrap_or_default();
        Estimate {
            drain: seconds(medians.drain_seconds).min(self.drain_timeout()),
            reboot: seconds(medians.reboot_seconds).min(self.reboot_timeout()),
        }
    }

    /// Inputs of the pool's gates; `None` for a pool that is gone.
    pub fn gate_inputs(
        &self,
        fleet: Option<FleetGate>,
        clock_synchronized: bool,
        now: Timestamp,
    ) -> Option<Inputs<'_>> {
        let expected = self.estimate();
        Some(Inputs {
            pool: &self.name,
            spec: &self.object.as_ref()?.spec,
            fleet,
            clock_synchronized,
            needed: expected.drain.saturating_add(expected.reboot),
            now,
        })
    }

    /// The waves of the spec, and those that it does not name.
    fn waves(&self, soaks: &Soaks) -> Vec<Wave> {
        let rollout = self.object.as_ref().map(|o| o.spec.rollout()).unwrap_or_default();
        let soak = |text: Option<&str>| duration::parse_or(text.or(rollout.soak_time.as_deref()), Duration::ZERO);
        let named = rollout
            .waves
            .iter()
            .map(|w| (w.name.clone(), soak(w.soak_time.as_deref())));
        let implied = [waves::REST, waves::CONTROL_PLANE].map(|name| (name.to_owned(), soak(None)));
        let told = self.status().map(|s| s.waves.as_slice()).unwrap_or_default();
        let wave = |(name, soak): (String, Duration)| {
            let told = told.iter().find(|w| w.name == name).map_or(0, |w| w.soaked_seconds);
            let seen = self
                .target()
                .map(|target| soaks.soaked(&self.name, &target.digest, &name));
            let soaked = seen.unwrap_or_default().max(Duration::from_secs(told));
            Wave { name, soak, soaked }
        };
        named.chain(implied).map(wave).collect()
    }
}

/// Says whether a retry token asks for something that was not done for the last one. A token that is taken away asks
/// for nothing: no agent acts on it, and its failures stay on record.
fn is_news(token: &str, obeyed: Option<&str>) -> bool {
    !token.is_empty() && obeyed != Some(token)
}

/// Reports of progress that may reach the API server in a second, from all nodes that stage at once.
const PROGRESS: u64 = 50;

/// Shortest interval between two reports of progress of one node, when so many stage at once. It doubles, so that a few more
/// nodes do not mean another spec for all.
fn progress_interval(staging: usize) -> Duration {
    let staging = u64::try_from(staging).unwrap_or(u64::MAX);
    match staging.div_ceil(PROGRESS) {
        0 | 1 => Duration::ZERO,
        seconds => Duration::from_secs(seconds.checked_next_power_of_two().unwrap_or(seconds)),
    }
}

/// Terms of each pool for its members. `resolving`: the pools whose first resolution is under way.
pub fn terms(pools: &[Pool], membership: &Membership, resolving: &BTreeSet<PoolName>) -> BTreeMap<PoolName, Terms> {
    let asked = pools.iter().filter_map(|pool| {
        let members = membership.members(&pool.name).len();
        let spec = &pool.object.as_ref()?.spec;
        Some((pool, spec, members, spec.max_staging(members)))
    });
    let asked: Vec<_> = asked.collect();
    let staging = asked.iter().map(|(_, _, members, most)| most.min(members));
    let least = progress_interval(staging.sum());
    let one = |(pool, spec, _, max_staging): (&Pool, &BootcNodePoolSpec, usize, usize)| {
        let terms = Terms {
            target: pool.target().cloned(),
            unresolved: pool.unresolved(),
            resolving: resolving.contains(&pool.name),
            max_staging,
            drain: spec.drain(),
            signature: spec.signature(),
            backend: spec.backend(),
            rival_updaters: spec.rival_updaters.unwrap_or_default(),
            tolerated_updaters: spec.tolerated_updaters.clone(),
            retry_token: Some(spec.retry_token().to_owned()).filter(|t| !t.is_empty()),
            reboot_timeout: spec.reboot_timeout(),
            progress_interval: match spec.progress_interval() {
                Duration::ZERO => Duration::ZERO,
                asked => asked.max(least),
            },
            paused: spec.is_paused(),
            estimates: pool.estimates(),
        };
        (pool.name.clone(), terms)
    };
    asked.into_iter().map(one).collect()
}

/// Returns the pools that exist and are not being deleted, as far as they can be read.
pub fn lasting(pools: &Objects<PoolView>) -> BTreeSet<PoolName> {
    let is_deleting = |pool: &PoolView| {
        let object = pool.object.as_ref();
        object.is_ok_and(|object| object.metadata.deletion_timestamp.is_some())
    };
    let lasting = pools.values().filter(|entry| !is_deleting(&entry.view));
    lasting.map(|entry| entry.view.name.clone()).collect()
}

/// Nodes that have something to do with berths.
#[derive(Debug, Clone, Default)]
pub struct Occupied {
    /// Pools of the berths that each node holds or is offered.
    pub by_uid: BTreeMap<NodeUid, BTreeSet<PoolName>>,
    /// The same nodes' names.
    pub names: BTreeMap<NodeUid, NodeName>,
    /// The berths that are held, by their holders.
    pub holdings: BTreeMap<NodeUid, Holding>,
    /// Labels of the nodes that a Lease names which cannot be read.
    pub unclear: BTreeSet<String>,
}

/// Reads who has berths from all Leases.
pub fn occupied(leases: &[LeaseView]) -> Occupied {
    let mut occupied = Occupied::default();
    for lease in leases {
        match &lease.berth {
            Ok(berth) => {
                if let Some((node, uid)) = berth.node() {
                    let pools = occupied.by_uid.entry(uid.clone()).or_default();
                    pools.insert(lease.pool.clone());
                    occupied.names.insert(uid.clone(), node.clone());
                }
                if let Some(holding) = berth.holding() {
                    occupied.holdings.insert(holding.uid.clone(), holding.clone());
                }
            }
            Err(_) => {
                let labels = lease.lease.metadata.labels.as_ref();
                if let Some(node) = labels.and_then(|l| l.get(keys::LABEL_NODE)) {
                    occupied.unclear.insert(node.clone());
                }
            }
        }
    }
    occupied
}

/// Names and UIDs of Nodes that something of ours refers to and that the watch does not show: to be confirmed by a
/// live read before anything is done about it.
pub fn missing_nodes(snapshot: &Snapshot, occupied: &Occupied) -> BTreeMap<NodeUid, NodeName> {
    // A reference that has the wrong name says nothing of the Node of that UID.
    let of_any = LazyCell::new(|| -> BTreeSet<&str> { snapshot.nodes.values().map(|n| n.view.uid.as_str()).collect() });
    let is_there = |uid: &str, name: &str| {
        snapshot.nodes.get(name).is_some_and(|n| n.view.uid.as_str() == uid) || of_any.contains(uid)
    };
    let hosts = snapshot
        .hosts
        .iter()
        .filter_map(|(name, host)| Some((made_for(&host.view)?, name.as_str())));
    let holders = occupied.names.iter().map(|(uid, name)| (uid.as_str(), name.as_str()));
    let missing = hosts.chain(holders).filter(|(uid, name)| !is_there(uid, name));
    missing.map(|(uid, name)| (uid.into(), name.into())).collect()
}

/// Input of the plan of one pool's berths, beside the pool: the same for all pools.
#[derive(Debug, Clone, Copy)]
pub struct Shared<'a> {
    /// Snapshot of the watches.
    pub snapshot: &'a Snapshot,
    /// The pool of each node.
    pub membership: &'a Membership,
    /// All berths.
    pub leases: &'a [LeaseView],
    /// The nodes that hold berths or are offered them.
    pub occupied: &'a Occupied,
    /// Leases with a write of ours of unknown fate.
    pub in_doubt: &'a BTreeSet<String>,
    /// Leases that the API server refused to write: they count as used, and nothing is written to them.
    pub refused: &'a BTreeSet<String>,
    /// Node UIDs that a live read has shown to exist no more.
    pub confirmed_gone: &'a BTreeSet<NodeUid>,
    /// Nodes whose agent has been heard of lately.
    pub heard: &'a BTreeSet<NodeName>,
    /// BootcNodes (UIDs) whose agents were asked long ago to release their node.
    pub overdue: &'a BTreeSet<String>,
    /// Pools of which what the watches show is not known to be true any more.
    pub outdated: &'a BTreeSet<PoolName>,
    /// The open offers, and who let some lapse.
    pub offers: &'a Offers,
    /// Soak times of the waves so far.
    pub soaks: &'a Soaks,
    /// The gates of each pool.
    pub gates: &'a BTreeMap<PoolName, Gates>,
    /// Time at which the ages of the offers are measured.
    pub now: Moment,
    /// The epoch of this leader.
    pub epoch: u64,
}

impl Shared<'_> {
    /// The facts for one pool's plan, without what it shares with the others: [`Shared::all`] adds that.
    pub fn of(&self, pool: &Pool) -> PoolFacts {
        let names: Vec<&NodeName> = self.membership.members(&pool.name).collect();
        let capacity = pool.capacity(names.len());
        let waves = pool.object.as_ref().map(|o| o.spec.rollout().waves).unwrap_or_default();
        let waves = Waves::of(&waves);
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
        let berths: Vec<SeenBerth> = self
            .leases
            .iter()
            .filter(|lease| lease.pool == pool.name)
            .map(|lease| SeenBerth {
                lease: lease.name().to_owned(),
                berth: lease.berth.clone(),
                in_doubt: self.in_doubt.contains(lease.name()),
                refused: self.refused.contains(lease.name()) && !Bug::RefusedTriedAgain.is_awake(),
                age: self.offers.age(lease.name(), self.now),
            })
            .collect();
        // Of all the others nothing is asked.
        let named = || berths.iter().filter_map(|seen| seen.berth.as_ref().ok()?.node());
        let uids = members.iter().map(|m| &m.uid).chain(named().map(|(_, uid)| uid));
        let elsewhere = uids.filter(|uid| self.is_elsewhere(uid, &pool.name)).cloned().collect();
        let lost = named()
            .filter(|(node, uid)| self.is_lost(node, uid))
            .map(|(_, uid)| uid.clone())
            .collect();
        PoolFacts {
            pool: pool.name.clone(),
            epoch: self.epoch,
            capacity,
            published: pool.published(),
            gate: gates.and_then(|g| g.gate.clone()),
            closes: gates.and_then(|g| g.closes),
            waves: pool.waves(self.soaks),
            failures: pool.failures(),
            max_failures: pool.object.as_ref().map_or(1, |o| o.spec.max_failures()),
            unresolved: pool.unresolved(),
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

    /// Says whether the node has a berth or an offer of another pool.
    fn is_elsewhere(&self, uid: &NodeUid, pool: &PoolName) -> bool {
        self.occupied
            .by_uid
            .get(uid)
            .is_some_and(|pools| pools.iter().any(|p| p != pool))
    }

    /// Says whether what Berth did on the node is not undone yet, as far as its BootcNode says.
    pub(super) fn has_yet_to_leave(&self, name: &NodeName) -> bool {
        let node = self.snapshot.nodes.get(name.as_str()).map(|n| n.view.as_ref());
        let host = self.snapshot.hosts.get(name.as_str());
        host.is_some_and(|host| !host.view.released() && !is_stale(&host.view, node))
    }

    /// True if the node's agent has not released it in time, and no berth is left of its last turn.
    fn is_abandoned(&self, name: &NodeName) -> bool {
        let node = self.snapshot.nodes.get(name.as_str());
        let has_berth = node.is_some_and(|node| self.occupied.by_uid.contains_key(&node.view.uid));
        let host = self.snapshot.hosts.get(name.as_str());
        host.is_some_and(|host| self.overdue.contains(&host.view.uid)) && !has_berth
    }

    /// Says whether the Node is excluded and not Ready.
    fn is_lost(&self, node: &NodeName, uid: &NodeUid) -> bool {
        let node = self
            .snapshot
            .nodes
            .get(node.as_str())
            .map(|n| n.view.as_ref())
            .filter(|n| n.uid == *uid);
        node.is_some_and(|n| !n.ready && n.labels.contains_key(keys::LABEL_EXCLUDE))
    }

    fn member(&self, pool: &Pool, name: &NodeName, waves: &Waves) -> Option<Member> {
        let node = self.snapshot.nodes.get(name.as_str())?.view.as_ref();
        let host = self.snapshot.hosts.get(name.as_str());
        let mut member = member(pool, node, host.map(|h| h.view.as_ref()), self.heard.contains(name))?;
        member.observed = host.is_some_and(|h| h.view.observed());
        member.wave = waves.number(&node.labels);
        member.lapses = member
            .desired
            .as_ref()
            .map_or(0, |desired| self.offers.lapses(&member.uid, desired));
        Some(member)
    }
}

/// A member as the plan sees it.
fn member(pool: &Pool, node: &NodeView, host: Option<&BootcNodeView>, heard: bool) -> Option<Member> {
    // Its agent is told to let go of everything. It may be down or unproven all the same, and counts as such.
    let leaving = host.is_some_and(|h| h.deleting);
    if leaving && Bug::LeavingNotCounted.is_awake() {
        return None;
    }
    let spec = host.and_then(BootcNodeView::spec);
    let silent = Report::default();
    let report = host.and_then(BootcNodeView::report).unwrap_or(&silent);
    // What another pool published says nothing about this one.
    let ours = spec.filter(|s| s.pool_name == pool.name.as_str());
    let asked = pool.object.as_ref().map(|o| &o.spec);
    // Before the agent has obeyed a retry token, what it says of failures is what the token takes back.
    let retried = asked.is_some_and(|s| is_news(s.retry_token(), report.retry_token.as_deref()));
    let zone = asked
        .and_then(|s| node.labels.get(s.zone_key()))
        .cloned()
        .unwrap_or_default();
    Some(Member {
        name: node.name.clone(),
        uid: node.uid.clone(),
        ready: node.ready,
        unschedulable: node.unschedulable,
        our_cordon: node.our_cordon,
        desired: desired_digest(pool.target(), node.platform(host)).cloned(),
        published: ours.and_then(|s| s.image.as_ref()).map(|i| i.digest.clone()),
        published_uid: NodeUid::from(spec.map_or("", |s| s.node_uid.as_str())),
        observed: false,
        prepared: report.prepared,
        staged: report.staged.clone().filter(|_| report.locked),
        booted: report.booted.clone(),
        failed: if retried { vec![] } else { report.failed.clone() },
        last_turn: report
            .last_turn
            .as_ref()
            .map(|turn| (turn.digest.clone(), turn.attempts)),
        lapses: 0,
        heard,
        leaving,
        abandoned: false,
        held_back: node.labels.contains_key(keys::LABEL_HOLD) && !Bug::HoldIgnored.is_awake(),
        wave: 0,
        zone,
        control_plane: None,
        clock_synchronized: report.clock_synchronized,
        estimate: pool.estimate_of(report),
    })
}

#[cfg(test)]
mod tests;
