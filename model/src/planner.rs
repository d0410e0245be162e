//! Runs the controller's released decision code (membership, gates, published specs, and each pool's facts and plan),
//! and caches the results per view of the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::{self, Offer};
use berth_api::membership::Membership;
use berth_api::{NodeName, NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::aggregate::{self, MemberView};
use berth_core::controller::gate::FleetGate;
use berth_core::controller::gates::{self, GateCache, Gates};
use berth_core::controller::ledger::Ledger;
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::occupied::{Occupied, missing_nodes};
use berth_core::controller::offers::Offers;
use berth_core::controller::plan::{BerthWrite, OPEN_FOR, Plan, WriteReason};
use berth_core::controller::pool;
use berth_core::controller::publish::{self, BootcNodeWrite};
use berth_core::controller::round::{Rereads, Round};
use berth_core::controller::servers::{Answers, Asked};
use berth_core::controller::snapshot::{Entry, Snapshot};
use berth_core::controller::staging_permits::{PULL_LIMIT, StagingPermits};
use berth_core::controller::view::LeaseView;
use jiff::SignedDuration;

use crate::canonical::rename_write;
use crate::controller_view::{ControllerView, SeenBerth};
use crate::hash::{self, Fast};
use crate::rich;
use crate::state::{Answer, Begun, Berth, Failures, Lease, NO_NUMBER, Number, PoolStatus, Spec, Write, closed};
use crate::watch::{self, ObjectCache};
use crate::world::{Broken, Follows, World};

/// Decisions of a pass, with the model's numbers instead of names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassDecisions {
    pub publishes: Vec<Write>,
    /// The plan of each pool. Empty if specs must be published first.
    pub pools: Vec<PoolPlan>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPlan {
    pub status: PoolStatus,
    /// Writes of berths. Epoch 1 in a Lease stands for the plan's own epoch.
    pub writes: Vec<Write>,
    /// How long the leader has seen the canaries soak, including this pass.
    pub soaks: Begun,
    /// Set if the plan depends on a field that the model omits.
    pub broken: Option<Broken>,
}

#[derive(Debug, Default)]
pub struct Plans {
    /// Decisions of passes, by the view's hash.
    known: HashMap<u64, Arc<PassDecisions>, Fast>,
    /// Plans for all permutations of the node names, by the view's hash.
    named: HashMap<u64, Arc<Vec<Vec<PoolPlan>>>, Fast>,
    objects: ObjectCache,
    caches: Caches,
}

/// Caches that a controller keeps between passes. Each worker uses one instance for all states, so the caches see more
/// changes than in any single history.
#[derive(Debug, Default)]
struct Caches {
    belonging: MembershipCache,
    gates: GateCache,
}

/// Returns all permutations of two or three node names; empty for other numbers. Plans break ties by name, but nodes of
/// the model have no fixed names.
fn namings(nodes: usize) -> &'static [&'static [Number]] {
    match nodes {
        3 => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
        2 => &[&[0, 1], &[1, 0]],
        _ => &[],
    }
}

fn inverse(to: &[Number]) -> Vec<Number> {
    let mut back = vec![0; to.len()];
    for (from, to) in (0..).zip(to) {
        back[usize::from(*to)] = from;
    }
    back
}

/// Passes are cached only in worlds with at most this many nodes. Views of larger worlds hardly ever repeat.
const SMALL: usize = 8;
/// Maximum number of converted Nodes, and of BootcNodes, in the cache of a large world.
const MOST: usize = 1 << 20;

impl Plans {
    pub fn of(&mut self, world: &World, view: &ControllerView) -> Arc<PassDecisions> {
        let key = hash::of(view);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let passed = Arc::new(Pass::new(world, view, &mut self.objects, &mut self.caches).decide());
        if view.nodes.len() > SMALL {
            self.objects.rest(MOST);
        } else {
            self.known.insert(key, passed.clone());
        }
        passed
    }

