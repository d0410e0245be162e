//! Prometheus gauges of the pools and the fleet. Pure. The number of series grows with pools and problems, not with
//! nodes: each agent serves the gauges of its own node. Only these nodes are named here: holders of berths that have been
//! silent for too long, and nodes whose reports cannot be true.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use berth_api::NodeName;
use berth_api::condition::{CommonReason, Reason as _, find, find_true, is_true, pool as types};
use berth_api::fleet::BootcFleetStatus;
use berth_api::node::Phase;
use berth_api::pool::BootcNodePoolStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::agent::reason::Reason;
use crate::controller::gate::GateReason;
use crate::controller::gates::Gates;
use crate::controller::image::ResolveReason;
use crate::controller::implausible::Contradiction;
use crate::controller::plan::BlockReason;
use crate::controller::view::BootcNodeContent;
use crate::gauges::{Gauge, Series, families};

/// Maximum number of agent versions with their own series. Only the most common versions get their own series.
const MAX_VERSIONS: usize = 8;

/// Input for the gauges of one pool.
#[derive(Debug)]
pub struct MeasuredPool<'a> {
    /// Name of the pool.
    pub name: &'a str,
    /// Status of the pool.
    pub status: &'a BootcNodePoolStatus,
    /// Why no berth of the pool is opened. `None` if all gates are open.
    pub gate: Option<GateReason>,
    /// Gates of the pool; `None` if this pass did not evaluate them.
    pub gates: Option<&'a Gates>,
    /// Nodes that hold a berth of the pool and have been silent for too long.
    pub timed_out: Vec<&'a NodeName>,
    /// Members whose reports cannot be true.
    pub implausible: Vec<(&'a NodeName, Contradiction)>,
    /// BootcNodes of the members.
    pub members: Vec<&'a BootcNodeContent>,
    /// Why members are not offered a berth: one reason for each such member.
    pub waiting: Vec<BlockReason>,
}

/// Input for the gauges.
#[derive(Debug, Default)]
pub struct GaugeFacts<'a> {
    /// The pools.
    pub pools: Vec<MeasuredPool<'a>>,
    /// Status of the BootcFleet.
    pub fleet: Option<&'a BootcFleetStatus>,
}

families! {
    fleet_condition: "berth_fleet_condition", "1 for the current status of each BootcFleet condition, 0 for the others.";
    held: "berth_fleet_held_machines", "Machines that are held back on their first boot and have not become nodes.";
    agents: "berth_fleet_agents", "Members of all pools by the version of their agent.";
    condition: "berth_pool_condition", "1 for the current status of each pool condition, 0 for the others.";
    transition: "berth_pool_condition_transition_timestamp_seconds", "Unix time of the last status change of each pool condition.";
    nodes: "berth_pool_nodes", "Members of a pool by state; a node counts in every state that applies, and in total.";
    phases: "berth_pool_phase_nodes", "Members of a pool by phase.";
    longest: "berth_pool_phase_longest_seconds", "Longest time that a member has been in this phase, by its own clock, as of its last heartbeat.";
    degraded: "berth_pool_degraded_nodes", "Members that need attention, by reason.";
    waiting: "berth_pool_waiting_nodes", "Members that are not offered a berth, by reason.";
    failed: "berth_pool_failed_nodes", "Nodes with a recorded failure of an image.";
    berths: "berth_pool_berths", "Berths of a pool by state; total is its capacity.";
    median: "berth_pool_phase_median_seconds", "Median duration of staging, drain and reboot (until proven), as measured by members.";
    target: "berth_pool_target_info", "1, labelled with the pool's target image.";
    published: "berth_pool_target_publish_timestamp_seconds", "Time when the target was first published.";
    available: "berth_pool_available_info", "1 if the tag points to an image other than the target.";
    feed_failing: "berth_pool_feed_failing", "1 if the pool gets no new images, by reason: the tag cannot be queried, or its image is refused.";
    unresolved: "berth_pool_image_unresolved", "1 if the pool's image reference is not resolved, by reason.";
    boot_image: "berth_pool_boot_image_info", "1, labelled with the boot image version of new machines.";
    too_old: "berth_pool_boot_image_too_old_nodes", "Machines whose boot image is too old for the target.";
    unchecked: "berth_pool_boot_image_unchecked", "1 if it is unknown whether new machines can join: the boot image check is disabled, or versions cannot be compared.";
    window_open: "berth_pool_window_open", "1 if windows and exclusions allow reboots to start.";
    opens: "berth_pool_window_next_open_timestamp_seconds", "Unix time of the next window start; absent while a window is open.";
    closes: "berth_pool_window_close_timestamp_seconds", "Unix time when the open window ends; absent if none is open.";
    halted: "berth_rollout_halted", "1 if the rollout is halted (maxFailures reached).";
    gate: "berth_gate_closed", "1 if the controller opens no berth of the pool, for the reason in the label.";
    timed_out: "berth_reboot_timed_out", "Nodes that hold a berth of the pool and have been silent for too long.";
    node_timed_out: "berth_node_reboot_timed_out", "1 for a node that holds a berth and has been silent for too long.";
    node_implausible: "berth_node_implausible", "1 for a node whose reports cannot be true, by reason.";
}

