//! Boots that are not proven although the Node is Ready, on simulated hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use berth_api::BootId;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, has_condition, soon};
use berth_tests::hosts::sim::{SimHost, Unhealthy};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const CHECK: &str = "usr/lib/berth/health.d/required.d/10-disk";

fn install_check(host: &SimHost) -> Result<()> {
    let path = host.root().join(CHECK);
    let dir = path.parent().context("the check has no directory")?;
    fs::create_dir_all(dir)?;
    fs::write(&path, "")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Each host has a different fault under the bad image. All roll back and report why, and then run the next image.
#[tokio::test]
async fn an_unhealthy_boot_is_rolled_back() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::of(3)).await?;
    let body = async {
        let bad = cluster.publish("2.0.0").await?;
        let faults = [
            (Unhealthy::FailedUnit, "before the reboot: storage.service"),
            (Unhealthy::BootIncomplete, "did not reach boot-complete.target"),
            (
                Unhealthy::FailedCheck,
                "10-disk: exit status 1: error: the disk is degraded",
            ),
        ];
        for (host, (fault, _)) in cluster.fleet.hosts.iter().zip(faults) {
            install_check(host)?;
            host.settings(|s| s.unhealthy = [(bad.digest.to_string(), fault)].into());
        }
        let rollout = json!({ "maxUnavailable": 3, "maxStaging": "100%", "maxFailures": 3, "paused": true });
        cluster.pool("workers", &bad.reference, rollout).await?;
        let health = json!({ "deadline": "3s", "soakTime": "1s", "ignoredUnits": ["cloud-init*"] });
        let go = json!({ "health": health, "rollout": { "paused": false } });
        cluster.patch_pool("workers", go).await?;
        for (host, (_, words)) in cluster.fleet.hosts.iter().zip(faults) {
            let said = ("NodeDegraded", "True", "DigestFailed", words);
            soon(&cluster, words, || async {
                Ok(has_condition(&cluster.node_status(host.name()).await?.conditions, said))
            })
            .await?;
        }
        let boots = cluster.boots();
        ensure!(boots.values().all(|boots| *boots == 3), "one rollback each: {boots:?}");
        let good = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &good.reference).await?;
        cluster.until_all_run(&good, LONG).await
    };
    cluster.judged(body.await).await
}

/// Under the bad image neither the kubelet nor the agent starts. The host rolls itself back, and the agent reports it.
#[tokio::test]
async fn a_host_without_an_agent_rolls_itself_back() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::of(2)).await?;
    let body = async {
        let bad = cluster.publish("2.0.0").await?;
        for host in &cluster.fleet.hosts {
            host.settings(|s| s.kubelet_dead = [bad.digest.to_string()].into());
        }
        let (brought, shipped) = (cluster.host(1), cluster.host(2));
        shipped.ship_rollback_guard()?;
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%", "paused": true });
        cluster.pool("workers", &bad.reference, rollout).await?;
        let go = json!({ "health": { "deadline": "2s" }, "rollout": { "paused": false } });
        cluster.patch_pool("workers", go).await?;
        let halted = ("RolloutHalted", "True", "TooManyFailures", "");
        cluster.until_says("workers", halted, LONG).await?;
        let boots = cluster.boots();
        let failed = match (cluster.boots_of(brought), cluster.boots_of(shipped)) {
            (3, 1) => brought.name(),
            (1, 3) => shipped.name(),
            _ => anyhow::bail!("one host rolls back: {boots:?}"),
        };
        let words = "no agent proved the boot in time; the host's rollback guard rolled the host back";
        let said = ("NodeDegraded", "True", "DigestFailed", words);
        cluster.until_node_says(failed, said, LONG).await?;
        let status = cluster.node_status(failed).await?;
        for (host, reason) in [(brought, "InstalledByAgent"), (shipped, "InImage")] {
            let guard = ("RollbackGuard", "True", reason, "berth-rollback-guard.service");
            cluster.until_node_says(host.name(), guard, LONG).await?;
        }
        let turn = status.turns.first().context("the turn is not recorded")?;
        ensure!(turn.reason.as_deref() == Some("RollbackGuardFired"), "{turn:?}");
        let good = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &good.reference).await?;
        cluster.until_all_run(&good, LONG).await
    };
    cluster.judged(body.await).await
}

