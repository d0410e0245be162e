//! The proof of a boot (I5): the host runs a known image and is healthy, and the Node is Ready.

use std::time::Duration;

use berth_api::berth::Holding;
use berth_api::condition::CommonReason;
use berth_api::node::timeline::ProofPart;
use berth_api::pool::Health;
use berth_api::seeded::Bug;

use super::action::{HOST_LOOK_INTERVAL, LOOK_INTERVAL, READY_LOOK_INTERVAL, WaitReason};
use super::pool_checks::{self, Failed};
use crate::agent::facts::{AgentFacts, BootComplete, Checks, Desired, HealthBefore, HostHealth};
use crate::agent::node::NodeFacts;

/// Units whose failure does not count against the running image: Berth's own units, ostree's report about the last
/// shutdown, and the mounts of pods.
const NOT_OF_THE_IMAGE: [&str; 6] = [
    "berth-*",
    "ostree-boot-complete.service",
    "var-lib-kubelet-*",
    "var-lib-containers-*",
    "run-containerd-*",
    "run-netns-*",
];

/// Result of checking the proof of a boot.
pub(super) enum Proof {
    /// The host runs the target, and the boot is proven.
    Target,
    /// The host runs the image from before the turn again, and the boot is proven.
    From,
    /// The boot is not proven yet. Holds why the agent waits, and the time until it checks again; `None`: it waits for
    /// an event.
    NotYet(WaitReason, Option<Duration>),
}

/// Checks if the boot is proven: the host runs the target or the previous image and is healthy, and the Node is Ready
/// under this boot.
pub(super) fn proof(facts: &AgentFacts, holding: &Holding, node: &NodeFacts) -> Proof {
    let booted = facts.host.os.booted();
    let proof = if booted == Some(&holding.target) {
        if facts.host.os.is_rollback_queued() {
            // The target runs, but the next boot would take another deployment.
            return Proof::NotYet(WaitReason::RollbackQueued, Some(HOST_LOOK_INTERVAL));
        }
        Proof::Target
    } else if booted.is_some() && booted == holding.from.as_ref() {
        Proof::From
    } else {
        return Proof::NotYet(WaitReason::Unproven, None);
    };
    match missing(facts, node) {
        Some(missing) if !Bug::ReleaseBeforeProof.is_awake() => {
            // Check every 0.1 s soon after the boot, and more rarely later, at least every second.
            let next = (facts.proving_for / 8).clamp(READY_LOOK_INTERVAL, LOOK_INTERVAL);
            Proof::NotYet(missing.wait_reason(), Some(next))
        }
        _ => proof,
    }
}

/// The first part of a boot's proof that is missing. The parts are checked in the order of a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The agent has not read the host's health under this boot.
    Unread,
    /// systemd still starts the host's units.
    Starting,
    /// The host has not reached `boot-complete.target`.
    BootComplete,
    /// These units have failed, but had not failed before the reboot.
    Units(Vec<String>),
    /// Some required health checks have not ended yet, and none has failed.
    RunningChecks,
    /// These required health checks failed. Holds one message per check.
    Checks(Vec<String>),
    /// The Node is not Ready under this boot.
    Ready,
    /// The Node still has this taint of the Node Readiness Controller.
    Taint(String),
    /// A check of the pool failed. Holds the condition reason and the message.
    PoolCheck(CommonReason, String),
    /// A check of the pool has no result yet. Holds the message.
    UnreadPoolCheck(String),
    /// The Node has not been Ready for all of `health.soakTime` yet. Holds the soak time.
    Soak(Duration),
}

impl Missing {
    fn wait_reason(&self) -> WaitReason {
        match self {
            Self::Unread | Self::Ready | Self::Taint(_) => WaitReason::NotReady,
            Self::Starting
            | Self::BootComplete
            | Self::Units(_)
            | Self::RunningChecks
            | Self::Checks(_)
            | Self::PoolCheck(..)
            | Self::UnreadPoolCheck(_)
            | Self::Soak(_) => WaitReason::Unhealthy,
        }
    }

    /// Returns the condition reason to report if a boot is not proven in time because this part is missing.
    pub(crate) fn reason(&self) -> CommonReason {
        match self {
            Self::Starting | Self::BootComplete => CommonReason::BootIncomplete,
            Self::Units(_) => CommonReason::UnitsFailed,
            Self::RunningChecks | Self::Checks(_) => CommonReason::HealthCheckFailed,
            Self::PoolCheck(reason, _) => *reason,
            Self::Unread | Self::Ready | Self::Taint(_) | Self::UnreadPoolCheck(_) | Self::Soak(_) => {
                CommonReason::NodeNotReady
            }
        }
    }

    /// True if the missing part is a fault of the boot. After `health.deadline`, the agent undoes a boot with a fault.
    /// False if the part is not known yet, or only needs more time.
    pub(crate) fn is_fault(&self) -> bool {
        !matches!(
            self,
            Self::Unread | Self::RunningChecks | Self::UnreadPoolCheck(_) | Self::Soak(_)
        )
    }

