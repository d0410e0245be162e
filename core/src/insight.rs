//! Progress of one node's update, by the rules of OpenShift's update status. Three programs use this module: the agent
//! for its report, the controller for nodes with a silent agent, and `kubectl berth` for its tables.

use std::time::Duration;

use berth_api::condition::{self, CommonReason, Verdict, node as types};
use berth_api::insight::conditions::{
    AVAILABLE, DEGRADED, DRAINING, PAUSED, PENDING, REBOOTING, UPDATED, UPDATING, WORKING,
};
use berth_api::insight::{MAX_MESSAGE, NodeInsight, ResourceRef, ScopeType};
use berth_api::node::{BootcNodeStatus, Phase};
use berth_api::pool::PhaseDurations;
use berth_api::{Digest, Written, keys, reasons, text};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::finding::{self, Finding, Subject};

/// Facts about a node that [`insight`] needs.
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    /// Name of the Node.
    pub node: &'a str,
    /// Name of the node's pool.
    pub pool: &'a str,
    /// Whether the Node is a worker or a control plane node.
    pub scope: ScopeType,
    /// Digest of the image that the node should run.
    pub desired: Option<&'a Digest>,
    /// Status that the agent wrote to the BootcNode.
    pub status: &'a BootcNodeStatus,
    /// Reasons why the node is unavailable, the most serious first. `None` if the caller has not read the Node
    /// recently.
    pub unavailable: Option<Vec<Unavailable>>,
    /// Why an admin keeps the node from updating. `None` if no admin does, or the caller does not know.
    pub held: Option<Held>,
    /// Conditions that the controller wrote into the BootcNode, such as `Waiting`. May contain other conditions too.
    pub told: &'a [Condition],
    /// Message about an agent that has been silent for too long; `None` if the agent reports.
    pub silent: Option<&'a str>,
    /// Median durations of updates in the pool. The node's own duration replaces a missing median.
    pub medians: PhaseDurations,
}

reasons! {
    /// Why a node is unavailable.
    #[derive(PartialOrd, Ord)]
    pub enum Unavailable {
        /// The Node is not Ready.
        NotReady,
        /// The disk of the Node is full or nearly full.
        DiskPressure,
        /// The network of the Node is not set up.
        NetworkUnavailable,
        /// The Node is cordoned.
        Unschedulable,
    }
}

impl Unavailable {
    const fn message(self) -> &'static str {
        match self {
            Self::NotReady => "Not ready",
            Self::DiskPressure => "Disk pressure",
            Self::NetworkUnavailable => "Network unavailable",
            Self::Unschedulable => "Node is marked unschedulable",
        }
    }
}

/// Why an admin keeps a node from updating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The pool or the fleet is paused.
    Paused,
    /// The Node is excluded.
    Excluded,
}

/// Returns why an admin keeps the node from updating; `None` if no admin does. Exclusion takes precedence over a pause.
pub fn held(is_excluded: bool, is_paused: bool) -> Option<Held> {
    if is_excluded {
        Some(Held::Excluded)
    } else if is_paused {
        Some(Held::Paused)
    } else {
        None
    }
}

reasons! {
    /// Summary of a node's state in one word, the worst first.
    #[derive(PartialOrd, Ord)]
    pub enum Assessment {
        /// A problem of the node needs an admin.
        Degraded,
        /// The node is unavailable, but not because of its update.
        Unavailable,
        /// The node is being updated.
        Progressing,
        /// An admin keeps the node from updating: it is excluded or paused.
        Excluded,
        /// The node needs an update and waits for it.
        Outdated,
        /// The state of the node's update is not known.
        Unknown,
        /// The node runs the desired image.
        Completed,
    }
}

