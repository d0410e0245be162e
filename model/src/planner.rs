//! The controller's decisions that ship: who belongs where, the gates, what is published, the facts and the plan of each
//! pool, asked once for each view of the cluster that differs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::{ClosedReason, Offer, Outcome};
use berth_api::membership::Membership;
use berth_api::{NodeName, NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::aggregate::{self, MemberView};
use berth_core::controller::gate::FleetGate;
use berth_core::controller::gates::{self, GateCache, Gates};
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::memory::{Offers, PERMIT_TIMEOUT, StagingPermits};
use berth_core::controller::occupied::{Occupied, missing_nodes};
use berth_core::controller::plan::{BerthWrite, OPEN_FOR, Plan};
use berth_core::controller::pool;
use berth_core::controller::publish::{self, BootcNodeWrite};
use berth_core::controller::round::{Rereads, Round};
use berth_core::controller::servers::{Answers, Asked};
use berth_core::controller::snapshot::{Entry, Snapshot};
use berth_core::controller::view::LeaseView;
use jiff::SignedDuration;

use crate::canonical::{rename_lease, rename_nodes, rename_pools, rename_write};
use crate::hash::{self, Fast};
use crate::rich;
use crate::set::Set;
use crate::state::{
    Answer, Begun, Berth, BootImage, Closed, Failures, Fleet, Image, Labels, Lease, NOBODY, NONE, No, Object, Pool,
    Spec, Status, Write,
};
use crate::watch::{self, Eyes};
use crate::world::{Broken, Follows, World};

/// All that a pass of a controller depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// The nodes, as the watches show them.
    pub nodes: Vec<SeenNode>,
    /// The pools.
    pub pools: Vec<Pool>,
    /// The fleet.
    pub fleet: Fleet,
    /// The berths, as they are.
    pub slots: Vec<OneBerth>,
    /// Nodes that have them, as the watches show it.
    pub shown: Vec<Option<(No, u8)>>,
    /// Of those that something refers to, who is gone by a live read.
    pub gone: Vec<(No, u8)>,
    /// The pools that are no longer as the watches show them, as a live read would tell.
    pub changed: Vec<u8>,
    /// True if the fleet is no longer as the watches show it.
    pub fleet_changed: bool,
    /// The control plane nodes whose API server answers.
    pub answering: Set,
    /// Nodes that let an offer lapse.
    pub lapsed: Set,
    /// Nodes that did not use their permit to pull.
    pub unused: Set,
    /// Nodes whose agents were not heard of for long.
    pub silent: Set,
    /// The registry's last answer about the tag.
    pub answer: Option<Answer>,
    /// The image that the canaries soak with, and since when this leader has seen that.
    pub soak: (Image, Begun),
    /// The available image that this leader counts for, and whether it has known of it for the minimum age.
    pub counts: (Image, bool),
    /// The open offers were seen for long.
    pub aged: bool,
}

/// A node, as the watches show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeenNode {
    /// The Node.
    pub object: Object,
    /// Its labels.
    pub labels: Labels,
    /// The BootcNode.
    pub spec: Option<Spec>,
    /// Status of the condition.
    pub status: Status,
}

/// A berth as it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct OneBerth {
    /// State of the berth.
    pub is: Berth,
    /// True if it carries this controller's epoch.
    pub stamped: bool,
    /// A write of unknown fate may be on its way.
    pub doubt: bool,
    /// The API server refused to write it a short time ago.
    pub refused: bool,
}

impl View {
    /// The same with other numbers for the nodes.
    #[must_use]
    pub fn renamed(&self, to: &[No]) -> Self {
        let mut new = self.clone();
        rename_nodes(&mut new.nodes, to);
        rename_pools(&mut new.pools, to);
        for slot in &mut new.slots {
            let mut lease = Lease { epoch: 0, is: slot.is };
            rename_lease(&mut lease, to);
            slot.is = lease.is;
        }
        let all = new.shown.iter_mut().flatten().chain(&mut new.gone);
        all.for_each(|(node, _)| *node = to[usize::from(*node)]);
        new.gone.sort_unstable();
        new.lapsed = self.lapsed.renamed(to);
        new.unused = self.unused.renamed(to);
        new.silent = self.silent.renamed(to);
        new.answering = self.answering.renamed(to);
        new
    }
}

/// Decisions of a pass, in the model's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// Specs to be published.
    pub publishes: Vec<Write>,
    /// The plan of each pool, unless something is to be published first.
    pub pools: Vec<Planned>,
}

