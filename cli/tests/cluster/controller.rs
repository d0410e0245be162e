//! Controller of the test cluster: publishes the specs of BootcNodes, judges nodes, and reports on pools and the fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use berth_api::condition::{self, CommonReason, Verdict, node as types};
use berth_api::decode::Decoded;
use berth_api::fleet::BootcFleetStatus;
use berth_api::keys;
use berth_api::membership::Membership;
use berth_api::waves::is_control_plane;
use berth_api::{NodeName, NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::aggregate::Polled;
use berth_core::controller::fleet::health::{self, Agent, FleetStatusFacts, PoolState, SILENT_AFTER};
use berth_core::controller::fleet::held::Machines;
use berth_core::controller::gates::{Gates, gates};
use berth_core::controller::image::{Answer, Answers, Found, QueryFailure, ResolveReason};
use berth_core::controller::implausible::{Contradiction, Implausible};
use berth_core::controller::ledger::Ledger;
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::occupied::Occupied;
use berth_core::controller::offers::Offers;
use berth_core::controller::overdue::{self, Holder, Overdue, Timeouts};
use berth_core::controller::plan::Plan;
use berth_core::controller::pool::{self, Pool};
use berth_core::controller::publish::{self, BootcNodeWrite, PublishFacts, publish};
use berth_core::controller::round::Round;
use berth_core::controller::servers::{self, Asked};
use berth_core::controller::silence::Silent;
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::soaks::Soaks;
use berth_core::controller::staging_permits::StagingPermits;
use berth_core::controller::statuses::{PassResults, holdings};
use berth_core::controller::view::LeaseView;
use berth_core::controller::waiting;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::World;
use super::facts::PoolFacts;

/// Default of the controller's flag `--agent-silence`.
const SILENCE: Duration = Duration::from_secs(900);
/// Uptime of the controller: long enough to judge the silence of every agent.
const UPTIME: Duration = Duration::from_secs(1_000_000);

struct Pass<'a> {
    seen: &'a Snapshot,
    membership: Arc<Membership>,
    pools: Vec<Pool>,
    leases: Vec<LeaseView>,
    occupied: Occupied,
    heard: BTreeSet<NodeName>,
    gates: BTreeMap<PoolName, Gates>,
    plans: BTreeMap<PoolName, Plan>,
    lost: BTreeSet<NodeUid>,
    implausible: BTreeMap<NodeUid, Implausible>,
    at: Timestamp,
}

