//! Reports of the controller besides the pools' status: the BootcFleet, a node that does not come back, events,
//! metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_api::condition::find;
use berth_api::fleet::BootcFleetStatus;
use berth_api::insight::NodeInsight;
use berth_api::node::{BootcNode, BootcNodeStatus, Staging};
use berth_core::insight::is_silent;
use berth_tests::audit::AuditLog;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, soon};
use berth_tests::golden::statuses;
use berth_tests::ports::Port;
use berth_tests::prometheus::{Prometheus, promtool};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::monitoring;

async fn get(address: &str, path: &str) -> Result<String> {
    let scrape = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        anyhow::Ok(text)
    };
    tokio::time::timeout(Duration::from_secs(5), scrape)
        .await
        .context("no metrics in time")?
}

async fn scrape(address: &str) -> Result<String> {
    get(address, "/metrics").await
}

/// Checks the metrics of a running program with promtool.
async fn are_well_made(address: &str) -> Result<()> {
    let page = scrape(address).await?;
    let (_, metrics) = page.split_once("\r\n\r\n").context("no body")?;
    let directory = tempfile::tempdir()?;
    promtool(directory.path(), &["check", "metrics"], metrics)
        .with_context(|| format!("metrics of {address}:\n{metrics}"))
        .map(drop)
}

async fn is_well(address: &str) -> Result<()> {
    for path in ["/healthz", "/readyz"] {
        let answer = get(address, path).await?;
        ensure!(answer.ends_with("\r\n\r\nok"), "{address}{path}: {answer}");
    }
    Ok(())
}

pub(crate) fn reserve() -> Result<(Port, String)> {
    let port = Port::reserve()?;
    let address = format!("127.0.0.1:{}", port.number());
    Ok((port, address))
}

pub(crate) async fn until_metric(cluster: &Cluster, address: &str, line: &str) -> Result<()> {
    soon(cluster, &format!("the metrics say {line}"), || async {
        Ok(scrape(address).await?.lines().any(|l| l == line))
    })
    .await
}

async fn timed_out(cluster: &Cluster, node: &str) -> Result<Option<Condition>> {
    let conditions = cluster.node_status(node).await?.conditions;
    Ok(find(&conditions, "RebootTimedOut").cloned())
}

async fn until_timed_out(cluster: &Cluster, node: &str, status: &str) -> Result<()> {
    cluster
        .until(&format!("{node} says RebootTimedOut={status}"), LONG, || async {
            Ok(timed_out(cluster, node).await?.is_some_and(|c| c.status == status))
        })
        .await
}

async fn until_said(cluster: &Cluster, what: &str, said: fn(&BootcFleetStatus) -> bool) -> Result<()> {
    cluster
        .until(&format!("the BootcFleet says that {what}"), LONG, || async {
            Ok(said(&cluster.fleet_status().await?))
        })
        .await
}

fn is(status: &BootcFleetStatus, type_: &str, value: &str, words: &str) -> bool {
    find(&status.conditions, type_).is_some_and(|c| c.status == value && c.message.contains(words))
}

fn is_well_and_updated(status: &BootcFleetStatus) -> bool {
    let healthy = ["ControllerHealthy", "AgentsHealthy", "RegistryReachable", "Guarded"];
    let pool = status.pools.first();
    (status.nodes.total, status.nodes.updated) == (2, 2)
        && is(status, "Updating", "False", "2 of 2 nodes updated")
        && healthy.iter().all(|type_| is(status, type_, "True", ""))
        && pool.is_some_and(|pool| pool.name == "workers" && pool.state == "AllUpdated")
}

