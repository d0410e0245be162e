//! Findings about a node, from its BootcNode.

use berth_api::condition::{self, CommonReason, Word, node as types};
use berth_api::node::{BootcNodeStatus, Phase};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::kind::Kind;
use super::{Finding, Subject};

/// Seconds that a pod may block a drain before a finding reports it.
const DRAIN_GRACE: i64 = 10 * 60;

/// Returns the finding that a node is degraded.
pub fn degraded(node: Subject, reason: impl Into<Word>, message: impl Into<String>) -> Finding {
    Finding::new(Kind::NodeDegraded, node, reason, message)
}

/// Returns the agent's finding, as reported in the conditions of its BootcNode.
pub fn reported(node: &Subject, conditions: &[Condition]) -> Option<Finding> {
    let own = condition::find_true(conditions, types::NODE_DEGRADED)?;
    Some(Finding::of_condition(Kind::NodeDegraded, node.clone(), own))
}

/// Returns the worst trouble of a node that is a member of a pool. `of_controller`: conditions that the controller wrote.
/// `silent`: message about a silent agent, whose own report is outdated. `is_unpublished`: no image is published for it.
pub fn trouble(
    node: &Subject,
    own: &[Condition],
    of_controller: &[Condition],
    silent: Option<&str>,
    is_unpublished: bool,
) -> Option<Finding> {
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

/// Returns the controller's report that the pool's image lacks the node's platform. The report is outdated if an image was
/// published since. Without an image, the agent reports no error.
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

/// Returns the finding about a pod that has blocked the drain for ten minutes or longer.
pub fn drain(node: &Subject, status: &BootcNodeStatus, now: Timestamp) -> Option<Finding> {
    let first = status.drain_blockers.first()?;
    let lasts = now.as_second() - first.since.0.as_second() >= DRAIN_GRACE;
    let message = format!("{}: {}", first.pod, first.reason);
    lasts.then(|| Finding {
        since: Some(first.since.0),
        ..Finding::new(Kind::DrainBlocked, node.clone(), Phase::Draining, message)
    })
}
