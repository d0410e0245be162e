//! A rollout with a liar: starts it, waits for all other nodes, and cleans up.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::admin::Admin;
use super::block::block;
use super::liar::Liar;
use super::liar::tally::Tally;
use super::liar::work::Working;
use super::plan::Plan;
use super::replaced::{label_servers, replace};
use super::untyped::{BOOTC_NODES, LEASES, NODES, items, read, text};
use crate::cluster::{Cluster, Published};
use crate::locked::locked;

/// Longest time from the last fault until all honest nodes of a rollout with a liar are updated without an admin.
/// Without a liar, the longest rollouts take about 40 s on an idle machine; a busy machine needs more.
const BESIDE_LIAR: Duration = Duration::from_secs(90);
/// Time that a lost reboot adds, which only the agent notices.
const LOST_REBOOT: Duration = Duration::from_secs(120);
/// Timeout from the admin's first command until all honest nodes are updated.
const AFTER_ACT: Duration = Duration::from_secs(90);

/// A running attack.
pub(super) struct Attack<'a> {
    cluster: &'a Cluster,
    plan: &'a Plan,
    liar: &'a Liar,
    working: Working,
    admin: Admin<'a>,
}

/// Acts of a liar, and of the admin who had to react.
#[derive(Debug, Default)]
pub struct Report {
    /// The liar's requests.
    pub tally: Tally,
    /// The admin's acts against it, and the reasons; empty if nothing was needed.
    pub acts: Vec<String>,
    /// Why the liar may keep other nodes waiting, if it may. Otherwise there is no admin.
    pub block: Option<&'static str>,
    /// The admin's act and the reason, if the new machine was not updated without one.
    pub recovery: Option<String>,
    /// Forbidden writes that were accepted, and commands that failed.
    pub violations: Vec<String>,
}

impl<'a> Attack<'a> {
    /// Makes some nodes servers, which the audit log must show before any berth opens.
    pub(super) async fn prepare(cluster: &Cluster, plan: &Plan) -> Result<()> {
        let Some(liar) = &plan.liar else { return Ok(()) };
        label_servers(cluster, liar, true).await
    }

