//! The passes. Each looks at everything there is, decides by pure functions and makes the writes that are due, so
//! that it does not matter what happened since the last one, or who was the leader then.
//!
//! A pass is made when something has changed, or when something is due; it never fails as a whole: what could not
//! be written is tried again, later and later, while everything else goes on. Only lost leadership ends it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::membership::Membership;
use berth_core::Moment;
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::view::{Urgency, is_leaving};
use tokio::time::timeout;

use crate::api::{CallError, Kube};
use crate::leader::Lost;
use crate::resolve::{Resolution, Resolver, Wish};
use crate::store::Store;
use crate::time;

mod berths;
mod dereference;
mod fleet;
mod hosts;
mod memory;
mod outside;
mod pools;
mod seen;
mod silence;
mod timeouts;
mod unwritable;
mod waiting;

use berths::Before;
use memory::Memory;
pub use outside::Outside;
use seen::{Findings, Resolutions, Seen};

/// Longest rest after a pass. The rest is as long as the pass took: changes that arrive meanwhile are dealt with
/// together, and half of the time is left to others.
const REST: Duration = Duration::from_millis(25);
/// Shortest rest after a pass, unless somebody waits for the next one: each pass may ask the API server for something.
const LEAST_REST: Duration = Duration::from_millis(10);
/// A pass is made at least this often: offers lapse and holders become overdue without anything changing.
const TICK: Duration = Duration::from_secs(10);

/// Settings of the reconciler.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// An agent that was not heard of for so long is offered nothing.
    pub agent_silence: Duration,
    /// Longest time that a node which leaves may take to undo what Berth did there.
    pub release_deadline: Duration,
}

/// The controller while it leads.
#[derive(Debug)]
pub struct Reconciler {
    kube: Kube,
    store: Store,
    resolver: Resolver,
    settings: Settings,
    outside: Outside,
    memory: Memory,
    /// When it began to lead.
    began: Moment,
    /// When the next pass is to be made at the latest.
    due: Option<Moment>,
}

impl Reconciler {
    /// A controller that has just begun to lead.
    pub fn new(kube: Kube, store: Store, resolver: Resolver, settings: Settings, outside: Outside) -> Self {
        Self {
            kube,
            store,
            resolver,
            settings,
            outside,
            memory: Memory::default(),
            began: time::now(),
            due: None,
        }
    }

    /// Makes passes until leadership is lost.
    pub async fn run(mut self) -> Lost {
        let mut quiet = false;
        let mut rested = time::now();
        loop {
            self.rest(rested).await;
            self.kube.beat();
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
        let _ = timeout(wait(), news.wait(Urgency::Later)).await;
        if news.latest() == Some(Urgency::Later) {
            let _ = timeout(wait().min(REST), news.wait(Urgency::Soon)).await;
        }
        let _ = timeout(rested.since(time::now()), news.wait(Urgency::Now)).await;
    }

    /// Asks for another pass no later than that.
    fn again(&mut self, at: Moment) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    async fn pass(&mut self, snapshot: Snapshot) -> Result<(), Lost> {
        self.due = None;
        let (seen, berths) = self.dereference(snapshot).await?;
        let membership = self.membership(&seen);
        let touched = self.finalizers(&seen).await?;
        let resolutions = self.resolve(&seen);
        let berths = self.publish(&seen, &membership, &resolutions, berths).await?;
        let gates = self.gates(&seen);
        let outdated = self.outdated(&seen);
        let left_alone = self.left_alone(&seen);
        let overdue = self.overdue(&seen);
        let before = Before {
            seen: &seen,
            left_alone: &left_alone,
            membership: &membership,
            gates: &gates,
            outdated: &outdated,
            overdue: &overdue,
        };
        let planned = self.berths(before, berths).await?;
        let timed_out = self.timeouts(&seen, &planned.berths).await?;
        self.waiting(&seen, &membership, &planned.plans).await?;
        let findings = Findings {
            seen,
            membership,
            resolutions,
            gates,
            planned,
            timed_out,
        };
        self.aggregate(&findings, &touched).await?;
        let agents = fleet::agents(&findings);
        self.fleet(&findings, &agents).await?;
        self.silence(&findings, &agents).await?;
        self.finalize(&findings).await?;
        self.tell(&findings);
        let now = findings.seen.now;
        self.memory.backoffs.forget(now);
        if let Some(due) = self.memory.backoffs.due(now) {
            self.again(due);
        }
        Ok(())
    }

    /// Phase 2, pure: who belongs to which pool.
    fn membership(&mut self, seen: &Seen) -> Arc<Membership> {
        let mut asked = BTreeMap::new();
        for host in seen.snapshot.bootc_nodes.values() {
            if is_leaving(&host.view) {
                let since = self.memory.asked.get(&host.view.uid).copied();
                asked.insert(host.view.uid.clone(), since.unwrap_or(seen.now));
            }
        }
        self.memory.asked = asked;
        self.memory.belonging.of(&seen.snapshot)
    }

    /// Phase 4, pure but for the tasks that it starts: which images are to be resolved.
    fn resolve(&mut self, seen: &Seen) -> Resolutions {
        for result in self.resolver.collect(seen.now, seen.wall) {
            self.outside.metrics.polled(result);
        }
        let fleet = seen.snapshot.fleet_spec();
        let ages = &mut self.memory.ages;
        ages.keep(|name| seen.snapshot.pools.contains_key(name.as_str()));
        let mut resolutions = Resolutions::new();
        let mut wishes = vec![];
        for pool in seen.pools.iter().filter(|p| !p.deleting) {
            let Some(object) = &pool.object else {
                continue;
            };
            let status = object.status.as_ref();
            let available = status.and_then(|s| s.available.as_ref());
            let known = ages.see(&pool.name, available, seen.now);
            if pool.refused.is_some() {
                continue;
            }
            // Without it nobody knows what may be asked, and with which credentials.
            let Some(fleet) = &fleet else {
                resolutions.insert(pool.name.clone(), Resolution::unasked());
                continue;
            };
            wishes.push(Wish {
                pool: &pool.name,
                reference: object.spec.image_ref(),
                interval: object.spec.poll_interval(fleet.poll_interval()),
                minimum_age: object.spec.minimum_age(),
                secret: fleet.pull_secret(&object.spec),
                target: pool.target(),
                available,
                seen: known,
                request: pool.poll_request(),
                obeyed: status.and_then(|s| s.poll_request.as_deref()),
            });
        }
        resolutions.extend(self.resolver.ask(&wishes, seen.now));
        if let Some(due) = self.resolver.due() {
            self.again(due);
        }
        resolutions
    }

    /// Sorts out how a write ended: whether to go on, and when to try again.
    fn outcome<T>(&mut self, key: &str, result: Result<T, CallError>) -> Result<Option<T>, Lost> {
        let now = time::now();
        match result {
            Ok(value) => {
                self.memory.backoffs.note(key, true, now);
                Ok(Some(value))
            }
            Err(CallError::Lost(lost)) => Err(lost),
            Err(CallError::Conflict(error)) => {
                tracing::debug!(object = key, %error, "changed meanwhile");
                self.memory.backoffs.conflict(key, now);
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(object = key, %error, "write failed; trying again later");
                self.outside.metrics.error();
                self.memory.backoffs.note(key, false, now);
                Ok(None)
            }
        }
    }
}
