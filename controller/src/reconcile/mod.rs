//! The passes. Each looks at everything there is, decides by pure functions and makes the writes that are due, so
//! that it does not matter what happened since the last one, or who was the leader then.
//!
//! A pass is made when something has changed, or when something is due; it never fails as a whole: what could not
//! be written is tried again, later and later, while everything else goes on. Only lost leadership ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::{NodeName, NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::belonging::Belonging;
use berth_core::controller::facts::{Occupied, Pool, Shared};
use berth_core::controller::gates::{Gates, Keeper};
use berth_core::controller::memory::{Leaves, Offers, Soaks};
use berth_core::controller::overdue::Overdue;
use berth_core::controller::plan::Plan;
use berth_core::controller::publish;
use berth_core::controller::servers::Answers;
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::view::LeaseView;
use berth_core::controller::view::News;
use berth_core::controller::waiting::Desk;
use jiff::Timestamp;
use tokio::time::timeout;

use crate::api::{CallError, Kube};
use crate::backoff::Backoffs;
use crate::leader::Lost;
use crate::resolve::{Resolution, Resolver};
use crate::store::Store;
use crate::time;
use berth_api::membership::Membership;

mod berths;
mod dereference;
mod fleet;
mod hosts;
mod outside;
mod pools;
mod timeouts;
mod waiting;

pub use outside::Outside;

/// After a pass, the next one waits for as long as that took, and no longer than this: what arrives meanwhile is dealt with
/// together, and whoever reports most leaves half of the time to others.
const REST: Duration = Duration::from_millis(25);
/// It waits for this at least, unless somebody waits for it: each pass may ask the API server for something.
const LEAST_REST: Duration = Duration::from_millis(10);
/// A pass is made at least this often: offers lapse and holders become overdue without anything changing.
const TICK: Duration = Duration::from_secs(10);
/// After a conflict the watch needs a moment to show what the object says now.
const AGAIN: Duration = Duration::from_millis(100);

/// What can be set from outside.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// An agent that was not heard of for so long is offered nothing.
    pub agent_silence: Duration,
    /// How long a node that leaves may take to undo what Berth did there.
    pub release_deadline: Duration,
}

/// The controller while it leads.
#[derive(Debug)]
pub struct Reconciler {
    kube: Kube,
    store: Store,
    resolver: Resolver,
    settings: Settings,
    /// Leases with a write of ours of unknown fate. They are fenced before anything is offered.
    in_doubt: BTreeSet<String>,
    /// Since when a BootcNode (by UID) has been asked to release its node.
    asked: BTreeMap<String, Moment>,
    /// When a pool's status was last written.
    reported: BTreeMap<PoolName, Moment>,
    /// The open offers, and who let some lapse.
    offers: Offers,
    /// Who belongs to which pool.
    belonging: Belonging,
    /// The gates of all pools.
    gates: Keeper,
    /// How long waves have been soaking.
    soaks: Soaks,
    /// Which nodes are to be told why they wait.
    desk: Desk,
    /// Who had leave to pull and did not use it.
    leaves: Leaves,
    /// Who does not come back.
    overdue: Overdue,
    /// The pools whose rollout is halted, as of the last pass.
    halted: Option<BTreeSet<PoolName>>,
    outside: Outside,
    backoffs: Backoffs,
    due: Option<Moment>,
}

/// What one pass works with.
struct Pass {
    snapshot: Snapshot,
    pools: Vec<Pool>,
    membership: Arc<Membership>,
    leases: Vec<LeaseView>,
    /// The Leases were read from the server in this very pass, so that they contain all writes of ours.
    live: bool,
    occupied: Occupied,
    heard: BTreeSet<NodeName>,
    confirmed_gone: BTreeSet<NodeUid>,
    /// What the API servers say, if any control plane node is to be updated.
    answers: Option<Answers>,
    /// This machine's clock is synchronised.
    clock_synchronized: bool,
    resolutions: BTreeMap<PoolName, Resolution>,
    gates: BTreeMap<PoolName, Gates>,
    plans: BTreeMap<PoolName, Plan>,
    /// Pools whose object this pass has written already.
    touched: BTreeSet<PoolName>,
    /// Nodes that hold a berth and do not come back.
    timed_out: BTreeSet<NodeUid>,
    now: Moment,
    wall: Timestamp,
}

impl Reconciler {
    /// A controller that has just begun to lead.
    pub fn new(kube: Kube, store: Store, resolver: Resolver, settings: Settings, outside: Outside) -> Self {
        Self {
            kube,
            store,
            resolver,
            settings,
            in_doubt: BTreeSet::new(),
            asked: BTreeMap::new(),
            reported: BTreeMap::new(),
            offers: Offers::default(),
            belonging: Belonging::default(),
            gates: Keeper::default(),
            soaks: Soaks::default(),
            desk: Desk::default(),
            leaves: Leaves::default(),
            overdue: Overdue::default(),
            halted: None,
            outside,
            backoffs: Backoffs::default(),
            due: None,
        }
    }

