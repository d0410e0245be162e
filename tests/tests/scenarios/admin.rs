//! Actions of an admin through the shipped `kubectl berth`: a lost node is excluded, a node that cannot be proven is
//! released, failed images are retried.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_api::node::BootcNode;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Published, has_condition, soon, until_so};
use berth_tests::controlplane::Bound;
use berth_tests::golden;
use berth_tests::hosts::sim::{SimHost, Updaters};
use berth_tests::programs;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::said::berth;

const OWN_STATUS: &str = "berth-agent-own-status";
const OWN_TOKEN: &str = "berth-agent-own-token";

async fn start(hosts: usize) -> Result<(Cluster, Instant)> {
    start_with(hosts, &[]).await
}

async fn start_with(hosts: usize, updaters: &[Updaters]) -> Result<(Cluster, Instant)> {
    // Built beforehand, so that no scenario waits for a compiler.
    tokio::task::spawn_blocking(programs::kubectl).await??;
    let cluster = Cluster::start(ClusterOptions {
        hosts,
        updaters: updaters.to_vec(),
        ..ClusterOptions::default()
    })
    .await?;
    Ok((cluster, Instant::now()))
}

/// Asks the judge. With `by_hand`, the manual reboot of this host must be the only violation.
fn ended(name: &str, cluster: &Cluster, start: Instant, by_hand: Option<&str>) -> Result<()> {
    match by_hand {
        None => cluster.judge()?,
        Some(host) => {
            let violations = cluster.violations()?;
            let known = format!("I3: {host} was rebooted by the test");
            let [one] = violations.as_slice() else {
                bail!("only the manual reboot may be a violation: {violations:#?}")
            };
            ensure!(one.starts_with(&known), "not the manual reboot: {one}");
        }
    }
    println!("{name:<44} scenario {:>5.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

async fn roll_to(cluster: &Cluster, version: &str, max_failures: u32) -> Result<Published> {
    let image = cluster.publish(version).await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%", "maxFailures": max_failures });
    cluster.pool("workers", &image.reference, rollout).await?;
    Ok(image)
}

/// Waits until a node that holds a berth is in this phase; returns its host.
async fn holder_in<'a>(cluster: &'a Cluster, phase: &str) -> Result<&'a SimHost> {
    let found = std::cell::RefCell::new(String::new());
    soon(cluster, &format!("a holder is {phase}"), || async {
        for name in cluster.held().await? {
            if cluster.phase(&name).await? == phase {
                *found.borrow_mut() = name;
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await?;
    cluster
        .fleet
        .host(&found.borrow())
        .context("the holder is an unknown host")
}

fn others<'a>(cluster: &'a Cluster, than: &SimHost) -> Vec<&'a SimHost> {
    cluster.fleet.hosts.iter().filter(|h| h.name() != than.name()).collect()
}

/// Marks a Node as not ready, as a cloud or the node lifecycle controller does when its kubelet is gone.
async fn say_not_ready(cluster: &Cluster, node: &str) -> Result<()> {
    let ready = json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
    cluster
        .nodes()
        .patch_status(node, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Waits until a host's Node is Ready with the host's current boot ID.
async fn until_ready(cluster: &Cluster, host: &SimHost) -> Result<()> {
    soon(cluster, &format!("{} is Ready", host.name()), || async {
        let status = cluster.nodes().get(host.name()).await?.status.unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        Ok(ready && status.node_info.map(|info| info.boot_id) == host.facts().boot_id)
    })
    .await
}

/// Boots another image on a host, by hand. Its agent does not run afterwards.
async fn reboot_into(cluster: &Cluster, host: &SimHost, image: &Published) -> Result<()> {
    cluster.excuse(host.name());
    host.stop_agent().await;
    host.stage_behind_the_agent(&image.pinned, &image.digest.to_string());
    host.reboot_now().await
}

async fn until_uncordoned(cluster: &Cluster, node: &str) -> Result<()> {
    soon(cluster, &format!("{node} is uncordoned"), || async {
        Ok(!cluster.is_cordoned(node).await?)
    })
    .await
}

async fn is_excluded(cluster: &Cluster, node: &str) -> Result<bool> {
    let labels = cluster.nodes().get(node).await?.metadata.labels.unwrap_or_default();
    Ok(labels.contains_key("berth.dev/exclude"))
}

/// The `holderIdentity` of the pool's only berth.
async fn identity(cluster: &Cluster) -> Result<String> {
    let lease = cluster.berths().get("workers-0").await?;
    Ok(lease.spec.and_then(|s| s.holder_identity).unwrap_or_default())
}

async fn is_recorded(cluster: &Cluster, image: &Published, node: &str) -> Result<bool> {
    let status = cluster.pool_status("workers").await?;
    Ok(status
        .failures
        .iter()
        .any(|f| f.digest == image.digest && f.nodes.iter().any(|n| n == node)))
}

#[tokio::test]
async fn a_lost_node_is_excluded_and_comes_back() -> Result<()> {
    let (cluster, start) = start(3).await?;
    cluster.settings(|s| s.shutdown_time = Duration::from_secs(2));
    let v2 = roll_to(&cluster, "2.0.0", 2).await?;
    let lost = holder_in(&cluster, "Rebooting").await?;
    let name = lost.name();
    cluster.excuse(name);
    lost.power_loss().await;
    say_not_ready(&cluster, name).await?;
    // Without --yes and without a terminal nothing happens.
    berth(&cluster, &["exclude", name]).await?.ends(2, &["--yes"])?;
    let counts = format!("counts as failed on {name}");
    let texts = [
        "The node holds berth workers-0",
        "The Node is NotReady, so the controller closes the berth",
        &counts,
    ];
    berth(&cluster, &["exclude", name, "--dry-run"]).await?.well(&texts)?;
    ensure!(!is_excluded(&cluster, name).await?, "a dry run changes nothing");
    ensure!(identity(&cluster).await? == name, "a lost node keeps its berth");
    // With --yes the node is excluded, and the others continue.
    berth(&cluster, &["exclude", name, "--yes"])
        .await?
        .well(&texts)?
        .well(&[&format!("Node {name} is excluded.")])?;
    ensure!(is_excluded(&cluster, name).await?, "the node has no label");
    let rest = others(&cluster, lost);
    let recorded = format!("{name} (excluded)");
    soon(&cluster, "the failure is recorded", || {
        is_recorded(&cluster, &v2, &recorded)
    })
    .await?;
    cluster.until_run(&v2, &rest, LONG).await?;
    berth(&cluster, &["status"])
        .await?
        .well(&[&format!("excluded: {name}"), "100% (2/2)"])?;
    berth(&cluster, &["exclude", name, "--yes"])
        .await?
        .well(&["is already excluded; nothing to do"])?;
    // The node comes back with its previous image. It becomes a member again only by another command of an admin.
    lost.power_on().await?;
    until_ready(&cluster, lost).await?;
    until_uncordoned(&cluster, name).await?;
    let again = berth(&cluster, &["include", name, "--yes"]).await?;
    again.well(&[
        "3 nodes instead of 2",
        "is not retried. To retry the image: kubectl berth retry workers",
    ])?;
    berth(&cluster, &["retry", "workers", "--yes"])
        .await?
        .well(&[&format!("is retried on {name}")])?;
    cluster.until_all_run(&v2, LONG).await?;
    ended("a_lost_node_is_excluded_and_comes_back", &cluster, start, None)
}

#[tokio::test]
async fn a_node_that_cannot_be_proven_is_released() -> Result<()> {
    let (cluster, start) = start(2).await?;
    let v2 = cluster.publish("2.0.0").await?;
    let v9 = cluster.publish("9.0.0").await?;
    cluster.settings(|s| s.never_ready = [v2.digest.to_string()].into());
    roll_to(&cluster, "2.0.0", 2).await?;
    let stuck = holder_in(&cluster, "Proving").await?;
    let name = stuck.name();
    cluster.settings(|s| s.never_ready.clear());
    // Its admin repairs the host by hand, with an image that Berth did not request.
    reboot_into(&cluster, stuck, &v9).await?;
    ensure!(stuck.facts().version == "9.0.0", "{:?}", stuck.facts());
    stuck.start_agent();
    soon(&cluster, "its agent reports the third image", || async {
        let status = cluster.node_status(name).await?;
        Ok(status.booted.and_then(|b| b.digest).as_ref() == Some(&v9.digest))
    })
    .await?;
    until_ready(&cluster, stuck).await?;
    ensure!(identity(&cluster).await? == name, "an unproven node keeps its berth");
    let counts = format!("counts as failed on {name}");
    let texts = [
        "closes berth workers-0 on your authority (closed:admin)",
        "the node runs 9.0.0",
        "was not proven",
        &counts,
    ];
    let planned = berth(&cluster, &["release", name, "--dry-run"]).await?.well(&texts)?;
    ensure!(!planned.out.contains('!'), "an objection:\n{}", planned.out);
    ensure!(identity(&cluster).await? == name, "a dry run changes nothing");
    let released = berth(&cluster, &["release", name, "--yes"])
        .await?
        .well(&["Berth workers-0 is closed."])?;
    ensure!(!released.out.contains("was not written"), "{}", released.out);
    berth(&cluster, &["release", name, "--yes"])
        .await?
        .well(&["holds no berth; nothing to release"])?;
    has_event(&cluster, name).await?;
    until_uncordoned(&cluster, name).await?;
    soon(&cluster, "the failure is recorded", || is_recorded(&cluster, &v2, name)).await?;
    cluster.until_run(&v2, &others(&cluster, stuck), LONG).await?;
    ensure!(
        stuck.facts().version == "9.0.0",
        "the image that failed there is not tried again: {:?}",
        stuck.facts()
    );
    // The next rollout includes the node.
    let v3 = roll_to(&cluster, "3.0.0", 2).await?;
    cluster.until_all_run(&v3, LONG).await?;
    ended("a_node_that_cannot_be_proven_is_released", &cluster, start, Some(name))
}

/// Checks the event on the Node: the action, and the admin who took it.
async fn has_event(cluster: &Cluster, node: &str) -> Result<()> {
    let uid = cluster.nodes().get(node).await?.metadata.uid;
    let events = Api::<Event>::namespaced(cluster.client(), "default");
    let all = events.list(&ListParams::default()).await?.items;
    let released: Vec<_> = all
        .iter()
        .filter(|e| e.reason.as_deref() == Some("BerthReleased"))
        .collect();
    let [event] = released.as_slice() else {
        bail!("one event for one release: {released:?}")
    };
    let regarding = event.regarding.clone().context("the event regards no object")?;
    ensure!(
        regarding.kind.as_deref() == Some("Node") && regarding.name.as_deref() == Some(node),
        "{regarding:?}"
    );
    ensure!(regarding.uid == uid, "the event is about another Node: {regarding:?}");
    let note = event.note.clone().unwrap_or_default();
    ensure!(note.contains("workers-0") && note.ends_with("by tom"), "{note}");
    Ok(())
}

async fn until_event(cluster: &Cluster, node: &str, reason: &str) -> Result<()> {
    let events = Api::<Event>::namespaced(cluster.client(), "default");
    let selector = format!("reason={reason},regarding.kind=Node,regarding.name={node}");
    let of_node = ListParams::default().fields(&selector);
    soon(cluster, &format!("an event {reason}"), || async {
        Ok(!events.list(&of_node).await?.items.is_empty())
    })
    .await
}

#[tokio::test]
async fn a_failed_image_is_retried() -> Result<()> {
    let (cluster, start) = start(2).await?;
    cluster.deploy("web", 2).await?;
    let v1 = cluster.publish("1.0.0").await?;
    let v2 = cluster.publish("2.0.0").await?;
    cluster.settings(|s| s.never_ready = [v2.digest.to_string()].into());
    berth(&cluster, &["retry", "workers", "--yes"])
        .await?
        .ends(1, &["there is no pool"])?;
    roll_to(&cluster, "2.0.0", 1).await?;
    let bad = holder_in(&cluster, "Proving").await?;
    let name = bad.name();
    // Its admin rolls it back by hand.
    reboot_into(&cluster, bad, &v1).await?;
    bad.start_agent();
    cluster
        .until("the image has failed", LONG, || async {
            Ok(identity(&cluster).await? == "closed:failed")
        })
        .await?;
    soon(&cluster, "the failure is recorded", || is_recorded(&cluster, &v2, name)).await?;
    soon(&cluster, "the rollout is halted", || async {
        let status = cluster.pool_status("workers").await?;
        Ok(berth_api::condition::is_true(&status.conditions, "RolloutHalted"))
    })
    .await?;
    soon(&cluster, "the node says so", || async {
        Ok(cluster.phase(name).await? == "Degraded")
    })
    .await?;
    golden::ensure_walk(&cluster.control_plane.audit_log(), name, "failed")?;
    let failed = format!("failed on {name} (failures: 1; the rollout halts at 1)");
    let halted = "The rollout of pool workers is halted";
    berth(&cluster, &["status"]).await?.well(&[&failed, halted])?;
    ensure!(cluster.running(&v2) == 0, "another node tries it");
    // The cause, which is outside of the image, is fixed.
    cluster.settings(|s| s.never_ready.clear());
    berth(&cluster, &["retry", "workers", "--yes"]).await?.well(&[
        &format!("is retried on {name}."),
        "The halted rollout continues.",
        "Pool workers retries its failed images.",
    ])?;
    cluster.until_all_run(&v2, LONG).await?;
    soon(&cluster, "nothing is recorded as failed", || async {
        Ok(!is_recorded(&cluster, &v2, name).await?)
    })
    .await?;
    until_event(&cluster, name, "NodeDegraded").await?;
    until_event(&cluster, name, "NodeRecovered").await?;
    berth(&cluster, &["retry", "workers", "--yes"])
        .await?
        .well(&["nothing to retry"])?;
    ended("a_failed_image_is_retried", &cluster, start, Some(name))
}

/// Sends a dry run of a write that this policy must refuse, as the agent of node1. True if the API server accepts the
/// write.
async fn is_allowed(cluster: &Cluster, policy: &str) -> Result<bool> {
    let bound = Bound::Node("node1");
    let config = cluster
        .control_plane
        .service_account_kubeconfig("berth-system", "berth-agent", bound)
        .await?;
    let client = config.client().await?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    if policy == OWN_STATUS {
        let nodes = Api::<BootcNode>::all(client);
        let (dry, nothing) = (PatchParams::default().dry_run(), Patch::Merge(json!({ "status": {} })));
        return Ok(nodes.patch_status("node2", &dry, &nothing).await.is_ok());
    }
    if policy == OWN_TOKEN {
        let accounts = Api::<ServiceAccount>::namespaced(client, "berth-system");
        let request = TokenRequest::default();
        let answer = accounts
            .create_subresource::<_, TokenRequest>("token", "berth-agent", &dry, &request)
            .await;
        return Ok(answer.is_ok());
    }
    let berths = Api::<Lease>::namespaced(client, "berth-system");
    let mut lease = berths.get("workers-0").await?;
    lease.spec.get_or_insert_default().holder_identity = Some("node1".to_owned());
    Ok(berths.replace("workers-0", &dry, &lease).await.is_ok())
}

/// If the binding of an admission policy is missing, the rollout stops before its next turn, and Berth shows the admin
/// a remedy.
#[tokio::test]
async fn without_its_admission_policies_a_cluster_is_not_updated() -> Result<()> {
    let (cluster, start) = start_with(2, &[Updaters::Bootc, Updaters::RpmOstree]).await?;
    let v1 = roll_to(&cluster, "1.0.0", 1).await?;
    cluster.until_all_run(&v1, LONG).await?;
    let policies = programs::workspace_root().join("manifests/base/admission-policies.yaml");
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(cluster.client());
    let rounds = [
        ("berth-agent-own-berth", "2.0.0"),
        (OWN_STATUS, "3.0.0"),
        (OWN_TOKEN, "4.0.0"),
    ];
    for (policy, version) in rounds {
        bindings.delete(policy, &DeleteParams::default()).await?;
        soon(&cluster, "nothing is refused any more", || is_allowed(&cluster, policy)).await?;
        // An agent tests this when it starts, and then about every hour.
        cluster.kill_agents();
        let image = roll_to(&cluster, version, 2).await?;
        for host in &cluster.fleet.hosts {
            let said = format!("{} reports that it is unguarded", host.name());
            soon(&cluster, &said, || reports_unguarded(&cluster, host.name())).await?;
            until_so(&cluster, "the image is staged nevertheless", || {
                host.facts().staged.as_ref() == Some(&image.digest.to_string())
            })
            .await?;
        }
        berth(&cluster, &["status"])
            .await?
            .well(&["Unguarded: the API server lets"])?;
        let running = cluster.running(&image);
        ensure!(running == 0 && cluster.held().await?.is_empty(), "no berth is taken");
        cluster.control_plane.apply_manifests(&policies).await?;
        if version != "2.0.0" {
            // Agents also repeat the test automatically, at growing intervals: the first round relies on that. A
            // restart is faster.
            cluster.kill_agents();
        }
        cluster.until_all_run(&image, LONG).await?;
    }
    let name = "without_its_admission_policies_a_cluster_is_not_updated";
    ended(name, &cluster, start, None)
}

async fn reports_unguarded(cluster: &Cluster, node: &str) -> Result<bool> {
    let status = cluster.node_status(node).await?;
    let words = "admission-policies.yaml";
    Ok(
        has_condition(&status.conditions, ("NodeDegraded", "True", "Unguarded", words))
            && has_condition(&status.conditions, ("UpdatePrepared", "False", "Unguarded", words)),
    )
}