/// Returns the current gauges.
pub fn gauges(facts: &GaugeFacts<'_>) -> Vec<Gauge> {
    let mut families = Families::new();
    if let Some(fleet) = facts.fleet {
        families.held.add([], fleet.held_machines.len());
        for condition in &fleet.conditions {
            statuses(
                &mut families.fleet_condition,
                &[("condition", &condition.type_)],
                condition,
            );
        }
    }
    let mut versions: BTreeMap<&str, u32> = BTreeMap::new();
    for pool in &facts.pools {
        of_status(&mut families, pool.name, pool.status);
        of_gates(&mut families, pool);
        of_members(&mut families, pool);
        for version in pool.members.iter().filter_map(|m| m.report.agent_version.as_deref()) {
            *versions.entry(version).or_default() += 1;
        }
    }
    let mut versions: Vec<_> = versions.into_iter().collect();
    // The sort is stable: equally common versions stay sorted by name.
    versions.sort_by_key(|(_, count)| Reverse(*count));
    let others = versions.split_off(versions.len().min(MAX_VERSIONS));
    for (version, count) in versions {
        families.agents.add([("version", version)], count);
    }
    let rest: u32 = others.iter().map(|(_, count)| count).sum();
    families
        .agents
        .add_some([("version", CommonReason::Other.as_str())], (rest > 0).then_some(rest));
    families.all()
}