    /// Makes passes until leadership is lost.
    pub async fn run(mut self) -> Lost {
        let mut quiet = false;
        let mut rested = time::now();
        loop {
            self.rest(rested).await;
            let Some(snapshot) = self.store.snapshot() else {
                if !quiet {
                    tracing::info!(missing = ?self.store.missing(), "waiting for the first lists");
                }
                quiet = true;
                continue;
            };
            let began = time::now();
            if let Err(lost) = self.pass(snapshot).await {
                return lost;
            }
            rested = time::now() + time::now().since(began).clamp(LEAST_REST, REST);
        }
    }

    /// Waits until something has changed or is due, and then, unless somebody waits for it, for more of it.
    async fn rest(&self, rested: Moment) {
        let wait = || self.due.map_or(TICK, |due| due.since(time::now()).min(TICK));
        let news = self.store.news();
        let _ = timeout(wait(), news.wait(News::Later)).await;
        if news.latest() == Some(News::Later) {
            let _ = timeout(wait().min(REST), news.wait(News::Soon)).await;
        }
        let _ = timeout(rested.since(time::now()), news.wait(News::Now)).await;
    }

    /// Asks for another pass no later than that.
    fn again(&mut self, at: Moment) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    async fn pass(&mut self, snapshot: Snapshot) -> Result<(), Lost> {
        self.due = None;
        let mut pass = self.dereference(snapshot).await?;
        self.membership(&mut pass);
        self.fleet(&pass).await?;
        self.look_outside(&mut pass);
        self.finalizers(&mut pass).await?;
        self.resolve(&mut pass);
        self.publish(&mut pass).await?;
        self.berths(&mut pass).await?;
        self.timeouts(&mut pass).await?;
        self.waiting(&pass).await?;
        self.aggregate(&pass).await?;
        self.farewells(&pass).await?;
        self.tell(&pass);
        self.backoffs.forget(pass.now);
        if let Some(due) = self.backoffs.due(pass.now) {
            self.again(due);
        }
        Ok(())
    }

    /// Phase 2, pure: who belongs to which pool.
    fn membership(&mut self, pass: &mut Pass) {
        pass.membership = self.belonging.of(&pass.snapshot);
        let mut asked = BTreeMap::new();
        for host in pass.snapshot.hosts.values() {
            if publish::is_leaving(&host.view) {
                let since = self.asked.get(&host.view.uid).copied();
                asked.insert(host.view.uid.clone(), since.unwrap_or(pass.now));
            }
        }
        self.asked = asked;
    }

    /// Phase 4, pure but for the tasks that it starts: which images are to be resolved.
    fn resolve(&mut self, pass: &mut Pass) {
        let names: Vec<PoolName> = pass.pools.iter().map(|p| p.name.clone()).collect();
        self.resolver.keep(&names);
        self.resolver.collect(pass.now, pass.wall);
        for pool in pass.pools.iter().filter(|p| !p.deleting) {
            let Some(object) = &pool.object else {
                continue;
            };
            let reference = object.spec.image_ref();
            let resolution = self.resolver.ensure(&pool.name, reference, pool.target(), pass.now);
            if let Some(due) = resolution.due {
                self.again(due);
            }
            pass.resolutions.insert(pool.name.clone(), resolution);
        }
    }

    /// What the plans of all pools share.
    fn shared<'a>(&'a self, pass: &'a Pass) -> Shared<'a> {
        Shared {
            snapshot: &pass.snapshot,
            membership: &pass.membership,
            leases: &pass.leases,
            occupied: &pass.occupied,
            in_doubt: &self.in_doubt,
            confirmed_gone: &pass.confirmed_gone,
            heard: &pass.heard,
            offers: &self.offers,
            soaks: &self.soaks,
            gates: &pass.gates,
            now: pass.now,
            epoch: self.kube.epoch(),
        }
    }

    /// Sorts out how a write ended: whether to go on, and when to try again.
    fn outcome<T>(&mut self, key: &str, result: Result<T, CallError>) -> Result<Option<T>, Lost> {
        let now = time::now();
        match result {
            Ok(value) => {
                self.backoffs.note(key, true, now);
                Ok(Some(value))
            }
            Err(CallError::Lost(lost)) => Err(lost),
            Err(CallError::Conflict(error)) => {
                tracing::debug!(object = key, %error, "changed meanwhile");
                self.again(now + AGAIN);
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(object = key, %error, "write failed; trying again later");
                self.outside.metrics.error();
                self.backoffs.note(key, false, now);
                Ok(None)
            }
        }
    }
}

impl Pass {
    /// The pools whose first resolution is under way.
    fn resolving(&self) -> BTreeSet<PoolName> {
        let first = self.resolutions.iter().filter(|(_, r)| r.first);
        first.map(|(name, _)| name.clone()).collect()
    }
}
