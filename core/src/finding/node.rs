//! Findings about a node, from its BootcNode.

use berth_api::condition::{self, CommonReason, Word, node as types};
use berth_api::node::{BootcNodeStatus, Phase};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::kind::Kind;
use super::{Finding, Subject};

/// Seconds that a pod may block a drain before a finding reports it.
const DRAIN_GRACE: i64 = 10 * 60;

/// Returns a finding that reports the node as degraded.
pub fn degraded(node: Subject, reason: impl Into<Word>, message: impl Into<String>) -> Finding {
    Finding::new(Kind::NodeDegraded, node, reason, message)
}

/// Returns the finding about a BootcNode whose spec cannot be decoded.
pub fn unreadable_spec(node: Subject, error: &str) -> Finding {
    let message = format!("the BootcNode's spec cannot be read, so the node is offered no berth: {error}");
    degraded(node, CommonReason::UnreadableObjects, message)
}

/// Returns the finding about a BootcNode whose status cannot be decoded.
pub fn unreadable_status(node: Subject, error: &str) -> Finding {
    let message = format!("the BootcNode's status cannot be read, so the node is offered no berth: {error}");
    degraded(node, CommonReason::UnreadableObjects, message)
}

/// Returns the finding that the agent reports in the conditions of its BootcNode.
pub fn reported(node: &Subject, conditions: &[Condition]) -> Option<Finding> {
    let own = condition::find_true(conditions, types::NODE_DEGRADED)?;
    Some(Finding::of_condition(Kind::NodeDegraded, node.clone(), own))
}

/// Returns the worst problem of a node in a pool. `own`: conditions that the agent wrote. `of_controller`: conditions
/// that the controller wrote. `silent`: message about a silent agent; the agent's conditions are then ignored as
/// outdated. `is_unpublished`: true if the controller has published no image for this node.
pub fn trouble(
    node: &Subject,
    own: &[Condition],
    of_controller: &[Condition],
    silent: Option<&str>,
    is_unpublished: bool,
) -> Option<Finding> {
    // A node cannot hide this finding by other problems that it reports.
    if let Some(implausible) = condition::find_true(of_controller, types::IMPLAUSIBLE) {
        return Some(Finding::of_condition(Kind::Implausible, node.clone(), implausible));
    }
    if let (Some(found), None) = (reported(node, own), silent) {
        return Some(found);
    }
    if let Some(lost) = condition::find_true(of_controller, types::REBOOT_TIMED_OUT) {
        return Some(Finding {
            reason: CommonReason::RebootTimedOut.into(),
            ..Finding::of_condition(Kind::RebootTimedOut, node.clone(), lost)
        });
    }
    if let Some(message) = silent {
        return Some(self::silent(node.clone(), message, None));
    }
    unserved(node, of_controller, is_unpublished)
}

/// Returns a finding if the controller reports that the pool's image does not support the node's platform. `None` if
/// the controller has published an image for the node since that report.
fn unserved(node: &Subject, conditions: &[Condition], is_unpublished: bool) -> Option<Finding> {
    let waiting = condition::find_true(conditions, types::WAITING)?;
    let is_unserved = is_unpublished && waiting.reason == CommonReason::NoSuchPlatform.as_str();
    is_unserved.then(|| Finding::of_condition(Kind::PlatformUnsupported, node.clone(), waiting))
}

/// Returns the finding about a silent agent.
pub fn silent(node: Subject, message: &str, since: Option<Timestamp>) -> Finding {
    Finding {
        since,
        ..Finding::new(Kind::AgentSilent, node, CommonReason::AgentSilent, message)
    }
}

/// Returns a finding if a pod has blocked the drain for ten minutes or longer.
pub fn drain(node: &Subject, status: &BootcNodeStatus, now: Timestamp) -> Option<Finding> {
    let first = status.drain_blockers.first()?;
    let lasts = now.as_second() - first.since.0.as_second() >= DRAIN_GRACE;
    let message = format!("{}: {}", first.pod, first.reason);
    lasts.then(|| Finding {
        since: Some(first.since.0),
        ..Finding::new(Kind::DrainBlocked, node.clone(), Phase::Draining, message)
    })
}