    /// Returns a clause that names the missing part.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Unread => "the host did not report its health".to_owned(),
            Self::Starting => "systemd has not finished starting the host's units".to_owned(),
            Self::BootComplete => "the host did not reach boot-complete.target".to_owned(),
            Self::Units(units) => format!(
                "these units failed after the reboot, but not before the reboot: {}",
                units.join(", ")
            ),
            Self::RunningChecks => "the host's health checks have not ended".to_owned(),
            Self::Checks(failures) => format!("required health checks failed: {}", failures.join("; ")),
            Self::Ready => "the Node did not become Ready after the reboot".to_owned(),
            Self::Taint(taint) => format!("the Node still has the taint {taint}"),
            Self::PoolCheck(_, message) | Self::UnreadPoolCheck(message) => message.clone(),
            Self::Soak(time) => format!(
                "the Node has not been Ready for health.soakTime ({}s) without a break",
                time.as_secs()
            ),
        }
    }
}

/// Returns the complete parts of the running boot's proof, up to the first missing part. `None` if the host does not
/// run the target of its berth, or if the Node has not been read.
pub fn proven_parts(facts: &AgentFacts) -> Option<&'static [ProofPart]> {
    let (holding, node) = (facts.holding()?, facts.cluster_node.get()?);
    if facts.host.os.booted() != Some(&holding.target) {
        return None;
    }
    let next = match missing(facts, node) {
        Some(Missing::Unread | Missing::Starting | Missing::BootComplete) => ProofPart::Started,
        Some(Missing::Units(_)) => ProofPart::UnitsHealthy,
        Some(Missing::RunningChecks | Missing::Checks(_)) => ProofPart::ChecksPassed,
        Some(Missing::Ready | Missing::Taint(_)) => ProofPart::NodeReady,
        Some(Missing::PoolCheck(..) | Missing::UnreadPoolCheck(_)) => ProofPart::PoolChecksPassed,
        Some(Missing::Soak(_)) => ProofPart::Soaked,
        None => return Some(ProofPart::ALL),
    };
    let there = ProofPart::ALL.iter().position(|part| *part == next)?;
    ProofPart::ALL.get(..there)
}

/// Returns the first part of the running boot's proof that is missing; `None` if the boot is proven.
pub(crate) fn missing(facts: &AgentFacts, node: &NodeFacts) -> Option<Missing> {
    let Some(health) = &facts.host.health else {
        return Some(Missing::Unread);
    };
    let rules = match &facts.desired {
        Desired::Member(member) => Some(&member.health),
        Desired::Unknown | Desired::Release => None,
    };
    // Without a record from before the reboot, an unfinished start of the host counts against the boot. Failed units do
    // not count: see [`newly_failed`].
    let any = HealthBefore::default();
    let before = facts.past.health_before.as_ref().unwrap_or(&any);
    if health.starting && !before.starting {
        return Some(Missing::Starting);
    }
    if health.boot_complete == BootComplete::Pending && !before.boot_incomplete {
        return Some(Missing::BootComplete);
    }
    let units = newly_failed(facts, health, rules);
    if !units.is_empty() {
        return Some(Missing::Units(units));
    }
    match &health.checks {
        Checks::Running => return Some(Missing::RunningChecks),
        Checks::Failed(failures) => return Some(Missing::Checks(failures.clone())),
        Checks::Passed => {}
    }
    if !node.reports_ready(&facts.host.boot_id) {
        return Some(Missing::Ready);
    }
    if let Some(taint) = &node.not_ready_taint {
        return Some(Missing::Taint(taint.clone()));
    }
    match rules.and_then(|rules| pool_checks::judge(facts, node, &rules.checks)) {
        Some(Failed::Check(reason, message)) => return Some(Missing::PoolCheck(reason, message)),
        Some(Failed::Unread(message)) => return Some(Missing::UnreadPoolCheck(message)),
        None => {}
    }
    let soak = rules.map_or(Duration::ZERO, Health::soak_time);
    (facts.ready_for < soak).then_some(Missing::Soak(soak))
}

/// Returns the failed units that count against the running image. Empty if the host has no record of the units that had
/// failed before the reboot.
fn newly_failed(facts: &AgentFacts, health: &HostHealth, rules: Option<&Health>) -> Vec<String> {
    let Some(before) = &facts.past.health_before else {
        return vec![];
    };
    let ignored: &[String] = rules.map_or(&[], |rules| &rules.ignored_units);
    let mut units = vec![];
    for unit in &health.failed_units {
        let had_failed = before.failed_units.iter().any(|old| is_same_unit(old, unit));
        let is_ignored = ignored.iter().any(|pattern| matches(pattern, unit));
        let is_of_image = !NOT_OF_THE_IMAGE.iter().any(|pattern| matches(pattern, unit));
        // A scope has the processes of a login session or a container, which the image does not start.
        if is_of_image && !had_failed && !is_ignored && !unit.ends_with(".scope") {
            units.push(unit.clone());
        }
    }
    units
}

/// True if the names are equal, or name two instances of one template, such as `dump@1.service` and `dump@2.service`.
fn is_same_unit(one: &str, other: &str) -> bool {
    one == other || template(one).is_some_and(|known| template(other) == Some(known))
}

/// Returns the name and the type of a unit's template: `dump` and `service` for `dump@1.service`. `None` for a unit
/// without a template.
fn template(unit: &str) -> Option<(&str, &str)> {
    let (name, instance) = unit.split_once('@')?;
    let (_, kind) = instance.rsplit_once('.')?;
    Some((name, kind))
}

/// True if the pattern is the unit's name, or is a prefix of that name followed by `*`.
fn matches(pattern: &str, unit: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => unit.starts_with(prefix),
        None => unit == pattern,
    }
}
