//! Estimated time left of a pool's rollout. Does no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::insight::conditions::{DRAINING, REBOOTING, UPDATED, WORKING};
use berth_api::pool::{BootcNodePool, WaveState};
use berth_core::controller::time_left::{WaveWork, Work, time_left};
use berth_core::insight::Assessment;
use jiff::Timestamp;

use super::gate::PoolGates;
use crate::insights::{NodeLine, PoolAssessment};
use crate::text::seconds;
use crate::view::PoolView;

/// Facts about a member, beyond its line in the status.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MemberFacts {
    /// Number of the member's wave.
    pub(super) wave: usize,
    /// True if the desired image is staged.
    pub(super) is_staged: bool,
    /// True if an admin holds the node back.
    pub(super) is_held_back: bool,
}

/// Returns the estimated time left, as `status` prints it for a node: `+12m`, `?` if it is unknown, and `-` if there is
/// nothing to wait for. `limit`: limit of the fleet on unavailable nodes.
pub(super) fn estimate(
    pool: &BootcNodePool,
    view: &PoolView,
    gates: &PoolGates<'_>,
    limit: Option<usize>,
    facts: impl Fn(&NodeLine) -> MemberFacts,
    now: Timestamp,
) -> String {
    if matches!(
        view.assessment,
        PoolAssessment::Completed | PoolAssessment::Excluded | PoolAssessment::Empty
    ) {
        return "-".to_owned();
    }
    let members = view.nodes.iter().map(|line| (line, facts(line)));
    let work = match gates.is_held_up() {
        true => None,
        false => work(pool, view, members, limit, now),
    };
    let left = work.and_then(|work| {
        let openings = gates.openings(now);
        time_left(&work, now, |at| openings.at(at))
    });
    match left.map(|left| left.as_secs()) {
        Some(left) if left > 0 => format!("+{}", seconds(left)),
        _ => "?".to_owned(),
    }
}

/// Returns the work that is left. `None` if it is not known: a duration was not measured, or a node needs help.
fn work<'a>(
    pool: &BootcNodePool,
    view: &PoolView,
    members: impl Iterator<Item = (&'a NodeLine, MemberFacts)>,
    limit: Option<usize>,
    now: Timestamp,
) -> Option<Work> {
    let status = pool.status.as_ref()?;
    let target = status.target.as_ref()?;
    if !target.is_of(pool.spec.image_ref()) {
        return None;
    }
    let medians = status.phase_durations;
    let turn = Duration::from_secs(u64::from(medians.drain_seconds?) + u64::from(medians.reboot_seconds?));
    let staging = medians
        .staging_seconds
        .map(|staging| Duration::from_secs(staging.into()));
    let mut waves: BTreeMap<usize, WaveWork> = BTreeMap::new();
    for (line, member) in members {
        if line.phase() == UPDATED {
            continue;
        }
        if line.is(Assessment::Degraded) || line.is(Assessment::Unavailable) || member.is_held_back {
            return None;
        }
        let wave = waves.entry(member.wave).or_default();
        let began = line.row.since.unwrap_or(now);
        let spent = Duration::try_from(now.duration_since(began)).unwrap_or_default();
        match line.phase() {
            DRAINING | REBOOTING => wave.running.push(whole(line)?.saturating_sub(spent)),
            // The image is staged, so the node is being given back.
            WORKING if member.is_staged => wave.running.push(Duration::ZERO),
            WORKING => wave.waiting.push(staging?.saturating_sub(spent)),
            _ if member.is_staged => wave.waiting.push(Duration::ZERO),
            _ => wave.waiting.push(staging?),
        }
    }
    add_soaks(pool, view, &mut waves);
    let own = pool.spec.capacity(view.counts.total);
    Some(Work {
        capacity: limit.map_or(own, |limit| own.min(limit)),
        turn,
        waves: waves.into_values().collect(),
    })
}

/// Returns the estimated time from the start of the node's phase to the end of its turn.
fn whole(line: &NodeLine) -> Option<Duration> {
    let whole = line.insight.as_ref()?.est_to_complete.as_ref()?;
    whole.get().ok().copied()
}