/// Returns the insight for a node's status; `None` if the node belongs to no pool or is released. `before`: the
/// previous insight. A condition with an unchanged status keeps its transition time from `before`.
pub fn insight(facts: &Inputs<'_>, before: Option<&NodeInsight>, now: Timestamp) -> Option<NodeInsight> {
    if facts.pool.is_empty() || facts.status.phase == Some(Phase::Released) {
        return None;
    }
    let (updating, degraded) = (updating(facts), degraded(facts));
    let mut conditions: Vec<Condition> = before.map_or(vec![], |b| b.conditions.clone());
    let known = available(facts).or_else(|| {
        conditions
            .is_empty()
            .then(|| Verdict::unknown(CommonReason::CannotDetermine, ""))
    });
    let message = message(facts, &updating, &degraded);
    let estimate = estimate(facts, &updating).map(Written::from);
    for (type_, verdict) in [
        (UPDATING, Some(updating)),
        (AVAILABLE, known),
        (DEGRADED, Some(degraded)),
    ] {
        if let Some(verdict) = verdict {
            condition::set(&mut conditions, type_, verdict, None, now);
        }
    }
    Some(NodeInsight {
        name: facts.node.to_owned(),
        resource: resource_ref("", "nodes", facts.node),
        pool_resource: resource_ref(keys::GROUP, "bootcnodepools", facts.pool),
        scope_type: facts.scope,
        version: version(facts.status),
        est_to_complete: estimate,
        message,
        conditions,
    })
}

fn resource_ref(group: &str, resource: &str, name: &str) -> ResourceRef {
    ResourceRef {
        group: group.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
    }
}

fn runs_desired(facts: &Inputs<'_>) -> bool {
    let booted = facts.status.booted.as_ref().and_then(|b| b.digest.as_ref());
    booted.is_some() && booted == facts.desired
}

fn updating(facts: &Inputs<'_>) -> Verdict {
    match facts.status.phase {
        Some(Phase::Draining) => Verdict::yes(CommonReason::Draining, ""),
        Some(Phase::Rebooting | Phase::Proving) => Verdict::yes(CommonReason::Rebooting, ""),
        Some(Phase::Staging | Phase::Releasing) => Verdict::yes(CommonReason::Updating, ""),
        _ if facts.desired.is_none() => Verdict::unknown(
            CommonReason::CannotDetermine,
            "the controller has published no image for this node",
        ),
        None => Verdict::unknown(CommonReason::CannotDetermine, "no agent has reported yet"),
        Some(_) if runs_desired(facts) => Verdict::no(CommonReason::Updated, ""),
        Some(_) if facts.held.is_some() => Verdict::no(CommonReason::Paused, ""),
        Some(_) => Verdict::no(CommonReason::Pending, ""),
    }
}

fn available(facts: &Inputs<'_>) -> Option<Verdict> {
    Some(match facts.unavailable.as_deref()?.first() {
        None => Verdict::yes(CommonReason::AsExpected, ""),
        Some(first) => Verdict::no(*first, reasons(facts).unwrap_or_default()),
    })
}

/// Returns the messages of all reasons why the node is unavailable. `None` if it is available, or if its availability
/// is unknown.
fn reasons(facts: &Inputs<'_>) -> Option<String> {
    let messages: Vec<_> = facts.unavailable.iter().flatten().map(|u| u.message()).collect();
    (!messages.is_empty()).then(|| messages.join(" | "))
}

/// Returns the condition `Degraded`. If the agent is silent, the agent's own report is outdated and is ignored.
fn degraded(facts: &Inputs<'_>) -> Verdict {
    let node = Subject::Node(facts.node.into(), facts.pool.into());
    let (own, is_unpublished) = (&facts.status.conditions, facts.desired.is_none());
    let trouble = finding::node::trouble(&node, own, facts.told, facts.silent, is_unpublished);
    trouble.map_or_else(|| Verdict::no(CommonReason::AsExpected, ""), Finding::verdict)
}

fn version(status: &BootcNodeStatus) -> Option<String> {
    let booted = status.booted.as_ref()?;
    booted
        .version
        .clone()
        .or_else(|| Some(booted.digest.as_ref()?.to_string()))
}