fn statuses(gauge: &mut Gauge, labels: &[(&'static str, &str)], condition: &Condition) {
    for status in ["True", "False", "Unknown"] {
        let labels = labels.iter().copied().chain([("status", status)]);
        gauge.series.push(Series {
            labels: labels.map(|(name, value)| (name, value.to_owned())).collect(),
            value: i64::from(condition.status == status),
        });
    }
}

fn of_status(families: &mut Families, pool: &str, status: &BootcNodePoolStatus) {
    for condition in &status.conditions {
        let labels = [("pool", pool), ("condition", condition.type_.as_str())];
        statuses(&mut families.condition, &labels, condition);
        families
            .transition
            .add(labels, condition.last_transition_time.0.as_second());
    }
    let nodes = &status.nodes;
    for (state, count) in [
        ("total", nodes.total),
        ("updated", nodes.updated),
        ("staging", nodes.staging),
        ("staged", nodes.staged),
        ("draining", nodes.draining),
        ("rebooting", nodes.rebooting),
        ("pending", nodes.pending),
        ("excluded", nodes.excluded),
        ("degraded", nodes.degraded),
        ("unavailable", nodes.unavailable),
    ] {
        families.nodes.add([("pool", pool), ("state", state)], count);
    }
    let berths = &status.berths;
    for (state, count) in [
        ("total", berths.total),
        ("held", berths.held),
        ("offered", berths.offered),
        ("closed", berths.closed),
    ] {
        families.berths.add([("pool", pool), ("state", state)], count);
    }
    let halted = is_true(&status.conditions, types::ROLLOUT_HALTED);
    families.halted.add([("pool", pool)], i64::from(halted));
    let failed: u32 = status.failures.iter().map(|failure| failure.count).sum();
    families.failed.add([("pool", pool)], failed);
    let medians = status.phase_durations;
    for (phase, seconds) in [
        ("staging", medians.staging_seconds),
        ("drain", medians.drain_seconds),
        ("reboot", medians.reboot_seconds),
    ] {
        families.median.add_some([("pool", pool), ("phase", phase)], seconds);
    }
    of_images(families, pool, status);
    of_boot_image(families, pool, status);
}

fn of_images(families: &mut Families, pool: &str, status: &BootcNodePoolStatus) {
    if let Some(target) = &status.target {
        let version = target.version.as_deref().unwrap_or_default();
        let digest = target.digest.to_string();
        let labels = [
            ("pool", pool),
            ("image", target.image.as_str()),
            ("digest", &digest),
            ("version", version),
        ];
        families.target.add(labels, 1);
        let time = target.publish_time.as_ref().map(|time| time.0.as_second());
        families.published.add_some([("pool", pool)], time);
    }
    if let Some(available) = &status.available {
        let version = available.version.as_deref().unwrap_or_default();
        let digest = available.digest.to_string();
        families
            .available
            .add([("pool", pool), ("digest", &digest), ("version", version)], 1);
    }
    let failing = find_true(&status.conditions, types::FEED_FAILING);
    let unresolved = find(&status.conditions, types::IMAGE_RESOLVED).filter(|c| c.status == "False");
    for (family, condition) in [
        (&mut families.feed_failing, failing),
        (&mut families.unresolved, unresolved),
    ] {
        if let Some(condition) = condition {
            family.add([("pool", pool), ("reason", known(&condition.reason))], 1);
        }
    }
}

fn of_boot_image(families: &mut Families, pool: &str, status: &BootcNodePoolStatus) {
    let skew = find(&status.conditions, types::BOOT_IMAGE_SKEW);
    let unchecked = skew.is_some_and(|skew| {
        [CommonReason::Disabled, CommonReason::CannotCompare]
            .map(CommonReason::as_str)
            .contains(&&*skew.reason)
    });
    families.unchecked.add([("pool", pool)], i64::from(unchecked));
    if let Some(image) = &status.boot_image {
        let version = image.version.as_deref().unwrap_or_default();
        families.boot_image.add([("pool", pool), ("version", version)], 1);
        families.too_old.add([("pool", pool)], image.too_old);
    }
}

fn of_gates(families: &mut Families, pool: &MeasuredPool<'_>) {
    let label = [("pool", pool.name)];
    if let Some(gates) = pool.gates {
        let is_open = gates.window.status == Some(true);
        families.window_open.add(label, i64::from(is_open));
        let change = gates.changes.map(|change| change.as_second());
        if is_open {
            families.closes.add_some(label, change);
        } else {
            families.opens.add_some(label, change);
        }
    }
    if let Some(gate) = pool.gate {
        families.gate.add([("pool", pool.name), ("reason", gate.as_str())], 1);
    }
    families.timed_out.add(label, pool.timed_out.len());
    for node in &pool.timed_out {
        families
            .node_timed_out
            .add([("pool", pool.name), ("node", node.as_str())], 1);
    }
    for (node, reason) in &pool.implausible {
        let labels = [
            ("pool", pool.name),
            ("node", node.as_str()),
            ("reason", reason.as_str()),
        ];
        families.node_implausible.add(labels, 1);
    }
}

fn of_members(families: &mut Families, pool: &MeasuredPool<'_>) {
    let mut phases: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
    let mut degraded: BTreeMap<&str, u32> = BTreeMap::new();
    for content in &pool.members {
        let report = &content.report;
        if let Some(reason) = content.trouble_reason() {
            *degraded.entry(known(reason)).or_default() += 1;
        }
        if let Some(phase) = report.phase {
            let (count, longest) = phases.entry(phase.as_str()).or_default();
            *count += 1;
            *longest = age(content, phase).max(*longest);
        }
    }
    for (phase, (count, longest)) in phases {
        let labels = [("pool", pool.name), ("phase", phase)];
        families.phases.add(labels, count);
        families.longest.add(labels, longest);
    }
    for (reason, count) in degraded {
        families.degraded.add([("pool", pool.name), ("reason", reason)], count);
    }
    let mut waiting: BTreeMap<&str, u32> = BTreeMap::new();
    for reason in &pool.waiting {
        *waiting.entry(reason.as_str()).or_default() += 1;
    }
    for (reason, count) in waiting {
        families.waiting.add([("pool", pool.name), ("reason", reason)], count);
    }
}

/// Returns how many seconds a member had been in its phase at its last heartbeat; 0 in a phase without work, such as
/// `Updated`. Both times are from the member's clock, because Berth never compares the clocks of two machines.
fn age(content: &BootcNodeContent, phase: Phase) -> u64 {
    let is_rest = matches!(phase, Phase::Idle | Phase::Updated | Phase::Released);
    let (Some(now), Some(since), false) = (content.heartbeat, content.report.phase_start, is_rest) else {
        return 0;
    };
    u64::try_from(now.as_second().saturating_sub(since.as_second())).unwrap_or_default()
}

/// Returns the reason as a label value; [`CommonReason::Other`] if this version of the controller does not know the
/// reason. Agents may write any text as a reason, so only known reasons become label values.
fn known(reason: &str) -> &'static str {
    let of_hosts = Reason::ALL.iter().map(|known| known.word());
    let others = CommonReason::ALL.iter().map(|known| known.word());
    let outcomes = berth_api::berth::Outcome::ALL.iter().map(|known| known.as_str());
    let of_registries = ResolveReason::ALL.iter().map(|known| known.as_str());
    let mut all = of_hosts.chain(others).chain(outcomes).chain(of_registries);
    all.find(|known| *known == reason)
        .unwrap_or(CommonReason::Other.as_str())
}

#[cfg(test)]
mod tests;
