//! The reconciler's passes. Each pass looks at all objects, decides by pure functions, and makes the writes that are
//! due. A pass needs to know neither which objects have changed since the last pass nor which controller led then.
//!
//! A pass runs when something has changed or is due. It never fails as a whole: failed writes are retried with growing
//! delays while everything else continues. Only lost leadership ends the passes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::membership::Membership;
use berth_core::Moment;
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::view::{Urgency, is_leaving};
use tokio::time::timeout;

use crate::leader::Lost;
use crate::resolve::{PoolImage, Resolution};
use crate::time;

mod berths;
mod dereference;
mod fleet;
mod gates;
mod hosts;
mod implausible;
mod leader_memory;
mod node_writes;
mod outside;
mod phases;
mod pools;
mod reconciler;
mod report;
mod silence;
mod timeouts;
mod unwritable;
mod waiting;

pub use outside::Outside;
use phases::{Findings, Observed, PlanInputs, Resolutions};
pub use reconciler::{Reconciler, Settings};

/// Maximum pause after a pass. Below this maximum, the pause is as long as the pass was, so other tasks get half of the
/// time. The next pass handles all changes that arrive during the pause.
const REST_MAX: Duration = Duration::from_millis(25);
/// Minimum pause after a pass, to limit the requests to the API server. An urgent change ends the pause early.
const REST_MIN: Duration = Duration::from_millis(10);
/// Maximum time between two passes: offers lapse and holders become overdue without any change.
const PASS_INTERVAL: Duration = Duration::from_secs(10);

impl Reconciler {
    /// Runs passes until leadership is lost.
    pub async fn run(mut self) -> Lost {
        let mut quiet = false;
        let mut rested = time::now();
        loop {
            self.rest(rested).await;
            self.kube.beat();
            let Some(snapshot) = self.store.snapshot() else {
                if !quiet {
                    tracing::info!(missing = ?self.store.missing(), "waiting until every watch has listed its objects");
                }
                quiet = true;
                continue;
            };
            let began = time::now();
            if let Err(lost) = self.pass(snapshot).await {
                return lost;
            }
            rested = time::now() + time::now().since(began).clamp(REST_MIN, REST_MAX);
        }
    }

    fn time_to_pass(&self) -> Duration {
        self.due
            .map_or(PASS_INTERVAL, |due| due.since(time::now()).min(PASS_INTERVAL))
    }

    /// Waits until something has changed or is due. If no change is urgent, waits a little longer, so that one pass
    /// handles several changes.
    async fn rest(&self, rested: Moment) {
        let news = self.store.news();
        let _ = timeout(self.time_to_pass(), news.wait(Urgency::Later)).await;
        if news.latest() == Some(Urgency::Later) {
            let _ = timeout(self.time_to_pass().min(REST_MAX), news.wait(Urgency::Soon)).await;
        }
        let _ = timeout(rested.since(time::now()), news.wait(Urgency::Now)).await;
    }

    async fn pass(&mut self, snapshot: Snapshot) -> Result<(), Lost> {
        self.due = None;
        let (observed, berths) = self.dereference(snapshot).await?;
        let membership = self.membership(&observed);
        let touched = self.finalizers(&observed).await?;
        let resolutions = self.resolve(&observed);
        let berths = self.publish(&observed, &membership, &resolutions, berths).await?;
        let gates = self.gates(&observed);
        let outdated = self.outdated(&observed);
        let left_alone = self.left_alone(&observed);
        let overdue = self.overdue(&observed);
        let inputs = PlanInputs {
            observed: &observed,
            left_alone: &left_alone,
            membership: &membership,
            gates: &gates,
            outdated: &outdated,
            overdue: &overdue,
        };
        let planned = self.berths(inputs, berths).await?;
        let timed_out = self.timeouts(&observed, &planned.berths).await?;
        let implausible = self.implausible(&observed, &planned.berths).await?;
        self.waiting(&observed, &membership, &planned.plans).await?;
        let findings = Findings {
            observed,
            membership,
            resolutions,
            gates,
            planned,
            timed_out,
            implausible,
        };
        let results = findings.results();
        self.aggregate(&findings, &results, &touched).await?;
        let agents = findings.agents(&results);
        self.fleet(&findings, &results.unreadable(), &agents).await?;
        self.silence(&findings, &agents).await?;
        self.finalize(&findings).await?;
        self.report(&findings);
        let now = findings.observed.now;
        self.memory.backoffs.forget(now);
        if let Some(due) = self.memory.backoffs.due(now) {
            self.again(due);
        }
        Ok(())
    }

    /// Phase 2, pure: computes which pool each node belongs to.
    fn membership(&mut self, observed: &Observed) -> Arc<Membership> {
        let mut asked = BTreeMap::new();
        for host in observed.snapshot.bootc_nodes.values() {
            if is_leaving(&host.view) {
                let since = self.memory.nodes.release_asked.get(&host.view.uid).copied();
                asked.insert(host.view.uid.clone(), since.unwrap_or(observed.now));
            }
        }
        self.memory.nodes.release_asked = asked;
        self.memory.nodes.membership.of(&observed.snapshot)
    }

    /// Phase 4: starts the queries to registries that are due, and returns the known answers.
    fn resolve(&mut self, observed: &Observed) -> Resolutions {
        for result in self.resolver.collect(observed.now, observed.wall) {
            self.outside.metrics.polled(result);
        }
        let fleet = observed.snapshot.fleet_spec();
        let ages = &mut self.memory.pools.ages;
        ages.keep(|name| observed.snapshot.pools.contains_key(name.as_str()));
        let mut resolutions = Resolutions::new();
        let mut pool_images = vec![];
        for pool in observed.pools.iter().filter(|p| !p.deleting) {
            let Some(object) = &pool.object else {
                continue;
            };
            let status = object.status.as_ref();
            let available = status.and_then(|s| s.available.as_ref());
            let known = ages.see(&pool.name, available, observed.now);
            if pool.refused.is_some() {
                continue;
            }
            // Without the BootcFleet, neither the permitted registries nor the credentials are known.
            let Some(fleet) = &fleet else {
                resolutions.insert(pool.name.clone(), Resolution::unasked());
                continue;
            };
            pool_images.push(PoolImage {
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
        resolutions.extend(self.resolver.ask(&pool_images, observed.now));
        if let Some(due) = self.resolver.due() {
            self.again(due);
        }
        resolutions
    }
}
