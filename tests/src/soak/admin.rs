//! The admin of a rollout whose liar may keep others waiting. The admin knows only what the pools' conditions say: if
//! one names the liar alone, the admin excludes the node, closes its berth and asks for a retry, as the conditions'
//! remedies say. Control plane nodes must still wait for an excluded one that is not Ready, so the admin then turns off
//! the machine and deletes its Node.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::liar::Liar;
use super::plan::Plan;
use super::untyped::{LEASES, NODES, POOLS, conditions, delete, items, patch, read, text};
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
/// Number of tries of a command, which may lose a race with a write of the liar.
const TRIES: usize = 3;
/// Pause between two tries.
const NEXT_TRY: Duration = Duration::from_secs(1);

/// An admin, and what the admin did.
#[derive(Debug)]
pub(super) struct Admin<'a> {
    cluster: &'a Cluster,
    liar: &'a Liar,
    /// Nodes that a condition must not name beside the liar's. Nodes that the admin has cordoned may be named.
    others: Vec<String>,
    config: Kubeconfig,
    /// The nodes and berths that are not as they must be at the end.
    pub(super) left: Mutex<String>,
    /// Time of the first command.
    pub(super) since: Mutex<Option<Instant>>,
    /// The admin's acts, and the reasons.
    pub(super) acts: Mutex<Vec<String>>,
    /// Commands that failed.
    pub(super) failures: Mutex<Vec<String>>,
}

impl<'a> Admin<'a> {
    pub(super) fn new(cluster: &'a Cluster, plan: &Plan, liar: &'a Liar) -> Result<Self> {
        let mut others: Vec<_> = cluster.fleet.hosts.iter().map(|host| host.name().to_owned()).collect();
        let cordoned: Vec<_> = plan.cordoned_to_the_end().iter().map(|n| format!("node{n}")).collect();
        others.retain(|other| *other != liar.name() && !cordoned.contains(other));
        Ok(Self {
            cluster,
            liar,
            others,
            left: Mutex::default(),
            since: Mutex::default(),
            config: cluster.control_plane.kubeconfig_for("admin", &["system:masters"])?,
            acts: Mutex::default(),
            failures: Mutex::default(),
        })
    }

    /// Waits, then acts when a condition names the liar. Never returns without an error: the caller ends it with the
    /// rollout.
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
        *locked(&self.since) = Some(Instant::now());
        let left = locked(&self.left).clone();
        self.note(format!(
            "after {after} s, {} was named by {reason}; still waiting: {left}",
            self.liar.name()
        ));
        self.exclude().await?;
        let excluded = Instant::now();
        let mut is_server = self.liar.servers.contains(&self.liar.node);
        loop {
            sleep(NEXT_STEP).await;
            if is_server && excluded.elapsed() >= PATIENCE {
                is_server = !self.remove().await?;
            }
            if self.holds_a_berth().await.unwrap_or(false) {
                self.release().await?;
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
            let body = serde_json::json!({ "metadata": { "labels": { label: "" } } });
            patch(self.cluster, &format!("{NODES}/{name}"), &body).await?;
            self.note(format!("kubectl label node {name} {label}="));
        }
        Ok(())
    }

    /// Turns off the machine and deletes its Node if a condition still names it. Returns true if it does. A running
    /// machine would register its Node again, without the exclusion.
    async fn remove(&self) -> Result<bool> {
        let Some(reason) = self.accusation().await? else {
            return Ok(false);
        };
        let name = self.liar.name();
        self.note(format!(
            "power off {name}, and kubectl delete node {name}, because it was still named by {reason}"
        ));
        let host = self.cluster.host(self.liar.node);
        host.stop_agent().await;
        host.stop_kubelet();
        delete(self.cluster, &format!("{NODES}/{name}")).await?;
        Ok(true)
    }

    /// Closes the liar's berth. The command may lose a race with the liar, which may also have closed it meanwhile.
    async fn release(&self) -> Result<()> {
        for _ in 1..TRIES {
            if self.tried(&["release", &self.liar.name()]).await?.is_ok() {
                return Ok(());
            }
            sleep(NEXT_TRY).await;
            if !self.holds_a_berth().await.unwrap_or(true) {
                return Ok(());
            }
        }
        self.run(&["release", &self.liar.name()]).await.map(drop)
    }