/// The plan of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The image to put in force.
    pub target: Image,
    /// The writes to berths; leases carry the epoch 1 where the plan stamps them as its own.
    pub writes: Vec<Write>,
    /// The image to call available, and whether it was known for the minimum age.
    pub available: (Image, bool),
    /// The canaries have soaked, and since when they do as this leader knows after the pass.
    pub soaked: (bool, Begun),
    /// The boot image to remember.
    pub boot_image: BootImage,
    /// The capacity to publish.
    pub total: No,
    /// The failures to record.
    pub failures: Failures,
    /// The rule that the plan breaks whatever the world is like.
    pub broken: Option<Broken>,
}

/// The passes made so far.
#[derive(Debug, Default)]
pub struct Plans {
    /// The pass on each view, by the view's fingerprint.
    known: HashMap<u64, Arc<Passed>, Fast>,
    /// The plans under every naming of the nodes, likewise.
    named: HashMap<u64, Arc<Vec<Vec<Planned>>>, Fast>,
    eyes: Eyes,
    caches: Caches,
}

/// What a controller keeps between two passes, and works out again only when something could be different. One serves for
/// all that a worker looks at, so that it is asked about more changes than any single history has.
#[derive(Debug, Default)]
struct Caches {
    belonging: MembershipCache,
    gates: GateCache,
}

/// Every way in which names can be given to the nodes: which of two equal ones comes first is by name, and the model's
/// nodes have none.
fn namings(nodes: usize) -> &'static [&'static [No]] {
    match nodes {
        3 => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
        2 => &[&[0, 1], &[1, 0]],
        _ => &[],
    }
}

fn inverse(to: &[No]) -> Vec<No> {
    let mut back = vec![0; to.len()];
    for (from, to) in (0..).zip(to) {
        back[usize::from(*to)] = from;
    }
    back
}

/// In a world of more nodes hardly any view comes twice, so none is kept.
const SMALL: usize = 8;
/// So many projections of nodes are kept in a large world.
const MOST: usize = 1 << 20;

impl Plans {
    /// Decisions of a pass on a view.
    pub fn of(&mut self, world: &World, view: &View) -> Arc<Passed> {
        let key = hash::of(view);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let passed = Arc::new(Pass::new(world, view, &mut self.eyes, &mut self.caches).decide());
        if view.nodes.len() > SMALL {
            self.eyes.rest(MOST);
        } else {
            self.known.insert(key, passed.clone());
        }
        passed
    }

    /// The plans of a pass on a view, for each naming of the nodes that makes a difference.
    pub fn named(&mut self, world: &World, view: &View) -> Arc<Vec<Vec<Planned>>> {
        let key = hash::of(view);
        if let Some(known) = self.named.get(&key) {
            return known.clone();
        }
        let mut all: Vec<Vec<Planned>> = vec![];
        for naming in namings(view.nodes.len()) {
            let passed = self.of(world, &view.renamed(naming));
            let mut pools = passed.pools.clone();
            let back = inverse(naming);
            for planned in &mut pools {
                planned.writes.iter_mut().for_each(|w| rename_write(w, &back));
                planned.failures.iter_mut().for_each(|f| *f = f.renamed(&back));
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

/// One pass, as the controller makes it.
struct Pass<'a> {
    world: &'a World,
    view: &'a View,
    snapshot: Snapshot,
    pools: Vec<pool::Pool>,
    membership: Arc<Membership>,
    gates: BTreeMap<PoolName, Gates>,
    leases: Vec<LeaseView>,
    confirmed_gone: BTreeSet<NodeUid>,
}

impl<'a> Pass<'a> {
    fn new(world: &'a World, view: &'a View, eyes: &mut Eyes, caches: &mut Caches) -> Self {
        let snapshot = eyes.snapshot(world, view);
        let pools = pool::Pool::readable(&snapshot.pools);
        let lease = |(slot, seen): (usize, &OneBerth)| match seen.is {
            // The controller remembers the Lease that it could not create.
            Berth::Missing if seen.refused => watch::lease(world, slot, closed(), true),
            is => watch::lease(world, slot, is, seen.stamped),
        };
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
            leases: view.slots.iter().enumerate().filter_map(lease).collect(),
            confirmed_gone: missing.into_keys().filter(|uid| gone.contains(uid)).collect(),
            snapshot,
        }
    }

    fn decide(&self) -> Passed {
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
            return Passed {
                publishes,
                pools: vec![],
            };
        }
        let (offers, now) = self.offers();
        let named = |which: fn(&OneBerth) -> bool| -> BTreeSet<String> {
            let slots = self.view.slots.iter().enumerate().filter(|(_, seen)| which(seen));
            slots.map(|(slot, _)| watch::name(self.world, slot)).collect()
        };
        let (in_doubt, refused) = (named(|seen| seen.doubt), named(|seen| seen.refused));
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
            soaks: &watch::soaks(self.view.soak).0,
            gates: &self.gates,
            now,
            epoch: rich::OWN_EPOCH,
        };
        Passed {
            publishes,
            pools: self.plans(shared),
        }
    }