    pub fn named(&mut self, world: &World, view: &ControllerView) -> Arc<Vec<Vec<PoolPlan>>> {
        let key = hash::of(view);
        if let Some(known) = self.named.get(&key) {
            return known.clone();
        }
        let mut all: Vec<Vec<PoolPlan>> = vec![];
        for naming in namings(view.nodes.len()) {
            let passed = self.of(world, &view.renamed(naming));
            let mut pools = passed.pools.clone();
            let back = inverse(naming);
            for planned in &mut pools {
                planned.writes.iter_mut().for_each(|w| rename_write(w, &back));
                planned.status.failures.iter_mut().for_each(|f| *f = f.renamed(&back));
            }
            if !all.contains(&pools) {
                all.push(pools);
            }
        }
        if all.is_empty() {
            all.push(self.of(world, view).pools.clone());
        }
        let all = Arc::new(all);
        self.named.insert(key, all.clone());
        all
    }
}

struct Pass<'a> {
    world: &'a World,
    view: &'a ControllerView,
    snapshot: Snapshot,
    pools: Vec<pool::Pool>,
    membership: Arc<Membership>,
    gates: BTreeMap<PoolName, Gates>,
    leases: Vec<LeaseView>,
    confirmed_gone: BTreeSet<NodeUid>,
}

impl<'a> Pass<'a> {
    fn new(world: &'a World, view: &'a ControllerView, objects: &mut ObjectCache, caches: &mut Caches) -> Self {
        let snapshot = objects.snapshot(world, view);
        let pools = pool::Pool::readable(&snapshot.pools);
        let leases = view.slots.iter().enumerate().filter_map(|(slot, seen)| match seen.is {
            // The controller remembers a Lease that it could not create.
            Berth::Missing if seen.refused => watch::lease(world, slot, closed(), true),
            is => watch::lease(world, slot, is, seen.stamped),
        });
        let mut seen = Occupied::default();
        for (node, uid) in view.shown.iter().flatten() {
            seen.names.insert(rich::uid(*node, *uid), rich::name(*node));
        }
        let gone: BTreeSet<NodeUid> = view.gone.iter().map(|(n, uid)| rich::uid(*n, *uid)).collect();
        let missing = missing_nodes(&snapshot, &seen);
        Self {
            world,
            view,
            gates: gates(view, &pools, &mut caches.gates),
            pools,
            membership: caches.belonging.of(&snapshot),
            leases: leases.collect(),
            confirmed_gone: missing.into_keys().filter(|uid| gone.contains(uid)).collect(),
            snapshot,
        }
    }

    fn decide(&self) -> PassDecisions {
        let occupied = Occupied::of(&self.leases);
        let names = self
            .snapshot
            .bootc_nodes
            .keys()
            .map(|name| NodeName::from(name.as_str()));
        let heard = names
            .filter(|name| !self.view.silent.has(rich::node(Some(name))))
            .collect();
        let publishes = self.publishes(&occupied, &heard);
        if !publishes.is_empty() && !self.view.aged {
            return PassDecisions {
                publishes,
                pools: vec![],
            };
        }
        let (offers, now) = self.offers();
        let (in_doubt, refused) = (self.named(|seen| seen.doubt), self.named(|seen| seen.refused));
        let shared = Round {
            outdated: &BTreeSet::new(),
            snapshot: &self.snapshot,
            membership: &self.membership,
            leases: &self.leases,
            occupied: &occupied,
            in_doubt: &in_doubt,
            refused: &refused,
            confirmed_gone: &self.confirmed_gone,
            heard: &heard,
            overdue: &BTreeSet::new(),
            offers: &offers,
            ledger: &self.ledger(),
            soaks: &watch::soaks(self.view.soak).0,
            gates: &self.gates,
            now,
            epoch: rich::OWN_EPOCH,
        };
        PassDecisions {
            publishes,
            pools: self.plans(shared),
        }
    }

