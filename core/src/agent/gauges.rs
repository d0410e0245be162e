//! Prometheus gauges of one node, from the BootcNode's status. They have no label with the node's name, since
//! Prometheus scrapes each agent as its own target.

use std::collections::BTreeMap;

use berth_api::condition::{find, node as types};
use berth_api::node::{BootcNodeSpec, BootcNodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::gauges::{Gauge, families};

families! {
    info: "berth_node_info", "1, with the node's pool and the versions of its agent and bootc.";
    image: "berth_node_image_info", "1 for each image of the node: booted, staged, or desired.";
    boot_image: "berth_node_boot_image_info", "1, with the version that the machine was installed from.";
    phase: "berth_node_phase", "1 for the node's current phase.";
    since: "berth_node_phase_start_timestamp_seconds", "Unix time when the node's phase began, by its own clock.";
    degraded: "berth_node_degraded", "1 while an admin should look at the node (label `reason`).";
    blocked: "berth_node_blocked", "1 while no berth may be offered to the node (label `reason`).";
    blockers: "berth_node_drain_blockers", "Pods that block the node's drain.";
    failed: "berth_node_failed_digests", "Images that failed on the node and are not tried there again.";
    turns: "berth_node_recorded_turns", "Recorded turns of the node, by outcome and by the reason of a rollback.";
    queued: "berth_node_rollback_queued", "1 while the next boot would take the rollback deployment.";
    retry: "berth_node_next_try_timestamp_seconds", "Unix time of the next attempt after a failure, by the node's clock.";
    clock: "berth_node_clock_synchronized", "1 if the host reports that its clock is synchronized.";
    bytes: "berth_node_pull_bytes", "Bytes that the running pull has downloaded.";
    size: "berth_node_pull_size_bytes", "Total bytes of the running pull, if known.";
    last: "berth_node_last_duration_seconds", "Duration of the node's last pull (phase `staging`), drain, and reboot until the boot was proven.";
}

/// Returns the gauges of a node. A gauge that does not apply has no series. `reported` is `None` before the agent's
/// first report.
pub fn gauges(reported: Option<(&BootcNodeSpec, &BootcNodeStatus)>) -> Vec<Gauge> {
    let mut families = Families::new();
    if let Some((spec, status)) = reported {
        families.info.add(
            [
                ("pool", &spec.pool_name),
                ("version", text(&status.agent_version)),
                ("bootc", text(&status.bootc_version)),
            ],
            1,
        );
        add_images(&mut families.image, spec, status);
        if let Some(installed) = &status.boot_image {
            families.boot_image.add([("version", text(&installed.version))], 1);
        }
        if let Some(now) = status.phase {
            families.phase.add([("phase", now.as_str())], 1);
        }
        families
            .since
            .add_some([], status.phase_start_time.as_ref().map(seconds));
        if let Some(trouble) = find(&status.conditions, types::NODE_DEGRADED).filter(|c| c.status == "True") {
            families.degraded.add([("reason", &trouble.reason)], 1);
        }
        if let Some(reason) = blocked_by(status) {
            families.blocked.add([("reason", reason)], 1);
        }
        families.blockers.add([], status.drain_blockers.len());
        families.failed.add([], status.failed_digests.len());
        add_turns(&mut families.turns, status);
        families.queued.add([], i64::from(status.rollback_queued));
        let tries = [
            status.failure.as_ref().map(|failure| &failure.next_try_time),
            status.last_turn.as_ref().map(|turn| &turn.next_try_time),
        ];
        families
            .retry
            .add_some([], tries.into_iter().flatten().map(seconds).max());
        families.clock.add_some([], status.clock_synchronized.map(i64::from));
        if let Some(progress) = status.progress {
            families.bytes.add([], progress.bytes);
            families
                .size
                .add_some([], (progress.bytes_total > 0).then_some(progress.bytes_total));
        }
        let measured = status.measured();
        families.last.add_some([("phase", "staging")], measured.staging);
        families.last.add_some([("phase", "drain")], measured.drain);
        families.last.add_some([("phase", "reboot")], measured.reboot);
    }
    families.all()
}

fn add_images(family: &mut Gauge, spec: &BootcNodeSpec, status: &BootcNodeStatus) {
    for (slot, deployment) in [("booted", &status.booted), ("staged", &status.staged)] {
        if let Some(deployment) = deployment {
            let digest = deployment.digest.as_ref().map(ToString::to_string).unwrap_or_default();
            let version = text(&deployment.version);
            family.add([("slot", slot), ("digest", &digest), ("version", version)], 1);
        }
    }
    if let Some(desired) = &spec.image {
        let (digest, version) = (desired.digest.to_string(), text(&desired.version));
        family.add([("slot", "desired"), ("digest", &digest), ("version", version)], 1);
    }
}

fn add_turns(family: &mut Gauge, status: &BootcNodeStatus) {
    let mut turns: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for turn in &status.turns {
        let Some(outcome) = turn.outcome else { continue };
        *turns.entry((outcome.as_str(), text(&turn.reason))).or_default() += 1;
    }
    for ((outcome, reason), count) in turns {
        family.add([("outcome", outcome), ("reason", reason)], count);
    }
}

/// Returns the reason of `UpdatePrepared` if that reason prevents an offer. `None` if the node runs the desired image
/// or may be offered a berth.
fn blocked_by(status: &BootcNodeStatus) -> Option<&str> {
    let prepared = find(&status.conditions, types::UPDATE_PREPARED)?;
    let updated = find(&status.conditions, types::UPDATED)?;
    (prepared.status == "False" && updated.status != "True").then_some(&prepared.reason)
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

fn seconds(time: &Time) -> i64 {
    time.0.as_second()
}

#[cfg(test)]
mod tests {
    use berth_api::digest::Digest;
    use berth_api::node::timeline::{TurnOutcome, TurnRecord};
    use berth_api::node::{Deployment, DesiredImage, Phase, Progress};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
    use serde_json::json;

    use super::*;

    fn lines(gauges: &[Gauge]) -> Vec<String> {
        let mut lines = vec![];
        for gauge in gauges {
            let name = gauge.name.trim_start_matches("berth_node_");
            for series in &gauge.series {
                let labels: Vec<&str> = series.labels.iter().map(|(_, value)| value.as_str()).collect();
                lines.push(format!("{name} {} {}", labels.join(","), series.value));
            }
        }
        lines
    }

    #[test]
    fn a_node_has_no_series_before_its_first_report() {
        let gauges = gauges(None);
        assert!(gauges.len() == 16 && gauges.iter().all(|g| g.series.is_empty()));
    }

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", n.to_string().repeat(64)).parse().unwrap()
    }

    fn turn(outcome: TurnOutcome, reason: Option<&str>) -> TurnRecord {
        let turn = json!({
            "berth": "workers-0", "nodeUID": "u", "to": digest(2), "bootIDBefore": "b", "outcome": outcome, "reason": reason,
            "startTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(turn).unwrap()
    }

    fn condition(type_: &str, status: &str, reason: &str) -> Condition {
        let condition = json!({
            "type": type_, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(condition).unwrap()
    }

    fn spec() -> BootcNodeSpec {
        BootcNodeSpec {
            pool_name: "workers".into(),
            image: Some(DesiredImage {
                reference: "r.io/os".into(),
                digest: digest(2),
                index_digest: digest(2),
                version: Some("2.0".into()),
                signature: Default::default(),
            }),
            ..BootcNodeSpec::default()
        }
    }

    fn pulling() -> BootcNodeStatus {
        BootcNodeStatus {
            agent_version: Some("0.1.0".into()),
            booted: Some(Deployment {
                digest: Some(digest(1)),
                version: Some("1.0".into()),
                ..Deployment::default()
            }),
            phase: Some(Phase::Staging),
            phase_start_time: Some(jiff::Timestamp::from_second(100).unwrap().into()),
            progress: Some(Progress {
                bytes: 7,
                bytes_total: 0,
                bytes_per_second: 1,
            }),
            clock_synchronized: Some(true),
            drain_seconds: Some(30),
            turns: vec![
                turn(TurnOutcome::RolledBack, Some("UnitsFailed")),
                turn(TurnOutcome::Proven, None),
                turn(TurnOutcome::RolledBack, None),
            ],
            conditions: vec![
                condition("NodeDegraded", "True", "DiskFull"),
                condition("UpdatePrepared", "False", "Pulling"),
                condition("Updated", "False", "NotYet"),
            ],
            ..BootcNodeStatus::default()
        }
    }

    #[test]
    fn a_failing_pull_is_exported() {
        let (spec, mut status) = (spec(), pulling());
        let said = lines(&gauges(Some((&spec, &status))));
        let expected = [
            "info workers,0.1.0, 1",
            &format!("image_info booted,{},1.0 1", digest(1)),
            &format!("image_info desired,{},2.0 1", digest(2)),
            "phase Staging 1",
            "phase_start_timestamp_seconds  100",
            "degraded DiskFull 1",
            "blocked Pulling 1",
            "drain_blockers  0",
            "failed_digests  0",
            "recorded_turns Proven, 1",
            "recorded_turns RolledBack, 1",
            "recorded_turns RolledBack,UnitsFailed 1",
            "rollback_queued  0",
            "clock_synchronized  1",
            "pull_bytes  7",
            "last_duration_seconds drain 30",
        ];
        assert_eq!(said, expected);
        status.progress = Some(Progress {
            bytes: 7,
            bytes_total: 9,
            bytes_per_second: 1,
        });
        let said = lines(&gauges(Some((&spec, &status))));
        assert!(said.contains(&"pull_size_bytes  9".to_owned()), "{said:?}");

        status.conditions = vec![
            condition("UpdatePrepared", "False", "NotStaged"),
            condition("Updated", "True", "Updated"),
        ];
        status.progress = None;
        let said = lines(&gauges(Some((&spec, &status))));
        for gone in ["blocked", "degraded", "pull"] {
            assert!(!said.iter().any(|line| line.starts_with(gone)), "{gone}: {said:?}");
        }
    }
}