/// Returns the expected time from the start of the current phase to the end of the update. The result changes only with
/// the phase, so it causes no extra writes. `None` if the agent is silent, because its last phase is outdated, or if a
/// duration is not known.
fn estimate(facts: &Inputs<'_>, updating: &Verdict) -> Option<Duration> {
    if facts.silent.is_some() {
        return None;
    }
    let own = facts.status.measured();
    let drain = facts.medians.drain_seconds.or(own.drain);
    let reboot = facts.medians.reboot_seconds.or(own.reboot);
    let staging = facts.medians.staging_seconds.or(own.staging);
    let seconds = match &*updating.reason {
        UPDATED => 0,
        // Assume that the node gets a berth as soon as its image is staged.
        WORKING if facts.status.phase == Some(Phase::Staging) => {
            u64::from(staging?) + u64::from(drain?) + u64::from(reboot?)
        }
        DRAINING => u64::from(drain?) + u64::from(reboot?),
        REBOOTING => reboot?.into(),
        _ => return None,
    };
    Some(Duration::from_secs(seconds))
}

/// Returns the message that is most important for an admin.
fn message(facts: &Inputs<'_>, updating: &Verdict, degraded: &Verdict) -> String {
    let words = if degraded.status == Some(true) {
        match degraded.message.as_str() {
            "" => degraded.reason.to_string(),
            message => message.to_owned(),
        }
    } else if let Some(reasons) = reasons(facts).filter(|_| updating.status != Some(true)) {
        reasons
    } else if let (DRAINING, Some(first)) = (&*updating.reason, facts.status.drain_blockers.first()) {
        format!("{}: {}", first.pod, first.reason)
    } else if updating.reason == PAUSED && facts.held == Some(Held::Excluded) {
        "Node is excluded".to_owned()
    } else if let (PENDING, Some(waiting)) = (&*updating.reason, condition::find_true(facts.told, types::WAITING)) {
        waiting.message.clone()
    } else {
        updating.message.clone()
    };
    short(&words, facts.node)
}

/// Returns a text as one line of at most [`MAX_MESSAGE`] characters. Replaces a long node name with `<node>`, because
/// readers see the name beside the line.
fn short(words: &str, node: &str) -> String {
    let line = condition::one_line(words);
    let line = if node.chars().count() >= 8 {
        line.replace(node, "<node>")
    } else {
        line
    };
    text::truncated(&line, MAX_MESSAGE)
}

/// Returns the phase of the update, which is the reason of the condition `Updating`.
pub fn phase(insight: &NodeInsight) -> &str {
    condition::find(&insight.conditions, UPDATING).map_or("", |c| &c.reason)
}

/// True if the node is degraded because its agent is silent. False if it is degraded for another reason, such as a
/// reboot that timed out.
pub fn is_silent(insight: &NodeInsight) -> bool {
    let degraded = condition::find_true(&insight.conditions, DEGRADED);
    degraded.is_some_and(|c| c.reason == CommonReason::AgentSilent.as_str())
}

fn has_condition(insight: &NodeInsight, type_: &str, status: &str) -> bool {
    condition::find(&insight.conditions, type_).is_some_and(|c| c.status == status)
}

/// Returns the summary of a node's state in one word.
pub fn assessment(insight: &NodeInsight) -> Assessment {
    if has_condition(insight, DEGRADED, "True") {
        return Assessment::Degraded;
    }
    if has_condition(insight, AVAILABLE, "False") && !has_condition(insight, UPDATING, "True") {
        return Assessment::Unavailable;
    }
    match phase(insight) {
        DRAINING | WORKING | REBOOTING => Assessment::Progressing,
        UPDATED => Assessment::Completed,
        PAUSED => Assessment::Excluded,
        PENDING => Assessment::Outdated,
        _ => Assessment::Unknown,
    }
}

#[cfg(test)]
mod tests;
