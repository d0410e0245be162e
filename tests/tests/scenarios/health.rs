//! Boots that are not proven although the Node is Ready, on simulated hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, has_condition, soon};
use berth_tests::hosts::sim::{SimHost, Unhealthy};
use serde_json::json;

const CHECK: &str = "usr/lib/berth/health.d/required.d/10-disk";

fn install_check(host: &SimHost) -> Result<()> {
    let path = host.root().join(CHECK);
    let dir = path.parent().context("the check has no directory")?;
    fs::create_dir_all(dir)?;
    fs::write(&path, "")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Each host has another fault under the bad image. All roll back and say why, and then run the next image.
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
    if let Err(error) = body.await {
        eprintln!("{}", cluster.describe().await);
        return Err(error);
    }
    cluster.judge()
}
