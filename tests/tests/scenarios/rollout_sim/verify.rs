//! `kubectl berth verify` over the audit log of a real rollout, unchanged and with forged lines.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use berth_tests::scratch::Scratch;
use serde_json::Value;

use super::*;
use crate::said::Said;

fn verify(program: &Path, log: &Path, more: &[&str]) -> Result<Said> {
    let mut command = Command::new(program);
    command.arg("verify").arg("--audit-log").arg(log).args(more);
    Ok(Said::of(&command.stdin(Stdio::null()).output()?))
}

/// Changes a line of a log; `None` removes it.
type Forger = fn(Value) -> Option<Value>;

fn is_commit(event: &Value) -> bool {
    let annotations = event.pointer("/responseObject/metadata/annotations");
    let phase = annotations
        .and_then(|a| a.get("berth.dev/phase"))
        .and_then(Value::as_str);
    event["objectRef"]["resource"] == "leases" && phase == Some("Committed")
}

/// The commits name another boot.
fn other_boot(mut event: Value) -> Option<Value> {
    if is_commit(&event) {
        event["responseObject"]["metadata"]["annotations"]["berth.dev/boot-id"] = json!("another");
    }
    Some(event)
}

/// The agents gave back without restoring their Nodes.
fn not_restored(event: Value) -> Option<Value> {
    let agent = event["userAgent"]
        .as_str()
        .is_some_and(|a| a.starts_with("berth-agent"));
    let restores = agent && event["objectRef"]["resource"] == "nodes" && event["verb"] == "patch";
    let unschedulable = event.pointer("/responseObject/spec/unschedulable") == Some(&json!(true));
    (!restores || unschedulable).then_some(event)
}

/// Only the first Node was ever Ready.
fn never_ready(mut event: Value) -> Option<Value> {
    let of = &event["objectRef"];
    let is_status = of["resource"] == "nodes" && of["subresource"] == "status";
    let is_first = of["name"] == "node1";
    if is_status && !is_first {
        let conditions = event.pointer_mut("/responseObject/status/conditions");
        for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten() {
            if condition["type"] == "Ready" {
                condition["status"] = json!("False");
            }
        }
    }
    Some(event)
}

/// The log lacks every commit.
fn no_commits(event: Value) -> Option<Value> {
    (!is_commit(&event)).then_some(event)
}

/// The audit policy keeps no bodies.
fn bare(mut event: Value) -> Option<Value> {
    if let Some(event) = event.as_object_mut() {
        event.remove("requestObject");
        event.remove("responseObject");
    }
    Some(event)
}

/// Number of turns with a verdict or a proof of this kind.
fn of_kind(json: &Value, field: &str, kind: &str) -> usize {
    let turns = json["turns"].as_array().into_iter().flatten();
    turns.filter(|turn| turn[field]["kind"] == kind).count()
}

/// The log of a correct rollout passes the check. For each forged log, the check finds the violation.
pub(super) async fn the_log_is_judged_alike(cluster: &Cluster, turns: usize) -> Result<()> {
    let log = cluster.control_plane.audit_log();
    let text = fs::read_to_string(&log)?;
    let scratch = Scratch::new("berth-verify-")?;
    let forged = scratch.path().join("forged.log");
    tokio::task::spawn_blocking(move || {
        let program = programs::kubectl()?;
        let said = verify(&program, &log, &[])?;
        said.ends(0, &["No violation.", "Updated: Ready with the target in boot "])?;
        let json: Value = serde_json::from_str(&verify(&program, &log, &["-o", "json"])?.out)?;
        let (kept, booted) = (of_kind(&json, "verdict", "kept"), of_kind(&json, "proof", "booted"));
        ensure!(kept == turns && booted == turns, "{turns} turns in {json:#}");
        let not_judged = json["notJudged"].as_array().map_or(0, Vec::len);
        ensure!(not_judged == 2, "the fleet's limit and the pods: {json:#}");

        let forgeries: [(Forger, i32, &[&str]); 5] = [
            (other_boot, 4, &["I2: ", "without a committed berth", "audit ID "]),
            (
                not_restored,
                4,
                &["I4: ", "the agent gave the berth back without", "violated I4"],
            ),
            (
                never_ready,
                4,
                &["I5: ", "the Node was not Ready in this boot", "violated I5"],
            ),
            (no_commits, 0, &["not judged", "workers-0: the log lacks writes before"]),
            (bare, 1, &["level Metadata", "manifests/audit-policy.yaml"]),
        ];
        for (forger, code, words) in forgeries {
            let mut lines = String::new();
            for line in text.lines() {
                if let Some(event) = forger(serde_json::from_str(line)?) {
                    lines += &format!("{event}\n");
                }
            }
            fs::write(&forged, lines)?;
            verify(&program, &forged, &[])?.ends(code, words)?;
        }
        Ok(())
    })
    .await?
}