impl World<'_> {
    /// Adds the Nodes and their BootcNodes. Nodes are excluded after that, so an excluded node has a BootcNode too.
    pub(super) fn join(&mut self) {
        for has_joined in [false, true] {
            let nodes = self.facts.nodes.iter();
            let nodes = nodes.map(|(name, facts)| self.facts.node(name, facts, has_joined, self.now));
            self.objects.nodes = nodes.map(|node| Decoded::from(node).into()).collect();
            if !has_joined {
                self.publish();
            }
        }
    }

    /// Returns the objects as the controller sees them, and the members of the pools.
    pub(super) fn seen(&self) -> (Snapshot, Arc<Membership>) {
        let objects = &self.objects;
        let leases = objects.leases.iter();
        let fleet = objects.fleet.as_ref();
        let nodes = objects.nodes.iter().map(|node| node.view.clone());
        let seen = Snapshot::of(&objects.pools, &objects.bootc_nodes, nodes, leases, fleet);
        let membership = MembershipCache::default().of(&seen);
        (seen, membership)
    }

    /// Makes one pass of the controller: as of the start of each pool's current state (`since`), or as of now.
    pub(super) fn control(&mut self, since: bool) {
        self.publish();
        let (seen, _) = self.seen();
        let pools = self.facts.pools.values();
        let longest = pools
            .map(|pool| pool.since)
            .max()
            .unwrap_or(SignedDuration::from_mins(10));
        let at = if since { self.now - longest } else { self.now };
        let pass = self.pass(&seen, at);
        let waiting = waiting::wanted(&seen, &pass.pools, &pass.membership, &pass.plans);
        let lost = self.lost_conditions(&pass);
        let verdicts = waiting
            .into_iter()
            .map(|(name, verdict)| (name, types::WAITING, verdict));
        let timed_out = lost
            .into_iter()
            .map(|(name, verdict)| (name, types::REBOOT_TIMED_OUT, verdict));
        let implausible = pass.implausible.iter().filter_map(|(uid, found)| {
            let node = seen.nodes.values().find(|node| node.view.uid == *uid)?;
            let verdict = Verdict::yes(found.reason, &*found.message);
            Some((node.view.name.clone(), types::IMPLAUSIBLE, verdict))
        });
        let verdicts: Vec<_> = verdicts.chain(timed_out).chain(implausible).collect();
        let answers: BTreeMap<String, Answers> = self
            .facts
            .pools
            .iter()
            .map(|(name, pool)| (name.clone(), self.answers(pool)))
            .collect();
        let mut statuses = BTreeMap::new();
        for (pool, facts) in pass
            .pools
            .iter()
            .filter_map(|pool| Some((pool, self.facts.pools.get(pool.name.as_str())?)))
        {
            let at = if since { self.now - facts.since } else { self.now };
            statuses.insert(
                pool.name.to_string(),
                self.pool_status(&pass, pool, (facts, &answers[pool.name.as_str()]), at),
            );
        }
        let fleet = self.fleet_status(&pass, &answers, at);
        for (name, type_, verdict) in verdicts {
            let bootc = self
                .objects
                .bootc_nodes
                .iter_mut()
                .find(|bootc| bootc.name_any() == name.as_str())
                .unwrap();
            let generation = bootc.metadata.generation;
            let conditions = &mut bootc.status.get_or_insert_default().conditions;
            condition::set(conditions, type_, verdict, generation, at);
        }
        for pool in &mut self.objects.pools {
            pool.status = statuses.remove(&pool.name_any());
        }
        if let Some(object) = &mut self.objects.fleet {
            object.status = Some(fleet);
        }
        if !since {
            self.report_silence(&seen);
        }
    }

    fn publish(&mut self) {
        let (seen, membership) = self.seen();
        let pools = Pool::readable(&seen.pools);
        let leases = seen.lease_views();
        let occupied = Occupied::of(&leases);
        let facts = PublishFacts {
            nodes: &seen.nodes,
            bootc_nodes: &seen.bootc_nodes,
            membership: &membership,
            terms: &publish::terms(&pools, &membership, &BTreeSet::new()),
            occupied: &occupied.by_uid,
            holdings: &occupied.holdings,
            unclear: &occupied.unclear,
            overdue: &BTreeSet::new(),
            lasting: &pool::lasting(&seen.pools),
            confirmed_gone: &BTreeSet::new(),
            heard: &self.heard(),
            permits: &StagingPermits::default(),
            fleet_paused: seen.fleet_spec().is_some_and(|spec| spec.paused),
        };
        for write in publish(&facts) {
            let bootcs = &mut self.objects.bootc_nodes;
            match write {
                BootcNodeWrite::Create { name, spec, label } => {
                    let mut bootc = publish::object(&name, &spec, label.as_deref());
                    bootc.metadata.uid = Some(format!("uid-bootc-{name}"));
                    bootc.metadata.generation = Some(1);
                    bootcs.push(bootc.into());
                }
                BootcNodeWrite::Update { name, spec, label, .. } => {
                    let bootc = bootcs.iter_mut().find(|bootc| bootc.name_any() == name).unwrap();
                    bootc.spec = spec;
                    let labels = label.map(|label| (keys::LABEL_POOL.to_owned(), label));
                    bootc.metadata.labels = Some(labels.into_iter().collect());
                }
                BootcNodeWrite::Delete { name, .. } => bootcs.retain(|bootc| bootc.name_any() != name),
                BootcNodeWrite::Release { .. } => {}
            }
        }
    }

    /// Returns the nodes whose agent reported less than `SILENCE` ago.
    fn heard(&self) -> BTreeSet<NodeName> {
        let nodes = self.facts.nodes.iter();
        let heard = nodes.filter(|(_, facts)| facts.heard().unsigned_abs() < SILENCE);
        heard.map(|(name, _)| NodeName::from(name.as_str())).collect()
    }

    fn quiet(&self, node: &str) -> Duration {
        self.facts
            .nodes
            .get(node)
            .map(|facts| facts.heard().unsigned_abs())
            .unwrap_or_default()
    }

    fn pass<'s>(&self, seen: &'s Snapshot, at: Timestamp) -> Pass<'s> {
        let fleet = seen.fleet_spec().unwrap_or_default();
        let pools = Pool::readable(&seen.pools).into_iter();
        let pools: Vec<Pool> = pools.map(|pool| pool.guarded(Some(&fleet))).collect();
        let mut all_gates = BTreeMap::new();
        for pool in &pools {
            let inputs = pool.gate_inputs(seen.fleet_gate(), true, at).unwrap();
            all_gates.insert(pool.name.clone(), gates(inputs));
        }
        let leases = seen.lease_views();
        let mut pass = Pass {
            seen,
            membership: MembershipCache::default().of(seen),
            occupied: Occupied::of(&leases),
            leases,
            heard: self.heard(),
            gates: all_gates,
            plans: BTreeMap::new(),
            lost: BTreeSet::new(),
            implausible: self.implausible(seen),
            pools,
            at,
        };
        pass.plans = pass.planned();
        pass.lost = self.lost(&pass);
        pass
    }

    fn implausible(&self, seen: &Snapshot) -> BTreeMap<NodeUid, Implausible> {
        let nodes = seen.nodes.values().filter_map(|node| {
            let reasons = &self.facts.nodes.get(node.view.name.as_str())?.implausible;
            let reasons = reasons.iter().map(|reason| Contradiction::from_word(reason).unwrap());
            let found = Implausible::of(&node.view.name, &reasons.collect::<Vec<_>>())?;
            Some((node.view.uid.clone(), found))
        });
        nodes.collect()
    }

    fn lost(&self, pass: &Pass<'_>) -> BTreeSet<NodeUid> {
        let now = Moment::after(UPTIME);
        let holders = pass.occupied.holdings.values().filter_map(|holding| {
            let node = pass.seen.nodes.get(holding.node.as_str())?.view.as_ref();
            let host = pass.seen.bootc_nodes.get(holding.node.as_str());
            Some(Holder {
                node,
                host: host.map(|entry| entry.view.as_ref()),
                holding,
                heard: Some(Moment::after(UPTIME.saturating_sub(self.quiet(holding.node.as_str())))),
                lively: pass.heard.contains(&holding.node),
                timeouts: pass.timeouts(&holding.node),
            })
        });
        Overdue::default().judge(holders, now)
    }

    fn lost_conditions(&self, pass: &Pass<'_>) -> Vec<(NodeName, Verdict)> {
        let mut verdicts = vec![];
        for lease in &pass.leases {
            let Some(holding) = lease.berth.as_ref().ok().and_then(|berth| berth.holding()) else {
                continue;
            };
            if pass.lost.contains(&holding.uid) {
                let node = &pass.seen.nodes[holding.node.as_str()].view;
                let allowed = pass.timeouts(&holding.node).allowed(&holding.phase, node.ready);
                let message = overdue::message(node, lease, &holding.phase, allowed);
                verdicts.push((
                    holding.node.clone(),
                    Verdict::yes(CommonReason::RebootTimedOut, message),
                ));
            }
        }
        verdicts
    }

    fn answers(&self, facts: &PoolFacts) -> Answers {
        let known = if facts.target_ref.is_some() { 0 } else { facts.target };
        let number = facts.registry.tag.unwrap_or(known);
        let trouble = facts.registry.trouble.as_ref().map(|(reason, message)| QueryFailure {
            reason: ResolveReason::from_word(reason).unwrap().into(),
            message: message.clone(),
            since: self.now - facts.registry.since,
            attempts: 3,
            next: Some(self.now + SignedDuration::from_mins(30)),
        });
        let found = (trouble.is_none() && number > 0).then(|| Found {
            image: self.facts.image(number, &facts.reference()),
            age: Duration::ZERO,
        });
        let answer = Answer { found, trouble };
        Answers {
            named: answer.clone(),
            tag: answer,
            ..Answers::default()
        }
    }

    fn pool_status(
        &self,
        pass: &Pass<'_>,
        pool: &Pool,
        (facts, answers): (&PoolFacts, &Answers),
        at: Timestamp,
    ) -> berth_api::pool::BootcNodePoolStatus {
        let object = pool.object.as_ref().unwrap();
        let old = object.status.clone().unwrap_or_default();
        let polled = Polled {
            answers,
            polled: true,
            available_seen: facts.seen.unsigned_abs(),
            poll_request: facts.poll.clone(),
        };
        let results = pass.results();
        results.pool_status((pool, object), &old, polled, vec![], at).unwrap()
    }

    fn fleet_status(&self, pass: &Pass<'_>, answers: &BTreeMap<String, Answers>, at: Timestamp) -> BootcFleetStatus {
        let old = self
            .objects
            .fleet
            .as_ref()
            .and_then(|fleet| fleet.status.clone())
            .unwrap_or_default();
        let none = Default::default();
        let pools = pass.pools.iter().filter_map(|pool| pool.object.as_ref());
        let pools: Vec<_> = pools
            .map(|pool| {
                let name = pool.metadata.name.as_deref().unwrap();
                PoolState::of(name, pool.status.as_ref().unwrap_or(&none), answers.get(name))
            })
            .collect();
        let facts = FleetStatusFacts {
            generation: Some(1),
            old: &old,
            paused: pass.seen.fleet_spec().is_some_and(|spec| spec.paused),
            pools: &pools,
            agents: &self.agents(pass),
            machines: Machines::of(&old),
            events_unread: None,
            unreadable: &pass.results().unreadable(),
            unreadable_pools: 0,
            deaf: false,
            listened: UPTIME,
            silent_after: health::silent_after(SILENCE),
        };
        health::status(&facts, at)
    }

    fn agents<'p>(&self, pass: &'p Pass<'_>) -> Vec<Agent<'p>> {
        pass.results().agents(|node, _| self.quiet(node))
    }

    fn report_silence(&mut self, before: &Snapshot) {
        let pass = self.pass(before, self.now);
        let silent: BTreeSet<String> = self
            .agents(&pass)
            .into_iter()
            .filter(|agent| agent.is_silent(SILENT_AFTER))
            .map(|agent| agent.node.to_owned())
            .collect();
        let (seen, _) = self.seen();
        for bootc in self
            .objects
            .bootc_nodes
            .iter_mut()
            .filter(|bootc| silent.contains(&bootc.name_any()))
        {
            let name = bootc.name_any();
            let silent = Silent {
                node: seen.nodes[&name].view.clone(),
                host: seen.bootc_nodes[&name].view.clone(),
            };
            if let Some(status) = &mut bootc.status {
                status.insight = silent.insight(status, self.now);
            }
        }
    }
}

