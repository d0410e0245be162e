//! Phase 6, client required: keeping the berths.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{Berth, lease};
use berth_api::fleet::{self, BootcFleet};
use berth_api::membership::Membership;
use berth_api::pool::BootcNodePool;
use berth_api::{NodeUid, PoolName};
use berth_core::controller::gates::Gates;
use berth_core::controller::plan::{BerthWrite, Plan, WriteReason};
use berth_core::controller::pool::{Pool, is_as_shown};
use berth_core::controller::quorum::ControlPlane;
use berth_core::controller::round::{Rereads, Round};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::Reconciler;
use super::seen::{Berths, Planned, Seen};
use crate::api::CallError;
use crate::leader::Lost;
use crate::time;

/// Findings from before the berths are looked at.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) seen: &'a Seen,
    pub(super) membership: &'a Membership,
    pub(super) gates: &'a BTreeMap<PoolName, Gates>,
    /// Pools of which what the watches show may have been overtaken.
    pub(super) outdated: &'a BTreeSet<PoolName>,
    /// BootcNodes (UIDs) whose agents were asked long ago to release their node.
    pub(super) overdue: &'a BTreeSet<String>,
    /// Leases that are not written in this pass, since the API server refused it a short time ago.
    pub(super) left_alone: &'a BTreeSet<String>,
}

/// How far the writes of a plan came.
enum Executed {
    /// All were made.
    All,
    /// One of them failed: so many before it were made.
    UpTo(usize),
    /// One of them fails whenever it is tried. The rest of the plan counts on it, so another plan has to be made without it.
    Unwritable,
}

impl Reconciler {
    /// Looks at the gates of every pool, and again when one is due to open or close. Pure but for what is remembered.
    pub(super) fn gates(&mut self, seen: &Seen) -> BTreeMap<PoolName, Gates> {
        let clock_synchronized = self.is_clock_synchronized(seen);
        let mut all = BTreeMap::new();
        for pool in &seen.pools {
            let fleet = seen.snapshot.fleet_gate();
            let Some(inputs) = pool.gate_inputs(fleet, clock_synchronized, seen.wall) else {
                continue;
            };
            let gates = self.memory.gates.gates(inputs);
            if let Some(changes) = gates.changes {
                let wait = Duration::try_from(changes.duration_since(seen.wall)).unwrap_or_default();
                self.again(seen.now + wait);
            }
            all.insert(pool.name.clone(), gates);
        }
        self.memory.gates.keep(|pool| all.contains_key(pool));
        all
    }

    /// Plans from what the watches know; if that asks for anything, reads all berths anew, and plans again unless they are
    /// what was planned from.
    pub(super) async fn berths(&mut self, before: Before<'_>, known: Berths) -> Result<Planned, Lost> {
        let pools = &before.seen.pools;
        let known = self.with_unlisted(known, before.left_alone);
        let control_plane = self.control_plane(before, &known);
        let plans = self.plans(before, control_plane.clone(), &known);
        let published = |pool: &Pool| {
            let status = pool.object.as_ref().and_then(|o| o.status.as_ref());
            status.map_or(0, |s| s.berths.total)
        };
        let asks = |pool: &Pool| {
            let plan = plans.get(&pool.name);
            plan.is_some_and(|plan| !plan.writes.is_empty() || plan.counts.total < published(pool))
        };
        if !pools.iter().any(asks) {
            self.forget_writable(&plans, &known, before.left_alone, before.seen);
            return Ok(Planned { plans, berths: known });
        }
        let berths = self.live_berths(before.seen, known.clone()).await?;
        if !berths.live {
            // Nothing is given away, and no smaller capacity is told, from what may be stale.
            let plans = BTreeMap::new();
            return Ok(Planned { plans, berths });
        }
        let berths = self.with_unlisted(berths, before.left_alone);
        let looked = self.control_plane(before, &berths);
        let mut plans = match berths.leases == known.leases && looked == control_plane {
            true => plans,
            false => self.plans(before, looked.clone(), &berths),
        };
        let outdated = self.changed_pools(before, &plans).await?;
        if !outdated.is_empty() {
            let outdated = &outdated | before.outdated;
            let before = Before {
                outdated: &outdated,
                ..before
            };
            plans = self.plans(before, looked, &berths);
        }
        self.forget_writable(&plans, &berths, before.left_alone, before.seen);
        let plans = self.execute_all(before, plans, &berths).await?;
        Ok(Planned { plans, berths })
    }

