//! Hosts without a pool, and hosts with faults of their own, under real agents. The judge checks the ground truth.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

/// Restarts the agent, which looks at its host at once, and gives it the time for that.
async fn look_again(host: &SimHost) {
    host.kill_agent();
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// Fails unless the image that the host's admin has staged is still staged and unlocked.
fn is_untouched(host: &SimHost, theirs: &str, when: &str) -> Result<()> {
    let facts = host.facts();
    ensure!(facts.staged.as_deref() == Some(theirs), "{when}: {facts:?}");
    ensure!(!facts.locked, "{when}: {facts:?}");
    Ok(())
}

/// I12: an image that an admin stages by hand on a node without a pool stays as it is.
#[tokio::test]
async fn a_node_without_a_pool_is_left_alone() -> Result<()> {
    scenario(lively(1), async |cluster| {
        let host = cluster.host(1);
        let own = cluster.publish("9.0.0").await?;
        let theirs = own.digest.to_string();
        host.stage_behind_the_agent(&own.pinned, &theirs);
        look_again(host).await;
        is_untouched(host, &theirs, "before any pool was made")?;

        let v2 = cluster.publish("2.0.0").await?;
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": 1 });
        cluster
            .pool_of("workers", json!({ "pool": "workers" }), &v2.reference, rollout)
            .await?;
        look_again(host).await;
        is_untouched(host, &theirs, "while the pool selects other nodes")?;

        cluster.label("node1", "pool", Some("workers")).await?;
        cluster.until_all_run(&v2, LONG).await?;
        cluster.label("node1", "berth.dev/exclude", Some("true")).await?;
        cluster.until_released("node1").await?;
        host.stage_behind_the_agent(&own.pinned, &theirs);
        look_again(host).await;
        is_untouched(host, &theirs, "while the node is excluded")
    })
    .await
}

/// bootc stages first and pulls bound images afterwards: until then the staged image is incomplete.
#[tokio::test]
async fn an_image_without_its_bound_images_is_never_booted() -> Result<()> {
    scenario(lively(1), async |cluster| {
        let host = cluster.host(1);
        host.settings(|s| s.staged_then_fails = 2);
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        until_degraded(cluster, "node1", "ImageNotFound", "bound image").await?;
        let facts = host.facts();
        ensure!(facts.staged.is_none(), "nothing stays staged: {facts:?}");
        cluster.until_all_run(&v2, LONG).await?;

        // An image whose bound image never comes, until its admin returns to the image before.
        cluster.until_phase("node1", "Updated").await?;
        host.settings(|s| {
            s.staged_then_fails = u32::MAX;
            s.pull_time = Duration::from_secs(2);
        });
        let bad = roll_to(cluster, "3.0.0", 1).await?;
        until_degraded(cluster, "node1", "ImageNotFound", "bound image").await?;
        cluster.set_image("workers", &v2.reference).await?;
        cluster.until_phase("node1", "Updated").await?;
        golden::ensure_walk_to(&cluster.control_plane.audit_log(), "node1", &bad.digest, "bad-pull")
    })
    .await
}

/// A staged image is locked even while bootc still runs.
#[tokio::test]
async fn a_reboot_during_a_pull_applies_nothing() -> Result<()> {
    scenario(lively(2), async |cluster| {
        cluster.host(2).settings(|s| s.bootc_version = "1.17.0".to_owned());
        cluster.settings(|s| s.after_staging = LONG);
        let v2 = roll_with(cluster, "2.0.0", json!({ "maxUnavailable": 1, "maxStaging": 2 })).await?;
        for n in [1, 2] {
            let host = cluster.host(n);
            soon(cluster, &format!("node{n} has staged and locked 2.0.0"), || async {
                Ok(host.facts().locked)
            })
            .await?;
            cluster.unrelated_reboot(host).await?;
            ensure!(host.facts().version == "1.0.0", "the reboot applied the image");
        }
        cluster.settings(|s| s.after_staging = Duration::ZERO);
        for n in [1, 2] {
            // Ends the pull that started after the first reboot: it still has the long duration.
            cluster.unrelated_reboot(cluster.host(n)).await?;
        }
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

/// An image that was unlocked by others is locked again. If that fails, it is removed, so that no reboot applies it.
#[tokio::test]
async fn an_image_that_cannot_be_locked_is_removed() -> Result<()> {
    scenario(lively(1), async |cluster| {
        let host = cluster.host(1);
        let v2 = roll_with(
            cluster,
            "2.0.0",
            json!({ "paused": true, "maxUnavailable": 1, "maxStaging": 1 }),
        )
        .await?;
        until_so(cluster, "2.0.0 is staged and locked", || host.facts().locked).await?;
        host.settings(|s| s.lock_failures = u32::MAX);
        host.unlock_behind_the_agent()?;
        until_so(cluster, "the image that cannot be locked is removed", || {
            host.facts().staged.is_none()
        })
        .await?;
        // The lock also fails after the image is staged again.
        until_degraded(cluster, "node1", "LockFailed", "lock finalization").await?;
        until_so(cluster, "the image is removed again", || host.facts().staged.is_none()).await?;
        host.settings(|s| s.lock_failures = 0);
        cluster.pause("workers", false).await?;
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

fn marker(cluster: &Cluster, n: usize) -> PathBuf {
    cluster.host(n).root().join("run/reboot-required")
}

/// A reboot daemon such as kured obeys the file that bootc writes whenever it stages: no such file may exist for a
/// locked image. Reboot requests of others are kept.
#[tokio::test]
async fn a_locked_image_requests_no_reboot() -> Result<()> {
    scenario(lively(3), async |cluster| {
        let foreign = "a new kernel";
        std::fs::write(marker(cluster, 2), foreign)?;
        let by_bootc = "bootc: Reboot required for rollback\n";
        std::fs::write(marker(cluster, 3), by_bootc)?;
        let v2 = cluster.publish("2.0.0").await?;
        // The remains of a killed pull of Berth's.
        let digest = v2.digest.to_string();
        std::fs::write(cluster.host(1).root().join("run/berth/pulled"), format!("{digest}\n"))?;
        std::fs::write(
            marker(cluster, 1),
            format!("bootc: Reboot required for image: {digest}\n"),
        )?;
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": 3, "paused": true });
        cluster.pool("workers", &v2.reference, rollout).await?;
        let host = cluster.host(1);
        cluster
            .until("all have staged, locked", LONG, async || {
                Ok((1..=3).all(|n| cluster.host(n).facts().locked))
            })
            .await?;
        for node in ["node1", "node2", "node3"] {
            let said = ("UpdatePrepared", "True", "Ready", "");
            cluster.until_node_says(node, said, LONG).await?;
        }
        ensure!(!marker(cluster, 1).exists(), "kured would reboot {}", host.name());
        let kept = std::fs::read_to_string(marker(cluster, 2))?;
        ensure!(kept == foreign, "the file from before the pull now contains {kept:?}");
        let kept = std::fs::read_to_string(marker(cluster, 3)).unwrap_or_default();
        ensure!(kept == by_bootc, "bootc's request is now {kept:?}");
        cluster.pause("workers", false).await?;
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

fn rival(cluster: &Cluster, n: usize, is_active: bool) {
    let rivals = is_active.then(|| "bootc-fetch-apply-updates.timer".to_owned());
    cluster.host(n).settings(|s| s.rivals = rivals.into_iter().collect());
}

/// `bootc upgrade --apply` of a timer removes the lock of any staged image: while such a timer is active nothing stays
/// staged, unless the pool tolerates it. Reboot daemons among the pods are named.
#[tokio::test]
async fn nothing_is_staged_beside_a_rival() -> Result<()> {
    scenario(lively(2), async |cluster| {
        let kured = json!({
            "metadata": { "name": "kured-x", "namespace": "default", "labels": { "name": "kured" } },
            "spec": { "nodeName": "node2", "containers": [{ "name": "kured", "image": "kured" }] },
        });
        let pods = kube::Api::<Pod>::namespaced(cluster.client(), "default");
        pods.create(&PostParams::default(), &serde_json::from_value(kured)?)
            .await?;
        rival(cluster, 1, true);
        let v2 = cluster.publish("2.0.0").await?;
        let v2_digest = v2.digest.to_string();
        let rollout = json!({ "maxUnavailable": 2, "maxStaging": 2, "paused": true });
        cluster.pool("workers", &v2.reference, rollout).await?;
        until_degraded(cluster, "node1", "RivalUpdater", "systemctl disable --now").await?;
        until_degraded(cluster, "node2", "RivalUpdater", "kured (pod default/kured-x)").await?;
        until_so(cluster, "node2 has staged", || {
            cluster.host(2).facts().staged.as_ref() == Some(&v2_digest)
        })
        .await?;
        // A rival that starts later.
        let asked = cluster.bootc_nodes().get("node1").await?.metadata.generation;
        rival(cluster, 2, true);
        until_so(cluster, "node2 has removed its staged image", || {
            cluster.host(2).facts().staged.is_none()
        })
        .await?;
        ensure!(cluster.host(1).facts().staged.is_none(), "staged beside a rival");
        tokio::time::sleep(Duration::from_secs(3)).await;
        // The controller must not give and revoke a permit again and again.
        let asked_now = cluster.bootc_nodes().get("node1").await?.metadata.generation;
        let writes = asked_now.unwrap_or_default() - asked.unwrap_or_default();
        ensure!(writes <= 2, "{writes} writes of a BootcNode that only waits");
        // The pod has no owner, so its drain needs force.
        let rollout = json!({ "maxUnavailable": 2, "maxStaging": 2, "paused": false });
        let names = ["bootc-fetch-apply-updates.timer", "kured"];
        let tolerate = json!({ "toleratedUpdaters": names, "rollout": rollout, "drain": { "force": true } });
        cluster.patch_pool("workers", tolerate).await?;
        cluster.until_all_run(&v2, LONG).await?;

        let v3 = cluster.publish("3.0.0").await?;
        let change = json!({ "toleratedUpdaters": null, "image": { "ref": v3.reference } });
        cluster.patch_pool("workers", change).await?;
        for node in ["node1", "node2"] {
            until_degraded(cluster, node, "RivalUpdater", "no image is staged").await?;
        }
        rival(cluster, 1, false);
        rival(cluster, 2, false);
        cluster.until_all_run(&v3, LONG).await
    })
    .await
}

/// A queued rollback keeps the node from being rebooted, and from being reported as updated.
#[tokio::test]
async fn a_queued_rollback_is_heeded() -> Result<()> {
    scenario(lively(1), async |cluster| {
        let host = cluster.host(1);
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&v2, LONG).await?;
        host.roll_back_behind_the_agent()?;
        until_degraded(cluster, "node1", "RollbackQueued", "bootc rollback").await?;
        let v3 = set_to(cluster, "3.0.0").await?;
        soon(cluster, "3.0.0 is staged", || async {
            Ok(host.facts().staged.as_ref() == Some(&v3.digest.to_string()))
        })
        .await?;
        look_again(host).await;
        ensure!(
            host.facts().version == "2.0.0" && cluster.held().await?.is_empty(),
            "no turn begins while a rollback is queued"
        );
        // Undoing the rollback drops the staged image, which is then staged again.
        host.roll_back_behind_the_agent()?;
        cluster.until_all_run(&v3, LONG).await
    })
    .await
}

/// If logind hangs, the agent still reports. A node whose reboot is no longer wanted is given back.
#[tokio::test]
async fn a_silent_host_is_reported() -> Result<()> {
    scenario(lively(1), async |cluster| {
        let host = cluster.host(1);
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&v2, LONG).await?;
        cluster.deploy("web", 1).await?;
        cluster.budget("web", 1).await?;
        let v3 = set_to(cluster, "3.0.0").await?;
        some_in(cluster, "Draining").await?;
        host.settings(|s| s.logind_silent = true);
        cluster.pause("workers", true).await?;
        // Until the silence is reported, every pass waits for an answer twice, for ten seconds each.
        cluster
            .until("the berth is given back", LONG * 3, async || {
                Ok(cluster.held().await?.is_empty())
            })
            .await?;
        until_degraded(cluster, "node1", "HostUnreachable", "logind").await?;
        signs_of_life(cluster, "node1", 1).await?;
        // An agent that is asked to end in the middle of a pass does not wait for the answer that never comes.
        let agents = host.agent_pids();
        for pid in &agents {
            kill(Pid::from_raw(i32::try_from(*pid)?), Signal::SIGTERM)?;
        }
        cluster
            .until("the agent has ended", Duration::from_secs(6), async || {
                Ok(host.agent_pids().iter().all(|pid| !agents.contains(pid)))
            })
            .await?;
        host.settings(|s| s.logind_silent = false);
        cluster.remove_budget("web").await?;
        cluster.pause("workers", false).await?;
        cluster.until_all_run(&v3, LONG).await
    })
    .await
}

/// If the disk is full or read-only, an agent cannot record its attempts: it takes no berth, and says why.
#[tokio::test]
async fn a_host_without_a_memory_takes_no_berth() -> Result<()> {
    scenario(lively(2), async |cluster| {
        let states = [1, 2].map(|n| cluster.host(n).root().join("var/lib/berth"));
        for n in [1, 2] {
            cluster.host(n).stop_agent().await;
            std::fs::remove_dir_all(&states[n - 1]).ok();
        }
        // A full disk: each write fails, also to the agent's own new file.
        std::fs::create_dir_all(&states[0])?;
        std::os::unix::fs::symlink("/dev/full", states[0].join("state.tmp"))?;
        // A read-only disk, for root as well.
        std::os::unix::fs::symlink("/proc/sys/kernel", &states[1])?;
        for n in [1, 2] {
            cluster.host(n).start_agent();
        }
        let v2 = roll_to(cluster, "2.0.0", 2).await?;
        until_degraded(cluster, "node1", "MemoryUnwritable", "No space left").await?;
        until_degraded(cluster, "node2", "MemoryUnwritable", "/var/lib/berth").await?;
        look_again(cluster.host(1)).await;
        let running = cluster.running(&v2);
        ensure!(running == 0 && cluster.held().await?.is_empty(), "no berth is taken");
        std::fs::remove_file(states[0].join("state.tmp"))?;
        std::fs::remove_file(&states[1])?;
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}
