//! An agent's report: the parts of a BootcNode's status that the controller needs. An agent of a compromised node may
//! write any text, so the texts that reach statuses, events and messages become one line here.

use std::time::Duration;

use berth_api::boot_image::NodeBootImage;
use berth_api::condition::{self, CommonReason, Word, one_line};
use berth_api::firstboot::FirstbootOutcome;
use berth_api::foreign::line;
use berth_api::node::{BootcNodeStatus, NodeDeployment, Phase};
use berth_api::{BootId, Digest};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::agent::reason::Reason;
use crate::finding::{self, Finding, Subject};
use crate::whole_seconds;

/// Parts of an agent's report that the controller needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Generation of the BootcNode that the agent reported on.
    pub observed_generation: Option<i64>,
    /// UID of the Node that the agent runs on.
    pub node_uid: Option<String>,
    /// Version of the agent.
    pub agent_version: Option<String>,
    /// Last retry token that the agent obeyed.
    pub retry_token: Option<String>,
    /// Phase of the node, for counts and messages. No decision depends on it.
    pub phase: Option<Phase>,
    /// Start of the phase, by the node's clock.
    pub phase_start: Option<Timestamp>,
    /// True if Berth's changes on the node are undone.
    pub released: bool,
    /// True if the agent reports that the API server lets it write objects of other nodes.
    pub unguarded: bool,
    /// The finding that the condition `NodeDegraded` reports; `None` if the condition is not True.
    pub degraded: Option<Finding>,
    /// The last turn, if a problem of the node ended it, such as a drain timeout.
    pub last_turn: Option<BadTurn>,
    /// Images on the host.
    pub images: Images,
    /// Progress towards a staged image.
    pub pull: Pull,
    /// Durations of the node's last update.
    pub measured: Measured,
    /// The host.
    pub host: Host,
}

/// Images on a host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Images {
    /// Digest that is booted.
    pub booted: Option<Digest>,
    /// Digest that is staged.
    pub staged: Option<Digest>,
    /// True if the staged image is locked.
    pub locked: bool,
    /// Digests that failed on this host.
    pub failed: Vec<Digest>,
    /// Images that were deployed to the node.
    pub deployments: Vec<NodeDeployment>,
}

/// A host's progress towards a staged image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pull {
    /// True if the host is pulling an image.
    pub pulling: bool,
    /// True if the agent pulls nothing until the host is repaired or another image is published.
    pub blocked: bool,
    /// Failure to pull or stage, if the agent will retry.
    pub failure: Option<Failing>,
    /// True if the condition `UpdatePrepared` is True.
    pub prepared: bool,
}

/// Durations of a node's last update, by the node's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// Duration of the last pull.
    pub staging: Option<Duration>,
    /// End of the last pull.
    pub staging_ended: Option<Timestamp>,
    /// Duration of the last drain.
    pub drain: Option<Duration>,
    /// Duration of the last reboot.
    pub reboot: Option<Duration>,
}

/// Parts of a report about the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Host {
    /// Boot ID of the host.
    pub boot_id: Option<BootId>,
    /// Highest variant of the CPU architecture that the machine runs, such as `v3`.
    pub platform_variant: Option<String>,
    /// True if the host's clock is synchronized.
    pub clock_synchronized: bool,
    /// Record of the image that the machine was installed from.
    pub boot_image: BootImageNote,
    /// Result of the check of the machine's first boot; `None` if the boot was not checked.
    pub firstboot: Option<FirstBoot>,
}

/// A machine's record of its boot image. Empty if there is no record, or if the agent has not looked for it yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootImageNote {
    /// Version of the boot image.
    pub version: Option<String>,
    /// Time when the machine was provisioned, by its own clock, in seconds since 1970.
    pub provisioned: Option<i64>,
    /// Error from reading the record.
    pub error: Option<String>,
}

impl BootImageNote {
    fn of(image: NodeBootImage) -> Self {
        Self {
            version: image.version.map(|version| line(&version)),
            provisioned: image
                .provisioned_time
                .and_then(plausible)
                .map(|time| time.0.as_second()),
            error: image.error.as_deref().map(one_line),
        }
    }
}

/// Result of the check of a machine's first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstBoot {
    /// Outcome of the check.
    pub outcome: FirstbootOutcome,
    /// True if the kubelet was held back before it could start.
    pub held: bool,
}

/// A turn that a problem of the node ended, such as a drain timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTurn {
    /// Outcome of the turn.
    pub outcome: String,
    /// Details, such as the pod, disruption budget or inhibitor that blocked the turn.
    pub message: String,
    /// Target of the turn.
    pub digest: Digest,
    /// Number of consecutive turns with this digest and outcome.
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

/// Returns the condition with a short reason and message, and with a plausible transition time: 1970 replaces any other
/// time. An agent may write conditions of the controller's types too, of any length and with any time. The controller
/// writes these conditions back together with its own.
pub(super) fn bounded(condition: Condition) -> Condition {
    Condition {
        reason: Word::stored(&condition.reason).into_string(),
        message: one_line(&condition.message),
        last_transition_time: plausible(condition.last_transition_time).unwrap_or(Time(Timestamp::UNIX_EPOCH)),
        ..condition
    }
}

