//! Why a pool's nodes are offered no berth now, and when its gate opens. Does no I/O.

use berth_api::condition::{self, pool as types};
use berth_api::fleet::BootcFleet;
use berth_api::pool::BootcNodePool;
use berth_core::controller::gate::{FleetGate, GateReason};
use berth_core::controller::gates::{Inputs, Openings, gates};
use berth_core::controller::pool::Pool;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::text::clean;
use crate::world::is_clock_synchronized;

/// Reasons of the condition `Progressing` for a pool that waits for other pools.
const ORDER: [GateReason; 3] = [GateReason::EarlierPool, GateReason::OrderCycle, GateReason::UnknownPool];

/// Gate of a pool, as the page shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct GateView {
    /// True if berths may be offered.
    pub(super) open: bool,
    /// Why no berth is offered, or how long the gate stays open.
    pub(super) text: String,
    /// Time when the gate opens without an admin's action, if known.
    pub(super) next: Option<Timestamp>,
}

/// Gates of a pool.
#[derive(Debug)]
pub(super) struct PoolGates<'a> {
    object: &'a BootcNodePool,
    pool: Pool,
    fleet: Option<FleetGate>,
}

impl<'a> PoolGates<'a> {
    pub(super) fn of(object: &'a BootcNodePool, fleet: Option<&BootcFleet>) -> Self {
        let pool = Pool {
            name: object.name_any().as_str().into(),
            object: Some(object.clone()),
            deleting: object.metadata.deletion_timestamp.is_some(),
            refused: None,
        };
        let is_paused = fleet.is_some_and(|fleet| fleet.spec.paused);
        Self {
            object,
            pool,
            fleet: is_paused.then_some(FleetGate::Paused),
        }
    }

    fn inputs(&self, now: Timestamp) -> Option<Inputs<'_>> {
        self.pool
            .gate_inputs(self.fleet, is_clock_synchronized(&self.pool), now)
    }

    /// Returns the openings from a time on.
    pub(super) fn openings(&self, now: Timestamp) -> Openings<'_> {
        self.inputs(now).map_or(Openings::Never, Openings::of)
    }

    /// Returns the gate to show. `None` if there is nothing to say: berths may be offered at any time. `is_completed`:
    /// every node runs the target.
    pub(super) fn view(&self, is_completed: bool, now: Timestamp) -> Option<GateView> {
        let found = gates(self.inputs(now)?);
        if let Some(gate) = &found.gate {
            return Some(GateView {
                open: false,
                text: clean(&gate.message),
                next: found.changes.filter(|_| opens_in_time(gate.reason)),
            });
        }
        if let Some(text) = self.waits(is_completed) {
            return Some(GateView {
                open: false,
                text,
                next: None,
            });
        }
        let text = clean(&found.window.message);
        (!text.is_empty()).then_some(GateView {
            open: true,
            text,
            next: None,
        })
    }

    /// True if the controller reports that no berth is offered: the rollout is halted, or waits for other pools.
    pub(super) fn is_held_up(&self) -> bool {
        self.halt().or_else(|| self.order()).is_some()
    }

    fn waits(&self, is_completed: bool) -> Option<String> {
        if let Some(halted) = self.halt() {
            return Some(halted);
        }
        if let Some(order) = self.order() {
            return Some(order);
        }
        is_completed.then(|| self.approval()).flatten()
    }

    fn halt(&self) -> Option<String> {
        let status = self.object.status.as_ref()?;
        let halted = condition::find_true(&status.conditions, types::ROLLOUT_HALTED)?;
        Some(format!("the rollout is halted: {}", clean(&halted.message)))
    }

    fn order(&self) -> Option<String> {
        let status = self.object.status.as_ref()?;
        let progressing = condition::find(&status.conditions, types::PROGRESSING)?;
        let is_order = ORDER.iter().any(|reason| reason.as_str() == progressing.reason);
        is_order.then(|| clean(&progressing.message))
    }

    /// Returns that an image waits for an admin's approval, if the pool is pinned to another one.
    fn approval(&self) -> Option<String> {
        let available = self.object.status.as_ref()?.available.as_ref()?;
        let reference = self.object.spec.image_ref().get().ok()?;
        let is_pinned = reference.digest().is_some();
        let image = available
            .version
            .as_deref()
            .map_or_else(|| available.digest.to_string(), clean);
        is_pinned.then(|| format!("image {image} is available and waits for approval"))
    }
}