    /// Makes the writes of all plans. Returns the plans as the status is to report them.
    async fn execute_all(
        &mut self,
        before: Before<'_>,
        mut plans: BTreeMap<PoolName, Plan>,
        berths: &Berths,
    ) -> Result<BTreeMap<PoolName, Plan>, Lost> {
        let mut not_made: BTreeMap<PoolName, Vec<BerthWrite>> = BTreeMap::new();
        let mut is_refused = false;
        for pool in &before.seen.pools {
            let Some(plan) = plans.get(&pool.name) else {
                continue;
            };
            let writes = plan.writes.clone();
            match self.execute(before.seen, berths, pool, &writes).await? {
                Executed::All => {}
                Executed::UpTo(made) => drop(not_made.insert(pool.name.clone(), writes[made..].to_vec())),
                Executed::Unwritable => is_refused = true,
            }
        }
        if is_refused {
            // The next pass makes the writes that this plan has besides those that were made.
            self.again(time::now());
            let left_alone = self.left_alone(before.seen);
            let before = Before {
                left_alone: &left_alone,
                ..before
            };
            let berths = self.with_unlisted(berths.clone(), &left_alone);
            let control_plane = self.control_plane(before, &berths);
            plans = self.plans(before, control_plane, &berths);
        }
        for (pool, writes) in not_made {
            if let Some(plan) = plans.get_mut(&pool) {
                plan.not_made(&writes);
            }
        }
        Ok(plans)
    }

    /// All pools, when a watch is being set up again or is silent, or was so when the snapshot was taken.
    pub(super) fn outdated(&self, seen: &Seen) -> BTreeSet<PoolName> {
        let mut stale = self.store.stale();
        stale.extend(&seen.snapshot.stale);
        if stale.is_empty() {
            return BTreeSet::new();
        }
        tracing::warn!(
            ?stale,
            "watches are set up again or silent; no berth is offered meanwhile"
        );
        seen.pools.iter().map(|pool| pool.name.clone()).collect()
    }

    /// Reads the fleet, and the pools that the offers depend on. Answers the pools that offer nothing in this pass.
    async fn changed_pools(
        &mut self,
        before: Before<'_>,
        plans: &BTreeMap<PoolName, Plan>,
    ) -> Result<BTreeSet<PoolName>, Lost> {
        let seen = before.seen;
        let Some(rereads) = Rereads::of(&seen.pools, plans) else {
            return Ok(BTreeSet::new());
        };
        let read = rereads.pools();
        let kube = self.kube.clone();
        let (fleets, all) = (kube.all::<BootcFleet>(), kube.all::<BootcNodePool>());
        let reads = read.iter().map(|pool| kube.get(&all, pool.name.as_str()));
        let (fleet, pools) = tokio::join!(kube.get(&fleets, fleet::NAME), futures::future::join_all(reads));
        let fleet = self.outcome("fleet/read", fleet)?;
        let fleet = fleet.map(|fleet| fleet.map(|fleet| fleet.spec).unwrap_or_default());
        let fleet_changed = fleet.is_none() || fleet != seen.snapshot.fleet_spec();
        let mut changed = BTreeSet::new();
        for (pool, read) in read.into_iter().zip(pools) {
            let read = self.outcome(&format!("pool/{}/read", pool.name), read)?;
            if !read.is_some_and(|now| is_as_shown(pool, now.as_ref())) {
                changed.insert(pool.name.clone());
            }
        }
        let closed = rereads.closed(&changed, fleet_changed);
        if !closed.is_empty() {
            tracing::info!(pools = ?changed, fleet_changed, "not as the watches show it; nothing is offered there in this pass");
        }
        Ok(closed)
    }

