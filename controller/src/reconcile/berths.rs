//! Phase 6, client required: keeping the berths.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::NodeUid;
use berth_api::berth::{Berth, lease};
use berth_api::pool::DEFAULT_REBOOT_TIMEOUT;
use berth_core::controller::facts::Pool;
use berth_core::controller::plan::{BerthWrite, Plan, Why};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::{Pass, Reconciler};
use crate::api::CallError;
use crate::leader::Lost;
use crate::time;

impl Reconciler {
    /// Plans from what the watches know; if that asks for anything, reads all berths anew, and plans again unless they are
    /// what was planned from.
    pub(super) async fn berths(&mut self, pass: &mut Pass) -> Result<(), Lost> {
        self.gates(pass);
        self.plans(pass);
        let published = |pool: &Pool| {
            let status = pool.object.as_ref().and_then(|o| o.status.as_ref());
            status.map_or(0, |s| s.berths.total)
        };
        let asks = pass.pools.iter().any(|pool| {
            pass.plans
                .get(&pool.name)
                .is_some_and(|plan| !plan.writes.is_empty() || plan.counts.total < published(pool))
        });
        if !asks {
            return Ok(());
        }
        let known = pass.leases.clone();
        if !self.live_leases(pass).await? {
            // Nothing is given away, and no smaller capacity is told, from what may be stale.
            pass.plans.clear();
            return Ok(());
        }
        let control_plane = self.shared(pass).control_plane(pass.answers.as_ref());
        self.look_at_servers(pass);
        if pass.leases != known || self.shared(pass).control_plane(pass.answers.as_ref()) != control_plane {
            self.plans(pass);
        }
        for pool in pass.pools.clone() {
            let writes = pass.plans.get(&pool.name).map(|plan| plan.writes.clone());
            self.execute(pass, &pool, writes.unwrap_or_default()).await?;
        }
        Ok(())
    }

    /// Looks at the gates of every pool, and again when one is due to open or close.
    fn gates(&mut self, pass: &mut Pass) {
        for pool in &pass.pools {
            let fleet_paused = pass.snapshot.fleet_paused();
            let Some(inputs) = pool.gate_inputs(fleet_paused, pass.clock_synchronized, pass.wall) else {
                continue;
            };
            let gates = self.gates.gates(inputs);
            if let Some(changes) = gates.changes {
                let wait = Duration::try_from(changes.duration_since(pass.wall)).unwrap_or_default();
                self.again(pass.now + wait);
            }
            pass.gates.insert(pool.name.clone(), gates);
        }
        self.gates.keep(|pool| pass.gates.contains_key(pool));
    }

    /// Remembers how long waves have been soaking.
    fn learn(&mut self, pass: &Pass) {
        for pool in &pass.pools {
            let Some(plan) = pass.plans.get(&pool.name) else {
                continue;
            };
            if let Some(target) = pool.target() {
                self.soaks.see(&pool.name, &target.digest, &plan.waves, pass.now);
            }
        }
    }

    fn plans(&mut self, pass: &mut Pass) {
        let berths = pass
            .leases
            .iter()
            .filter_map(|l| Some((l.name(), l.berth.as_ref().ok()?)));
        self.offers.see(berths, pass.now);
        let uids =
            LazyCell::new(|| -> BTreeSet<&NodeUid> { pass.snapshot.nodes.values().map(|n| &n.view.uid).collect() });
        self.offers.keep(|uid| uids.contains(uid));
        let shared = self.shared(pass);
        let control_plane = shared.control_plane(pass.answers.as_ref());
        pass.plans = shared.plans(&pass.pools, control_plane, pass.wall);
        self.learn(pass);
    }

