//! Conditions: the names that Berth uses and the one way to set one.
//!
//! A condition's `lastTransitionTime` moves only when its status moves (invariant I9), so that "since when" and
//! alerts on duration mean something.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub use crate::reason::{Reason, Why, Word};

/// Condition types of a BootcNode. Where MachineConfigNode has the same meaning, the name is the same.
pub mod node {
    /// The node runs the desired image and is not being worked on.
    pub const UPDATED: &str = "Updated";
    /// Staged, locked and uninhibited: a berth may be offered.
    pub const UPDATE_PREPARED: &str = "UpdatePrepared";
    /// The desired image is on the host.
    pub const IMAGE_PULLED: &str = "ImagePulledFromRegistry";
    /// The desired image is staged, with finalization locked.
    pub const STAGED: &str = "Staged";
    /// Cordoned under our berth.
    pub const CORDONED: &str = "Cordoned";
    /// Drained under our berth.
    pub const DRAINED: &str = "Drained";
    /// The update is committed: the image is unlocked, and the reboot has been asked for or is done.
    pub const UPDATE_EXECUTED: &str = "UpdateExecuted";
    /// The desired image is booted.
    pub const APPLIED_OS_IMAGE: &str = "AppliedOSImage";
    /// The host came back under a new boot ID.
    pub const REBOOTED_NODE: &str = "RebootedNode";
    /// The Node is Ready under the new boot ID.
    pub const RESUMED: &str = "Resumed";
    /// The cordon that we made is undone.
    pub const UNCORDONED: &str = "Uncordoned";
    /// The turn is over: proven, uncordoned, given back.
    pub const UPDATE_COMPLETE: &str = "UpdateComplete";
    /// Something is wrong and needs a look; the reason names it.
    pub const NODE_DEGRADED: &str = "NodeDegraded";
    /// The API server lets the agent write nothing that belongs to another node. Absent until it once was not so.
    pub const GUARDED: &str = "Guarded";
    /// The node belongs to no pool, and what Berth did there is undone. Absent until it was so once.
    pub const RELEASED: &str = "Released";
    /// The node holds a berth and does not come back. Set by the controller, since the agent cannot.
    pub const REBOOT_TIMED_OUT: &str = "RebootTimedOut";
    /// Something about this node alone keeps it from being offered a berth. For people; no decision reads it.
    pub const WAITING: &str = "Waiting";
    /// The conditions that the controller writes. All others are the agent's.
    pub const OF_CONTROLLER: [&str; 2] = [REBOOT_TIMED_OUT, WAITING];
    /// All of them.
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
        RELEASED,
        REBOOT_TIMED_OUT,
        WAITING,
    ];
}

/// Condition types of a Node that Kubernetes has for its lifecycle (KEP-5683). Whoever manages the node sets them.
pub mod lifecycle {
    /// The node is expected to be worked on: its image is staged, and it waits for its turn.
    pub const MAINTENANCE_PLANNED: &str = "MaintenancePlanned";
    /// Pods are being moved from the node.
    pub const DRAIN_IN_PROGRESS: &str = "DrainInProgress";
    /// The pods that were to be moved are gone.
    pub const DRAINED: &str = "Drained";
    /// The node is being worked on: what happens to it is meant.
    pub const MAINTENANCE_IN_PROGRESS: &str = "MaintenanceInProgress";
    /// Those that an agent sets, in this order.
    pub const ALL: [&str; 4] = [MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS];
    /// The reason of those that an agent has set: the node is in its turn, or waits for it.
    pub const REASON: &str = "BerthTurn";
}

