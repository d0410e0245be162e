//! Insight into one node's update, by the rules of OpenShift's update status, from Berth's facts. One function for the
//! agent's report, for the controller in place of an agent that is silent, and for the command line, which knows more: the
//! pool's pause, and the Node's conditions.

use std::time::Duration;

use berth_api::condition::{self, Verdict, Why, node as types};
use berth_api::insight::conditions::{
    AVAILABLE, DEGRADED, DRAINING, PAUSED, PENDING, REBOOTING, UPDATED, UPDATING, WORKING,
};
use berth_api::insight::{MAX_MESSAGE, NodeInsight, ResourceRef, ScopeType};
use berth_api::node::{BootcNodeStatus, Phase};
use berth_api::pool::PhaseDurations;
use berth_api::{Digest, keys, reasons, text};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Everything that an insight depends on.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Name of the Node.
    pub node: &'a str,
    /// Name of its pool.
    pub pool: &'a str,
    /// Sort of the node.
    pub scope: ScopeType,
    /// The image that it should run.
    pub desired: Option<&'a Digest>,
    /// Report of its agent.
    pub status: &'a BootcNodeStatus,
    /// Reasons for which it is not available, the gravest first. `None`: its Node was not looked at lately.
    pub unavailable: Option<Vec<Unavailable>>,
    /// Admin's reason for which the node does not go on, as far as it is known here.
    pub held: Option<Held>,
    /// Conditions that the controller has told of the node, such as `Waiting`; there may be others among them.
    pub told: &'a [Condition],
    /// Line about an agent that was not heard of for longer than it may be silent.
    pub silent: Option<&'a str>,
    /// Medians of the pool, where they are known; else the node's own times count.
    pub medians: PhaseDurations,
}

reasons! {
    /// Reason for which a node is not available.
    #[derive(PartialOrd, Ord)]
    pub enum Unavailable {
        /// The Node is not Ready.
        NotReady,
        /// The disk of the Node is full, or nearly so.
        DiskPressure,
        /// The network of the Node is not set up.
        NetworkUnavailable,
        /// The Node is cordoned.
        Unschedulable,
    }
}

impl Unavailable {
    const fn words(self) -> &'static str {
        match self {
            Self::NotReady => "Not ready",
            Self::DiskPressure => "Disk pressure",
            Self::NetworkUnavailable => "Network unavailable",
            Self::Unschedulable => "Node is marked unschedulable",
        }
    }
}

/// Admin's reason for which a node does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The pool or the fleet is paused.
    Paused,
    /// The Node is excluded.
    Excluded,
}

/// The reason that counts for a node that is excluded, or whose pool or fleet is paused.
pub fn held(is_excluded: bool, is_paused: bool) -> Option<Held> {
    if is_excluded {
        Some(Held::Excluded)
    } else if is_paused {
        Some(Held::Paused)
    } else {
        None
    }
}

/// Assessment of a node in one word, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Assessment {
    /// Something is wrong.
    Degraded,
    /// Not available, and not because of its update.
    Unavailable,
    /// On its way.
    Progressing,
    /// Held back by an admin.
    Excluded,
    /// Its turn has not come.
    Outdated,
    /// Nobody can tell.
    Unknown,
    /// On the desired image.
    Completed,
}

impl Assessment {
    /// The word, as it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Degraded => "Degraded",
            Self::Unavailable => "Unavailable",
            Self::Progressing => "Progressing",
            Self::Excluded => "Excluded",
            Self::Outdated => "Outdated",
            Self::Unknown => "Unknown",
            Self::Completed => "Completed",
        }
    }
}

/// The insight, given the one before, whose times of transition are kept. `None`: the node belongs to no pool.
pub fn insight(facts: &Facts<'_>, before: Option<&NodeInsight>, now: Timestamp) -> Option<NodeInsight> {
    if facts.pool.is_empty() || facts.status.phase == Some(Phase::Released) {
        return None;
    }
    let (updating, degraded) = (updating(facts), degraded(facts));
    let mut conditions: Vec<Condition> = before.map_or(vec![], |b| b.conditions.clone());
    let known = available(facts).or_else(|| {
        conditions
            .is_empty()
            .then(|| Verdict::unknown(Why::CannotDetermine, ""))
    });
    let message = message(facts, &updating, &degraded);
    let estimate = estimate(facts, &updating).map(|time| format!("{}s", time.as_secs()));
    for (type_, verdict) in [
        (UPDATING, Some(updating)),
        (AVAILABLE, known),
        (DEGRADED, Some(degraded)),
    ] {
        if let Some(verdict) = verdict {
            condition::set(&mut conditions, type_, verdict, None, now);
        }
    }
    let resource = |group: &str, resource: &str, name: &str| ResourceRef {
        group: group.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
    };
    Some(NodeInsight {
        name: facts.node.to_owned(),
        resource: resource("", "nodes", facts.node),
        pool_resource: resource(keys::GROUP, "bootcnodepools", facts.pool),
        scope_type: facts.scope,
        version: version(facts.status),
        est_to_complete: estimate,
        message,
        conditions,
    })
}

fn runs_desired(facts: &Facts<'_>) -> bool {
    let booted = facts.status.booted.as_ref().and_then(|b| b.digest.as_ref());
    booted.is_some() && booted == facts.desired
}