    /// Makes a plan's writes in order. The first that fails ends it: the later ones count on it.
    async fn execute(&mut self, pass: &Pass, pool: &Pool, writes: Vec<BerthWrite>) -> Result<(), Lost> {
        let key = format!("berths/{}", pool.name);
        if !self.backoffs.ready(&key, pass.now) {
            return Ok(());
        }
        // A plan may write one Lease twice: closed, and offered to the next node. The second write counts on the first.
        let mut written = BTreeMap::new();
        for write in writes {
            let result = self.execute_one(pass, pool, &write, &written).await;
            match self.outcome(&key, result)? {
                Some(lease) => written.extend(lease.map(|lease| (write.lease(), lease))),
                None => break,
            }
            log(pass, pool, &write);
            self.tell_of_berth(pass, pool, &write);
            if let BerthWrite::Update {
                lease,
                why: Why::Lapsed,
                ..
            } = &write
            {
                let before = pass.leases.iter().find(|l| l.name() == lease);
                if let Some(offer) = before.and_then(|l| l.berth.as_ref().ok()?.offer()) {
                    self.offers.lapsed(offer);
                }
            }
            let shown = pass.snapshot.leases.get(write.lease().as_str());
            if unannounced(shown.map(|entry| &entry.view.berth), &write) {
                // What waits for this fence waits no longer.
                self.again(time::now());
            }
        }
        Ok(())
    }

    /// Makes one write, and answers the Lease as it is then.
    async fn execute_one(
        &mut self,
        pass: &Pass,
        pool: &Pool,
        write: &BerthWrite,
        written: &BTreeMap<String, Lease>,
    ) -> Result<Option<Lease>, CallError> {
        let api = self.kube.leases();
        let timeout = pool
            .object
            .as_ref()
            .map_or(DEFAULT_REBOOT_TIMEOUT, |o| o.spec.reboot_timeout());
        let now = Timestamp::now();
        let read = |name: &str| {
            let read = || pass.leases.iter().find(|l| l.name() == name).map(|l| &l.lease);
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
                    Ok(_) => self.in_doubt.remove(lease),
                    Err(CallError::Unknown(_)) => self.in_doubt.insert(lease.clone()),
                    Err(_) => false,
                };
                result.map(Some)
            }
        }
    }

    /// The plan of a pool, when there is one.
    pub(super) fn plan_of<'a>(&self, pass: &'a Pass, pool: &Pool) -> Option<&'a Plan> {
        pass.plans.get(&pool.name)
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

fn log(pass: &Pass, pool: &Pool, write: &BerthWrite) {
    let pool = &pool.name;
    match write {
        BerthWrite::Create(berth) => {
            tracing::info!(%pool, berth = %berth.name(), epoch = berth.epoch, "berth created, closed");
        }
        BerthWrite::Delete { lease } => tracing::info!(%pool, berth = %lease, "berth deleted"),
        BerthWrite::Update { lease, berth, why } => {
            let before = pass.leases.iter().find(|l| l.name() == lease);
            let before = before.and_then(|l| l.berth.as_ref().ok());
            let node = berth.node().or_else(|| before.and_then(Berth::node));
            let node = node.map_or("", |(name, _)| name.as_str());
            let target = berth.offer().map(|o| o.target.to_string());
            let target = target.as_deref().unwrap_or("");
            match why {
                Why::Stamp => tracing::info!(%pool, berth = %lease, epoch = berth.epoch, "berth fenced"),
                Why::Offer => tracing::info!(%pool, berth = %lease, node, target, "berth offered"),
                Why::Lapsed => tracing::warn!(%pool, berth = %lease, node, "offer lapsed: the node did not take it"),
                Why::Withdrawn(reason) => tracing::info!(%pool, berth = %lease, node, reason, "offer withdrawn"),
                Why::Revoke(reason) => tracing::info!(%pool, berth = %lease, node, reason, "berth asked back"),
                Why::Unrevoke => tracing::info!(%pool, berth = %lease, node, "berth no longer asked back"),
                Why::Gone => tracing::warn!(%pool, berth = %lease, node, "berth closed: its Node is gone"),
                Why::Window => tracing::info!(%pool, berth = %lease, node, "the holder is told of another window"),
                Why::Excluded => {
                    tracing::warn!(%pool, berth = %lease, node, "berth closed: its Node is excluded and not Ready");
                }
                Why::Recorded => tracing::info!(%pool, berth = %lease, "the failure that ended there is on record"),
                Why::Shrunk => tracing::info!(%pool, berth = %lease, "berth closed: the capacity is smaller"),
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
            why: Why::Stamp,
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