    /// Answers of the servers: it is ready, or has been silent for long.
    fn answers(&self, now: Moment) -> Answers {
        let servers = (0..)
            .zip(&self.view.nodes)
            .filter(|(_, n)| n.object.there && n.labels.server);
        let asked = |number: No| Asked {
            since: Moment::default(),
            ready: self.view.answering.has(number).then_some(now),
        };
        Answers {
            listed: true,
            servers: servers
                .map(|(n, _)| (SocketAddr::new(watch::address(n), 6443), asked(n)))
                .collect(),
        }
    }

    fn plans(&self, shared: Round<'_>) -> Vec<Planned> {
        let answers = self.answers(shared.now);
        let plans = |shared: &Round<'_>| -> Vec<Planned> {
            let answers = shared.needs_servers(&self.pools).then_some(&answers);
            let mut plans = shared.plans(&self.pools, shared.control_plane(answers), rich::NOW);
            let outdated = self.outdated(&plans);
            if !outdated.is_empty() {
                let shared = Round {
                    outdated: &outdated,
                    ..*shared
                };
                plans = shared.plans(&self.pools, shared.control_plane(answers), rich::NOW);
            }
            plans.values().map(|plan| self.read(plan)).collect()
        };
        let mut planned = plans(&shared);
        for (planned, pool) in planned.iter_mut().zip(0..) {
            (planned.target, planned.available, planned.boot_image) = self.image(pool);
        }
        if self.view.nodes.len() > SMALL {
            return planned;
        }
        // What the model leaves out of a closed berth must make no difference.
        let mut leases = self.leases.clone();
        for lease in &mut leases {
            lease.berth = lease.berth.as_ref().map(rich::otherwise).map_err(Clone::clone);
        }
        let again = plans(&Round {
            leases: &leases,
            ..shared
        });
        for (one, other) in planned.iter_mut().zip(again) {
            if (&one.writes, one.total) != (&other.writes, other.total) {
                one.broken = Some(Broken("the model leaves out something that the plan depends on"));
            }
        }
        planned
    }

    /// The pools that offer nothing, after those that the plans depend on were read again.
    fn outdated(&self, plans: &BTreeMap<PoolName, Plan>) -> BTreeSet<PoolName> {
        let Some(rereads) = Rereads::of(&self.pools, plans) else {
            return BTreeSet::new();
        };
        let is_changed = |pool: &&&pool::Pool| self.view.changed.contains(&rich::pool_number(&pool.name));
        let read = rereads.pools();
        let changed = read.iter().filter(is_changed).map(|pool| pool.name.clone()).collect();
        rereads.closed(&changed, self.view.fleet_changed)
    }

    /// The image that is in force after this pass. The registry says at once what a tag points at.
    fn image(&self, number: usize) -> (Image, (Image, bool), BootImage) {
        let terms = &self.view.pools[number];
        let before = (terms.target, (terms.available, terms.known_long), terms.boot_image);
        let object = self
            .pools
            .get(number)
            .and_then(|pool| Some((&pool.name, pool.object.as_ref()?)));
        let Some((name, object)) = object.filter(|_| self.world.has_tag()) else {
            return before;
        };
        let answers = match self.world.follows {
            // The registry says at once what the tag points at.
            Follows::AtOnce => watch::answers(
                self.world,
                Some(Answer {
                    image: terms.tagged,
                    ..Answer::default()
                }),
            ),
            Follows::Tag | Follows::Pinned => watch::answers(self.world, self.view.answer),
        };
        let status = object.status.as_ref();
        let known = status.and_then(|status| status.available.as_ref());
        let facts = watch::image_facts(object, &answers, watch::seen(known, self.view.counts));
        let member = |name: &NodeName| {
            let host = self.snapshot.bootc_nodes.get(name.as_str());
            Some(MemberView {
                node: self.snapshot.nodes.get(name.as_str())?.view.as_ref(),
                host: host.map(|host| host.view.as_ref()),
                holding: None,
                overdue: false,
                heard: true,
            })
        };
        let members: Vec<_> = self.membership.members(name).filter_map(member).collect();
        let last = status.and_then(|status| status.boot_image.as_ref());
        let rules = (object.spec.boot_image(), last);
        let decision = aggregate::adopt(&facts, &members, rules, rich::NOW);
        let boot_image = aggregate::boot_image(&decision, &members, rules, rich::NOW);
        let boot_image = watch::small_boot_image(boot_image.as_ref());
        let target = rich::image(decision.target.as_ref().map(|target| &target.digest));
        let Some(available) = decision.available.filter(|_| self.world.follows != Follows::AtOnce) else {
            return (target, (0, false), boot_image);
        };
        let known_long = available.seen_seconds >= object.spec.minimum_age().as_secs();
        (target, (rich::image(Some(&available.digest)), known_long), boot_image)
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
        let small = |write: &BootcNodeWrite| {
            let node = rich::node(Some(&write.name().into()));
            let before = self.view.nodes.get(usize::from(node)).and_then(|n| n.spec);
            let deleting = before.is_some_and(|s| s.deleting);
            let spec = match write {
                BootcNodeWrite::Create { spec, .. } => Some(watch::small_spec(spec, false)),
                BootcNodeWrite::Update { spec, .. } => Some(watch::small_spec(spec, deleting)),
                BootcNodeWrite::Delete { .. } => before.map(|spec| Spec { deleting: true, ..spec }),
                BootcNodeWrite::Release { .. } => None,
            };
            // Words for people, and the rest that the model has not.
            let counts = self.world.max_staging != 0;
            let spec = spec.map(|spec| Spec {
                may_pull: spec.may_pull || !counts,
                ..spec
            });
            (spec != before).then_some(Write::Publish { node, spec })
        };
        writes.iter().filter_map(small).collect()
    }

    /// Permits to pull as this controller has seen them: some were not used for long.
    fn permits(&self) -> StagingPermits {
        let mut permits = StagingPermits::default();
        if self.view.unused.is_empty() {
            return permits;
        }
        let is_unused = |name: &str| self.view.unused.has(rich::node(Some(&NodeName::from(name))));
        let hosts = self.snapshot.bootc_nodes.iter().filter(|(name, _)| is_unused(name));
        let hosts = hosts.map(|(name, host)| (name.clone(), Entry::new(Arc::new(watch::permitted(&host.view)))));
        let hosts = Arc::new(hosts.collect::<BTreeMap<_, _>>());
        permits.see(&hosts, Moment::default());
        permits.see(&hosts, Moment::after(PERMIT_TIMEOUT));
        permits
    }

    /// Offers as this controller has seen them.
    fn offers(&self) -> (Offers, Moment) {
        let mut offers = Offers::default();
        let began = Moment::default();
        let berths = self
            .leases
            .iter()
            .filter_map(|l| Some((l.name(), l.berth.as_ref().ok()?)));
        offers.see(berths, began);
        for node in self.view.lapsed.iter() {
            let seen = &self.view.nodes[usize::from(node)];
            if let Some(pool) = self.view.pools.get(usize::from(seen.labels.pool)) {
                offers.lapsed(&Offer {
                    node: rich::name(node),
                    uid: rich::uid(node, seen.object.uid),
                    target: rich::digest(pool.target),
                    open_until: None,
                });
            }
        }
        (offers, began + if self.view.aged { OPEN_FOR } else { Duration::ZERO })
    }

    fn read(&self, plan: &Plan) -> Planned {
        let write = |write: &BerthWrite| {
            let (slot, lease) = match write {
                BerthWrite::Create(berth) => {
                    let is = rich::small(berth);
                    (self.world.slot(berth), Lease { epoch: 1, is })
                }
                BerthWrite::Update { berth, .. } => {
                    let epoch = u8::from(berth.epoch == rich::OWN_EPOCH);
                    let is = rich::small(berth);
                    (self.world.slot(berth), Lease { epoch, is })
                }
                BerthWrite::Delete { lease } => {
                    let slot = (0..self.world.slots()).find(|s| watch::name(self.world, *s) == *lease);
                    let slot = slot.and_then(|s| No::try_from(s).ok()).unwrap_or(NOBODY);
                    (slot, Lease::default())
                }
            };
            Write::Berth {
                slot,
                lease,
                offer: None,
            }
        };
        Planned {
            target: NONE,
            available: (0, false),
            soaked: watch::soaked(self.view.soak, &plan.waves, self.view.pools[0].target),
            boot_image: BootImage::Unknown,
            writes: plan.writes.iter().map(write).collect(),
            total: No::try_from(plan.counts.total).unwrap_or(NOBODY),
            failures: recorded(plan),
            broken: None,
        }
    }
}

/// The gates of each pool, as the controller keeps them.
fn gates(view: &View, pools: &[pool::Pool], keeper: &mut GateCache) -> BTreeMap<PoolName, Gates> {
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

/// A closed berth that nobody used yet.
pub fn closed() -> Berth {
    Berth::Closed(Closed {
        reason: ClosedReason::Released,
        last: NOBODY,
        target: 0,
        outcome: None::<Outcome>,
    })
}
