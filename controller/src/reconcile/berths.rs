//! Phase 6 of a pass: plans and writes the berths. Sends requests to the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::PoolName;
use berth_api::berth::{Berth, lease};
use berth_api::fleet::{self, BootcFleet};
use berth_api::pool::BootcNodePool;
use berth_core::controller::plan::{BerthWrite, Plan, WriteReason};
use berth_core::controller::pool::{Pool, is_as_shown};
use berth_core::controller::quorum::ControlPlane;
use berth_core::controller::round::{Rereads, Round};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::phases::{Berths, Observed, PlanInputs, Planned};
use super::reconciler::Reconciler;
use crate::api::CallError;
use crate::leader::Lost;
use crate::time;

/// Progress of a plan's writes.
enum Executed {
    All,
    /// Only this many writes were made; the next one failed or was postponed.
    UpTo(usize),
    /// A Lease cannot be written, and later writes depend on it: the pool is planned again without this Lease.
    Unwritable,
}

impl Reconciler {
    /// Plans all pools from the watched state, and makes the planned writes. If a plan writes berths or lowers the
    /// published capacity, first reads all berths from the API server, and plans again if they differ from the watched
    /// berths.
    pub(super) async fn berths(&mut self, inputs: PlanInputs<'_>, known: Berths) -> Result<Planned, Lost> {
        let pools = &inputs.observed.pools;
        let known = self.with_unlisted(known, inputs.left_alone);
        let control_plane = self.control_plane(inputs, &known);
        let plans = self.plans(inputs, control_plane.clone(), &known);
        if !pools.iter().any(|pool| needs_live_berths(pool, &plans)) {
            self.forget_writable(&plans, &known, inputs.left_alone, inputs.observed);
            return Ok(Planned { plans, berths: known });
        }
        let berths = self.live_berths(inputs.observed, known.clone()).await?;
        if !berths.live {
            // The berths may be stale: offer nothing, and publish no smaller capacity.
            let plans = BTreeMap::new();
            return Ok(Planned { plans, berths });
        }
        let berths = self.with_unlisted(berths, inputs.left_alone);
        let looked = self.control_plane(inputs, &berths);
        let mut plans = if berths.leases == known.leases && looked == control_plane {
            plans
        } else {
            self.plans(inputs, looked.clone(), &berths)
        };
        let outdated = self.changed_pools(inputs, &plans).await?;
        if !outdated.is_empty() {
            let outdated = &outdated | inputs.outdated;
            let inputs = PlanInputs {
                outdated: &outdated,
                ..inputs
            };
            plans = self.plans(inputs, looked, &berths);
        }
        self.forget_writable(&plans, &berths, inputs.left_alone, inputs.observed);
        let plans = self.execute_all(inputs, plans, &berths).await?;
        Ok(Planned { plans, berths })
    }

    /// Makes the writes of all plans. Returns the plans for the status reports, without the offers that could not be
    /// written.
    async fn execute_all(
        &mut self,
        inputs: PlanInputs<'_>,
        mut plans: BTreeMap<PoolName, Plan>,
        berths: &Berths,
    ) -> Result<BTreeMap<PoolName, Plan>, Lost> {
        let mut not_made: BTreeMap<PoolName, Vec<BerthWrite>> = BTreeMap::new();
        let mut is_refused = false;
        for pool in &inputs.observed.pools {
            let Some(plan) = plans.get(&pool.name) else {
                continue;
            };
            let writes = plan.writes.clone();
            match self.execute(inputs.observed, berths, pool, &writes).await? {
                Executed::All => {}
                Executed::UpTo(made) => drop(not_made.insert(pool.name.clone(), writes[made..].to_vec())),
                Executed::Unwritable => is_refused = true,
            }
        }
        if is_refused {
            // The next pass makes the remaining writes of the new plan.
            self.again(time::now());
            let left_alone = self.left_alone(inputs.observed);
            let inputs = PlanInputs {
                left_alone: &left_alone,
                ..inputs
            };
            let berths = self.with_unlisted(berths.clone(), &left_alone);
            let control_plane = self.control_plane(inputs, &berths);
            plans = self.plans(inputs, control_plane, &berths);
        }
        for (pool, writes) in not_made {
            if let Some(plan) = plans.get_mut(&pool) {
                plan.not_made(&writes);
            }
        }
        Ok(plans)
    }

    /// Returns all pools if a watch is stale now or was stale when the snapshot was taken; none otherwise.
    pub(super) fn outdated(&self, observed: &Observed) -> BTreeSet<PoolName> {
        let mut stale = self.store.stale();
        stale.extend(&observed.snapshot.stale);
        if stale.is_empty() {
            return BTreeSet::new();
        }
        tracing::warn!(
            ?stale,
            "some watches are stale; no berth is offered until the watches recover"
        );
        observed.pools.iter().map(|pool| pool.name.clone()).collect()
    }

