//! Creates the BootcFleet if it is missing, and reports the health of the fleet in its status.

use std::time::Duration;

use berth_api::fleet::{BootcFleet, BootcFleetSpec, BootcFleetStatus, NAME};
use berth_api::keys::ANNOTATION_DISMISSED;
use berth_api::pool::BootcNodePoolStatus;
use berth_core::controller::fleet::health::{self, Agent, PoolState, silent_after};
use berth_core::controller::fleet::held::{Machines, machines};

use super::phases::{Findings, Observed};
use super::reconciler::Reconciler;
use crate::events::Note;
use crate::leader::Lost;
use crate::time;

/// Minimum time between two writes of the status, unless the spec has changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two creations of the BootcFleet.
const MAKE_INTERVAL: Duration = Duration::from_secs(60);
/// Backoff key of writes to the BootcFleet.
const KEY: &str = "fleet";

impl Reconciler {
    pub(super) async fn fleet(
        &mut self,
        findings: &Findings,
        unreadable: &[String],
        agents: &[Agent<'_>],
    ) -> Result<(), Lost> {
        let observed = &findings.observed;
        let Some(fleet) = &observed.snapshot.fleet else {
            return self.make_fleet(observed).await;
        };
        // The log names a BootcFleet that cannot be read, and the pools have conditions with reason `FleetUnreadable`.
        let Ok(object) = &fleet.view.object else {
            return Ok(());
        };
        let old = object.status.clone().unwrap_or_default();
        let status = self.fleet_status(findings, (unreadable, agents), object, &old);
        if status == old || !self.memory.backoffs.is_ready(KEY, observed.now) {
            return Ok(());
        }
        let next = self.memory.fleet.reported.map(|last| last + STATUS_INTERVAL);
        let is_obeyed = status.observed_generation == old.observed_generation;
        if let Some(next) = next.filter(|next| *next > time::now() && is_obeyed) {
            self.again(next);
            return Ok(());
        }
        let mut object = object.clone();
        object.metadata.resource_version = Some(fleet.version.clone());
        object.status = Some(status);
        let api = self.kube.all::<BootcFleet>();
        let result = self.kube.replace_status(&api, NAME, &object).await;
        if self.outcome(KEY, result)?.is_some() {
            self.memory.fleet.reported = Some(time::now());
            for note in Note::of_fleet(&object, &old, object.status.as_ref().unwrap_or(&old)) {
                self.outside.events.queue(note);
            }
            if !is_obeyed {
                tracing::info!(paused = object.spec.paused, "the BootcFleet has a new spec");
            }
        }
        Ok(())
    }

    /// Creates a missing BootcFleet with an empty spec, so that the controller owns none of its fields.
    async fn make_fleet(&mut self, observed: &Observed) -> Result<(), Lost> {
        let lately = self
            .memory
            .fleet
            .created
            .is_some_and(|made| observed.now.since(made) < MAKE_INTERVAL);
        if lately || !observed.snapshot.stale.is_empty() || !self.memory.backoffs.is_ready(KEY, observed.now) {
            return Ok(());
        }
        let object = BootcFleet::new(NAME, BootcFleetSpec::default());
        let result = self.kube.create(&self.kube.all::<BootcFleet>(), &object).await;
        if self.outcome(KEY, result)?.is_some() {
            self.memory.fleet.created = Some(observed.now);
            tracing::info!("created BootcFleet {NAME}");
        }
        Ok(())
    }

    fn fleet_status(
        &self,
        findings: &Findings,
        (unreadable, agents): (&[String], &[Agent<'_>]),
        object: &BootcFleet,
        old: &BootcFleetStatus,
    ) -> BootcFleetStatus {
        let observed = &findings.observed;
        let none = BootcNodePoolStatus::default();
        let pools_of_snapshot = observed.snapshot.pools.values();
        let mut pools: Vec<PoolState<'_>> = vec![];
        for pool in &observed.pools {
            let Some(object) = &pool.object else {
                continue;
            };
            let answers = findings.resolutions.get(&pool.name).map(|r| &r.answers);
            let status = object.status.as_ref().unwrap_or(&none);
            pools.push(PoolState::of(pool.name.as_str(), status, answers));
        }
        pools.sort_by_key(|pool| pool.name);
        let annotations = object.metadata.annotations.as_ref();
        let dismissed = annotations
            .and_then(|a| a.get(ANNOTATION_DISMISSED))
            .map_or("", String::as_str);
        let reports = self.outside.firstboots.reports();
        let machines = machines(
            &Machines::of(old),
            reports.refusals.as_deref(),
            |name| observed.snapshot.nodes.contains_key(name),
            dismissed,
        );
        let facts = health::FleetStatusFacts {
            machines,
            events_unread: reports.error,
            generation: object.metadata.generation,
            old,
            paused: object.spec.paused,
            pools: &pools,
            agents,
            unreadable,
            unreadable_pools: pools_of_snapshot.filter(|pool| pool.view.object.is_err()).count(),
            listened: observed.now.since(self.began),
            silent_after: silent_after(self.settings.agent_silence),
            deaf: !observed.snapshot.stale.is_empty(),
        };
        health::status(&facts, observed.wall)
    }
}