/// Condition types of a BootcNodePool.
pub mod pool {
    /// Every member runs the target.
    pub const UPDATED: &str = "Updated";
    /// Members are on their way to the target.
    pub const PROGRESSING: &str = "Progressing";
    /// At least one member is degraded, or a berth needs a person.
    pub const DEGRADED: &str = "Degraded";
    /// Nothing is offered, because an admin has paused the pool or the fleet.
    pub const PAUSED: &str = "Paused";
    /// The reference is resolved to digests.
    pub const IMAGE_RESOLVED: &str = "ImageResolved";
    /// The tag cannot be looked at, or its image is refused: no new image reaches the pool.
    pub const FEED_FAILING: &str = "FeedFailing";
    /// A node matches more than one pool.
    pub const NODE_CONFLICT: &str = "NodeConflict";
    /// The image failed on so many nodes that it is tried on no other.
    pub const ROLLOUT_HALTED: &str = "RolloutHalted";
    /// Reboots may start now, as far as windows and exclusions go.
    pub const WINDOW_OPEN: &str = "WindowOpen";
    /// The boot image in use is too old for the target, or for what is to be the target.
    pub const BOOT_IMAGE_SKEW: &str = "BootImageSkew";
    /// Every member runs the target and nothing is left to do, as kstatus reads it.
    pub const READY: &str = "Ready";
    /// The pool is on its way, or waits for what comes by itself, as kstatus reads it.
    pub const RECONCILING: &str = "Reconciling";
    /// Nothing goes on until a person acts, as kstatus reads it.
    pub const STALLED: &str = "Stalled";
    /// The conditions that only repeat what the others say.
    pub const SUMMARY: [&str; 3] = [READY, RECONCILING, STALLED];
    /// All of them.
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
    /// Nodes of some pool are on their way to another image.
    pub const UPDATING: &str = "Updating";
    /// All pools are paused.
    pub const PAUSED: &str = "Paused";
    /// The controller can read all that it works with.
    pub const CONTROLLER_HEALTHY: &str = "ControllerHealthy";
    /// Every agent was heard of lately.
    pub const AGENTS_HEALTHY: &str = "AgentsHealthy";
    /// The registries of all pools answer.
    pub const REGISTRY_REACHABLE: &str = "RegistryReachable";
    /// New images of every pool's tag reach the pool.
    pub const FEEDS_HEALTHY: &str = "FeedsHealthy";
    /// No agent says that the API server lets it write what is another node's.
    pub const GUARDED: &str = "Guarded";
    /// No node says that its first boot went wrong.
    pub const BOOTSTRAP_HEALTHY: &str = "BootstrapHealthy";
    /// All of them.
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

/// Longest message that is stored; the schema of `Condition` allows 32768.
pub const MAX_MESSAGE: usize = 1024;

/// New value of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// `Some(true)`: True; `Some(false)`: False; `None`: Unknown.
    pub status: Option<bool>,
    /// Reason.
    pub reason: Word,
    /// One line for people; may be empty.
    pub message: String,
}

impl Verdict {
    /// True, with a reason.
    pub fn yes(reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self {
            status: Some(true),
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// False, with a reason.
    pub fn no(reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self {
            status: Some(false),
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Unknown, with a reason. Unknown never means failed.
    pub fn unknown(reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self {
            status: None,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// True or False, for the reason and in the words of another condition.
    pub fn repeats(yes: bool, other: &Condition) -> Self {
        Self {
            status: Some(yes),
            reason: Word::stored(&other.reason),
            message: other.message.clone(),
        }
    }
}

fn status_text(status: Option<bool>) -> &'static str {
    match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    }
}

/// Makes one bounded line, fit for a condition, of a text from a host tool or a registry.
pub fn one_line(text: &str) -> String {
    // Colours and the like of a tool that takes its log for a terminal.
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// Sets a condition, keeping its `lastTransitionTime` unless the status changes.
pub fn set(conditions: &mut Vec<Condition>, type_: &str, verdict: Verdict, generation: Option<i64>, now: Timestamp) {
    let status = status_text(verdict.status);
    let message = one_line(&verdict.message);
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(condition) => {
            if condition.status != status {
                condition.last_transition_time = Time::from(now);
            }
            condition.status = status.to_owned();
            condition.reason = verdict.reason.into_string();
            condition.message = message;
            condition.observed_generation = generation;
        }
        None => conditions.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.into_string(),
            message,
            last_transition_time: Time::from(now),
            observed_generation: generation,
        }),
    }
}

/// The condition of that type, when it has been reported.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// The condition of that type, when it is True.
pub fn find_true<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    find(conditions, type_).filter(|c| c.status == "True")
}

/// Says whether the condition is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find_true(conditions, type_).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_moves_with_the_status_only() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let mut conditions = vec![];
        set(&mut conditions, "X", Verdict::no(Why::NotYet, "one"), None, at(1));
        set(&mut conditions, "X", Verdict::no(Why::NotReady, "two"), None, at(2));
        assert_eq!(conditions[0].last_transition_time.0, at(1));
        assert_eq!(conditions[0].reason, "NotReady");
        set(&mut conditions, "X", Verdict::yes(Why::AsExpected, ""), None, at(3));
        assert_eq!(conditions[0].last_transition_time.0, at(3));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn messages_are_one_bounded_line() {
        assert_eq!(one_line("error: a\n  b\n"), "error: a b");
        assert_eq!(one_line("\u{7}a\0b\u{1b}[0m\u{9f}"), "a b [0m");
        assert!(one_line(&"ü ".repeat(5000)).chars().count() <= MAX_MESSAGE + 1);
    }
}