    /// Reads the BootcFleet, and the pools that the offers depend on, directly from the API server. Returns the pools
    /// that must not offer a berth in this pass, because an object has changed since the last watch event.
    async fn changed_pools(
        &mut self,
        inputs: PlanInputs<'_>,
        plans: &BTreeMap<PoolName, Plan>,
    ) -> Result<BTreeSet<PoolName>, Lost> {
        let observed = inputs.observed;
        let Some(rereads) = Rereads::of(&observed.pools, plans) else {
            return Ok(BTreeSet::new());
        };
        let read = rereads.pools();
        let kube = self.kube.clone();
        let (fleets, all) = (kube.all::<BootcFleet>(), kube.all::<BootcNodePool>());
        let reads = read.iter().map(|pool| kube.get(&all, pool.name.as_str()));
        let (fleet, pools) = tokio::join!(kube.get(&fleets, fleet::NAME), futures::future::join_all(reads));
        let fleet = self.outcome("fleet/read", fleet)?;
        let fleet = fleet.map(|fleet| fleet.map(|fleet| fleet.spec).unwrap_or_default());
        let fleet_changed = fleet.is_none() || fleet != observed.snapshot.fleet_spec();
        let mut changed = BTreeSet::new();
        for (pool, read) in read.into_iter().zip(pools) {
            let read = self.outcome(&format!("pool/{}/read", pool.name), read)?;
            if !read.is_some_and(|now| is_as_shown(pool, now.as_ref())) {
                changed.insert(pool.name.clone());
            }
        }
        let closed = rereads.closed(&changed, fleet_changed);
        if !closed.is_empty() {
            tracing::info!(pools = ?changed, fleet_changed, "pools or the BootcFleet have changed since the last watch event; no berth offered in this pass");
        }
        Ok(closed)
    }