impl Pass<'_> {
    fn ledger(&self) -> Ledger {
        let leases = self.leases.iter();
        Ledger::of(leases.filter_map(|lease| Some((lease.name(), lease.berth.as_ref().ok()?))))
    }

    fn planned(&self) -> BTreeMap<PoolName, Plan> {
        let none = BTreeSet::new();
        let round = Round {
            snapshot: self.seen,
            membership: &self.membership,
            leases: &self.leases,
            occupied: &self.occupied,
            in_doubt: &none,
            refused: &none,
            confirmed_gone: &BTreeSet::new(),
            heard: &self.heard,
            overdue: &none,
            outdated: &BTreeSet::new(),
            offers: &Offers::default(),
            ledger: &self.ledger(),
            soaks: &Soaks::default(),
            gates: &self.gates,
            now: Moment::after(UPTIME),
            epoch: 1,
        };
        let answers = round.needs_servers(&self.pools).then(|| self.servers());
        round.plans(&self.pools, round.control_plane(answers.as_ref()), self.at)
    }

    /// Returns the API servers: one on each control plane node, which answers while its Node is Ready.
    fn servers(&self) -> servers::Answers {
        let now = Moment::after(UPTIME);
        let mut servers = BTreeMap::new();
        for node in self
            .seen
            .nodes
            .values()
            .filter(|node| is_control_plane(&node.view.labels))
        {
            let addresses = node
                .view
                .addresses
                .iter()
                .filter_map(|address| address.parse::<IpAddr>().ok());
            for address in addresses {
                let asked = Asked {
                    since: Moment::default(),
                    ready: node.view.ready.then_some(now),
                };
                servers.insert(SocketAddr::new(address, 6443), asked);
            }
        }
        servers::Answers { listed: true, servers }
    }

    fn timeouts(&self, node: &NodeName) -> Timeouts {
        let pool = self
            .membership
            .pool_of(node)
            .and_then(|name| self.pools.iter().find(|pool| pool.name == *name));
        Pool::timeouts(pool, SILENCE)
    }

    fn results(&self) -> PassResults<'_> {
        PassResults {
            snapshot: self.seen,
            membership: &self.membership,
            leases: &self.leases,
            gates: &self.gates,
            plans: &self.plans,
            heard: &self.heard,
            timed_out: &self.lost,
            implausible: &self.implausible,
            holdings: holdings(&self.leases),
        }
    }
}
