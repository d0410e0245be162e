//! Judges the pool's checks: the last part of a boot's proof before the soak.

use berth_api::condition::CommonReason;
use berth_api::pool::PoolCheck;
use berth_api::seeded::Bug;

use crate::agent::facts::{AgentFacts, CheckAnswer, PodReading};
use crate::agent::node::NodeFacts;

/// A check of the pool that has not passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The check failed. Holds the condition reason and the message.
    Check(CommonReason, String),
    /// The check has no result: the agent has not made it yet, or the API server did not answer. Holds the message.
    Unread(String),
}

/// Returns the first check that has not passed; `None` if all checks have passed.
pub(super) fn judge(facts: &AgentFacts, node: &NodeFacts, checks: &[PoolCheck]) -> Option<Failed> {
    if Bug::PoolChecksIgnored.is_awake() {
        return None;
    }
    checks.iter().find_map(|check| judge_one(facts, node, check))
}

fn judge_one(facts: &AgentFacts, node: &NodeFacts, check: &PoolCheck) -> Option<Failed> {
    let name = &check.name;
    if let Some(wanted) = &check.node_condition {
        let found = node.conditions.get(&wanted.type_);
        if found.is_some_and(|status| status == wanted.status()) {
            return None;
        }
        let found = found.map_or("absent", String::as_str);
        let message = format!(
            "check {name}: Node condition {} is {found}, not {}",
            wanted.type_,
            wanted.status()
        );
        return Some(Failed::Check(CommonReason::NodeConditionWrong, message));
    }
    let reading = facts.check_readings.iter().find(|reading| reading.name == *name);
    match reading.map(|reading| &reading.answer) {
        None => Some(Failed::Unread(format!("check {name} has not run yet"))),
        Some(CheckAnswer::Unread(why)) => Some(Failed::Unread(format!("check {name} could not run: {why}"))),
        Some(CheckAnswer::Http(status)) if (200..400).contains(status) => None,
        Some(CheckAnswer::Http(status)) => {
            let message = format!("check {name}: the HTTP status is {status}");
            Some(Failed::Check(CommonReason::HttpCheckFailed, message))
        }
        Some(CheckAnswer::NoHttp(why)) => {
            let message = format!("check {name}: {why}");
            Some(Failed::Check(CommonReason::HttpCheckFailed, message))
        }
        Some(CheckAnswer::Pods(pods)) => {
            let why = pods_problem(pods, &facts.past.containers_before)?;
            Some(Failed::Check(
                CommonReason::PodsNotReady,
                format!("check {name}: {why}"),
            ))
        }
    }
}

/// Returns why these pods are not all Ready under this boot; `None` if they are. `old`: IDs of the containers from
/// before the reboot. A pod that still has such a container does not count as Ready.
fn pods_problem(pods: &[PodReading], old: &[String]) -> Option<String> {
    let mut running = pods.iter().filter(|pod| !pod.is_ending).peekable();
    if running.peek().is_none() {
        return Some("no pod on the node matches the check's selector".to_owned());
    }
    let late = running.find(|pod| !pod.ready || pod.containers.iter().any(|id| old.contains(id)))?;
    Some(format!("pod {} did not become Ready after the reboot", late.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(ready: bool, id: &str) -> PodReading {
        PodReading {
            name: "web/a".to_owned(),
            ready,
            is_ending: false,
            containers: vec![id.to_owned()],
        }
    }

    #[test]
    fn pods_count_only_with_containers_of_this_boot() {
        let old = ["old".to_owned()];
        let ending = PodReading {
            is_ending: true,
            ..pod(false, "new")
        };
        for (pods, problem) in [
            (vec![pod(true, "new")], None),
            (vec![pod(true, "new"), ending.clone()], None),
            (vec![pod(true, "old")], Some("web/a did not become Ready")),
            (
                vec![pod(true, "new"), pod(false, "new")],
                Some("web/a did not become Ready"),
            ),
            (vec![], Some("no pod")),
            (vec![ending], Some("no pod")),
        ] {
            let found = pods_problem(&pods, &old);
            assert_eq!(found.is_some(), problem.is_some(), "{pods:?}");
            assert!(found.unwrap_or_default().contains(problem.unwrap_or_default()));
        }
    }
}
