//! An agent's report: the parts of a BootcNode's status that the controller needs.

use std::time::Duration;

use berth_api::boot_image::NodeBootImage;
use berth_api::condition::{self, Why};
use berth_api::firstboot::FirstbootOutcome;
use berth_api::node::{BootcNodeStatus, NodeDeployment, Phase};
use berth_api::{BootId, Digest};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::agent::reason::Reason;
use crate::finding::{self, Finding, Subject};

/// Parts of an agent's report that the controller needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Generation that the report is about.
    pub observed_generation: Option<i64>,
    /// UID of the Node that the agent runs on.
    pub node_uid: Option<String>,
    /// Digest that is booted.
    pub booted: Option<Digest>,
    /// Digest that is staged.
    pub staged: Option<Digest>,
    /// True if the staged image is locked.
    pub locked: bool,
    /// Boot ID of the host.
    pub boot_id: Option<BootId>,
    /// True if the host is pulling an image.
    pub pulling: bool,
    /// True if the agent pulls nothing until something is repaired or another image is published.
    pub blocked: bool,
    /// True if Berth's changes on the node are undone.
    pub released: bool,
    /// Phase of the node, for counts and messages. No decision depends on it.
    pub phase: Option<Phase>,
    /// Start of that phase, by the node's clock.
    pub phase_start: Option<Timestamp>,
    /// Version of the agent.
    pub agent_version: Option<String>,
    /// Highest CPU variant that the machine runs.
    pub platform_variant: Option<String>,
    /// Set if the agent could not pull or stage and will retry.
    pub failure: Option<Failing>,
    /// The last turn that ended badly.
    pub last_turn: Option<BadTurn>,
    /// Digests that failed.
    pub failed: Vec<Digest>,
    /// True if `UpdatePrepared` is True.
    pub prepared: bool,
    /// Finding behind `NodeDegraded`, if True.
    pub degraded: Option<Finding>,
    /// True if the agent reports that the API server does not guard the berths.
    pub unguarded: bool,
    /// The retry token that the agent obeyed last.
    pub retry_token: Option<String>,
    /// Images that the node was deployed to.
    pub deployments: Vec<NodeDeployment>,
    /// Duration of the node's last pull.
    pub staging: Option<Duration>,
    /// End of that pull, by the node's clock.
    pub staging_ended: Option<Timestamp>,
    /// Duration of the node's last drain.
    pub drain: Option<Duration>,
    /// Duration of the node's last reboot.
    pub reboot: Option<Duration>,
    /// True if the host's clock is synchronised.
    pub clock_synchronized: bool,
    /// The machine's record of the image that it was installed from.
    pub boot_image: BootImageNote,
    /// The machine's first boot, if it was checked.
    pub firstboot: Option<FirstBoot>,
}

/// A machine's record of its boot image. Empty if the agent has not looked yet, or there is no record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootImageNote {
    /// Version of the image.
    pub version: Option<String>,
    /// Time when the machine was provisioned, by its own clock, in seconds since 1970.
    pub provisioned: Option<i64>,
    /// Error of reading the record.
    pub error: Option<String>,
}

impl BootImageNote {
    fn of(image: NodeBootImage) -> Self {
        Self {
            version: image.version,
            provisioned: image.provisioned_time.map(|time| time.0.as_second()),
            error: image.error,
        }
    }
}

/// A machine's first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstBoot {
    /// Outcome.
    pub outcome: FirstbootOutcome,
    /// True if the kubelet was held back at first.
    pub held: bool,
}

/// A turn that ended without an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTurn {
    /// Outcome of the turn.
    pub outcome: String,
    /// Details: pod, disruption budget or inhibitor.
    pub message: String,
    /// Target of that turn.
    pub digest: Digest,
    /// Number of turns for that digest with such an end.
    pub attempts: u32,
}

/// A failure to pull or stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// Digest that failed.
    pub digest: Option<Digest>,
    /// Number of tries.
    pub attempts: u32,
}

/// True if the agent reports that the API server does not guard the berths.
fn is_unguarded(conditions: &[Condition], degraded: Option<&Finding>) -> bool {
    match condition::find(conditions, condition::node::GUARDED) {
        Some(guarded) => guarded.status == "False",
        // Older agents report it only this way.
        None => degraded.is_some_and(|found| found.reason == Reason::Unguarded.as_str()),
    }
}

/// True if the agent reports that Berth's changes on the node are undone.
fn is_released(status: &BootcNodeStatus) -> bool {
    match condition::find(&status.conditions, condition::node::RELEASED) {
        Some(released) => released.status == "True",
        // Older agents do not have this condition.
        None => status.phase == Some(Phase::Released),
    }
}

fn seconds(number: Option<u32>) -> Option<Duration> {
    number.map(|number| Duration::from_secs(number.into()))
}

impl Report {
    pub(super) fn of(node: &Subject, status: BootcNodeStatus) -> Self {
        let measured = status.measured();
        let degraded = finding::node::reported(node, &status.conditions);
        let unguarded = is_unguarded(&status.conditions, degraded.as_ref());
        let released = is_released(&status);
        let pulled = condition::find(&status.conditions, condition::node::IMAGE_PULLED);
        let pull_reason = pulled.filter(|c| c.status == "Unknown").map(|c| c.reason.as_str());
        // An image whose pull failed is retried; an image that the host's policy refuses is not.
        let refused = status.failure.is_none() && pulled.is_some_and(|c| c.status == "False");
        let locked = status.staged.as_ref().is_some_and(|s| s.locked);
        Self {
            observed_generation: status.observed_generation,
            node_uid: status.node_uid,
            booted: status.booted.and_then(|d| d.digest),
            staged: status.staged.and_then(|d| d.digest),
            locked,
            boot_id: status.boot_id.map(BootId::new),
            pulling: pull_reason == Some(Why::Pulling.as_str()),
            blocked: refused || pull_reason == Some(Why::Blocked.as_str()),
            released,
            phase: status.phase,
            phase_start: status.phase_start_time.map(|t| t.0),
            agent_version: status.agent_version,
            platform_variant: status.platform_variant,
            failure: status.failure.map(|f| Failing {
                digest: f.digest,
                attempts: f.attempts,
            }),
            last_turn: status.last_turn.map(|t| BadTurn {
                outcome: t.outcome,
                message: t.message,
                digest: t.digest,
                attempts: t.attempts,
            }),
            failed: status.failed_digests,
            prepared: condition::is_true(&status.conditions, condition::node::UPDATE_PREPARED),
            retry_token: status.retry_token,
            deployments: status.deployments,
            staging: seconds(measured.staging),
            staging_ended: status.timeline.staging_ended(),
            drain: seconds(measured.drain),
            reboot: seconds(measured.reboot),
            clock_synchronized: status.clock_synchronized.unwrap_or_default(),
            boot_image: status.boot_image.map(BootImageNote::of).unwrap_or_default(),
            firstboot: status.firstboot.map(|firstboot| FirstBoot {
                outcome: firstboot.outcome,
                held: firstboot.held,
            }),
            degraded,
            unguarded,
        }
    }
}
