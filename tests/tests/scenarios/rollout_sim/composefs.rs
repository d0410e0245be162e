//! Hosts with bootc's composefs backend, where only bootc itself can lock an image, and only newer versions of it do.
//! Unless a scenario says otherwise, the hosts have the newest release that the stand-in plays.

use berth_tests::bootc::cli::LATEST;

use super::*;

const QUESTIONS: &[&str] = &[
    "/usr/bin/bootc --version",
    "/usr/bin/bootc switch --help",
    "/usr/bin/bootc status --format=json --format-version=1",
];

/// Part of the script that reads the installer's note.
const NOTE: &str = "/sysroot/.bootc-aleph.json";

fn composefs_hosts(hosts: usize) -> ClusterOptions {
    ClusterOptions {
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..hosts_with(hosts, |s| {
            s.composefs = true;
            s.bootc_version = LATEST.to_owned();
        })
    }
}

/// Waits until a node reports that its host is not supported, with this text.
async fn until_refused(cluster: &Cluster, node: &str, words: &str) -> Result<()> {
    until_degraded(cluster, node, "ComposefsNotSupported", words).await
}

fn is_only_asked(host: &SimHost) -> Result<()> {
    let commands = host.commands();
    ensure!(!commands.is_empty(), "the host was queried");
    let other = commands
        .iter()
        .find(|command| !QUESTIONS.contains(&command.as_str()) && !command.contains(NOTE));
    ensure!(other.is_none(), "{other:?} was run on {}", host.name());
    Ok(())
}

/// The first host's bootc lacks `switch --download-only`. The third host boots UKIs.
#[tokio::test]
async fn composefs_hosts_are_updated_by_default() -> Result<()> {
    scenario(composefs_hosts(3), async |cluster| {
        cluster.host(1).settings(|s| s.bootc_version = "1.16.9".to_owned());
        cluster.host(3).settings(|s| s.uki = true);
        let v2 = roll_with(
            cluster,
            "2.0.0",
            json!({ "paused": true, "maxUnavailable": 1, "maxStaging": 3 }),
        )
        .await?;
        until_refused(cluster, "node1", "its bootc 1.16.9 cannot lock").await?;
        until_refused(cluster, "node1", "waits for bootc 1.16.10 or newer").await?;
        for n in [2, 3] {
            cluster.until_phase(&format!("node{n}"), "Waiting").await?;
            ensure!(cluster.host(n).facts().locked, "a staged image is locked");
        }
        // An image is unlocked by others. No command of this host can lock it again.
        cluster.host(2).unlock_behind_the_agent()?;
        until_so(cluster, "the image is removed, and staged again", || {
            cluster.host(2).facts().locked
        })
        .await?;
        cluster.unrelated_reboot(cluster.host(3)).await?;
        ensure!(cluster.host(3).facts().version == "1.0.0", "the reboot applied nothing");
        cluster.pause("workers", false).await?;
        let newer = [cluster.host(2), cluster.host(3)];
        cluster.until_run(&v2, &newer, LONG).await?;
        // The withdrawn staged image is removed by bootc.
        let v3 = cluster.publish("3.0.0").await?;
        let next = json!({ "image": { "ref": v3.reference }, "rollout": { "paused": true } });
        cluster.patch_pool("workers", next).await?;
        until_so(cluster, "3.0.0 is staged", || {
            newer.iter().all(|h| h.facts().staged.is_some())
        })
        .await?;
        cluster.set_image("workers", &v2.reference).await?;
        until_so(cluster, "3.0.0 is removed", || {
            newer.iter().all(|h| h.facts().staged.is_none())
        })
        .await?;
        // The rollback image cannot be staged again, and is not removed for that.
        set_to(cluster, "1.0.0").await?;
        until_degraded(cluster, "node2", "SameDeployment", "run `bootc rollback` on the host").await?;
        is_only_asked(cluster.host(1))?;
        for host in newer {
            let commands = host.commands();
            let of_ostree = ["/usr/bin/ostree ", "/usr/bin/ln "];
            let foreign = commands.iter().find(|c| of_ostree.iter().any(|o| c.starts_with(o)));
            ensure!(foreign.is_none(), "no command of ostree runs there: {foreign:?}");
            let deleted = commands
                .iter()
                .any(|c| c.starts_with("/usr/bin/bootc delete-deployment "));
            ensure!(deleted, "the staged image is removed by its name: {commands:#?}");
        }
        Ok(())
    })
    .await
}

