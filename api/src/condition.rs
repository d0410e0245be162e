//! Condition types, and the function that sets conditions.
//!
//! `lastTransitionTime` changes only when the status changes (invariant I9), so that ages and alerts on duration are
//! correct.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub use crate::foreign::{MAX_MESSAGE, one_line};
pub use crate::reason::{CommonReason, Reason, Word};

/// Condition types of a BootcNode. Conditions shared with OpenShift's MachineConfigNode have the same names.
pub mod node {
    /// The node runs the desired image, and its turn is over.
    pub const UPDATED: &str = "Updated";
    /// The image is staged and locked, and nothing inhibits the reboot: a berth may be offered.
    pub const UPDATE_PREPARED: &str = "UpdatePrepared";
    /// The desired image is on the host.
    pub const IMAGE_PULLED: &str = "ImagePulledFromRegistry";
    /// The desired image is staged, with finalization locked.
    pub const STAGED: &str = "Staged";
    /// Berth has cordoned the node for its turn.
    pub const CORDONED: &str = "Cordoned";
    /// The drain of the node's turn is done.
    pub const DRAINED: &str = "Drained";
    /// The update is committed: the image is unlocked, and the reboot is requested or done.
    pub const UPDATE_EXECUTED: &str = "UpdateExecuted";
    /// The desired image is booted.
    pub const APPLIED_OS_IMAGE: &str = "AppliedOSImage";
    /// The host has rebooted in this turn: its boot ID is new.
    pub const REBOOTED_NODE: &str = "RebootedNode";
    /// The new boot is proven: the host is healthy, and the Node is Ready under the new boot ID. If False, the message
    /// names the missing part.
    pub const RESUMED: &str = "Resumed";
    /// Berth's cordon is undone.
    pub const UNCORDONED: &str = "Uncordoned";
    /// The turn is over: the boot is proven, the node is uncordoned, and the berth is given back.
    pub const UPDATE_COMPLETE: &str = "UpdateComplete";
    /// Something is wrong and needs attention; the reason names it.
    pub const NODE_DEGRADED: &str = "NodeDegraded";
    /// True if the API server rejects the agent's writes to other nodes' objects, False if it accepts them. Absent
    /// until such a write was first accepted.
    pub const GUARDED: &str = "Guarded";
    /// The host has the rollback guard, which rolls an unproven boot back even if no agent runs. Absent until the
    /// agent has checked.
    pub const ROLLBACK_GUARD: &str = "RollbackGuard";
    /// The node belongs to no pool, and Berth's changes to the node are undone. Not set until the node first leaves a
    /// pool.
    pub const RELEASED: &str = "Released";
    /// The node holds a berth, and its agent has been silent for too long, for example because the node did not come
    /// back from its reboot. Set by the controller.
    pub const REBOOT_TIMED_OUT: &str = "RebootTimedOut";
    /// The controller offers the node no berth, for a reason that concerns only this node. Only shown to admins: no
    /// decision depends on this condition.
    pub const WAITING: &str = "Waiting";
    /// The node's reports cannot be true: they contradict each other, the kubelet or the API server. Set by the
    /// controller. Only shown to admins: no decision depends on this condition.
    pub const IMPLAUSIBLE: &str = "Implausible";
    /// Conditions that the controller writes. The agent writes all others. The admission policy
    /// `berth-agent-own-status` has the same list.
    pub const OF_CONTROLLER: [&str; 3] = [REBOOT_TIMED_OUT, WAITING, IMPLAUSIBLE];
    /// All condition types of a BootcNode.
    pub const ALL: &[&str] = &[
        UPDATED,
        UPDATE_PREPARED,
        IMAGE_PULLED,
        STAGED,
        CORDONED,
        DRAINED,
        UPDATE_EXECUTED,
        APPLIED_OS_IMAGE,
        REBOOTED_NODE,
        RESUMED,
        UNCORDONED,
        UPDATE_COMPLETE,
        NODE_DEGRADED,
        GUARDED,
        ROLLBACK_GUARD,
        RELEASED,
        REBOOT_TIMED_OUT,
        WAITING,
        IMPLAUSIBLE,
    ];
}

/// Condition types of a Node's lifecycle, defined by Kubernetes (KEP-5683). The component that maintains the node sets
/// them.
pub mod lifecycle {
    /// Maintenance is expected: the image is staged, and the node waits for its turn.
    pub const MAINTENANCE_PLANNED: &str = "MaintenancePlanned";
    /// Pods are being moved from the node.
    pub const DRAIN_IN_PROGRESS: &str = "DrainInProgress";
    /// All pods that had to move are gone.
    pub const DRAINED: &str = "Drained";
    /// The node is under maintenance; disruptions are intended.
    pub const MAINTENANCE_IN_PROGRESS: &str = "MaintenanceInProgress";
    /// All condition types of a Node's lifecycle, in the order that an agent sets them.
    pub const ALL: [&str; 4] = [MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS];
    /// Reason that an agent writes into these conditions: the node is in its turn, or waits for its turn.
    pub const REASON: &str = "BerthTurn";
}