/// The controller creates a missing BootcFleet. It first reports that all is well, and later names the node whose agent
/// is dead.
#[tokio::test]
async fn a_dead_agent_shows_in_the_fleet_by_name() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        hosts: 2,
        scheduler: false,
        agent_args: vec!["--heartbeat=10".into()],
        controller_args: vec!["--agent-silence=25s".into()],
        ..ClusterOptions::default()
    })
    .await?;
    let body = async {
        until_said(&cluster, "there is no pool", |s| {
            is(s, "Updating", "False", "no BootcNodePool")
        })
        .await?;
        let image = cluster.publish("1.0.0").await?;
        cluster.pool("workers", &image.reference, json!({})).await?;
        until_said(&cluster, "all is well", is_well_and_updated).await?;
        cluster.host(2).stop_agent().await;
        until_said(&cluster, "node2 alone is silent", |s| {
            is(s, "AgentsHealthy", "False", "node2") && !is(s, "AgentsHealthy", "False", "node1")
        })
        .await?;
        an_insight_in_its_place(&cluster, "node2").await?;
        cluster.host(2).start_agent();
        until_said(&cluster, "node2 is heard again", |s| is(s, "AgentsHealthy", "True", "")).await?;
        its_own_insight_again(&cluster, "node2").await
    };
    if let Err(error) = body.await {
        eprintln!("{}", cluster.describe().await);
        return Err(error);
    }
    // No node reboots, so the judge has no work here.
    Ok(())
}

async fn insight(cluster: &Cluster, node: &str) -> Result<(BootcNode, NodeInsight)> {
    let object = cluster.bootc_nodes().get(node).await?;
    let insight = object.status.as_ref().and_then(|status| status.insight.clone());
    Ok((object, insight.with_context(|| format!("{node} has no insight"))?))
}

async fn until_insight(cluster: &Cluster, node: &str, type_: &str, said: (&str, &str)) -> Result<()> {
    soon(
        cluster,
        &format!("the insight of {node} says {type_}={said:?}"),
        || async {
            let (_, insight) = insight(cluster, node).await?;
            let found = find(&insight.conditions, type_);
            Ok(found.is_some_and(|c| (c.status.as_str(), c.reason.as_str()) == said))
        },
    )
    .await
}

/// The controller writes the insight of a node whose agent is dead. It writes once for each change. The write fails if
/// the status has changed since the controller read it.
async fn an_insight_in_its_place(cluster: &Cluster, node: &str) -> Result<()> {
    until_insight(cluster, node, "Degraded", ("True", "AgentSilent")).await?;
    let (before, _) = insight(cluster, node).await?;
    // A change that does not affect the insight.
    cluster.label(node, "of-no", Some("concern")).await?;
    cluster.cordon(node, true).await?;
    until_insight(cluster, node, "Available", ("False", "Unschedulable")).await?;
    let (after, insight) = insight(cluster, node).await?;
    ensure!(
        insight.message.contains("its agent does not report") && insight.est_to_complete.is_none(),
        "{insight:?}"
    );
    // A write based on an older status, such as one that an agent has replaced meanwhile, has no effect.
    let old = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode",
        "metadata": { "name": node, "resourceVersion": before.metadata.resource_version },
        "status": before.status.clone(),
    });
    let as_agent = PatchParams::apply("berth-agent").force();
    let late = cluster
        .bootc_nodes()
        .patch_status(node, &as_agent, &Patch::Apply(&old))
        .await;
    ensure!(
        matches!(&late, Err(kube::Error::Api(status)) if status.code == 409),
        "a late write was taken: {late:?}"
    );
    let [before, after] = [before, after].map(|object| object.status.unwrap_or_default());
    let before = BootcNodeStatus {
        insight: None,
        ..before
    };
    let after = BootcNodeStatus { insight: None, ..after };
    ensure!(before == after, "more than the insight was written");
    cluster.cordon(node, false).await?;
    until_insight(cluster, node, "Available", ("True", "AsExpected")).await
}

fn has_silent_insight(object: &BootcNode) -> bool {
    let insight = object.status.as_ref().and_then(|status| status.insight.as_ref());
    insight.is_some_and(is_silent)
}