    /// Starts the plan's liar, if there is one. `images` are the rollout's image and the one before.
    pub(super) async fn start(
        cluster: &'a Cluster,
        plan: &'a Plan,
        images: [&Published; 2],
    ) -> Result<Option<Attack<'a>>> {
        let Some(liar) = &plan.liar else { return Ok(None) };
        if !liar.has_agent {
            cluster.host(liar.node).stop_agent().await;
        }
        Ok(Some(Self {
            cluster,
            plan,
            liar,
            working: Working::start(liar, cluster, images).await?,
            admin: Admin::new(cluster, plan, liar)?,
        }))
    }

    /// Waits until all other nodes are updated. If the liar may keep them waiting, an admin reacts to what the pools'
    /// conditions say; otherwise the rollout must not need one. `alone`: an agent must notice a lost reboot itself.
    pub(super) async fn settle(&self, target: &Published, alone: bool) -> Result<()> {
        let more = if alone { LOST_REBOOT } else { Duration::ZERO };
        let settled = self.settled(target, more);
        if block(self.plan, self.liar).is_none() {
            return settled.await;
        }
        tokio::select! {
            settled = settled => settled,
            watched = self.admin.watch() => watched,
        }
    }

    async fn settled(&self, target: &Published, more: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = match self.left(target).await {
                Ok(left) if left.is_empty() => return Ok(()),
                Ok(left) => left.join(", "),
                Err(error) => format!("{error:#}"),
            };
            locked(&self.admin.left).clone_from(&left);
            let act = *locked(&self.admin.since);
            let is_over = match act {
                Some(since) => since.elapsed() >= AFTER_ACT + more,
                None => start.elapsed() >= BESIDE_LIAR + more,
            };
            if is_over {
                let after = start.elapsed().as_secs();
                let named = self.admin.named_by().await;
                let why = block(self.plan, self.liar).unwrap_or("it cannot block others by nature");
                bail!(
                    "timed out after {after} s beside {} ({why}): {left}; {named}",
                    self.liar
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the nodes and berths that are not yet as they must be at the end of the rollout, on all nodes but the liar's.
    async fn left(&self, target: &Published) -> Result<Vec<String>> {
        let mut left = vec![];
        let (digest, liar) = (target.digest.to_string(), self.liar.name());
        let bootc_nodes = read(self.cluster, BOOTC_NODES).await?;
        for host in self.cluster.fleet.hosts.iter().filter(|host| host.name() != liar) {
            let facts = host.facts();
            let object = items(&bootc_nodes)
                .iter()
                .find(|object| text(object, "/metadata/name") == host.name());
            let phase = object.map_or("", |object| text(object, "/status/phase"));
            if facts.boot_id.is_none() || facts.booted != digest || phase != "Updated" {
                left.push(format!("{} is {phase}", host.name()));
            }
        }
        let leases = read(self.cluster, LEASES).await?;
        let label = format!("/metadata/labels/{}", berth_api::keys::LABEL_POOL.replace('/', "~1"));
        for lease in items(&leases).iter().filter(|lease| lease.pointer(&label).is_some()) {
            let holder = text(lease, "/spec/holderIdentity");
            if !holder.starts_with("closed:") && holder.strip_prefix("offered:").unwrap_or(holder) != liar {
                left.push(format!("{} is {holder}", text(lease, "/metadata/name")));
            }
        }
        left.extend(self.untidy(&read(self.cluster, NODES).await?));
        Ok(left)
    }

    /// Names of the nodes whose cordon is not the admin's.
    fn untidy(&self, nodes: &Value) -> Vec<String> {
        let cordoned = self.plan.cordoned_to_the_end();
        let cordoned: Vec<_> = cordoned.iter().map(|node| format!("node{node}")).collect();
        let ours = format!(
            "/metadata/annotations/{}",
            berth_api::keys::ANNOTATION_CORDON.replace('/', "~1")
        );
        let mut left = vec![];
        for node in items(nodes) {
            let name = text(node, "/metadata/name");
            let unschedulable = node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true);
            let is_right = unschedulable == cordoned.iter().any(|cordoned| cordoned == name);
            if name != self.liar.name() && (!is_right || node.pointer(&ours).is_some()) {
                left.push(format!("{name} has a wrong cordon"));
            }
        }
        left
    }

    /// Ends the liar, replaces its machine, and returns the findings.
    pub(super) async fn end(self) -> Result<Report> {
        let tally = self.working.end().await?;
        let mut violations = vec![];
        for breach in &tally.breaches {
            violations.push(format!("I6: the API server stored {breach}"));
        }
        for invalid in &tally.invalid {
            violations.push(format!("Harness: a lie was not a valid request: {invalid}"));
        }
        violations.append(&mut locked(&self.admin.failures));
        let acts = std::mem::take(&mut *locked(&self.admin.acts));
        let mut recovery = None;
        if let Err(error) = label_servers(self.cluster, self.liar, false).await {
            violations.push(format!(
                "Recovery: the control plane's labels cannot be removed: {error:#}"
            ));
        }
        match replace(self.cluster, self.liar).await {
            Ok(act) => recovery = act,
            Err(error) => violations.push(format!("Recovery: the liar's machine was replaced, and {error:#}")),
        }
        Ok(Report {
            tally,
            acts,
            block: block(self.plan, self.liar),
            recovery,
            violations,
        })
    }
}

/// Fails unless enough lies were accepted for a rollout to show anything: the liar must have taken a berth.
pub fn ensure_lied(report: &Report) -> Result<()> {
    ensure!(report.tally.taken() > 0, "the liar took no berth:\n{}", report.tally);
    Ok(())
}