/// Condition types of a BootcNodePool.
pub mod pool {
    /// Every member runs the target.
    pub const UPDATED: &str = "Updated";
    /// Members are being updated to the target.
    pub const PROGRESSING: &str = "Progressing";
    /// At least one member is degraded, or the pool itself has a problem, such as an invalid selector or an unreadable
    /// berth.
    pub const DEGRADED: &str = "Degraded";
    /// No berth is offered, because an admin has paused the pool or the fleet.
    pub const PAUSED: &str = "Paused";
    /// The reference is resolved to digests.
    pub const IMAGE_RESOLVED: &str = "ImageResolved";
    /// The tag cannot be polled, or its image is refused: no new image reaches the pool.
    pub const FEED_FAILING: &str = "FeedFailing";
    /// This pool and another pool select the same node, or several Nodes have the address of the same API server.
    pub const NODE_CONFLICT: &str = "NodeConflict";
    /// The image failed on `maxFailures` nodes, so no further node is updated to it.
    pub const ROLLOUT_HALTED: &str = "RolloutHalted";
    /// Windows and exclusions allow reboots to start now.
    pub const WINDOW_OPEN: &str = "WindowOpen";
    /// The boot image of new machines is too old for the target or the next target.
    pub const BOOT_IMAGE_SKEW: &str = "BootImageSkew";
    /// Every member runs the target, and new images can reach the pool. Also True for a pool without members (for
    /// kstatus).
    pub const READY: &str = "Ready";
    /// The pool is being updated, or waits for something other than an admin (for kstatus).
    pub const RECONCILING: &str = "Reconciling";
    /// The rollout stops until an admin acts (for kstatus).
    pub const STALLED: &str = "Stalled";
    /// Conditions that only summarize the other conditions.
    pub const SUMMARY: [&str; 3] = [READY, RECONCILING, STALLED];
    /// All condition types of a BootcNodePool.
    pub const ALL: &[&str] = &[
        UPDATED,
        PROGRESSING,
        DEGRADED,
        PAUSED,
        IMAGE_RESOLVED,
        FEED_FAILING,
        NODE_CONFLICT,
        ROLLOUT_HALTED,
        WINDOW_OPEN,
        BOOT_IMAGE_SKEW,
        READY,
        RECONCILING,
        STALLED,
    ];
}

/// Condition types of a BootcFleet.
pub mod fleet {
    /// Nodes of at least one pool are being updated.
    pub const UPDATING: &str = "Updating";
    /// All pools are paused.
    pub const PAUSED: &str = "Paused";
    /// The controller can read all objects that it needs.
    pub const CONTROLLER_HEALTHY: &str = "ControllerHealthy";
    /// Every agent has reported recently.
    pub const AGENTS_HEALTHY: &str = "AgentsHealthy";
    /// The registries of all pools answer.
    pub const REGISTRY_REACHABLE: &str = "RegistryReachable";
    /// New images reach every pool that follows a tag.
    pub const FEEDS_HEALTHY: &str = "FeedsHealthy";
    /// False if an agent reports that the API server accepts its writes to other nodes' objects.
    pub const GUARDED: &str = "Guarded";
    /// No machine reports that its first boot failed or that its kubelet is held back.
    pub const BOOTSTRAP_HEALTHY: &str = "BootstrapHealthy";
    /// All condition types of a BootcFleet.
    pub const ALL: &[&str] = &[
        UPDATING,
        PAUSED,
        CONTROLLER_HEALTHY,
        AGENTS_HEALTHY,
        REGISTRY_REACHABLE,
        FEEDS_HEALTHY,
        GUARDED,
        BOOTSTRAP_HEALTHY,
    ];
}

/// New value of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// `Some(true)`: True; `Some(false)`: False; `None`: Unknown.
    pub status: Option<bool>,
    /// Reason.
    pub reason: Word,
    /// Message; may be empty. [`set`] makes it one line.
    pub message: String,
}

impl Verdict {
    fn new(status: Option<bool>, reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Returns the verdict that the condition is True.
    pub fn yes(reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self::new(Some(true), reason, message)
    }

    /// Returns the verdict that the condition is False.
    pub fn no(reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self::new(Some(false), reason, message)
    }

    /// Returns the verdict that the condition is Unknown. Unknown does not mean failed.
    pub fn unknown(reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self::new(None, reason, message)
    }

    /// Returns a verdict with the reason and message of another condition. The status is True if `yes`, otherwise
    /// False.
    pub fn repeats(yes: bool, other: &Condition) -> Self {
        Self::new(Some(yes), Word::stored(&other.reason), &*other.message)
    }
}

fn status_text(status: Option<bool>) -> &'static str {
    match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    }
}

/// Sets a condition. `lastTransitionTime` changes only if the status changes.
pub fn set(conditions: &mut Vec<Condition>, type_: &str, verdict: Verdict, generation: Option<i64>, now: Timestamp) {
    let status = status_text(verdict.status);
    let same = find(conditions, type_).filter(|c| c.status == status);
    let condition = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.into_string(),
        message: one_line(&verdict.message),
        last_transition_time: same.map_or_else(|| Time::from(now), |c| c.last_transition_time.clone()),
        observed_generation: generation,
    };
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(before) => *before = condition,
        None => conditions.push(condition),
    }
}

/// Returns the condition of that type, if it is set.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Returns the condition of that type, if it is True.
pub fn find_true<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    find(conditions, type_).filter(|c| c.status == "True")
}

/// True if the condition of that type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find_true(conditions, type_).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let [first, second, third] = [1, 2, 3].map(|second| Timestamp::from_second(second).unwrap());
        let mut conditions = vec![];
        set(
            &mut conditions,
            "X",
            Verdict::no(CommonReason::NotYet, "one"),
            None,
            first,
        );
        set(
            &mut conditions,
            "X",
            Verdict::no(CommonReason::NotReady, "two"),
            None,
            second,
        );
        assert_eq!(conditions[0].last_transition_time.0, first);
        assert_eq!(conditions[0].reason, "NotReady");
        set(
            &mut conditions,
            "X",
            Verdict::yes(CommonReason::AsExpected, ""),
            None,
            third,
        );
        assert_eq!(conditions[0].last_transition_time.0, third);
        assert_eq!(conditions.len(), 1);
    }
}
