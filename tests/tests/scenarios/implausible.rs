//! Nodes that lie about themselves, each in its own way, with the identity of their agent. The fleet's health, the
//! condition `Implausible` and a metric name each of them. Honest nodes are not named.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_api::condition::{find, node as types, pool};
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_core::controller::implausible::Contradiction::{
    self, BootIdDiffers, ClockDiffers, ImageWithoutReboot, TurnDoesNotEnd,
};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part};
use berth_tests::controlplane::Bound;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use kubectl_berth::{Scope, Snapshot, report};
use serde_json::{Value, json};

use crate::controller_reports::{reserve, until_metric};

/// `--agent-silence` of the controller.
const SILENCE: Duration = Duration::from_secs(15);
const LIARS: [Contradiction; 4] = [BootIdDiffers, ImageWithoutReboot, ClockDiffers, TurnDoesNotEnd];

/// Hosts 1 to 4 have lost their credentials, and host 5 is honest.
struct Rig<'a> {
    part: Part<'a>,
    agents: Vec<Api<DynamicObject>>,
    kubelet: Client,
}

impl<'a> Rig<'a> {
    async fn new(part: Part<'a>) -> Result<Self> {
        let plane = &part.cluster.control_plane;
        let resource = ApiResource::erase::<BootcNode>(&());
        let mut agents = vec![];
        for n in 1..=LIARS.len() {
            part.host(n).stop_agent().await;
            let agent = plane
                .service_account_kubeconfig(keys::NAMESPACE, "berth-agent", Bound::Node(part.node(n)))
                .await?;
            agents.push(Api::all_with(agent.client().await?, &resource));
        }
        let kubelet = plane.node_kubeconfig(part.node(1))?.client().await?;
        Ok(Self { part, agents, kubelet })
    }

    fn node(&self, n: usize) -> &str {
        self.part.node(n)
    }