    /// Returns the names of the Leases that meet a condition.
    fn named(&self, which: fn(&SeenBerth) -> bool) -> BTreeSet<String> {
        let slots = self.view.slots.iter().enumerate().filter(|(_, seen)| which(seen));
        slots.map(|(slot, _)| watch::name(self.world, slot)).collect()
    }

    /// Returns the API servers' responses: each server is ready, or has not responded for long.
    fn answers(&self, now: Moment) -> Answers {
        let mut servers = BTreeMap::new();
        for (number, node) in (0..).zip(&self.view.nodes) {
            if node.object.exists && node.labels.server {
                let asked = Asked {
                    since: Moment::default(),
                    ready: self.view.answering.has(number).then_some(now),
                };
                servers.insert(SocketAddr::new(watch::address(number), 6443), asked);
            }
        }
        Answers { listed: true, servers }
    }

    fn plans(&self, shared: Round<'_>) -> Vec<PoolPlan> {
        let mut planned = self.plans_once(shared);
        for (planned, pool) in planned.iter_mut().zip(0..) {
            self.image(pool, &mut planned.status);
        }
        if self.view.nodes.len() > SMALL {
            return planned;
        }
        // The fields that the model resets in a closed berth must not affect the plan.
        let mut leases = self.leases.clone();
        for lease in &mut leases {
            lease.berth = lease.berth.as_ref().map(rich::otherwise).map_err(Clone::clone);
        }
        let leases = &leases;
        let again = self.plans_once(Round { leases, ..shared });
        for (one, other) in planned.iter_mut().zip(again) {
            if (&one.writes, one.status.published) != (&other.writes, other.status.published) {
                one.broken = Some(Broken("the model omits a field that the plan depends on"));
            }
        }
        planned
    }

    fn plans_once(&self, shared: Round<'_>) -> Vec<PoolPlan> {
        let answers = self.answers(shared.now);
        let answers = shared.needs_servers(&self.pools).then_some(&answers);
        let mut plans = shared.plans(&self.pools, shared.control_plane(answers), rich::NOW);
        let outdated = &self.outdated(&plans);
        if !outdated.is_empty() {
            let shared = Round { outdated, ..shared };
            plans = shared.plans(&self.pools, shared.control_plane(answers), rich::NOW);
        }
        plans.values().map(|plan| self.read(plan)).collect()
    }

    /// Reads the pools that the plans depend on again. Returns the pools that must not offer berths, because a pool or
    /// the fleet has changed.
    fn outdated(&self, plans: &BTreeMap<PoolName, Plan>) -> BTreeSet<PoolName> {
        let Some(rereads) = Rereads::of(&self.pools, plans) else {
            return BTreeSet::new();
        };
        let read = rereads.pools().into_iter().map(|pool| pool.name.clone());
        let changed = read
            .filter(|name| self.view.changed.contains(&rich::pool_number(name)))
            .collect();
        rereads.closed(&changed, self.view.fleet_changed)
    }

    fn image(&self, number: usize, new: &mut PoolStatus) {
        let terms = &self.view.pools[number];
        (new.target, new.boot_image) = (terms.target, terms.boot_image);
        (new.available, new.known_long) = (terms.available, terms.known_long);
        let pool = self.pools.get(number).filter(|_| self.world.has_tag());
        let Some((name, object)) = pool.and_then(|pool| Some((&pool.name, pool.object.as_ref()?))) else {
            return;
        };
        let answer = match self.world.follows {
            // The registry always returns the tag's current image.
            Follows::AtOnce => Some(Answer {
                image: terms.tagged,
                ..Answer::default()
            }),
            Follows::Tag | Follows::Pinned => self.view.answer,
        };
        let answers = watch::answers(self.world, answer);
        let status = object.status.as_ref();
        let known = status.and_then(|status| status.available.as_ref());
        let facts = watch::image_facts(object, &answers, watch::seen(known, self.view.counts));
        let members = self.membership.members(name);
        let members: Vec<_> = members.filter_map(|name| self.member(name.as_str())).collect();
        let excluded = self.membership.excluded.iter().filter(|(_, pool)| *pool == name);
        let excluded: Vec<_> = excluded.map(|(node, _)| node).collect();
        let rules = aggregate::BootImageInputs {
            policy: object.spec.boot_image(),
            before: status.and_then(|status| status.boot_image.as_ref()),
            excluded: &excluded,
        };
        let decision = aggregate::adopt(&facts, &members, rules, rich::NOW);
        let boot_image = aggregate::boot_image(&decision, &members, rules, rich::NOW);
        new.boot_image = watch::small_boot_image(boot_image.as_ref());
        new.target = rich::image(decision.target.as_ref().map(|target| &target.digest));
        new.soaked &= new.target == terms.target;
        let available = decision.available.filter(|_| self.world.follows != Follows::AtOnce);
        new.available = rich::image(available.as_ref().map(|available| &available.digest));
        let minimum_age = object.spec.minimum_age().as_secs();
        new.known_long = available.is_some_and(|available| available.seen_seconds >= minimum_age);
    }

