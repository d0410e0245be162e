//! A rollout with a liar: starts it, waits for all other nodes, and cleans up.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::liar::Liar;
use super::liar::tally::Tally;
use super::liar::work::Working;
use super::plan::Plan;
use super::replaced::{label_servers, replace};
use super::told::Told;
use super::untyped::{BOOTC_NODES, LEASES, NODES, items, read, text};
use crate::cluster::{Cluster, Published};
use crate::locked::locked;

/// An attack that is going on.
pub(super) struct Attack<'a> {
    cluster: &'a Cluster,
    plan: &'a Plan,
    liar: &'a Liar,
    working: Working,
    told: Told<'a>,
}

/// What a liar did, and what an admin had to do.
#[derive(Debug, Default)]
pub struct Report {
    /// The liar's requests.
    pub tally: Tally,
    /// What the admin did against it, and why; empty if nothing was needed.
    pub acts: Vec<String>,
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
            told: Told::new(cluster, liar)?,
        }))
    }

    /// Waits until all other nodes are updated, while an admin reacts to what the pools' conditions say.
    pub(super) async fn settle(&self, target: &Published, limit: Duration) -> Result<()> {
        let settled = async {
            let start = Instant::now();
            loop {
                let left = match self.left(target).await {
                    Ok(left) if left.is_empty() => return Ok(()),
                    Ok(left) => left.join(", "),
                    Err(error) => format!("{error:#}"),
                };
                if start.elapsed() >= limit {
                    let named = self.told.named_by().await;
                    anyhow::bail!("timed out after {limit:?} beside {}: {left}; {named}", self.liar);
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            settled = settled => settled,
            told = self.told.watch() => {
                told?;
                Ok(())
            }
        }
    }

    /// Returns what is not yet as it must be at the end of the rollout, on all nodes but the liar's.
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

    /// Ends the liar, replaces its machine, and returns what was found.
    pub(super) async fn end(self) -> Result<Report> {
        let tally = self.working.end().await?;
        let breaches = tally
            .breaches
            .iter()
            .map(|breach| format!("I6: the API server stored {breach}"));
        let mut violations: Vec<_> = breaches.collect();
        violations.append(&mut locked(&self.told.failures));
        label_servers(self.cluster, self.liar, false).await?;
        if let Err(error) = replace(self.cluster, self.liar).await {
            violations.push(format!("Recovery: the liar's machine was replaced, and {error:#}"));
        }
        let acts = std::mem::take(&mut *locked(&self.told.acts));
        Ok(Report {
            tally,
            acts,
            violations,
        })
    }
}

/// Fails unless enough lies were accepted for a rollout to show anything.
pub fn ensure_lied(report: &Report) -> Result<()> {
    ensure!(report.tally.accepted() > 0, "no lie was accepted:\n{}", report.tally);
    Ok(())
}
