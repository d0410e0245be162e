//! Findings about the fleet, from the conditions of the BootcFleet.

use berth_api::condition::{CommonReason, fleet as types};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::kind::Kind;
use super::{Finding, Subject};

/// Conditions of the fleet that lead to no finding, because findings about the pools report the same problems.
const OF_POOLS: [&str; 3] = [types::UPDATING, types::PAUSED, types::FEEDS_HEALTHY];

/// Returns a finding for each condition that is False, except the conditions that findings about the pools report.
pub fn findings(conditions: &[Condition]) -> Vec<Finding> {
    let bad = conditions
        .iter()
        .filter(|c| c.status == "False" && !OF_POOLS.contains(&c.type_.as_str()));
    bad.map(|c| Finding::of_condition(kind(c), Subject::Fleet, c)).collect()
}

fn kind(c: &Condition) -> Kind {
    match c.type_.as_str() {
        types::CONTROLLER_HEALTHY => Kind::ObjectsUnreadable,
        types::AGENTS_HEALTHY => Kind::AgentsSilent,
        types::REGISTRY_REACHABLE => Kind::RegistryAway,
        types::GUARDED => Kind::Unguarded,
        types::BOOTSTRAP_HEALTHY if c.reason == CommonReason::MachinesHeld.as_str() => Kind::MachinesHeld,
        types::BOOTSTRAP_HEALTHY => Kind::FirstBootFailed,
        _ => Kind::OfFleet,
    }
}