/// Answers each HTTP request: 503 while the host runs this image, otherwise 200.
async fn serve(listener: TcpListener, host: SimHost, bad: String) -> Result<()> {
    loop {
        let (mut connection, _) = listener.accept().await?;
        let mut request = [0; 1024];
        let _ = connection.read(&mut request).await?;
        let status = if host.facts().booted == bad { 503 } else { 200 };
        let answer = format!("HTTP/1.1 {status} Test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        connection.write_all(answer.as_bytes()).await?;
    }
}

/// The Node is Ready, but a check of the pool fails under the image. The next image passes it.
#[tokio::test]
async fn a_boot_that_fails_a_pool_check_is_rolled_back() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::of(1)).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let host = cluster.host(1).clone();
    let bad = cluster.publish("2.0.0").await?;
    let server = tokio::spawn(serve(listener, host.clone(), bad.digest.to_string()));
    let body = async {
        let checks = json!([
            { "name": "ready", "nodeCondition": { "type": "Ready" } },
            { "name": "app", "httpGet": { "port": port } },
        ]);
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%", "paused": true });
        cluster.pool("workers", &bad.reference, rollout).await?;
        let health = json!({ "deadline": "3s", "checks": checks });
        let go = json!({ "health": health, "rollout": { "paused": false } });
        cluster.patch_pool("workers", go).await?;
        let said = (
            "NodeDegraded",
            "True",
            "DigestFailed",
            "check app: the HTTP status is 503",
        );
        cluster.until_node_says(host.name(), said, LONG).await?;
        let turns = cluster.node_status(host.name()).await?.turns;
        let reasons: Vec<_> = turns.iter().filter_map(|turn| turn.reason.as_deref()).collect();
        ensure!(reasons == ["HttpCheckFailed"], "{turns:?}");
        let good = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &good.reference).await?;
        cluster.until_all_run(&good, LONG).await
    };
    let done = body.await;
    server.abort();
    cluster.judged(done).await
}

/// ID of a host's boot.
fn boot_of(host: &SimHost) -> Result<BootId> {
    Ok(BootId::new(host.facts().boot_id.context("the host is down")?))
}

/// If the pool allows soft reboots, a capable host restarts only its userspace, and Berth proves the new userspace. A
/// full reboot undoes a bad image.
#[tokio::test]
async fn a_soft_reboot_is_proven_or_undone_by_a_reboot() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::of(1)).await?;
    let host = cluster.host(1);
    install_check(host)?;
    let body = async {
        host.settings(|s| s.soft_reboot_capable = true);
        let kernel = boot_of(host)?;
        let good = cluster.publish("2.0.0").await?;
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%", "rebootPolicy": "AllowSoftReboot" });
        cluster.pool("workers", &good.reference, rollout).await?;
        cluster
            .patch_pool("workers", json!({ "health": { "deadline": "3s" } }))
            .await?;
        cluster.until_all_run(&good, LONG).await?;
        let soft = boot_of(host)?;
        let expected = BootId::after_soft_reboots(kernel.as_str(), 1);
        ensure!(soft == expected, "{kernel}, then {soft}");

        let bad = cluster.publish("3.0.0").await?;
        host.settings(|s| s.unhealthy = [(bad.digest.to_string(), Unhealthy::FailedCheck)].into());
        cluster.set_image("workers", &bad.reference).await?;
        let said = ("NodeDegraded", "True", "DigestFailed", "10-disk: exit status 1");
        cluster.until_node_says(host.name(), said, LONG).await?;
        let back = boot_of(host)?;
        ensure!(!back.is_soft() && back != kernel, "{back} after {soft}");
        ensure!(host.facts().booted == good.digest.to_string(), "{:?}", host.facts());

        // Not capable: the machine reboots.
        host.settings(|s| s.soft_reboot_capable = false);
        let better = cluster.publish("4.0.0").await?;
        cluster.set_image("workers", &better.reference).await?;
        cluster.until_all_run(&better, LONG).await?;
        let full = boot_of(host)?;
        ensure!(!full.is_soft() && full != back, "{full} after {back}");
        Ok(())
    };
    cluster.judged(body.await).await
}