/// True if a gate that is closed for this reason opens without an admin's action.
const fn opens_in_time(reason: GateReason) -> bool {
    matches!(reason, GateReason::OutsideWindows | GateReason::Excluded)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DIGEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

    fn pool(rollout: Value, status: Value) -> BootcNodePool {
        let image = format!("quay.io/example/os:1@{DIGEST}");
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": "p" },
            "spec": { "nodeSelector": {}, "image": { "ref": image }, "rollout": rollout }, "status": status,
        }))
        .unwrap()
    }

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn shown(pool: &BootcNodePool, is_completed: bool) -> Option<(bool, String, Option<String>)> {
        let view = PoolGates::of(pool, None).view(is_completed, now())?;
        Some((view.open, view.text, view.next.map(|next| next.to_string())))
    }

    fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({ "conditions": [{
            "type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-03-01T11:00:00Z",
        }] })
    }

    #[test]
    fn a_gate_opens_with_its_window() {
        assert_eq!(shown(&pool(json!({}), json!({})), false), None, "always open");
        let nightly = json!({ "windows": [{ "schedule": "0 2 * * *", "duration": "3h" }] });
        let (open, text, next) = shown(&pool(nightly.clone(), json!({})), false).unwrap();
        assert!(!open && text.starts_with("outside all windows"), "{text}");
        assert_eq!(next.as_deref(), Some("2026-03-02T02:00:00Z"));
        let noon = json!({ "windows": [{ "schedule": "0 11 * * *", "duration": "3h" }] });
        let (open, text, next) = shown(&pool(noon, json!({})), false).unwrap();
        assert!(open && text.contains("until 2026-03-01T14:00:00Z"), "{text}");
        assert_eq!(next, None);
        let mut excluded = nightly.clone();
        excluded["exclusions"] = json!([{ "from": "2026-03-01T00:00:00Z", "to": "2026-03-03T00:00:00Z" }]);
        let (_, text, next) = shown(&pool(excluded, json!({})), false).unwrap();
        assert!(text.starts_with("an exclusion applies"), "{text}");
        assert_eq!(next.as_deref(), Some("2026-03-03T02:00:00Z"));
        let mut paused = nightly;
        paused["paused"] = json!(true);
        let (open, text, next) = shown(&pool(paused, json!({})), false).unwrap();
        assert!(!open && text.starts_with("rollout.paused is true"), "{text}");
        assert_eq!(next, None, "the window does not end the pause");
    }

    #[test]
    fn a_pool_waits_for_a_person_or_another_pool() {
        let halted = condition("RolloutHalted", "True", "TooManyFailures", "failed on 3 nodes");
        let (open, text, _) = shown(&pool(json!({}), halted), false).unwrap();
        assert_eq!((open, &*text), (false, "the rollout is halted: failed on 3 nodes"));
        let order = condition("Progressing", "False", "EarlierPool", "waits for pool infra");
        let (_, text, _) = shown(&pool(json!({}), order), false).unwrap();
        assert_eq!(text, "waits for pool infra");
        let other = condition("Progressing", "False", "Waiting", "waits for a berth");
        assert_eq!(shown(&pool(json!({}), other), false), None);
        let available = json!({ "available": { "digest": DIGEST, "version": "v3", "since": "2026-03-01T11:00:00Z" } });
        let waiting = pool(json!({}), available);
        assert_eq!(shown(&waiting, false), None, "the pool is still being updated");
        let (_, text, _) = shown(&waiting, true).unwrap();
        assert_eq!(text, "image v3 is available and waits for approval");
    }

    #[test]
    fn a_paused_fleet_closes_every_gate() {
        let pool = pool(json!({}), json!({}));
        let fleet = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": { "name": "cluster" },
            "spec": { "paused": true },
        }))
        .unwrap();
        let gates = PoolGates::of(&pool, Some(&fleet));
        let view = gates.view(false, now()).unwrap();
        assert!(!view.open && view.text.contains("BootcFleet"), "{view:?}");
        assert!(matches!(gates.openings(now()), Openings::Never));
    }
}
