//! Reports of the controller besides the pools' own status: the BootcFleet, a node that does not come back, events and metrics,
//! also after a change of the leader.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_api::condition::find;
use berth_api::fleet::{BootcFleet, BootcFleetStatus};
use berth_api::insight::NodeInsight;
use berth_api::node::{BootcNode, Staging};
use berth_core::insight::is_silent;
use berth_tests::audit::AuditLog;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, SOON};
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

/// Response to a GET request, with its header.
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

fn reserve() -> Result<(Port, String)> {
    let port = Port::reserve()?;
    let address = format!("127.0.0.1:{}", port.number());
    Ok((port, address))
}

async fn until_metric(cluster: &Cluster, address: &str, line: &str) -> Result<()> {
    let found = || async { Ok(scrape(address).await?.lines().any(|l| l == line)) };
    cluster.until(&format!("the metrics say {line}"), SOON, found).await
}

async fn pause(cluster: &Cluster, paused: bool) -> Result<()> {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": {"name": "cluster"},
        "spec": {"paused": paused},
    });
    let fleets: Api<BootcFleet> = Api::all(cluster.client());
    fleets
        .patch("cluster", &PatchParams::apply("admin").force(), &Patch::Apply(&object))
        .await?;
    let wanted = if paused { "True" } else { "False" };
    cluster
        .until(&format!("the BootcFleet says Paused={wanted}"), SOON, || async {
            let fleet = fleets.get("cluster").await?;
            let status = fleet.status.unwrap_or_default();
            let said = find(&status.conditions, "Paused").is_some_and(|c| c.status == wanted);
            Ok(said && status.observed_generation == fleet.metadata.generation)
        })
        .await
}

async fn timed_out(cluster: &Cluster, node: &str) -> Result<Option<Condition>> {
    let object = cluster.bootc_nodes().get(node).await?;
    Ok(find(&object.status.unwrap_or_default().conditions, "RebootTimedOut").cloned())
}

async fn until_timed_out(cluster: &Cluster, node: &str, status: &str) -> Result<()> {
    let says = || async { Ok(timed_out(cluster, node).await?.is_some_and(|c| c.status == status)) };
    cluster
        .until(&format!("{node} says RebootTimedOut={status}"), LONG, says)
        .await
}