    /// Runs `kubectl berth`. Returns false if it failed.
    async fn run(&self, arguments: &[&str]) -> Result<bool> {
        let done = self.tried(arguments).await?;
        if let Err(error) = &done {
            let command = arguments.join(" ");
            locked(&self.failures).push(format!("kubectl berth {command} failed: {error:#}"));
        }
        Ok(done.is_ok())
    }

    /// Runs `kubectl berth`. Fails if the program cannot be built; returns an error if the command failed.
    async fn tried(&self, arguments: &[&str]) -> Result<Result<()>> {
        let program = tokio::task::spawn_blocking(programs::kubectl).await??;
        self.note(format!("kubectl berth {}", arguments.join(" ")));
        Ok(run(&program, arguments, &self.config.path).await)
    }

    async fn accusation(&self) -> Result<Option<String>> {
        let pools = read(self.cluster, POOLS).await?;
        Ok(items(&pools).iter().find_map(|pool| self.accused_by(pool)))
    }

    fn accused_by(&self, pool: &Value) -> Option<String> {
        accuses(pool, &self.liar.name(), &self.others)
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
        let found: Vec<_> = items(&pools).iter().filter_map(|pool| self.accused_by(pool)).collect();
        if found.is_empty() {
            format!("no condition of a pool names {name} alone")
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

/// Returns the condition of a pool that says that something is wrong with this node, or that the pool waits for it. One
/// part of the message must name this node as the cause, and none of the `others`.
fn accuses(pool: &Value, node: &str, others: &[String]) -> Option<String> {
    for condition in conditions(pool) {
        let [type_, status, reason, message] =
            ["/type", "/status", "/reason", "/message"].map(|field| text(condition, field));
        let is_wrong = match type_ {
            "Degraded" | "RolloutHalted" | "NodeConflict" | "Stalled" | "BootImageSkew" | "FeedFailing" => {
                status == "True"
            }
            "ImageResolved" => status == "False",
            "Progressing" => true,
            _ => false,
        };
        let mut parts = message.split(';').map(cause);
        let accuses = parts.any(|part| names(part, node) && !others.iter().any(|other| names(part, other)));
        if is_wrong && accuses {
            let pool = text(pool, "/metadata/name");
            let message: String = message.chars().take(200).collect();
            return Some(format!("{type_}/{reason} of pool {pool}: {message}"));
        }
    }
    None
}

/// Returns the part of "waits for an earlier wave (node7): node1" before the nodes that wait.
fn cause(part: &str) -> &str {
    match part.split_once("):") {
        Some((cause, _)) if cause.contains('(') => cause,
        _ => part,
    }
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

    fn accused(type_: &str, status: &str, message: &str) -> Option<String> {
        let pool = json!({
            "metadata": { "name": "workers" },
            "status": { "conditions": [{ "type": type_, "status": status, "reason": "X", "message": message }] },
        });
        accuses(&pool, "node7", &["node1".to_owned(), "node12".to_owned()])
    }

    #[test]
    fn a_condition_accuses_the_one_node_that_it_names() {
        assert_eq!(
            accused("Degraded", "True", "node7: the agent is silent").as_deref(),
            Some("Degraded/X of pool workers: node7: the agent is silent")
        );
        for (type_, status, message) in [
            ("Stalled", "True", "it failed on node7."),
            ("Progressing", "True", "8 of 12 updated; draining: node7"),
            ("Progressing", "False", "used up, 1 of 1: node7 (not Ready)"),
            (
                "Progressing",
                "False",
                "waits until every other control plane node is Ready and schedulable (node7): node1, node12",
            ),
            (
                "Progressing",
                "False",
                "has a silent agent: node7; waits for a wave: node1, node12",
            ),
            (
                "Progressing",
                "False",
                "waits for an earlier wave (node7): node1, node12",
            ),
        ] {
            assert!(accused(type_, status, message).is_some(), "{message}");
        }
        for (type_, status, message) in [
            ("Degraded", "True", "node71 and node17"),
            ("Degraded", "False", "node7"),
            ("Progressing", "False", "has not staged its image: node1, node7"),
            (
                "Progressing",
                "False",
                "waits for an earlier wave (node1): node7, node12",
            ),
            (
                "Progressing",
                "False",
                "waits for an earlier wave (node1, node7): node12",
            ),
            (
                "Progressing",
                "False",
                "used up, 2 of 2: node7 (not Ready), node12 (holds a berth)",
            ),
            ("Updated", "False", "node7"),
        ] {
            assert_eq!(accused(type_, status, message), None, "{message}");
        }
        assert_eq!(accuses(&json!({}), "node7", &[]), None);
    }
}