/// bootc 1.16.10 can lock an image, but mistakes the next boot of UKIs. The agent also gets the flag that enabled
/// composefs hosts in earlier releases, and ignores it.
#[tokio::test]
async fn a_host_that_reports_the_wrong_next_boot_is_left_alone() -> Result<()> {
    let options = ClusterOptions {
        agent_args: vec!["--heartbeat=10".to_owned(), "--experimental-composefs".to_owned()],
        ..hosts_with(2, |s| s.bootc_version = "1.16.10".to_owned())
    };
    scenario(options, async |cluster| {
        let host = cluster.host(1);
        host.settings(|s| (s.composefs, s.uki) = (true, true));
        let own = cluster.publish("9.0.0").await?;
        host.stage_behind_the_agent(&own.pinned, &own.digest.to_string());
        let v2 = roll_with(cluster, "2.0.0", json!({ "maxUnavailable": 1, "maxStaging": 1 })).await?;
        until_refused(cluster, "node1", "waits for bootc 1.16.11 or newer").await?;
        // Its neighbor has the same bootc but ostree deployments, and is updated.
        cluster.until_run(&v2, &[cluster.host(2)], LONG).await?;
        signs_of_life(cluster, "node1", 2).await?;
        is_only_asked(host)?;
        let facts = host.facts();
        ensure!(
            facts.staged == Some(own.digest.to_string()) && !facts.locked,
            "the image that its admin staged stays: {facts:?}"
        );
        Ok(())
    })
    .await
}

/// The shutdown cannot finalize the image, as with an automounted `/boot` and bootc before 1.17.0. The old image runs
/// again, the turn says where to look, and the next turn applies the image.
#[tokio::test]
async fn a_failed_finalization_on_composefs_is_repeated() -> Result<()> {
    scenario(composefs_hosts(1), async |cluster| {
        let host = cluster.host(1);
        host.settings(|s| s.finalization_failures = 1);
        let v2 = roll_with(cluster, "2.0.0", json!({ "maxUnavailable": 1 })).await?;
        until_degraded(
            cluster,
            "node1",
            "NotApplied",
            "journalctl -b -1 -u bootc-finalize-staged",
        )
        .await?;
        cluster.until_run(&v2, &[host], LONG).await?;
        Ok(())
    })
    .await
}

/// The new image has an older bootc, which cannot lock. The boot is proven nevertheless, and the berth is given back.
/// On another host with this bootc, the staged image stays locked, and is removed when the pool is deleted.
#[tokio::test]
async fn a_composefs_turn_ends_with_an_older_bootc() -> Result<()> {
    scenario(composefs_hosts(2), async |cluster| {
        let hosts = [cluster.host(1), cluster.host(2)];
        let v2 = roll_with(
            cluster,
            "2.0.0",
            json!({ "paused": true, "maxUnavailable": 1, "maxStaging": 2 }),
        )
        .await?;
        for node in ["node1", "node2"] {
            cluster.until_phase(node, "Waiting").await?;
        }
        // An agent that keeps running still has the version from its start.
        cluster.settings(|s| s.bootc_version = "1.16.9".to_owned());
        hosts[1].kill_agent();
        until_refused(cluster, "node2", "its bootc 1.16.9 cannot lock").await?;
        let facts = hosts[1].facts();
        ensure!(facts.staged.is_some() && facts.locked, "unlocked: {facts:?}");
        cluster.pause("workers", false).await?;
        cluster.until_run(&v2, &hosts[..1], LONG).await?;
        until_refused(cluster, "node1", "its bootc 1.16.9 cannot lock").await?;
        cluster.until_phase("node1", "Updated").await?;
        cluster.pools().delete("workers", &DeleteParams::default()).await?;
        cluster.until_released("node2").await?;
        ensure!(hosts[1].facts().staged.is_none(), "nothing is left staged");
        Ok(())
    })
    .await
}