    /// Writes the status of each liar once, as its agent would. `lies`: the nodes that lie now.
    async fn write(&self, lies: &[usize]) -> Result<()> {
        for (n, agent) in (1..).zip(&self.agents) {
            let now = Timestamp::now();
            let mut status = json!({"heartbeatTime": now, "clockSynchronized": true});
            if lies.contains(&n) {
                match n {
                    1 => status["bootID"] = "00000000-0000-0000-0000-000000000000".into(),
                    2 => status["booted"] = json!({"digest": format!("sha256:{}", "f".repeat(64))}),
                    3 => status["heartbeatTime"] = json!(now + Duration::from_secs(3600)),
                    _ => {}
                }
            } else if n == 1 {
                let facts = self.part.host(1).facts();
                status["bootID"] = json!(facts.boot_id);
            }
            let patch = Patch::Merge(json!({"status": status}));
            agent
                .patch_status(self.node(n), &PatchParams::default(), &patch)
                .await?;
        }
        // The kubelet of the first node is honest and writes too.
        let beat = json!([{"type": "Ready", "lastHeartbeatTime": format!("{:.0}", Timestamp::now())}]);
        let patch = Patch::Strategic(json!({"status": {"conditions": beat}}));
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.kubelet.clone());
        nodes
            .patch_status(self.node(1), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn keep_writing(&self, lies: &[usize]) -> Result<()> {
        loop {
            self.write(lies).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Writes while `check` runs.
    async fn while_writing(&self, lies: &[usize], check: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::select! {
            result = self.keep_writing(lies) => result,
            result = check => result,
        }
    }

    /// Fills up the conditions of a node, as far as the API server allows.
    async fn fill_conditions(&self, n: usize) -> Result<()> {
        let (agent, mut written) = (self.agents.get(n - 1).context("no such agent")?, 0);
        for count in 1..=40 {
            let conditions = (0..count).map(|n| {
                let time = "2026-01-01T00:00:00Z";
                json!({"type": format!("Filler{n}"), "status": "True", "reason": "R", "message": "", "lastTransitionTime": time})
            });
            let conditions: Vec<Value> = conditions.collect();
            let body = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode", "metadata": {"name": self.node(n)},
                "status": {"conditions": conditions},
            });
            let apply = PatchParams::apply("filler").force();
            if let Err(error) = agent.patch_status(self.node(n), &apply, &Patch::Apply(&body)).await {
                ensure!(error.to_string().contains("more than 24 conditions"), "{error}");
                ensure!(written > 0, "nothing could be written");
                return Ok(());
            }
            written = count;
        }
        anyhow::bail!("{written} conditions were allowed")
    }

    async fn until_named(&self, address: &str) -> Result<()> {
        let cluster = self.part.cluster;
        for (n, reason) in (1..).zip(LIARS) {
            let said = (types::IMPLAUSIBLE, "True", reason.as_str(), self.node(n));
            cluster.until_node_says(self.node(n), said, LONG).await?;
            let (pool, node) = (&self.part.name, self.node(n));
            let labels = format!(r#"pool="{pool}",node="{node}",reason="{}""#, reason.as_str());
            until_metric(cluster, address, &format!("berth_node_implausible{{{labels}}} 1")).await?;
        }
        self.part
            .until_true(pool::DEGRADED, BootIdDiffers.as_str(), self.node(1))
            .await?;
        let snapshot = Snapshot::read(&cluster.client(), keys::NAMESPACE, Scope::Admin).await?;
        let health = report(&snapshot, Timestamp::now()).health;
        for (n, reason) in (1..).zip(LIARS) {
            let resource = format!("nodes/{}", self.node(n));
            let found = health
                .iter()
                .find(|found| found.resources.contains(&resource) && found.description.contains(reason.as_str()));
            let found = found.with_context(|| format!("{resource} is not in the fleet's health: {health:#?}"))?;
            let remedy = format!("kubectl berth exclude {}", self.node(n));
            ensure!(found.remedy.iter().any(|step| step.contains(&remedy)), "{found:#?}");
        }
        Ok(())
    }
}

#[tokio::test]
async fn nodes_that_lie_are_named() -> Result<()> {
    let (_port, address) = reserve()?;
    let cluster = Cluster::start(ClusterOptions {
        agent_args: vec!["--heartbeat=10".into()],
        controller_args: vec![format!("--agent-silence={}s", SILENCE.as_secs())],
        controller_env: vec![("BERTH_METRICS_ADDRESS".to_owned(), address.clone())],
        ..ClusterOptions::of(5)
    })
    .await?;
    let result = lies(&cluster, &address).await;
    if result.is_err() {
        eprintln!("{}", cluster.describe().await);
    }
    result
}

async fn lies(cluster: &Cluster, address: &str) -> Result<()> {
    let part = Part::new(cluster, "lies", 1..=5).await?;
    part.block(part.node(4)).await?;
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 5 })).await?;
    part.until_hold(&[part.node(4)]).await?;
    part.until_run(&v2, &[1, 2, 3, 5], LONG).await?;
    let rig = Rig::new(part).await?;
    let short = json!({
        "drain": { "timeout": "1s" }, "health": { "deadline": "1s" }, "rollout": { "rebootTimeout": "1s" },
    });
    rig.part.patch(short).await?;
    rig.fill_conditions(1).await?;
    let settled = async {
        tokio::time::sleep(SILENCE + Duration::from_secs(10)).await;
        Ok(())
    };
    rig.while_writing(&[], settled).await?;
    rig.while_writing(&[1, 2, 3, 4], rig.until_named(address)).await?;
    // A new leader keeps the findings, without another event.
    let before = cluster.node_status(rig.node(2)).await?.conditions;
    cluster.controllers.kill(0);
    cluster.controllers.start(0)?;
    until_metric(cluster, address, "berth_leader 1").await?;
    rig.while_writing(&[1, 2, 3, 4], rig.until_named(address)).await?;
    let after = cluster.node_status(rig.node(2)).await?.conditions;
    let [before, after] = [&before, &after].map(|conditions| find(conditions, types::IMPLAUSIBLE));
    ensure!(before == after, "the new leader changed {before:?} to {after:?}");
    let honest = cluster.node_status(rig.node(5)).await?.conditions;
    ensure!(find(&honest, types::IMPLAUSIBLE).is_none(), "{honest:?}");
    let agrees = (types::IMPLAUSIBLE, "False", "AsExpected", "");
    rig.while_writing(&[2, 3, 4], cluster.until_node_says(rig.node(1), agrees, LONG))
        .await
}