fn updating(facts: &Facts<'_>) -> Verdict {
    let yes = |reason| Verdict::yes(reason, "");
    let no = |reason| Verdict::no(reason, "");
    match facts.status.phase {
        Some(Phase::Draining) => yes(Why::Draining),
        Some(Phase::Rebooting | Phase::Proving) => yes(Why::Rebooting),
        Some(Phase::Staging | Phase::Releasing) => yes(Why::Updating),
        _ if facts.desired.is_none() => Verdict::unknown(Why::CannotDetermine, "no image is published for this node"),
        None => Verdict::unknown(Why::CannotDetermine, "no word from an agent yet"),
        Some(_) if runs_desired(facts) => no(Why::Updated),
        Some(_) if facts.held.is_some() => no(Why::Paused),
        Some(_) => no(Why::Pending),
    }
}

fn available(facts: &Facts<'_>) -> Option<Verdict> {
    Some(match facts.unavailable.as_deref()?.first() {
        None => Verdict::yes(Why::AsExpected, ""),
        Some(first) => Verdict::no(*first, reasons(facts).unwrap_or_default()),
    })
}

/// Words for all reasons for which the node is not available. `None`: it is, as far as is known.
fn reasons(facts: &Facts<'_>) -> Option<String> {
    let words: Vec<_> = facts.unavailable.iter().flatten().map(|u| u.words()).collect();
    (!words.is_empty()).then(|| words.join(" | "))
}

/// The trouble that an agent told last is old once it is silent.
fn degraded(facts: &Facts<'_>) -> Verdict {
    let own = condition::find_true(&facts.status.conditions, types::NODE_DEGRADED);
    let lost = condition::find_true(facts.told, types::REBOOT_TIMED_OUT);
    if let Some(own) = own.filter(|_| facts.silent.is_none()) {
        return Verdict::repeats(true, own);
    }
    if let Some(lost) = lost {
        return Verdict::yes(Why::RebootTimedOut, lost.message.clone());
    }
    if let Some(silent) = facts.silent {
        return Verdict::yes(Why::AgentSilent, silent);
    }
    // The agent is asked for nothing then, so it has nothing to report.
    if let Some(unserved) = unserved(facts) {
        return Verdict::yes(Why::NoSuchPlatform, unserved.message.clone());
    }
    Verdict::no(Why::AsExpected, "")
}

/// The controller's word that the pool's image has nothing for the node's platform. An image that is published since then
/// proves it outdated.
fn unserved<'a>(facts: &Facts<'a>) -> Option<&'a Condition> {
    let waiting = condition::find_true(facts.told, types::WAITING)?;
    let is_so = facts.desired.is_none() && waiting.reason == Why::NoSuchPlatform.as_str();
    is_so.then_some(waiting)
}

fn version(status: &BootcNodeStatus) -> Option<String> {
    let booted = status.booted.as_ref()?;
    booted
        .version
        .clone()
        .or_else(|| Some(booted.digest.as_ref()?.to_string()))
}

/// Time from the start of the phase to the end of the update. It changes with the phase alone, so that it costs no write.
/// `None` of a silent agent: its last phase says nothing about when it ends.
fn estimate(facts: &Facts<'_>, updating: &Verdict) -> Option<Duration> {
    if facts.silent.is_some() {
        return None;
    }
    let own = facts.status.measured();
    let drain = facts.medians.drain_seconds.or(own.drain);
    let reboot = facts.medians.reboot_seconds.or(own.reboot);
    let staging = facts.medians.staging_seconds.or(own.staging);
    let seconds = match &*updating.reason {
        UPDATED => 0,
        // If a berth is free by then.
        WORKING if facts.status.phase == Some(Phase::Staging) => {
            u64::from(staging?) + u64::from(drain?) + u64::from(reboot?)
        }
        DRAINING => u64::from(drain?) + u64::from(reboot?),
        REBOOTING => reboot?.into(),
        _ => return None,
    };
    Some(Duration::from_secs(seconds))
}

/// The one thing that a person should know about the node.
fn message(facts: &Facts<'_>, updating: &Verdict, degraded: &Verdict) -> String {
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

/// One line of at most 100 characters. A long name of the node, which stands beside it, is replaced.
fn short(words: &str, node: &str) -> String {
    let line = condition::one_line(words);
    let line = match node.chars().count() >= 8 {
        true => line.replace(node, "<node>"),
        false => line,
    };
    text::truncated(&line, MAX_MESSAGE)
}

/// Reason of the insight's `Updating`, which is its phase.
pub fn phase(insight: &NodeInsight) -> &str {
    condition::find(&insight.conditions, UPDATING).map_or("", |c| &c.reason)
}

/// Says whether the insight tells of a silent agent, and not of a reboot that timed out.
pub fn is_silent(insight: &NodeInsight) -> bool {
    let degraded = condition::find_true(&insight.conditions, DEGRADED);
    degraded.is_some_and(|c| c.reason == Why::AgentSilent.as_str())
}

/// Assessment of a node, by its insight.
pub fn assessment(insight: &NodeInsight) -> Assessment {
    let is = |type_, status| condition::find(&insight.conditions, type_).is_some_and(|c| c.status == status);
    if is(DEGRADED, "True") {
        return Assessment::Degraded;
    }
    if is(AVAILABLE, "False") && !is(UPDATING, "True") {
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
