//! Soft reboots: systemd starts the userspace of the new deployment, and the kernel stays. Debian's ostree cannot prepare
//! one yet, so a wrapper around it does.

use futures::future::{join_all, try_join_all};

use super::*;

/// Directory of the copy of ostree and of the scripts. It is in /var, so updates keep it.
const DIRECTORY: &str = "/var/lib/soft-ostree";
/// `ostree`, with the command that prepares a soft reboot.
const WRAPPER: &str = r#"#!/bin/sh
case "$*" in
    'admin prepare-soft-reboot 0') exec sh /var/lib/soft-ostree/prepare ;;
    'admin prepare-soft-reboot --reset') umount -R /run/nextroot; exec rm -f /run/ostree/nextroot-booted ;;
    *) exec /var/lib/soft-ostree/ostree "$@" ;;
esac
"#;
/// Finalizes the staged deployment, and mounts it where systemd looks for the next root.
const PREPARE: &str = r#"set -eu
systemctl stop ostree-finalize-staged.service ostree-finalize-staged-hold.service
systemctl reset-failed ostree-finalize-staged-hold.service || true
set -- $(/var/lib/soft-ostree/ostree admin status | sed -n '1s/^. //p')
new=/sysroot/ostree/deploy/$1/deploy/$2
mkdir -p /run/nextroot
mount --bind "$new" /run/nextroot
# Otherwise an unmount of another mount of the deployment would reach this one.
mount --make-rprivate /run/nextroot
mount --bind "$new/usr" /run/nextroot/usr
mount -o remount,bind,ro /run/nextroot/usr
for directory in sysroot boot var; do mount --bind "/$directory" "/run/nextroot/$directory"; done
touch /run/ostree/nextroot-booted
"#;
/// Makes the stand-in for bootc report staged deployments as capable of a soft reboot.
const CAPABLE: &str = "/var/lib/standin-bootc.soft-reboot";

/// For a good image, all hosts restart only their userspace. A bad image is undone by a full reboot.
pub(super) async fn a_soft_reboot_and_its_rollback(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    try_join_all(rig.cluster.hosts.iter().map(prepare)).await?;
    let policy = json!({ "rollout": { "maxUnavailable": 1, "maxStaging": "100%", "rebootPolicy": "AllowSoftReboot" } });
    let image = rig.publish("9.0.0").await?;
    rig.desire(&image, 1).await?;
    rig.cluster.patch_pool("workers", policy.clone()).await?;
    let watches = join_all(rig.cluster.hosts.iter().map(|host| notice(host, &image, 1)));
    let (noticed, updated) = tokio::join!(watches, rig.cluster.until_all_run(&image, LONG));
    updated?;
    for noticed in noticed {
        noticed?;
    }
    for (host, boots) in rig.cluster.boots() {
        ensure!(
            before.get(&host).is_some_and(|old| old + 1 == boots),
            "{host} booted {boots} times"
        );
    }
    for host in &rig.cluster.hosts {
        let updates = rig.cluster.node_status(host.name()).await?.timeline.updates;
        let reboots: Vec<_> = updates.iter().filter_map(|update| update.measured().reboot).collect();
        println!(
            "{}: seconds of its reboots, the soft one first: {reboots:?}",
            host.name()
        );
    }
    rig.cluster.judge()?;

    let before = rig.cluster.boots();
    try_join_all(rig.cluster.hosts.iter().map(prepare)).await?;
    let version = format!("9.1.0{}", rig.series);
    let bad = rig.cluster.publish_checked(&version, "exit 1").await?;
    rig.desire(&bad, 1).await?;
    let health = json!({ "health": { "deadline": "45s" } });
    rig.cluster.patch_pool("workers", policy).await?;
    rig.cluster.patch_pool("workers", health).await?;
    let host = rig.some_in("Rebooting").await?;
    notice(host, &bad, 2).await?;
    let said = ("NodeDegraded", "True", "DigestFailed", "10-storage");
    rig.cluster.until_node_says(host.name(), said, LONG).await?;
    let boot = host.boot().context("up")?;
    ensure!(
        !boot.boot_id.contains(".soft"),
        "the rollback kept the kernel: {boot:?}"
    );
    for (name, boots) in rig.cluster.boots() {
        let more = if name == host.name() { 2 } else { 0 };
        ensure!(
            before.get(&name).is_some_and(|old| old + more == boots),
            "{name} booted {boots} times"
        );
    }
    for host in &rig.cluster.hosts {
        host.exec(&["rm", "-f", CAPABLE]).await?;
    }
    let boots = rig.cluster.boots();
    let good = rig.roll_to("9.2.0", 2).await?;
    rig.until_all_run(&good, &boots).await?;
    rig.cluster
        .patch_pool(
            "workers",
            json!({ "health": null, "rollout": { "rebootPolicy": null } }),
        )
        .await
}

/// Installs the wrapper on a host. It stays until the host boots another root.
async fn prepare(host: &RealHost) -> Result<()> {
    host.exec(&["mkdir", "-p", DIRECTORY]).await?;
    let (copy, wrapper) = (format!("{DIRECTORY}/ostree"), format!("{DIRECTORY}/wrapper"));
    host.exec(&["cp", "/usr/bin/ostree", &copy]).await?;
    host.write(&wrapper, WRAPPER).await?;
    host.write(&format!("{DIRECTORY}/prepare"), PREPARE).await?;
    host.write(CAPABLE, "").await?;
    host.exec(&["chmod", "755", &wrapper]).await?;
    host.exec(&["mount", "--bind", &wrapper, "/usr/bin/ostree"])
        .await
        .map(drop)
}

/// Waits until systemd counts this number of soft reboots, and records the boot, because the harness notices only full
/// boots.
async fn notice(host: &RealHost, image: &Published, count: u32) -> Result<()> {
    let count_of = [
        "busctl",
        "get-property",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        "SoftRebootsCount",
    ];
    let begin = Instant::now();
    loop {
        // The bus is away for a moment.
        if let Ok(text) = host.exec(&count_of).await
            && text.trim() == format!("u {count}")
        {
            break;
        }
        ensure!(begin.elapsed() < LONG, "{} did not soft-reboot", host.name());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let version = image.reference.rsplit(':').next().unwrap_or_default();
    host.note_soft_boot(count, &image.digest.to_string(), version);
    Ok(())
}