    /// Facts that the plans of all pools share.
    pub(super) fn shared<'a>(&'a self, before: Before<'a>, berths: &'a Berths) -> Round<'a> {
        Round {
            snapshot: &before.seen.snapshot,
            membership: before.membership,
            leases: &berths.leases,
            occupied: &berths.occupied,
            in_doubt: &self.memory.in_doubt,
            refused: before.left_alone,
            confirmed_gone: &before.seen.confirmed_gone,
            heard: &before.seen.heard,
            overdue: before.overdue,
            outdated: before.outdated,
            offers: &self.memory.offers,
            soaks: &self.memory.soaks,
            gates: before.gates,
            now: before.seen.now,
            epoch: self.kube.epoch(),
        }
    }

    /// The plan of every pool. Pure but for what is remembered: the open offers, and how long waves have soaked.
    fn plans(&mut self, before: Before<'_>, control_plane: ControlPlane, berths: &Berths) -> BTreeMap<PoolName, Plan> {
        let seen = before.seen;
        let readable = berths.leases.iter();
        let readable = readable.filter_map(|l| Some((l.name(), l.berth.as_ref().ok()?)));
        self.memory.offers.see(readable, seen.now);
        let uids =
            LazyCell::new(|| -> BTreeSet<&NodeUid> { seen.snapshot.nodes.values().map(|n| &n.view.uid).collect() });
        self.memory.offers.keep(|uid| uids.contains(uid));
        let plans = self.shared(before, berths).plans(&seen.pools, control_plane, seen.wall);
        for pool in &seen.pools {
            if let (Some(target), Some(plan)) = (pool.target(), plans.get(&pool.name)) {
                self.memory.soaks.see(&pool.name, &target.digest, &plan.waves, seen.now);
            }
        }
        plans
    }

    /// Makes a plan's writes in order. The first that fails ends it: the later ones count on it.
    async fn execute(
        &mut self,
        seen: &Seen,
        berths: &Berths,
        pool: &Pool,
        writes: &[BerthWrite],
    ) -> Result<Executed, Lost> {
        let key = format!("berths/{}", pool.name);
        if !self.memory.backoffs.ready(&key, seen.now) {
            return Ok(Executed::UpTo(0));
        }
        // A plan may write one Lease twice: closed, and offered to the next node. The second write counts on the first.
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
            self.tell_of_berth(berths, pool, write);
            if let BerthWrite::Update {
                lease,
                why: WriteReason::Lapsed,
                ..
            } = write
            {
                let before = berths.named(lease);
                if let Some(offer) = before.and_then(|l| l.berth.as_ref().ok()?.offer()) {
                    self.memory.offers.lapsed(offer);
                }
            }
            let shown = seen.snapshot.leases.get(name.as_str());
            if unannounced(shown.map(|entry| &entry.view.berth), write) {
                // What waits for this fence waits no longer.
                self.again(time::now());
            }
        }
        Ok(Executed::All)
    }

    /// Makes one write, and answers the Lease as it is then.
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
        let read = |name: &str| {
            let read = || berths.named(name).map(|l| &l.lease);
            let found = written.get(name).or_else(read);
            found
                .cloned()
                .ok_or_else(|| CallError::Conflict("it was not read".to_owned()))
        };
        match write {
            BerthWrite::Create(berth) => {
                let object = lease::create(berth, self.kube.namespace(), timeout, now);
                self.kube.create(&api, &object).await.map(Some)
            }
            BerthWrite::Delete { lease } => {
                let metadata = read(lease)?.metadata;
                let (uid, version) = (metadata.uid, metadata.resource_version);
                self.kube.delete(&api, lease, uid, version).await.map(|()| None)
            }
            BerthWrite::Update { lease, berth, .. } => {
                let object = rewritten(read(lease)?, berth, timeout, now);
                let result = self.kube.replace(&api, lease, &object).await;
                match &result {
                    Ok(_) => self.memory.in_doubt.remove(lease),
                    Err(CallError::Unknown(_)) => self.memory.in_doubt.insert(lease.clone()),
                    Err(_) => false,
                };
                result.map(Some)
            }
        }
    }
}