    fn shared<'a>(&'a self, inputs: PlanInputs<'a>, berths: &'a Berths) -> Round<'a> {
        Round {
            snapshot: &inputs.observed.snapshot,
            membership: inputs.membership,
            leases: &berths.leases,
            occupied: &berths.occupied,
            in_doubt: &self.memory.leases.in_doubt,
            refused: inputs.left_alone,
            confirmed_gone: &inputs.observed.confirmed_gone,
            heard: &inputs.observed.heard,
            overdue: inputs.overdue,
            outdated: inputs.outdated,
            offers: &self.memory.leases.offers,
            ledger: &self.memory.leases.ledger,
            soaks: &self.memory.pools.soaks,
            gates: inputs.gates,
            now: inputs.observed.now,
            epoch: self.kube.epoch(),
        }
    }

    /// Returns the state of the control plane from the latest probes. Probing continues while a pool needs the answers.
    fn control_plane(&self, inputs: PlanInputs<'_>, berths: &Berths) -> ControlPlane {
        let shared = self.shared(inputs, berths);
        let wanted = shared.needs_servers(&inputs.observed.pools);
        let answers = self.outside.readyz.answers(wanted);
        shared.control_plane(wanted.then_some(&answers))
    }

    /// Plans every pool. Sends no request; updates only the memory of offers and soak times.
    fn plans(
        &mut self,
        inputs: PlanInputs<'_>,
        control_plane: ControlPlane,
        berths: &Berths,
    ) -> BTreeMap<PoolName, Plan> {
        let observed = inputs.observed;
        let readable = berths.leases.iter();
        let readable = readable.filter_map(|l| Some((l.name(), l.berth.as_ref().ok()?)));
        self.memory.leases.offers.see(readable.clone(), observed.now);
        let ledger = &mut self.memory.leases.ledger;
        ledger.see(readable);
        ledger.keep(|digest| observed.pools.iter().any(|pool| pool.has_target(digest)));
        for pool in observed.pools.iter().filter(|pool| pool.is_retried()) {
            for node in inputs.membership.members(&pool.name) {
                ledger.forget(node);
            }
        }
        let plans = self
            .shared(inputs, berths)
            .plans(&observed.pools, control_plane, observed.wall);
        for pool in &observed.pools {
            if let (Some(target), Some(plan)) = (pool.target(), plans.get(&pool.name)) {
                self.memory
                    .pools
                    .soaks
                    .see(&pool.name, &target.digest, &plan.waves, observed.now);
            }
        }
        plans
    }

    /// Makes a plan's writes in order. Stops at the first failure, since later writes depend on earlier ones.
    async fn execute(
        &mut self,
        observed: &Observed,
        berths: &Berths,
        pool: &Pool,
        writes: &[BerthWrite],
    ) -> Result<Executed, Lost> {
        let key = format!("berths/{}", pool.name);
        if !self.memory.backoffs.is_ready(&key, observed.now) {
            return Ok(Executed::UpTo(0));
        }
        // A plan may write one Lease twice: close it, then offer it. The second write builds on the first.
        let mut written = BTreeMap::new();
        for (made, write) in writes.iter().enumerate() {
            if write.is_offer() && !self.store.stale().is_empty() {
                return Ok(Executed::UpTo(made));
            }
            let name = write.lease();
            let result = self.execute_one(berths, pool, write, &written).await;
            if let Err(CallError::Refused(words)) = result {
                self.write_refused(pool, write, words)?;
                return Ok(Executed::Unwritable);
            }
            let is_there_already = matches!((write, &result), (BerthWrite::Create(_), Err(CallError::Conflict(_))));
            if is_there_already && self.has_lost_label(pool, &name).await? {
                return Ok(Executed::Unwritable);
            }
            let Some(lease) = self.outcome(&key, result)? else {
                return Ok(Executed::UpTo(made));
            };
            written.extend(lease.map(|lease| (name.clone(), lease)));
            self.was_written(&name);
            log(berths, pool, write);
            self.report_closed_berth(berths, pool, write);
            self.memory.leases.ledger.wrote(write);
            let shown = observed.snapshot.leases.get(name.as_str());
            if unannounced(shown.map(|entry| &entry.view.berth), write) {
                // No watch event will start a pass, and writes may be waiting for this Lease to be fenced.
                self.again(time::now());
            }
        }
        Ok(Executed::All)
    }

    /// Makes one write. Returns the Lease as the server stored it.
    async fn execute_one(
        &mut self,
        berths: &Berths,
        pool: &Pool,
        write: &BerthWrite,
        written: &BTreeMap<String, Lease>,
    ) -> Result<Option<Lease>, CallError> {
        let api = self.kube.leases();
        let timeout = pool.reboot_timeout();
        let now = Timestamp::now();
        match write {
            BerthWrite::Create(berth) => {
                let object = lease::create(berth, self.kube.namespace(), timeout, now);
                let created = self.kube.create(&api, &object.into()).await;
                created.map(|lease| Some(lease.object))
            }
            BerthWrite::Delete { lease } => {
                let metadata = last_read(lease, berths, written)?.metadata;
                let (uid, version) = (metadata.uid, metadata.resource_version);
                self.kube.delete(&api, lease, uid, version).await.map(|()| None)
            }
            BerthWrite::Update { lease, berth, .. } => {
                let object = rewritten(last_read(lease, berths, written)?, berth, timeout, now);
                let result = self.kube.replace(&api, lease, &object.into()).await;
                match &result {
                    Ok(_) => self.memory.leases.in_doubt.remove(lease),
                    Err(CallError::Unknown(_)) => self.memory.leases.in_doubt.insert(lease.clone()),
                    Err(_) => false,
                };
                result.map(|lease| Some(lease.object))
            }
        }
    }
}

/// True if the plan writes berths or lowers the published capacity.
fn needs_live_berths(pool: &Pool, plans: &BTreeMap<PoolName, Plan>) -> bool {
    let status = pool.object.as_ref().and_then(|o| o.status.as_ref());
    let published = status.map_or(0, |s| s.berths.total);
    let plan = plans.get(&pool.name);
    plan.is_some_and(|plan| !plan.writes.is_empty() || plan.counts.total < published)
}

/// Returns a Lease as this pass last wrote or read it.
fn last_read(name: &str, berths: &Berths, written: &BTreeMap<String, Lease>) -> Result<Lease, CallError> {
    let found = written.get(name).or_else(|| berths.named(name).map(|l| &l.lease));
    found
        .cloned()
        .ok_or_else(|| CallError::Conflict("the Lease was missing when the controller last read the berths".to_owned()))
}

/// Returns the Lease with the berth's new state. Removes everything that is not part of the protocol.
fn rewritten(mut object: Lease, berth: &Berth, timeout: Duration, now: Timestamp) -> Lease {
    let renewed = object.spec.as_ref().and_then(|s| s.renew_time.clone());
    lease::clean(&mut object);
    lease::write(berth, &mut object, now);
    if let Some(spec) = &mut object.spec {
        let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
        spec.lease_duration_seconds = Some(seconds.max(1));
        if berth.holding().is_some() {
            // `renewTime` is the holder's heartbeat, so keep it.
            spec.renew_time = renewed;
        }
    }
    object
}

