//! View of an agent's report: the parts of a BootcNode's status that the controller needs.

use std::time::Duration;

use berth_api::boot_image::NodeBootImage;
use berth_api::condition::{self, Why};
use berth_api::firstboot::FirstbootOutcome;
use berth_api::node::{NodeDeployment, Phase};
use berth_api::{BootId, Digest};
use jiff::Timestamp;

use crate::agent::reason::Reason;

/// The parts of an agent's report that the controller needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Generation that it speaks of.
    pub observed_generation: Option<i64>,
    /// UID of the Node that the agent runs on.
    pub node_uid: Option<String>,
    /// Digest that is booted.
    pub booted: Option<Digest>,
    /// Digest that is staged.
    pub staged: Option<Digest>,
    /// The staged image is locked.
    pub locked: bool,
    /// Boot ID of the host.
    pub boot_id: Option<BootId>,
    /// The host pulls an image.
    pub pulling: bool,
    /// The agent pulls nothing before something is repaired, or another image is published.
    pub blocked: bool,
    /// What Berth did on the node is undone.
    pub released: bool,
    /// Phase of the node, for counting and for people. No decision reads it.
    pub phase: Option<Phase>,
    /// Start of that phase, by the node's clock.
    pub phase_start: Option<Timestamp>,
    /// Version of the agent.
    pub agent_version: Option<String>,
    /// Most demanding variant that the CPU runs.
    pub platform_variant: Option<String>,
    /// The agent could not pull or stage, and tries again later.
    pub failure: Option<Failing>,
    /// The last turn that ended badly.
    pub last_turn: Option<BadTurn>,
    /// Digests that failed.
    pub failed: Vec<Digest>,
    /// `UpdatePrepared` is True.
    pub prepared: bool,
    /// `NodeDegraded` is True: reason and message.
    pub degraded: Option<(String, String)>,
    /// The agent says that the API server does not guard the berths.
    pub unguarded: bool,
    /// The retry token that the agent obeyed last.
    pub retry_token: Option<String>,
    /// Images that the node was deployed to.
    pub deployments: Vec<NodeDeployment>,
    /// Length of the last pull there.
    pub staging: Option<Duration>,
    /// End of that pull, by the node's clock.
    pub staging_ended: Option<Timestamp>,
    /// Length of the last drain there.
    pub drain: Option<Duration>,
    /// Length of the last reboot there.
    pub reboot: Option<Duration>,
    /// The host's clock is synchronised.
    pub clock_synchronized: bool,
    /// The machine's note of the image that it was installed from.
    pub boot_image: BootImageNote,
    /// The machine's first boot, where it was checked.
    pub firstboot: Option<FirstBoot>,
}

/// A machine's note of its boot image. All is empty if the agent has not looked yet, or there is no note.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootImageNote {
    /// Version of the image.
    pub version: Option<String>,
    /// Time when the machine was provisioned, by its own clock, in seconds since 1970.
    pub provisioned: Option<i64>,
    /// Why the note cannot be read.
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
    /// The kubelet was held back at first.
    pub held: bool,
}

/// A turn with a berth that did not end in an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTurn {
    /// Outcome of the turn.
    pub outcome: String,
    /// Details: which pod, which budget, which inhibitor.
    pub message: String,
    /// Target of that turn.
    pub digest: Digest,
    /// Number of turns for that digest that ended like this.
    pub attempts: u32,
}

/// A failure to pull or stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// The digest that it is about.
    pub digest: Option<Digest>,
    /// Number of tries.
    pub attempts: u32,
}

impl Report {
    pub(super) fn of(status: berth_api::node::BootcNodeStatus) -> Self {
        let seconds = |s: Option<u32>| s.map(|s| Duration::from_secs(s.into()));
        let measured = status.measured();
        let degraded = condition::find(&status.conditions, condition::node::NODE_DEGRADED)
            .filter(|c| c.status == "True")
            .map(|c| (c.reason.clone(), c.message.clone()));
        let guarded = condition::find(&status.conditions, condition::node::GUARDED);
        let unguarded = match guarded {
            Some(guarded) => guarded.status == "False",
            // An agent of an earlier version has no other word for it.
            None => degraded
                .as_ref()
                .is_some_and(|(reason, _)| reason == Reason::Unguarded.as_str()),
        };
        let released = match condition::find(&status.conditions, condition::node::RELEASED) {
            Some(released) => released.status == "True",
            // An agent of an earlier version has no such condition.
            None => status.phase == Some(Phase::Released),
        };
        let pulled = condition::find(&status.conditions, condition::node::IMAGE_PULLED);
        let is_pulled = |reason: Why| pulled.is_some_and(|c| c.status == "Unknown" && c.reason == reason.as_str());
        // An image that failed to be pulled is tried again; one that the host's rules refuse is not.
        let refused = status.failure.is_none() && pulled.is_some_and(|c| c.status == "False");
        let locked = status.staged.as_ref().is_some_and(|s| s.locked);
        Self {
            observed_generation: status.observed_generation,
            node_uid: status.node_uid,
            booted: status.booted.and_then(|d| d.digest),
            staged: status.staged.and_then(|d| d.digest),
            locked,
            boot_id: status.boot_id.map(BootId::new),
            pulling: is_pulled(Why::Pulling),
            blocked: refused || is_pulled(Why::Blocked),
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
