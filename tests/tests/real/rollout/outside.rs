//! Hosts that change their image without Berth: a boot that falls back, and a rollback by hand.

use super::*;

/// The boots of the new image hang. The boot loader of the first node falls back, the rollout halts, the others keep their
/// image, and the next image reaches all.
pub(super) async fn a_boot_that_falls_back(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let bad = rig.publish("9.0.0").await?;
    for host in &rig.cluster.hosts {
        host.hang(&bad.digest.to_string());
    }
    rig.desire(&bad, 1).await?;
    let halted = ("RolloutHalted", "True", "TooManyFailures", "");
    rig.cluster.until_says("workers", halted, LONG).await?;
    rig.cluster
        .until("the berth is given back", SOON, || async {
            Ok(rig.cluster.held().await?.is_empty())
        })
        .await?;
    let boots = rig.cluster.boots();
    let rebooted: Vec<_> = boots
        .keys()
        .filter(|host| boots.get(*host) != before.get(*host))
        .collect();
    let [name] = rebooted.as_slice() else {
        anyhow::bail!("one host rebooted: {before:?}, then {boots:?}");
    };
    let said = (
        "NodeDegraded",
        "True",
        "FellBack",
        "was finalized, but the host booted the previous",
    );
    rig.cluster.until_node_says(name, said, SOON).await?;
    ensure!(!rig.cluster.is_cordoned(name).await?, "{name} is still cordoned");
    ensure!(
        rig.cluster.running(&rig.now) == 3,
        "a host has left {}",
        rig.now.reference
    );
    let good = rig.roll_to("9.1.0", 2).await?;
    rig.until_all_run(&good, &boots).await
}

/// An admin rolls a host back without a berth. Berth reports the rollback, and leaves the node alone until another
/// image is desired.
pub(super) async fn a_rollback_by_hand(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let host = rig.cluster.host(1);
    let boot = host.boot().context("the host is down")?;
    rig.cluster.excuse_swap(host.name());
    host.exec(&["bootc", "rollback"]).await?;
    host.reboot_now().await?;
    let back = host.wait_boot(Some(&boot.boot_id), SOON).await?;
    ensure!(back.digest != boot.digest, "{} runs again", back.version);
    let said = ("NodeDegraded", "True", "RolledBackExternally", "is not tried again");
    rig.cluster.until_node_says(host.name(), said, SOON).await?;
    ensure!(staged(host).await?.is_none(), "the image is staged again");
    ensure!(rig.cluster.held().await?.is_empty(), "a node is disturbed");
    let mut boots = rig.cluster.boots();
    *boots.entry(host.name().to_owned()).or_default() -= 1;
    ensure!(boots == before, "more hosts than that one rebooted: {before:?}");
    let before = rig.cluster.boots();
    let next = rig.roll_to("9.2.0", 2).await?;
    rig.until_all_run(&next, &before).await
}