/// True if the watch already shows this state of the berth. The write then causes no watch event that would start the
/// next pass.
fn unannounced(shown: Option<&Result<Berth, String>>, write: &BerthWrite) -> bool {
    match write {
        BerthWrite::Update { berth, .. } => shown.is_some_and(|shown| shown.as_ref() == Ok(berth)),
        BerthWrite::Create(_) | BerthWrite::Delete { .. } => false,
    }
}

fn log(berths: &Berths, pool: &Pool, write: &BerthWrite) {
    let pool = &pool.name;
    match write {
        BerthWrite::Create(berth) => {
            tracing::info!(%pool, berth = %berth.name(), epoch = berth.epoch, "closed berth created");
        }
        BerthWrite::Delete { lease } => tracing::info!(%pool, berth = %lease, "berth deleted"),
        BerthWrite::Update { lease, berth, why } => {
            let before = berths.named(lease);
            let before = before.and_then(|l| l.berth.as_ref().ok());
            let node = berth.node().or_else(|| before.and_then(Berth::node));
            let node = node.map_or("", |(name, _)| name.as_str());
            let target = berth.offer().map(|o| o.target.to_string());
            let target = target.as_deref().unwrap_or("");
            match why {
                WriteReason::Stamp => {
                    tracing::info!(%pool, berth = %lease, epoch = berth.epoch, "this leader has taken over the berth (epoch updated)")
                }
                WriteReason::Offer => tracing::info!(%pool, berth = %lease, node, target, "berth offered"),
                WriteReason::Lapsed => {
                    tracing::warn!(%pool, berth = %lease, node, "offer lapsed: the node did not take the berth")
                }
                WriteReason::Withdrawn(reason, _) => {
                    tracing::info!(%pool, berth = %lease, node, reason, "offer withdrawn")
                }
                WriteReason::Revoke(reason, _) => {
                    tracing::info!(%pool, berth = %lease, node, reason, "the holder was asked to give the berth back")
                }
                WriteReason::Unrevoke => {
                    tracing::info!(%pool, berth = %lease, node, "the request to give the berth back was canceled; the holder may keep the berth")
                }
                WriteReason::Gone => {
                    tracing::warn!(%pool, berth = %lease, node, "berth closed: the holder's Node is gone")
                }
                WriteReason::Window => {
                    tracing::info!(%pool, berth = %lease, node, "the holder has a new deadline for the start of its reboot (open-until)")
                }
                WriteReason::Excluded => {
                    tracing::warn!(%pool, berth = %lease, node, "berth closed: the holder's Node is excluded and not Ready");
                }
                WriteReason::Recorded => {
                    tracing::info!(%pool, berth = %lease, "the failure of the last turn is recorded")
                }
                WriteReason::Shrunk => tracing::info!(%pool, berth = %lease, "berth closed: the capacity was reduced"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::BootId;
    use berth_api::berth::Offer;

    use super::*;

    #[test]
    fn our_writes_keep_the_holders_heartbeat() {
        fn at(seconds: i64) -> Timestamp {
            Timestamp::from_second(seconds).unwrap()
        }
        let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let offer = Offer {
            node: "n1".into(),
            uid: "u".into(),
            target,
            open_until: Some(at(9)),
        };
        let closed = Berth::new("p".into(), 0, 1);
        let offered = closed.offered(offer).unwrap();
        let taken = offered
            .taken(&"n1".into(), &"u".into(), None, BootId::from("b"))
            .unwrap();
        fn renewed(before: &Berth, after: &Berth) -> Timestamp {
            let timeout = Duration::from_secs(60);
            let before = lease::create(before, "ns", timeout, at(1));
            rewritten(before, after, timeout, at(7))
                .spec
                .unwrap()
                .renew_time
                .unwrap()
                .0
        }
        assert_eq!(renewed(&taken, &taken.revoked(Some("Paused".into())).unwrap()), at(1));
        assert_eq!(renewed(&taken, &taken.stamped(2)), at(1));
        assert_eq!(renewed(&closed, &offered), at(7));
    }

    #[test]
    fn a_fence_without_a_change_requests_a_pass() {
        fn berth(epoch: u64) -> Berth {
            Berth::new("p".into(), 0, epoch)
        }
        let stamp = BerthWrite::Update {
            lease: "p-0".into(),
            berth: berth(7),
            why: WriteReason::Stamp,
        };
        assert!(unannounced(Some(&Ok(berth(7))), &stamp));
        assert!(
            !unannounced(Some(&Ok(berth(6))), &stamp),
            "the watch will report the new epoch"
        );
        assert!(!unannounced(Some(&Err("edited".into())), &stamp));
        assert!(!unannounced(None, &BerthWrite::Create(berth(7))));
    }
}
