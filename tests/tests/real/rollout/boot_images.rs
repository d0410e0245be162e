//! Machines installed from images of different age: when their pool refuses an image, and what an admin can do about
//! it. The installer's notes are files on the hosts; the limits are labels of images in the registry.

use berth_api::boot_image::BootImageStatus;
use berth_api::keys;
use berth_tests::hosts::{INSTALLERS_NOTE, installers_note};

use super::*;

/// Version that the two newest machines were installed from.
const NEW: &str = "5.4.0";
/// Version that the oldest machine was installed from.
const OLD: &str = "4.1.0";
const POOL: &str = "workers";

/// Writes the installer's note on all machines. An agent reads it once, after a pool has selected its node.
pub(super) async fn leave_notes(rig: &Rig) -> Result<()> {
    let (oldest, _) = oldest_and_newest(rig).await?;
    for host in &rig.cluster.hosts {
        let version = if host.name() == oldest { OLD } else { NEW };
        host.write(INSTALLERS_NOTE, &installers_note(version)).await?;
    }
    Ok(())
}

pub(super) async fn scenarios(rig: &mut Rig) -> Result<()> {
    rig.scenario(the_newest_machines_count_and_the_oldest_is_named).await?;
    rig.scenario(a_refused_image_is_acknowledged).await?;
    rig.scenario(a_pool_that_is_never_scaled_opts_out).await
}

/// Names of the machine that joined first and of the machine that joined last.
async fn oldest_and_newest(rig: &Rig) -> Result<(String, String)> {
    let nodes = rig.cluster.nodes().list(&Default::default()).await?.items;
    let joined = nodes
        .into_iter()
        .filter_map(|node| Some((node.metadata.creation_timestamp?.0, node.metadata.name?)));
    let mut joined: Vec<_> = joined.collect();
    joined.sort_unstable();
    let names = (joined.first().context("no Node")?, joined.last().context("no Node")?);
    Ok((names.0.1.clone(), names.1.1.clone()))
}

async fn boot_image(rig: &Rig) -> Result<BootImageStatus> {
    let status = rig.cluster.pool_status(POOL).await?;
    status.boot_image.context("the pool says nothing of boot images")
}

async fn rule(rig: &Rig, rules: serde_json::Value) -> Result<()> {
    rig.cluster.patch_pool(POOL, json!({ "bootImage": rules })).await
}

async fn says(rig: &Rig, status: &str, reason: &str, words: &str) -> Result<()> {
    let said = ("BootImageSkew", status, reason, words);
    rig.cluster.until_says(POOL, said, SOON).await
}

/// Pushes an image for machines that were installed from this version or newer.
async fn demanding(rig: &Rig, version: &str, minimum: &str) -> Result<Published> {
    let labels = [(keys::LABEL_MIN_BOOT_IMAGE, minimum)];
    rig.cluster.publish_labelled(version, &labels).await
}

/// The minimum in the pool's spec triggers the check, even without a new image.
async fn the_newest_machines_count_and_the_oldest_is_named(rig: &mut Rig) -> Result<()> {
    let (oldest, newest) = oldest_and_newest(rig).await?;
    rule(rig, json!({ "minimumVersion": "5.2" })).await?;
    says(rig, "False", "WithinLimit", "").await?;
    let found = boot_image(rig).await?;
    ensure!(
        found.node.as_ref() == Some(&newest) && found.version.as_deref() == Some(NEW),
        "the two newest machines outvote the oldest: {found:?}"
    );
    ensure!(found.too_old == 1 && found.too_old_nodes == [oldest], "{found:?}");
    for host in &rig.cluster.hosts {
        let status = rig.cluster.bootc_nodes().get(host.name()).await?.status;
        let note = status.and_then(|status| status.boot_image).unwrap_or_default();
        ensure!(
            note.source == INSTALLERS_NOTE && note.error.is_none() && note.provisioned_time.is_some(),
            "{}: {note:?}",
            host.name()
        );
    }
    Ok(())
}

/// Checks that a refused image changes neither the pool's target nor any node.
async fn is_untouched(rig: &Rig, before: &BTreeMap<String, usize>) -> Result<()> {
    let target = rig.cluster.pool_status(POOL).await?.target;
    ensure!(
        target.as_ref().is_some_and(|target| target.digest == rig.now.digest),
        "the refused image was published: {target:?}"
    );
    for host in &rig.cluster.hosts {
        let node = rig.cluster.bootc_nodes().get(host.name()).await?;
        let asked = node.spec.image.map(|image| image.digest);
        ensure!(asked == Some(rig.now.digest.clone()), "{}: {asked:?}", host.name());
        let staged = staged(host).await?;
        ensure!(staged.is_none(), "{}: {staged:?}", host.name());
    }
    ensure!(rig.cluster.boots() == *before, "a refused image reboots nothing");
    Ok(())
}

async fn a_refused_image_is_acknowledged(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let why = format!(
        "{}, the median of the three newest machines, was installed from {NEW}, which is older than the minimum 5.5",
        oldest_and_newest(rig).await?.1
    );
    let image = demanding(rig, "6.1.0", "5.5").await?;
    rig.desire(&image, 3).await?;
    says(rig, "True", "NextImageRefused", &why).await?;
    let resolved = ("ImageResolved", "False", "BootImageSkew", why.as_str());
    rig.cluster.until_says(POOL, resolved, SOON).await?;
    is_untouched(rig, &before).await?;
    // From now on machines are installed from a newer image.
    let manual = json!({ "version": "5.6" });
    rule(rig, json!({ "source": "Manual", "manual": manual })).await?;
    rig.until_all_run(&image, &before).await?;
    says(rig, "False", "WithinLimit", "").await?;
    let found = boot_image(rig).await?;
    ensure!(
        found.version.as_deref() == Some("5.6") && found.recorded_time.is_some() && found.node.is_none(),
        "{found:?}"
    );
    ensure!(found.too_old == 3, "none of them could join now: {found:?}");
    Ok(())
}

/// The pool is paused, because the test only needs the image to be staged on all nodes.
async fn a_pool_that_is_never_scaled_opts_out(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let image = demanding(rig, "6.2.0", "5.9").await?;
    let paused = json!({ "paused": true, "maxStaging": "100%" });
    rig.cluster.pool(POOL, &image.reference, paused).await?;
    let why = "a machine with the boot image recorded in bootImage.manual was installed from 5.6, which is older than the \
               minimum 5.9";
    says(rig, "True", "NextImageRefused", why).await?;
    is_untouched(rig, &before).await?;
    rule(rig, json!({ "enforcement": "Disabled" })).await?;
    says(rig, "False", "Disabled", "not checked").await?;
    for host in &rig.cluster.hosts {
        rig.until_staged(host, &image).await?;
    }
    ensure!(rig.cluster.boots() == before, "a paused pool applies no image");
    let found = boot_image(rig).await.unwrap_or_default();
    ensure!(found.too_old == 0 && found.too_old_nodes.is_empty(), "{found:?}");
    Ok(())
}
