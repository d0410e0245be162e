//! Limits how often the controller writes a pool's status. Every report of a node changes the status. In a rollout, a
//! write of each change would cost several requests per node. Pure.

use std::time::Duration;

use berth_api::condition::pool as types;
use berth_api::pool::{BootcNodePoolStatus, NodeCounts, WaveState};

/// Minimum time between two status writes after a lasting change, such as an update or an exclusion of a node, or a new
/// state of a wave.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two status writes after a transient change, such as a new number of draining nodes.
const TRANSIENT_INTERVAL: Duration = Duration::from_secs(3);

/// Returns the minimum time between the last status write and a write of `new`. Zero for an urgent change, because
/// agents, admins or tools act on it or wait for it.
pub fn pause(old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) -> Duration {
    if is_urgent(old, new) {
        Duration::ZERO
    } else if lasting(old) != lasting(new) {
        PROGRESS_INTERVAL
    } else {
        TRANSIENT_INTERVAL
    }
}

/// True if a field changed that agents, admins or tools act on or wait for. Counts and messages are not urgent.
fn is_urgent(old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) -> bool {
    old.target != new.target
        || old.failures != new.failures
        || old.retry_token != new.retry_token
        || old.poll_request != new.poll_request
        || old.available.as_ref().map(|a| &a.digest) != new.available.as_ref().map(|a| &a.digest)
        || old.berths.total != new.berths.total
        || old.observed_generation != new.observed_generation
        || statuses(old) != statuses(new)
}

/// Returns the type and the status of each condition. `Progressing` is left out, because it is briefly False between
/// the turns of two nodes.
fn statuses(status: &BootcNodePoolStatus) -> Vec<(&str, &str)> {
    let conditions = status.conditions.iter().filter(|c| c.type_ != types::PROGRESSING);
    conditions.map(|c| (c.type_.as_str(), c.status.as_str())).collect()
}

/// Returns the parts of a status that outlast the current turns: the lasting counts of nodes, and the state of each
/// wave.
fn lasting(status: &BootcNodePoolStatus) -> ([u32; 4], Vec<WaveState>) {
    let NodeCounts {
        total,
        updated,
        excluded,
        degraded,
        ..
    } = status.nodes;
    let waves = status.waves.iter().map(|wave| wave.state).collect();
    ([total, updated, excluded, degraded], waves)
}

#[cfg(test)]
mod tests {
    use berth_api::condition::{self, CommonReason, Verdict};
    use berth_api::pool::{Available, DigestFailures, Target, WaveStatus};
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn with(change: impl FnOnce(&mut BootcNodePoolStatus)) -> BootcNodePoolStatus {
        let mut status = BootcNodePoolStatus::default();
        for type_ in [types::PROGRESSING, types::UPDATED, types::PAUSED] {
            let verdict = Verdict::no(CommonReason::Waiting, "");
            condition::set(&mut status.conditions, type_, verdict, None, Timestamp::UNIX_EPOCH);
        }
        change(&mut status);
        status
    }

    fn target() -> Target {
        serde_json::from_value(json!({ "image": "r.io/os:1", "digest": digest(), "platforms": [] })).unwrap()
    }

    fn failures() -> Vec<DigestFailures> {
        serde_json::from_value(json!([{ "digest": digest(), "nodes": ["n1"], "count": 1 }])).unwrap()
    }

    fn available() -> Option<Available> {
        serde_json::from_value(json!({ "digest": digest(), "since": "1970-01-01T00:00:00Z" })).unwrap()
    }

    fn digest() -> String {
        format!("sha256:{}", "0".repeat(64))
    }

    fn wave(state: WaveState) -> Vec<WaveStatus> {
        let (total, updated, soaked_seconds) = (1, 0, 0);
        let name = "rest".to_owned();
        vec![WaveStatus {
            name,
            total,
            updated,
            state,
            soaked_seconds,
        }]
    }

    fn turns_true(type_: &'static str) -> BootcNodePoolStatus {
        let verdict = Verdict::yes(CommonReason::Offered, "");
        with(|s| condition::set(&mut s.conditions, type_, verdict, None, Timestamp::UNIX_EPOCH))
    }

    #[test]
    fn urgent_changes_are_written_at_once() {
        let old = with(|_| {});
        for (new, expected) in [
            (with(|s| s.observed_generation = Some(2)), Duration::ZERO),
            (with(|s| s.poll_request = Some("a".to_owned())), Duration::ZERO),
            (with(|s| s.berths.total = 2), Duration::ZERO),
            (with(|s| s.target = Some(target())), Duration::ZERO),
            (with(|s| s.failures = failures()), Duration::ZERO),
            (with(|s| s.retry_token = Some("a".to_owned())), Duration::ZERO),
            (with(|s| s.available = available()), Duration::ZERO),
            (turns_true(types::UPDATED), Duration::ZERO),
            (turns_true(types::PAUSED), Duration::ZERO),
            (turns_true(types::PROGRESSING), TRANSIENT_INTERVAL),
            (with(|s| s.nodes.updated = 1), PROGRESS_INTERVAL),
            (with(|s| s.nodes.degraded = 1), PROGRESS_INTERVAL),
            (with(|s| s.waves = wave(WaveState::Active)), PROGRESS_INTERVAL),
            (
                with(|s| (s.nodes.draining, s.nodes.unavailable) = (1, 1)),
                TRANSIENT_INTERVAL,
            ),
            (with(|s| s.berths.held = 1), TRANSIENT_INTERVAL),
            (
                with(|s| (s.nodes.updated, s.nodes.draining) = (1, 1)),
                PROGRESS_INTERVAL,
            ),
        ] {
            assert_eq!(pause(&old, &new), expected, "{new:?}");
        }
    }
}
