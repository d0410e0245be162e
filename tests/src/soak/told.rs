//! The admin of a rollout with a liar. The admin knows only what the pools' conditions say: if one names the liar, the
//! admin excludes the node, closes its berth and asks for a retry, as the conditions' remedies say.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::liar::Liar;
use super::untyped::{LEASES, POOLS, items, read, text};
use crate::cluster::Cluster;
use crate::controlplane::Kubeconfig;
use crate::locked::locked;
use crate::programs;

/// How long the admin lets a rollout run after its faults before reading the conditions.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between the exclusion of a node and the next command.
const NEXT_STEP: Duration = Duration::from_secs(5);
/// Timeout of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// An admin, and what the admin did.
#[derive(Debug)]
pub(super) struct Told<'a> {
    cluster: &'a Cluster,
    liar: &'a Liar,
    config: Kubeconfig,
    /// What the admin did, and why.
    pub(super) acts: Mutex<Vec<String>>,
    /// Commands that failed.
    pub(super) failures: Mutex<Vec<String>>,
}

impl<'a> Told<'a> {
    pub(super) fn new(cluster: &'a Cluster, liar: &'a Liar) -> Result<Self> {
        Ok(Self {
            cluster,
            liar,
            config: cluster.control_plane.kubeconfig_for("admin", &["system:masters"])?,
            acts: Mutex::default(),
            failures: Mutex::default(),
        })
    }

    /// Waits, then acts when a condition names the liar. Never returns: the caller ends it with the rollout.
    pub(super) async fn watch(&self) -> Result<()> {
        let start = Instant::now();
        sleep(PATIENCE).await;
        let reason = loop {
            if let Some(found) = self.accusation().await.unwrap_or(None) {
                break found;
            }
            sleep(Duration::from_secs(1)).await;
        };
        let after = start.elapsed().as_secs();
        self.note(format!("after {after} s, {} was named by {reason}", self.liar.name()));
        self.exclude().await?;
        loop {
            sleep(NEXT_STEP).await;
            if self.holds_a_berth().await.unwrap_or(false) {
                self.run(&["release", &self.liar.name()]).await?;
            }
            for pool in self.halted().await.unwrap_or_default() {
                self.run(&["retry", &pool]).await?;
            }
        }
    }

    fn note(&self, act: String) {
        locked(&self.acts).push(act);
    }

    /// Excludes the node by `kubectl berth`, or by the label alone if the command fails.
    async fn exclude(&self) -> Result<()> {
        let name = self.liar.name();
        if !self.run(&["exclude", &name]).await? {
            let label = berth_api::keys::LABEL_EXCLUDE;
            let path = format!("{}/{name}", super::untyped::NODES);
            let body = serde_json::json!({ "metadata": { "labels": { label: "" } } });
            super::untyped::patch(self.cluster, &path, &body).await?;
            self.note(format!("kubectl label node {name} {label}="));
        }
        Ok(())
    }

    /// Runs `kubectl berth`. Returns false if it failed.
    async fn run(&self, arguments: &[&str]) -> Result<bool> {
        let program = tokio::task::spawn_blocking(programs::kubectl).await??;
        let command = arguments.join(" ");
        self.note(format!("kubectl berth {command}"));
        let done = run(&program, arguments, &self.config.path).await;
        if let Err(error) = &done {
            locked(&self.failures).push(format!("kubectl berth {command} failed: {error:#}"));
        }
        Ok(done.is_ok())
    }

    async fn accusation(&self) -> Result<Option<String>> {
        let pools = read(self.cluster, POOLS).await?;
        Ok(items(&pools).iter().find_map(|pool| accuses(pool, &self.liar.name())))
    }

    async fn holds_a_berth(&self) -> Result<bool> {
        let leases = read(self.cluster, LEASES).await?;
        let name = self.liar.name();
        Ok(items(&leases)
            .iter()
            .any(|lease| text(lease, "/spec/holderIdentity") == name))
    }

    async fn halted(&self) -> Result<Vec<String>> {
        let pools = read(self.cluster, POOLS).await?;
        let halted = items(&pools).iter().filter(|pool| {
            let mut all = conditions(pool).iter();
            all.any(|c| text(c, "/type") == "RolloutHalted" && text(c, "/status") == "True")
        });
        Ok(halted.map(|pool| text(pool, "/metadata/name").to_owned()).collect())
    }

    /// All conditions of pools that name the liar, for the report of a rollout that did not settle.
    pub(super) async fn named_by(&self) -> String {
        let pools = read(self.cluster, POOLS).await.unwrap_or_default();
        let name = self.liar.name();
        let found: Vec<_> = items(&pools).iter().filter_map(|pool| accuses(pool, &name)).collect();
        if found.is_empty() {
            format!("no condition of a pool names {name}")
        } else {
            format!("{name} is named by {}", found.join("; "))
        }
    }
}

async fn run(program: &Path, arguments: &[&str], config: &Path) -> Result<()> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).args(["--yes", "--kubeconfig"]).arg(config);
    let output = timeout(COMMAND_TIMEOUT, command.kill_on_drop(true).output());
    let output = output.await.context("no answer")??;
    let error = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    ensure!(output.status.success(), "{}: {error}", output.status);
    Ok(())
}

fn conditions(pool: &Value) -> &[Value] {
    let found = pool.pointer("/status/conditions").and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

/// Returns the condition of a pool that says that something is wrong with this node.
fn accuses(pool: &Value, node: &str) -> Option<String> {
    let mut all = conditions(pool).iter();
    let found = all.find(|condition| {
        let expected = match text(condition, "/type") {
            "Degraded" | "RolloutHalted" | "NodeConflict" | "Stalled" | "BootImageSkew" | "FeedFailing" => "True",
            "Progressing" | "ImageResolved" | "Updated" => "False",
            _ => return false,
        };
        text(condition, "/status") == expected && names(text(condition, "/message"), node)
    })?;
    let [type_, reason, message] = ["/type", "/reason", "/message"].map(|field| text(found, field));
    let pool = text(pool, "/metadata/name");
    let message: String = message.chars().take(200).collect();
    Some(format!("{type_}/{reason} of pool {pool}: {message}"))
}

/// True if the message has this name as a whole word.
fn names(message: &str, node: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    message
        .split(|c| !is_part(c))
        .any(|word| word.trim_end_matches('.') == node)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(type_: &str, status: &str, message: &str) -> Value {
        json!({
            "metadata": { "name": "workers" },
            "status": { "conditions": [{ "type": type_, "status": status, "reason": "X", "message": message }] },
        })
    }

    #[test]
    fn a_condition_accuses_the_node_that_it_names() {
        let degraded = pool("Degraded", "True", "node7: the agent is silent");
        assert_eq!(
            accuses(&degraded, "node7").as_deref(),
            Some("Degraded/X of pool workers: node7: the agent is silent")
        );
        assert_eq!(accuses(&degraded, "node"), None);
        assert_eq!(accuses(&pool("Degraded", "True", "node71 and node12"), "node7"), None);
        assert_eq!(accuses(&pool("Degraded", "False", "node7"), "node7"), None);
        assert_eq!(accuses(&pool("Progressing", "True", "Draining: node7"), "node7"), None);
        assert!(
            accuses(
                &pool("Progressing", "False", "used up, 1 of 1: node7 (not Ready)"),
                "node7"
            )
            .is_some()
        );
        assert!(accuses(&pool("Stalled", "True", "it failed on node7."), "node7").is_some());
        assert_eq!(accuses(&json!({}), "node7"), None);
    }
}