/// The controller creates a missing BootcFleet. It reports that all is well, and names the node whose agent is dead.
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
    let fleets: Api<BootcFleet> = Api::all(cluster.client());
    let until_said = async |what: &str, said: &dyn Fn(&BootcFleetStatus) -> bool| {
        let says = || async {
            let fleet = fleets.get_opt("cluster").await?;
            Ok(fleet.and_then(|fleet| fleet.status).is_some_and(|status| said(&status)))
        };
        cluster
            .until(&format!("the BootcFleet says that {what}"), LONG, says)
            .await
    };
    let is = |status: &BootcFleetStatus, type_: &str, value: &str, words: &str| {
        find(&status.conditions, type_).is_some_and(|c| c.status == value && c.message.contains(words))
    };
    let body = async {
        until_said("there is no pool", &|s| is(s, "Updating", "False", "no BootcNodePool")).await?;
        let image = cluster.publish("1.0.0").await?;
        cluster.pool("workers", &image.reference, json!({})).await?;
        until_said("all is well", &|s| {
            (s.nodes.total, s.nodes.updated) == (2, 2)
                && is(s, "Updating", "False", "2 of 2 nodes updated")
                && ["ControllerHealthy", "AgentsHealthy", "RegistryReachable", "Guarded"]
                    .iter()
                    .all(|t| is(s, t, "True", ""))
                && s.pools
                    .first()
                    .is_some_and(|pool| pool.name == "workers" && pool.state == "AllUpdated")
        })
        .await?;
        cluster.host(2).stop_agent().await;
        until_said("node2 alone is silent", &|s| {
            is(s, "AgentsHealthy", "False", "node2") && !is(s, "AgentsHealthy", "False", "node1")
        })
        .await?;
        an_insight_in_its_place(&cluster, "node2").await?;
        cluster.host(2).start_agent();
        until_said("node2 is heard again", &|s| is(s, "AgentsHealthy", "True", "")).await?;
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

/// The controller writes the insight of a node whose agent is dead. It writes once for each change that it knows of, and only
/// over the version that it has read.
async fn an_insight_in_its_place(cluster: &Cluster, node: &str) -> Result<()> {
    let until = async |what: &str, type_: &str, says: (&str, &str)| {
        let found = || async {
            let (_, insight) = insight(cluster, node).await?;
            let said = find(&insight.conditions, type_).map(|c| (c.status.as_str(), c.reason.as_str()));
            Ok(said == Some(says))
        };
        let what = format!("the insight of {node} says that {what}");
        cluster.until(&what, SOON, found).await
    };
    until("its agent is silent", "Degraded", ("True", "AgentSilent")).await?;
    let (before, _) = insight(cluster, node).await?;
    // A change that does not affect the insight.
    let label = json!({ "metadata": { "labels": { "of-no": "concern" } } });
    cluster
        .nodes()
        .patch(node, &PatchParams::default(), &Patch::Merge(label))
        .await?;
    cluster.cordon(node, true).await?;
    until("it is cordoned", "Available", ("False", "Unschedulable")).await?;
    let (after, insight) = insight(cluster, node).await?;
    ensure!(
        insight.message.contains("no word from its agent") && insight.est_to_complete.is_none(),
        "{insight:?}"
    );
    // A write based on an older status, such as one that an agent has replaced meanwhile, has no effect.
    let old = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode",
        "metadata": { "name": node, "resourceVersion": before.metadata.resource_version },
        "status": before.status,
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
    let rest = |object: BootcNode| {
        let mut status = object.status.unwrap_or_default();
        status.insight = None;
        status
    };
    ensure!(rest(before) == rest(after), "more than the insight was written");
    cluster.cordon(node, false).await?;
    until("it is not cordoned any more", "Available", ("True", "AsExpected")).await
}

/// The agent's next write replaces all fields of the controller's insight. The audit log has as many writes of the controller as
/// changes.
async fn its_own_insight_again(cluster: &Cluster, node: &str) -> Result<()> {
    let own = || async {
        let (_, insight) = insight(cluster, node).await?;
        Ok(find(&insight.conditions, "Degraded").is_some_and(|c| c.status == "False"))
    };
    let what = format!("the insight of {node} is its agent's again");
    cluster.until(&what, SOON, own).await?;
    let (object, _) = insight(cluster, node).await?;
    let managers = object.metadata.managed_fields.into_iter().flatten();
    for entry in managers.filter(|entry| entry.manager.as_deref() != Some("berth-agent")) {
        let fields = serde_json::to_string(&entry.fields_v1)?;
        ensure!(!fields.contains("f:insight"), "left behind: {entry:?}");
    }
    let audit = AuditLog::read(&cluster.control_plane.audit_log())?;
    let found = |status: &BootcNode| status.status.as_ref()?.insight.as_ref().map(is_silent);
    for (name, expected) in [(node, 3), ("node1", 0)] {
        let statuses = statuses(audit.records(), name)?;
        let by_controller = statuses.iter().filter(|(program, ..)| *program == "berth-controller");
        let silent = by_controller.filter(|(.., object)| found(object) == Some(true)).count();
        ensure!(
            silent == expected,
            "the controller reported the agent of {name} {silent} times, expected {expected}"
        );
    }
    Ok(())
}

/// No node starts a pull while the whole fleet is paused, and all nodes say why.
async fn a_paused_fleet(cluster: &Cluster, address: &str) -> Result<()> {
    pause(cluster, true).await?;
    let v2 = cluster.publish("2.0.0").await?;
    let rollout = json!({ "maxUnavailable": 2, "maxStaging": 2, "rebootTimeout": "10s" });
    cluster.pool("workers", &v2.reference, rollout).await?;
    until_metric(
        cluster,
        address,
        "berth_gate_closed{pool=\"workers\",reason=\"FleetPaused\"} 1",
    )
    .await?;
    cluster
        .until("both nodes have the image in their spec", SOON, || async {
            let nodes = cluster.bootc_nodes().list(&ListParams::default()).await?.items;
            Ok(nodes.len() == 2 && nodes.iter().all(|n| n.spec.image.is_some()))
        })
        .await?;
    for node in cluster.bootc_nodes().list(&ListParams::default()).await?.items {
        ensure!(node.spec.staging == Staging::Held, "{:?} may pull", node.metadata.name);
    }
    pause(cluster, false).await
}

/// A node whose reboot takes too long is reported by every leader, with a single event.
async fn a_slow_reboot(cluster: &Cluster, address: &str) -> Result<()> {
    until_timed_out(cluster, "node1", "True").await?;
    let first = timed_out(cluster, "node1").await?.context("it was there")?;
    ensure!(
        first.reason == "RebootTimedOut" && first.message.contains("workers-"),
        "{first:?}"
    );
    until_metric(cluster, address, "berth_reboot_timed_out{pool=\"workers\"} 1").await?;
    until_metric(
        cluster,
        address,
        "berth_node_reboot_timed_out{pool=\"workers\",node=\"node1\"} 1",
    )
    .await?;
    cluster.controllers.kill(0);
    cluster.controllers.start(0)?;
    until_metric(cluster, address, "berth_leader 1").await?;
    until_metric(
        cluster,
        address,
        "berth_node_reboot_timed_out{pool=\"workers\",node=\"node1\"} 1",
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
    until_metric(&cluster, &address, "berth_reboot_timed_out{pool=\"workers\"} 0").await?;
    let digest = cluster
        .pools()
        .get("workers")
        .await?
        .status
        .and_then(|s| s.target)
        .context("no target")?;
    let digest = digest.platforms.first().context("no platform")?.digest.to_string();
    let updated = || async { Ok(cluster.fleet.running(&digest) == 2 && cluster.held().await?.is_empty()) };
    cluster.until("both nodes are updated", LONG, updated).await?;
    until_metric(
        &cluster,
        &address,
        "berth_pool_nodes{pool=\"workers\",state=\"updated\"} 2",
    )
    .await?;
    ensure!(timed_out(&cluster, "node2").await?.is_none(), "node2 was never late");
    let found = events(&cluster, "RebootTimedOut").await?;
    let about = found
        .iter()
        .filter_map(|e| e.regarding.as_ref()?.name.as_deref())
        .collect::<Vec<_>>();
    ensure!(about == ["node1"], "one event, about node1: {found:#?}");
    // The leader that reported the reboot was killed; the next one reports only the end.
    let completed = async || Ok(events(&cluster, "TurnCompleted").await?.len() >= 2);
    cluster.until("both turns are reported", SOON, completed).await?;
    for reason in ["TurnBegan", "TurnCompleted"] {
        let found = events(&cluster, reason).await?;
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
        let found = events(&cluster, reason).await?;
        let of_pool = found.iter().filter(|e| {
            e.regarding
                .as_ref()
                .is_some_and(|r| r.kind.as_deref() == Some("BootcNodePool"))
        });
        ensure!(of_pool.count() == times, "{reason}: {found:#?}");
    }
    let page = scrape(&address).await?;
    ensure!(!page.contains("berth_gate_closed{"), "every gate is open: {page}");
    for line in [
        "berth_fleet_condition{condition=\"Guarded\",status=\"True\"} 1",
        "berth_pool_condition{pool=\"workers\",condition=\"Updated\",status=\"True\"} 1",
        "berth_pool_phase_nodes{pool=\"workers\",phase=\"Updated\"} 2",
    ] {
        until_metric(&cluster, &address, line).await?;
    }
    // The leader that saw the turn begin was killed; the next one sees it end.
    let ended = "berth_turns_total{pool=\"workers\",outcome=\"Updated\"}";
    let counted = || async { Ok(scrape(&address).await?.contains(ended)) };
    cluster.until("a turn is counted", SOON, counted).await?;
    until_metric(&cluster, &agent, "berth_node_phase{phase=\"Updated\"} 1").await?;
    for address in [&address, &agent] {
        are_well_made(address).await?;
    }
    // Prometheus needs two scrapes for counters.
    let shows = || {
        let shown = monitoring::the_dashboard_shows(&mut prometheus);
        async { shown.map(|()| true) }
    };
    cluster.until("the dashboard shows the rollout", SOON, shows).await?;
    for address in [&health, &agent_health] {
        is_well(address).await?;
    }
    cluster.judge()
}
