//! The BootcFleet: created if it is missing; its status reports the health of the fleet.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::NodeUid;
use berth_api::berth::HoldPhase;
use berth_api::fleet::{BootcFleet, BootcFleetSpec, BootcFleetStatus, NAME};
use berth_api::keys::ANNOTATION_DISMISSED;
use berth_api::pool::BootcNodePoolStatus;
use berth_core::controller::fleet::health::{self, Agent, PoolState, silent_after};
use berth_core::controller::fleet::held::{Machines, machines};
use berth_core::controller::image::{Answers, QueryFailure};
use berth_core::controller::view::LeaseView;

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
    /// Creates the BootcFleet if it is missing, and updates its status.
    pub(super) async fn fleet(&mut self, findings: &Findings, agents: &[Agent<'_>]) -> Result<(), Lost> {
        let observed = &findings.observed;
        let Some(fleet) = &observed.snapshot.fleet else {
            return self.make_fleet(observed).await;
        };
        let object = match &fleet.view.object {
            Ok(object) => object,
            Err(error) => {
                tracing::warn!(%error, "cannot read the BootcFleet; no berth is offered in any pool until it is repaired");
                return Ok(());
            }
        };
        let old = object.status.clone().unwrap_or_default();
        let status = self.fleet_status(findings, agents, object, &old);
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
                tracing::info!(paused = object.spec.paused, "BootcFleet");
            }
        }
        Ok(())
    }

    /// Creates the BootcFleet with an empty spec, so that the controller owns none of its fields. Leaves a BootcFleet
    /// that was created meanwhile unchanged.
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
        agents: &[Agent<'_>],
        object: &BootcFleet,
        old: &BootcFleetStatus,
    ) -> BootcFleetStatus {
        let observed = &findings.observed;
        let none = BootcNodePoolStatus::default();
        let unreadable = unreadable(findings);
        let pools_of_snapshot = observed.snapshot.pools.values();
        let mut pools: Vec<PoolState<'_>> = vec![];
        for pool in &observed.pools {
            let Some(object) = &pool.object else {
                continue;
            };
            let answers = findings.resolutions.get(&pool.name).map(|r| &r.answers);
            pools.push(PoolState {
                name: pool.name.as_str(),
                status: object.status.as_ref().unwrap_or(&none),
                trouble: answers.and_then(trouble),
                is_asked: answers.is_none_or(is_asked),
            });
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
            unreadable: &unreadable,
            unreadable_pools: pools_of_snapshot.filter(|pool| pool.view.object.is_err()).count(),
            listened: observed.now.since(self.began),
            silent_after: silent_after(self.settings.agent_silence),
            deaf: !observed.snapshot.stale.is_empty(),
        };
        health::status(&facts, observed.wall)
    }
}

/// Describes the objects that cannot be read.
fn unreadable(findings: &Findings) -> Vec<String> {
    let snapshot = &findings.observed.snapshot;
    let mut unreadable = vec![];
    for (name, pool) in snapshot.pools.iter() {
        if let Err(error) = &pool.view.object {
            unreadable.push(format!("BootcNodePool {name}: {error}"));
        }
    }
    for lease in &findings.planned.berths.leases {
        if let Err(error) = &lease.berth {
            unreadable.push(format!("Lease {}: {error}", lease.name()));
        }
    }
    for (name, host) in snapshot.bootc_nodes.iter() {
        if let Err(error) = &host.view.content {
            unreadable.push(format!("BootcNode {name}: {error}"));
        }
    }
    unreadable
}

/// Returns the agents of all pool members, sorted by node name.
pub(super) fn agents(findings: &Findings) -> Vec<Agent<'_>> {
    let observed = &findings.observed;
    let committed = committed(findings);
    let agents = observed.snapshot.bootc_nodes.iter().filter_map(|(name, host)| {
        let content = host.view.content.as_ref().ok()?;
        let node = observed.snapshot.nodes.get(name)?;
        let is_member = !content.spec.pool_name.is_empty() && !host.view.deleting;
        is_member.then(|| Agent {
            node: name,
            quiet: observed.now.since(host.heard),
            rebooting: committed.contains(&node.view.uid) && !findings.timed_out.contains(&node.view.uid),
            unguarded: content.report.unguarded,
            firstboot: content.report.firstboot,
        })
    });
    agents.collect()
}

/// Returns the nodes with a committed berth, which may be silent while they reboot.
fn committed(findings: &Findings) -> BTreeSet<&NodeUid> {
    let leases = findings.planned.berths.leases.iter();
    let holdings = leases.filter_map(LeaseView::holding);
    let committed = holdings.filter(|holding| holding.phase == HoldPhase::Committed);
    committed.map(|holding| &holding.uid).collect()
}

/// Returns the failure to resolve the pool's reference or its tag.
fn trouble(answers: &Answers) -> Option<&QueryFailure> {
    answers.named.trouble.as_ref().or(answers.tag.trouble.as_ref())
}

/// True if this leader has queried a registry for the pool, with or without success.
fn is_asked(answers: &Answers) -> bool {
    let mut both = [&answers.named, &answers.tag].into_iter();
    both.any(|answer| answer.found.is_some() || answer.trouble.is_some())
}