/// Adds the times that waves must still soak. A wave that is updated and soaks has no other work left.
fn add_soaks(pool: &BootcNodePool, view: &PoolView, waves: &mut BTreeMap<usize, WaveWork>) {
    for (number, wave) in waves.iter_mut() {
        let named = pool.spec.rollout().waves.get(*number);
        wave.soak = pool.spec.rollout().soak_time_of(named);
    }
    let named = pool.spec.rollout().waves.iter();
    for (number, named) in named.enumerate() {
        let soaking = view
            .waves
            .iter()
            .find(|wave| wave.name == named.name && wave.state == WaveState::Soaking);
        if let Some(wave) = soaking {
            let left = wave.soak_seconds.saturating_sub(wave.soaked_seconds);
            waves.entry(number).or_default().soak = Duration::from_secs(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::snapshot::Snapshot;
    use crate::status::report;

    const DIGESTS: [&str; 2] = [
        "sha256:1111111111111111111111111111111111111111111111111111111111111111",
        "sha256:2222222222222222222222222222222222222222222222222222222222222222",
    ];

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn node(name: &str, phase: &str, runs: usize) -> Value {
        json!({
            "metadata": { "name": name },
            "spec": { "poolName": "p", "nodeUID": "u", "image": { "ref": "r", "digest": DIGESTS[1], "indexDigest": DIGESTS[1] } },
            "status": {
                "phase": phase, "phaseStartTime": "2026-03-01T11:59:00Z",
                "booted": { "digest": DIGESTS[runs], "image": "i", "architecture": "amd64" },
            },
        })
    }

    fn pool(rollout: Value, medians: Value) -> Value {
        json!({
            "metadata": { "name": "p" },
            "spec": { "nodeSelector": {}, "image": { "ref": "quay.io/example/os:1" }, "rollout": rollout },
            "status": {
                "target": {
                    "image": "quay.io/example/os:1", "digest": DIGESTS[1],
                    "platforms": [], "resolvedTime": "2026-03-01T11:00:00Z",
                },
                "phaseDurations": medians,
            },
        })
    }

    fn shown(pool: Value, nodes: Vec<Value>, facts: impl Fn(&NodeLine) -> MemberFacts) -> String {
        let snapshot = json!({ "pools": [pool], "bootcNodes": nodes });
        let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
        let report = report(&snapshot, now());
        let pool = &snapshot.pools[0];
        let gates = PoolGates::of(pool, None);
        estimate(pool, &report.pools[0], &gates, None, facts, now())
    }

    fn medians() -> Value {
        json!({ "stagingSeconds": 300, "drainSeconds": 120, "rebootSeconds": 180 })
    }

    fn staged(_: &NodeLine) -> MemberFacts {
        MemberFacts {
            is_staged: true,
            ..MemberFacts::default()
        }
    }

    fn unstaged(_: &NodeLine) -> MemberFacts {
        MemberFacts::default()
    }

    #[test]
    fn a_rollout_takes_a_turn_for_each_node() {
        let waiting = || {
            vec![
                node("a", "Waiting", 0),
                node("b", "Waiting", 0),
                node("c", "Updated", 1),
            ]
        };
        assert_eq!(shown(pool(json!({}), medians()), waiting(), staged), "+10m");
        assert_eq!(shown(pool(json!({}), medians()), waiting(), unstaged), "+15m");
        let two = pool(json!({ "maxUnavailable": 2 }), medians());
        assert_eq!(shown(two, waiting(), staged), "+5m");
        let begun = vec![node("a", "Draining", 0), node("b", "Waiting", 0)];
        assert_eq!(
            shown(pool(json!({}), medians()), begun, staged),
            "+9m",
            "a minute has passed"
        );
    }

    #[test]
    fn unknown_times_are_not_guessed() {
        let waiting = || vec![node("a", "Waiting", 0), node("b", "Waiting", 0)];
        let unmeasured = json!({ "drainSeconds": 120 });
        assert_eq!(shown(pool(json!({}), unmeasured), waiting(), staged), "?");
        let unpulled = json!({ "drainSeconds": 120, "rebootSeconds": 180 });
        assert_eq!(shown(pool(json!({}), unpulled.clone()), waiting(), unstaged), "?");
        assert_eq!(shown(pool(json!({}), unpulled), waiting(), staged), "+10m");
        fn held(_: &NodeLine) -> MemberFacts {
            MemberFacts {
                is_staged: true,
                is_held_back: true,
                wave: 0,
            }
        }
        assert_eq!(shown(pool(json!({}), medians()), waiting(), held), "?");
        let done = vec![node("a", "Updated", 1)];
        assert_eq!(shown(pool(json!({}), medians()), done, staged), "-");
        let paused = pool(json!({ "paused": true }), medians());
        assert_eq!(shown(paused, waiting(), staged), "-");
        let mut halted = pool(json!({}), medians());
        halted["status"]["conditions"] = json!([{
            "type": "RolloutHalted", "status": "True", "reason": "TooManyFailures", "message": "",
            "lastTransitionTime": "2026-03-01T11:00:00Z",
        }]);
        assert_eq!(shown(halted, waiting(), staged), "?");
    }

    #[test]
    fn waves_and_windows_count() {
        let waves = json!({ "waves": [{ "name": "canary", "nodeSelector": {} }], "soakTime": "30m" });
        fn by_name(line: &NodeLine) -> MemberFacts {
            MemberFacts {
                wave: usize::from(line.row.name != "a"),
                is_staged: true,
                is_held_back: false,
            }
        }
        let waiting = || vec![node("a", "Waiting", 0), node("b", "Waiting", 0)];
        assert_eq!(shown(pool(waves, medians()), waiting(), by_name), "+40m");
        let window = json!({ "windows": [{ "schedule": "0 14 * * *", "duration": "3h" }] });
        assert_eq!(shown(pool(window, medians()), waiting(), staged), "+2h10m");
    }
}
