//! Scenarios with rpm-ostree as the backend: systemd and D-Bus start a stand-in for its daemon, over the hosts' own
//! deployments. This file adds the scenarios that only this backend has.

use futures::future::try_join_all;

use berth_tests::hosts::real::{FromOutside, give_rpm_ostree};

use super::*;

/// Directory of the copy of ostree and of the wrapper script. It is in /var, so updates keep it.
const OSTREE: &str = "/var/lib/old-ostree";
/// An ostree that can lock but not unlock.
const OLD_OSTREE: &str = r#"#!/bin/sh
case "$*" in
    *lock-finalization*--help*) /var/lib/old-ostree/ostree "$@" | grep -v -e --unlock ;;
    *lock-finalization*--unlock*) echo "error: Unknown option --unlock" >&2; exit 1 ;;
    *) exec /var/lib/old-ostree/ostree "$@" ;;
esac
"#;

pub(super) async fn scenarios(rig: &mut Rig) -> Result<()> {
    rig.series = "-rpm-ostree";
    rig.scenario(rpm_ostree_takes_over).await?;
    rig.scenario(an_agent_killed_mid_pull_adopts_it).await?;
    rig.scenario(an_unrelated_reboot_applies_nothing).await
}

/// Installs rpm-ostree on all hosts, and sets it as the pool's backend. Returns when all nodes report this backend.
pub(super) async fn put_on(rig: &mut Rig) -> Result<()> {
    try_join_all(rig.cluster.hosts.iter().map(give_rpm_ostree)).await?;
    // The hosts already run this image: nothing has to be pulled, and bootc removes the image that it may have staged.
    rig.desire(&rig.now, 1).await?;
    let asked = json!({ "host": { "backend": "RpmOstree" } });
    rig.cluster.patch_pool("workers", asked).await?;
    rig.backend = Backend::RpmOstree;
    rig.cluster
        .until("all nodes have rpm-ostree, as the pool asks", SOON, || async {
            for host in &rig.cluster.hosts {
                if !has_taken_over(rig, host).await? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
}

async fn has_taken_over(rig: &Rig, host: &RealHost) -> Result<bool> {
    let status = rig.cluster.bootc_nodes().get(host.name()).await?.status;
    let backend = status.and_then(|status| status.backend).unwrap_or_default();
    Ok(backend.name == Backend::RpmOstree && backend.reason == "AskedByPool")
}

/// Replaces the command `ostree` of a host by an older version, until the host reboots. The stand-in for rpm-ostree's
/// daemon keeps the newer command, because the real daemon uses a library instead.
async fn forget_unlock(host: &RealHost) -> Result<()> {
    let (copy, script) = (format!("{OSTREE}/ostree"), format!("{OSTREE}/without-unlock"));
    host.exec(&["mkdir", "-p", OSTREE]).await?;
    host.exec(&["cp", "/usr/bin/ostree", &copy]).await?;
    host.write(&script, OLD_OSTREE).await?;
    host.exec(&["chmod", "755", &script]).await?;
    let drop_in = "/run/systemd/system/rpm-ostreed.service.d";
    host.exec(&["mkdir", "-p", drop_in]).await?;
    let library = format!("[Service]\nEnvironment=PATH={OSTREE}:/usr/sbin:/usr/bin\n");
    host.write(&format!("{drop_in}/library.conf"), &library).await?;
    host.exec(&["systemctl", "daemon-reload"]).await?;
    host.exec(&["systemctl", "stop", "rpm-ostreed.service"]).await?;
    host.exec(&["mount", "--bind", &script, "/usr/bin/ostree"])
        .await
        .map(drop)
}

/// A rollout of one node at a time. On one host, an admin has installed a package. On another host, only rpm-ostree can
/// unlock.
async fn rpm_ostree_takes_over(rig: &mut Rig) -> Result<()> {
    put_on(rig).await?;
    let (finalized, layered) = (rig.cluster.host(2).clone(), rig.cluster.host(3).clone());
    forget_unlock(&finalized).await?;
    FromOutside::of(&layered)?.client().await?.install(&["htop"]).await?;
    let before = rig.cluster.boots();
    let image = rig.roll_to("8.0.0", 1).await?;
    rig.until_all_run(&image, &before).await?;
    for host in &rig.cluster.hosts {
        let name = host.name();
        ensure!(has_taken_over(rig, host).await?, "{name} was updated by rpm-ostree");
        let did = host.journal("rpm-ostreed.service").await?;
        ensure!(did.contains("Rebase"), "{name} pulled by rpm-ostree: {did}");
        ensure!(
            did.contains("FinalizeDeployment") == (name == finalized.name()),
            "{name}: rpm-ostree unlocks and reboots where ostree cannot unlock: {did}"
        );
    }
    let package = layered.read("/usr/lib/layered-packages/htop").await?;
    ensure!(package == "htop\n", "{package}");
    let status = rig.cluster.bootc_nodes().get(layered.name()).await?.status;
    let backend = status.and_then(|status| status.backend).unwrap_or_default();
    ensure!(backend.layered_packages == ["htop"], "{backend:?}");
    Ok(())
}