    fn member(&self, name: &str) -> Option<MemberView<'_>> {
        let host = self.snapshot.bootc_nodes.get(name);
        Some(MemberView {
            node: self.snapshot.nodes.get(name)?.view.as_ref(),
            host: host.map(|host| host.view.as_ref()),
            holding: None,
            overdue: false,
            heard: true,
            implausible: None,
        })
    }

    fn publishes(&self, occupied: &Occupied, heard: &BTreeSet<berth_api::NodeName>) -> Vec<Write> {
        let writes = publish::publish(&publish::PublishFacts {
            nodes: &self.snapshot.nodes,
            bootc_nodes: &self.snapshot.bootc_nodes,
            membership: &self.membership,
            terms: &publish::terms(&self.pools, &self.membership, &BTreeSet::new()),
            occupied: &occupied.by_uid,
            holdings: &occupied.holdings,
            unclear: &occupied.unclear,
            overdue: &BTreeSet::new(),
            lasting: &pool::lasting(&self.snapshot.pools),
            confirmed_gone: &self.confirmed_gone,
            heard,
            permits: &self.permits(),
            fleet_paused: self.view.fleet.paused,
        });
        writes.iter().filter_map(|write| self.published(write)).collect()
    }

    /// Converts a write to numbers. `None` if it changes only messages and other fields that the model does not have.
    fn published(&self, write: &BootcNodeWrite) -> Option<Write> {
        let node = rich::node(Some(&write.name().into()));
        let before = self.view.nodes.get(usize::from(node)).and_then(|n| n.spec);
        let deleting = before.is_some_and(|s| s.deleting);
        let mut spec = match write {
            BootcNodeWrite::Create { spec, .. } => Some(watch::small_spec(spec, false)),
            BootcNodeWrite::Update { spec, .. } => Some(watch::small_spec(spec, deleting)),
            BootcNodeWrite::Delete { .. } => before.map(|spec| Spec { deleting: true, ..spec }),
            BootcNodeWrite::Release { .. } => None,
        };
        if let Some(spec) = &mut spec {
            spec.may_pull |= self.world.max_staging == 0;
        }
        (spec != before).then_some(Write::Publish { node, spec })
    }

    /// Returns the controller's memory of the use of permits to pull. Permits of the view's `unused` nodes have timed
    /// out, and pulls of its `endless` nodes have taken too long.
    fn permits(&self) -> StagingPermits {
        let mut permits = StagingPermits::default();
        if self.view.unused.is_empty() && self.view.endless.is_empty() {
            return permits;
        }
        let mut hosts = BTreeMap::new();
        for (name, host) in self.snapshot.bootc_nodes.iter() {
            let node = rich::node(Some(&NodeName::from(name.as_str())));
            if self.view.endless.has(node) {
                hosts.insert(name.clone(), host.clone());
            } else if self.view.unused.has(node) {
                hosts.insert(name.clone(), Entry::new(watch::permitted(&host.view)));
            }
        }
        let hosts = Arc::new(hosts);
        permits.see(&hosts, Moment::default());
        permits.see(&hosts, Moment::after(PULL_LIMIT));
        permits
    }

    /// Returns the controller's ledger of offers. The model leaves out the offers that a new leader reads from the
    /// berths. They change only the order of offers, and the order by name varies here.
    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        for node in self.view.offered.iter() {
            let seen = &self.view.nodes[usize::from(node)];
            let Some(pool) = self.view.pools.get(usize::from(seen.labels.pool)) else {
                continue;
            };
            let offer = Offer {
                node: rich::name(node),
                uid: rich::uid(node, seen.object.uid),
                target: rich::digest(pool.target),
                open_until: None,
            };
            let berth = berth::Berth::new(rich::pool(seen.labels.pool), 0, rich::OWN_EPOCH);
            let (lease, why) = (rich::name(node).to_string(), WriteReason::Offer);
            if let Ok(berth) = berth.offered(offer) {
                ledger.wrote(&BerthWrite::Update { lease, berth, why });
            }
        }
        ledger
    }

    /// Returns the controller's memory of open offers, and the current moment.
    fn offers(&self) -> (Offers, Moment) {
        let mut offers = Offers::default();
        let began = Moment::default();
        let berths = self
            .leases
            .iter()
            .filter_map(|l| Some((l.name(), l.berth.as_ref().ok()?)));
        offers.see(berths, began);
        (offers, began + if self.view.aged { OPEN_FOR } else { Duration::ZERO })
    }

    fn berth_write(&self, write: &BerthWrite) -> Write {
        let (slot, epoch, is) = match write {
            BerthWrite::Create(berth) => (self.world.slot(berth), 1, rich::small(berth)),
            BerthWrite::Update { berth, .. } => {
                let epoch = u8::from(berth.epoch == rich::OWN_EPOCH);
                (self.world.slot(berth), epoch, rich::small(berth))
            }
            BerthWrite::Delete { lease } => {
                let slot = (0..self.world.slots()).find(|s| watch::name(self.world, *s) == *lease);
                let slot = slot.and_then(|s| Number::try_from(s).ok()).unwrap_or(NO_NUMBER);
                (slot, 0, Berth::Missing)
            }
        };
        Write::Berth {
            slot,
            lease: Lease { epoch, is },
            offer: None,
        }
    }

    fn read(&self, plan: &Plan) -> PoolPlan {
        let (have_soaked, soaks) = watch::soaked(self.view.soak, &plan.waves, self.view.pools[0].target);
        let status = PoolStatus {
            published: Number::try_from(plan.counts.total).unwrap_or(NO_NUMBER),
            soaked: self.world.soaks && have_soaked,
            failures: recorded(plan),
            ..PoolStatus::default()
        };
        PoolPlan {
            status,
            writes: plan.writes.iter().map(|write| self.berth_write(write)).collect(),
            soaks,
            broken: None,
        }
    }
}

fn gates(view: &ControllerView, pools: &[pool::Pool], keeper: &mut GateCache) -> BTreeMap<PoolName, Gates> {
    let mut all = BTreeMap::new();
    for (pool, terms) in pools.iter().zip(&view.pools) {
        let Some(object) = &pool.object else { continue };
        let outside = SignedDuration::from_hours(if terms.outside { 12 } else { 0 });
        let gates = keeper.gates(gates::Inputs {
            pool: &pool.name,
            spec: &object.spec,
            fleet: view.fleet.paused.then_some(FleetGate::Paused),
            clock_synchronized: !view.fleet.clock_lost,
            needed: Duration::ZERO,
            now: rich::NOW + outside,
        });
        all.insert(pool.name.clone(), gates);
    }
    all
}

fn recorded(plan: &Plan) -> Failures {
    let mut failures = Failures::default();
    for (digest, nodes) in &plan.failures {
        if let Some(set) = failures.get_mut(usize::from(rich::image(Some(digest)))) {
            *set = nodes.iter().map(|n| rich::node(Some(n))).collect();
        }
    }
    failures
}