/// True if the agent reports that the API server lets it write objects of other nodes.
fn is_unguarded(conditions: &[Condition], degraded: Option<&Finding>) -> bool {
    match condition::find(conditions, condition::node::GUARDED) {
        Some(guarded) => guarded.status == "False",
        // Older agents do not have this condition. Such agents report the problem only as the reason of `NodeDegraded`.
        None => degraded.is_some_and(|found| found.reason == Reason::Unguarded.as_str()),
    }
}

fn is_released(status: &BootcNodeStatus) -> bool {
    match condition::find(&status.conditions, condition::node::RELEASED) {
        Some(released) => released.status == "True",
        // Older agents do not have this condition.
        None => status.phase == Some(Phase::Released),
    }
}

/// Longest duration that counts. An agent may report any number.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

fn seconds(number: Option<u32>) -> Option<Duration> {
    number.map(|number| Duration::from_secs(number.into()).min(MAX_DURATION))
}

/// Times that a report may contain: 1970 up to the end of 9998, in seconds since 1970. The API server accepts more in an
/// agent's status, such as the year 0 in a time zone east of Greenwich. In UTC, that is a negative year. The API server
/// would refuse every status with such a time that the controller writes.
const PLAUSIBLE: std::ops::Range<i64> = 0..253_370_764_800;

/// Returns a time of a report in whole seconds; `None` if the time is not plausible. With a fraction of a second, a time
/// would never equal the time that the API server stores.
fn plausible(time: Time) -> Option<Time> {
    PLAUSIBLE.contains(&time.0.as_second()).then(|| whole_seconds(time.0))
}

/// Returns the deployment with its version as one line, and without a time that is not plausible.
fn deployment(deployment: NodeDeployment) -> NodeDeployment {
    NodeDeployment {
        version: deployment.version.map(|version| line(&version)),
        deployed_time: deployment.deployed_time.and_then(plausible),
        ..deployment
    }
}

impl Report {
    pub(super) fn of(node: &Subject, status: BootcNodeStatus) -> Self {
        let degraded = finding::node::reported(node, &status.conditions);
        Self {
            observed_generation: status.observed_generation,
            phase: status.phase,
            phase_start: status.phase_start_time.clone().and_then(plausible).map(|t| t.0),
            released: is_released(&status),
            unguarded: is_unguarded(&status.conditions, degraded.as_ref()),
            degraded,
            pull: Pull::of(&status),
            measured: Measured::of(&status),
            images: Images {
                booted: status.booted.and_then(|d| d.digest),
                locked: status.staged.as_ref().is_some_and(|s| s.locked),
                staged: status.staged.and_then(|d| d.digest),
                failed: status.failed_digests,
                deployments: status.deployments.into_iter().map(deployment).collect(),
            },
            host: Host {
                boot_id: status.boot_id.map(BootId::new),
                platform_variant: status.platform_variant.map(|variant| line(&variant)),
                clock_synchronized: status.clock_synchronized.unwrap_or_default(),
                boot_image: status.boot_image.map(BootImageNote::of).unwrap_or_default(),
                firstboot: status.firstboot.map(|firstboot| FirstBoot {
                    outcome: firstboot.outcome,
                    held: firstboot.held,
                }),
            },
            last_turn: status.last_turn.map(|t| BadTurn {
                outcome: Word::stored(&t.outcome).into_string(),
                message: one_line(&t.message),
                digest: t.digest,
                attempts: t.attempts,
            }),
            node_uid: status.node_uid,
            agent_version: status.agent_version.map(|version| line(&version)),
            retry_token: status.retry_token,
        }
    }
}

impl Pull {
    fn of(status: &BootcNodeStatus) -> Self {
        let pulled = condition::find(&status.conditions, condition::node::IMAGE_PULLED);
        let pull_reason = pulled.filter(|c| c.status == "Unknown").map(|c| c.reason.as_str());
        // A failed pull is retried. An image that the host's policy refuses is not pulled again.
        let refused = status.failure.is_none() && pulled.is_some_and(|c| c.status == "False");
        Self {
            pulling: pull_reason == Some(CommonReason::Pulling.as_str()),
            blocked: refused || pull_reason == Some(CommonReason::Blocked.as_str()),
            failure: status.failure.as_ref().map(|f| Failing {
                digest: f.digest.clone(),
                attempts: f.attempts,
            }),
            prepared: condition::is_true(&status.conditions, condition::node::UPDATE_PREPARED),
        }
    }
}

impl Measured {
    fn of(status: &BootcNodeStatus) -> Self {
        let measured = status.measured();
        Self {
            staging: seconds(measured.staging),
            staging_ended: status
                .timeline
                .staging_ended()
                .and_then(|t| plausible(Time(t)))
                .map(|t| t.0),
            drain: seconds(measured.drain),
            reboot: seconds(measured.reboot),
        }
    }
}