/// The agent's next write replaces the controller's insight. The audit log has one controller write for each change.
async fn its_own_insight_again(cluster: &Cluster, node: &str) -> Result<()> {
    let what = format!("the insight of {node} is its agent's again");
    soon(cluster, &what, || async {
        let (_, insight) = insight(cluster, node).await?;
        Ok(find(&insight.conditions, "Degraded").is_some_and(|c| c.status == "False"))
    })
    .await?;
    let (object, _) = insight(cluster, node).await?;
    let managers = object.metadata.managed_fields.into_iter().flatten();
    for entry in managers.filter(|entry| entry.manager.as_deref() != Some("berth-agent")) {
        let fields = serde_json::to_string(&entry.fields_v1)?;
        ensure!(!fields.contains("f:insight"), "left behind: {entry:?}");
    }
    let audit = AuditLog::read(&cluster.control_plane.audit_log())?;
    for (name, expected) in [(node, 3), ("node1", 0)] {
        let statuses = statuses(audit.records(), name)?;
        let by_controller = statuses.iter().filter(|(program, ..)| *program == "berth-controller");
        let silent = by_controller.filter(|(.., object)| has_silent_insight(object)).count();
        ensure!(silent == expected, "{name}: {silent} times, expected {expected}");
    }
    Ok(())
}

/// No node starts a pull while the whole fleet is paused, and all nodes say why.
async fn a_paused_fleet(cluster: &Cluster, address: &str) -> Result<()> {
    cluster.pause_fleet(true).await?;
    let v2 = cluster.publish("2.0.0").await?;
    let rollout = json!({ "maxUnavailable": 2, "maxStaging": 2, "rebootTimeout": "10s" });
    cluster.pool("workers", &v2.reference, rollout).await?;
    until_metric(
        cluster,
        address,
        r#"berth_gate_closed{pool="workers",reason="FleetPaused"} 1"#,
    )
    .await?;
    soon(cluster, "both nodes have the image in their spec", || async {
        let nodes = cluster.bootc_nodes().list(&ListParams::default()).await?.items;
        Ok(nodes.len() == 2 && nodes.iter().all(|n| n.spec.image.is_some()))
    })
    .await?;
    for node in cluster.bootc_nodes().list(&ListParams::default()).await?.items {
        ensure!(node.spec.staging == Staging::Held, "{:?} may pull", node.metadata.name);
    }
    cluster.pause_fleet(false).await
}