/// The Lease that was read, saying what it shall say now.
fn rewritten(mut object: Lease, berth: &Berth, timeout: Duration, now: Timestamp) -> Lease {
    let renewed = object.spec.as_ref().and_then(|s| s.renew_time.clone());
    lease::write(berth, &mut object, now);
    if let Some(spec) = &mut object.spec {
        let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
        spec.lease_duration_seconds = Some(seconds.max(1));
        if berth.holding().is_some() {
            // The holder's own sign of life.
            spec.renew_time = renewed;
        }
    }
    object
}

/// Says whether a write leaves a berth as the watch shows it, so that no event will ask for another pass: the fence
/// that settles a write in doubt.
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
            tracing::info!(%pool, berth = %berth.name(), epoch = berth.epoch, "berth created, closed");
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
                WriteReason::Stamp => tracing::info!(%pool, berth = %lease, epoch = berth.epoch, "berth fenced"),
                WriteReason::Offer => tracing::info!(%pool, berth = %lease, node, target, "berth offered"),
                WriteReason::Lapsed => {
                    tracing::warn!(%pool, berth = %lease, node, "offer lapsed: the node did not take it")
                }
                WriteReason::Withdrawn(reason) => {
                    tracing::info!(%pool, berth = %lease, node, reason, "offer withdrawn")
                }
                WriteReason::Revoke(reason) => tracing::info!(%pool, berth = %lease, node, reason, "berth asked back"),
                WriteReason::Unrevoke => tracing::info!(%pool, berth = %lease, node, "berth no longer asked back"),
                WriteReason::Gone => tracing::warn!(%pool, berth = %lease, node, "berth closed: its Node is gone"),
                WriteReason::Window => {
                    tracing::info!(%pool, berth = %lease, node, "the holder is told of another window")
                }
                WriteReason::Excluded => {
                    tracing::warn!(%pool, berth = %lease, node, "berth closed: its Node is excluded and not Ready");
                }
                WriteReason::Recorded => {
                    tracing::info!(%pool, berth = %lease, "the failure that ended there is on record")
                }
                WriteReason::Shrunk => tracing::info!(%pool, berth = %lease, "berth closed: the capacity is smaller"),
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
    fn what_we_write_on_a_held_berth_is_no_sign_of_life() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
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
        let timeout = Duration::from_secs(60);
        let renewed = |before: &Berth, after: &Berth| {
            let before = lease::create(before, "ns", timeout, at(1));
            rewritten(before, after, timeout, at(7))
                .spec
                .unwrap()
                .renew_time
                .unwrap()
                .0
        };
        assert_eq!(renewed(&taken, &taken.revoked(Some("Paused".into())).unwrap()), at(1));
        assert_eq!(renewed(&taken, &taken.stamped(2)), at(1));
        assert_eq!(renewed(&closed, &offered), at(7));
    }

    #[test]
    fn a_fence_that_changes_nothing_asks_for_another_pass_itself() {
        let berth = |epoch| Berth::new("p".into(), 0, epoch);
        let stamp = BerthWrite::Update {
            lease: "p-0".into(),
            berth: berth(7),
            why: WriteReason::Stamp,
        };
        assert!(unannounced(Some(&Ok(berth(7))), &stamp));
        assert!(
            !unannounced(Some(&Ok(berth(6))), &stamp),
            "the watch will tell of the new epoch"
        );
        assert!(!unannounced(Some(&Err("edited".into())), &stamp));
        assert!(!unannounced(None, &BerthWrite::Create(berth(7))));
    }
}