/// A node whose reboot takes too long is reported by every leader, with a single event.
async fn a_slow_reboot(cluster: &Cluster, address: &str) -> Result<()> {
    until_timed_out(cluster, "node1", "True").await?;
    let first = timed_out(cluster, "node1").await?.context("it was there")?;
    ensure!(
        first.reason == "RebootTimedOut" && first.message.contains("workers-"),
        "{first:?}"
    );
    until_metric(cluster, address, r#"berth_reboot_timed_out{pool="workers"} 1"#).await?;
    until_metric(
        cluster,
        address,
        r#"berth_node_reboot_timed_out{pool="workers",node="node1"} 1"#,
    )
    .await?;
    cluster.controllers.kill(0);
    cluster.controllers.start(0)?;
    until_metric(cluster, address, "berth_leader 1").await?;
    until_metric(
        cluster,
        address,
        r#"berth_node_reboot_timed_out{pool="workers",node="node1"} 1"#,
    )
    .await?;
    let second = timed_out(cluster, "node1").await?.context("it was there")?;
    ensure!(second == first, "the new leader changed {first:?} to {second:?}");
    Ok(())
}

async fn events(cluster: &Cluster, reason: &str) -> Result<Vec<Event>> {
    let all: Api<Event> = Api::namespaced(cluster.client(), "default");
    let events = all.list(&ListParams::default()).await?.items;
    Ok(events
        .into_iter()
        .filter(|e| e.reason.as_deref() == Some(reason))
        .collect())
}

async fn each_event_comes_once(cluster: &Cluster) -> Result<()> {
    ensure!(timed_out(cluster, "node2").await?.is_none(), "node2 was never late");
    let found = events(cluster, "RebootTimedOut").await?;
    let about = found
        .iter()
        .filter_map(|e| e.regarding.as_ref()?.name.as_deref())
        .collect::<Vec<_>>();
    ensure!(about == ["node1"], "one event, about node1: {found:#?}");
    // The leader that reported the reboot was killed; the next one reports only the end.
    soon(cluster, "both turns are reported", async || {
        Ok(events(cluster, "TurnCompleted").await?.len() >= 2)
    })
    .await?;
    for reason in ["TurnBegan", "TurnCompleted"] {
        let found = events(cluster, reason).await?;
        let about: BTreeSet<_> = found
            .iter()
            .filter_map(|e| e.regarding.as_ref()?.name.clone())
            .collect();
        let once = about.len() == found.len() && found.iter().all(|e| e.series.is_none());
        ensure!(
            once && about.contains("node1"),
            "{reason} is reported once for each node: {found:#?}"
        );
    }
    for (reason, times) in [("Resumed", 1), ("RolloutComplete", 1)] {
        let found = events(cluster, reason).await?;
        let kinds = found.iter().filter_map(|e| e.regarding.as_ref()?.kind.as_deref());
        let of_pool = kinds.filter(|kind| *kind == "BootcNodePool");
        ensure!(of_pool.count() == times, "{reason}: {found:#?}");
    }
    Ok(())
}

async fn the_metrics_show_the_rollout(cluster: &Cluster, address: &str) -> Result<()> {
    let page = scrape(address).await?;
    ensure!(!page.contains("berth_gate_closed{"), "every gate is open: {page}");
    for line in [
        r#"berth_fleet_condition{condition="Guarded",status="True"} 1"#,
        r#"berth_pool_condition{pool="workers",condition="Updated",status="True"} 1"#,
        r#"berth_pool_phase_nodes{pool="workers",phase="Updated"} 2"#,
    ] {
        until_metric(cluster, address, line).await?;
    }
    // The leader that saw the turn begin was killed; the next one sees it end.
    soon(cluster, "a turn is counted", || async {
        Ok(scrape(address)
            .await?
            .contains(r#"berth_turns_total{pool="workers",outcome="Updated"}"#))
    })
    .await
}

#[tokio::test]
async fn a_fleet_is_paused_and_a_node_is_late() -> Result<()> {
    let (_port, address) = reserve()?;
    let (_port, health) = reserve()?;
    let (_port, agent) = reserve()?;
    let (_port, agent_health) = reserve()?;
    let mut prometheus = Prometheus::start(&[&address, &agent], &monitoring::rules()?)?;
    let controller_env = vec![
        ("BERTH_METRICS_ADDRESS".to_owned(), address.clone()),
        ("BERTH_HEALTH_ADDRESS".to_owned(), health.clone()),
    ];
    let of_agent = vec![
        format!("--metrics-address={agent}"),
        format!("--health-address={agent_health}"),
    ];
    let cluster = Cluster::start(ClusterOptions {
        hosts: 2,
        controller_env,
        agent_args_of: vec![("node2".to_owned(), of_agent)],
        ..ClusterOptions::default()
    })
    .await?;
    // Long enough for the scenario to look at the reboot, with a new leader in between.
    cluster.host(1).settings(|s| s.reboot_time = Duration::from_secs(45));
    until_metric(&cluster, &address, "berth_leader 1").await?;
    a_paused_fleet(&cluster, &address).await?;
    a_slow_reboot(&cluster, &address).await?;

    until_timed_out(&cluster, "node1", "False").await?;
    until_metric(&cluster, &address, r#"berth_reboot_timed_out{pool="workers"} 0"#).await?;
    let target = cluster.pool_status("workers").await?.target.context("no target")?;
    let digest = target.platforms.first().context("no platform")?.digest.to_string();
    cluster
        .until("both nodes are updated", LONG, || async {
            Ok(cluster.fleet.running(&digest) == 2 && cluster.held().await?.is_empty())
        })
        .await?;
    until_metric(
        &cluster,
        &address,
        r#"berth_pool_nodes{pool="workers",state="updated"} 2"#,
    )
    .await?;
    each_event_comes_once(&cluster).await?;
    the_metrics_show_the_rollout(&cluster, &address).await?;
    until_metric(&cluster, &agent, r#"berth_node_phase{phase="Updated"} 1"#).await?;
    for address in [&address, &agent] {
        are_well_made(address).await?;
    }
    // Prometheus needs two scrapes for counters.
    soon(&cluster, "the dashboard shows the rollout", || {
        std::future::ready(monitoring::the_dashboard_shows(&mut prometheus).map(|()| true))
    })
    .await?;
    for address in [&health, &agent_health] {
        is_well(address).await?;
    }
    cluster.judge()
}
