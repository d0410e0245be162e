//! Machines installed from an image that is too old: when their pool refuses an image, and how a first boot reports it
//! to the cluster. The scenarios are parts of `images`.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_api::fleet::{self, BootcFleet};
use berth_tests::cluster::{LONG, Part, Published, has_condition};
use berth_tests::controlplane::Bound;
use berth_tests::hosts::sim::SimHost;
use berth_tests::hosts::{INSTALLERS_NOTE, installers_note};
use berth_tests::programs;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::images::{begin, berth};
use crate::said::{self, Said};

fn installed_from(host: &SimHost, version: &str) -> Result<()> {
    let note = host.root().join(INSTALLERS_NOTE.trim_start_matches('/'));
    fs::create_dir_all(note.parent().context("a file without a directory")?)?;
    fs::write(note, installers_note(version))?;
    Ok(())
}

/// Moves the pool's tag to an image for machines installed from `minimum` or newer, and polls it. Returns image and
/// output.
async fn demanding(part: &Part<'_>, version: &str, minimum: &str) -> Result<(Published, Said)> {
    let version = format!("{version}-{}", part.name);
    let labels = [("berth.dev/min-boot-image", minimum)];
    let image = part.cluster.move_tag_to_labelled(&part.name, &version, &labels).await?;
    Ok((image, berth(part, &["poll"]).await?))
}

async fn boot_image(part: &Part<'_>, rules: Value) -> Result<()> {
    part.patch(json!({ "bootImage": rules })).await
}

/// An old installer's note, an image that requires a newer one, and the remedies of an admin.
pub async fn an_image_for_newer_boot_images_is_refused(part: &Part<'_>) -> Result<()> {
    installed_from(part.host(1), "9.0.1")?;
    let provisioned = "2021-01-25T15:17:13Z";
    let result = json!({ "provisioningBootID": "b", "provisioningDate": provisioned });
    fs::write(
        part.host(1).root().join("etc/.ignition-result.json"),
        format!("{result:#}\n"),
    )?;
    let v1 = begin(part).await?;
    part.soon("the agent reports the boot image", || async {
        let status = part.node_status(part.node(1)).await?;
        Ok(status.boot_image.is_some_and(|image| {
            let time = image.provisioned_time.map(|time| time.0.to_string());
            image.version.as_deref() == Some("9.0.1") && time.as_deref() == Some(provisioned) && image.error.is_none()
        }))
    })
    .await?;
    part.until_false("BootImageSkew", "NoLimit", "").await?;
    let labels = [("berth.dev/min-boot-image", "9.2")];
    let v2 = part
        .cluster
        .move_tag_to_labelled(&part.name, "10.1.0-aged-machine", &labels)
        .await?;
    let why = "was installed from 9.0.1, which is older than the minimum 9.2";
    berth(part, &["poll"]).await?.says(&[why])?;
    part.until_true("BootImageSkew", "NextImageRefused", why).await?;
    part.until_true("ImageResolved", "BootImageSkew", "is not adopted")
        .await?;
    let closed = "the next image is refused (BootImageSkew)";
    berth(part, &["status", "--preview"]).await?.says(&[closed, why])?;
    let target = part.status().await?.target.context("there is no target")?;
    ensure!(target.digest == v1.digest, "the target is {target:?}");
    // From now on machines are installed from a newer image.
    let record = json!({ "source": "Manual", "manual": { "version": "9.4" } });
    part.patch(json!({ "bootImage": record })).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_false("BootImageSkew", "WithinLimit", "").await?;
    let boot_image = part.status().await?.boot_image.context("there is no boot image")?;
    ensure!(
        boot_image.version.as_deref() == Some("9.4")
            && boot_image.recorded_time.is_some()
            && boot_image.too_old_nodes.len() == 1,
        "{boot_image:?}"
    );
    Ok(())
}

/// The boot image of the newest machine counts, even if this machine is deleted or silent. The older machine is named.
/// The admin may choose a warning instead, or disable the check.
pub async fn machines_of_two_boot_images(part: &Part<'_>) -> Result<()> {
    let (old, new) = (part.host(1), part.host(2));
    installed_from(old, "9.0.1")?;
    installed_from(new, "9.4")?;
    let v1 = begin(part).await?;
    let (v2, _) = demanding(part, "10.1.0", "9.2").await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_false("BootImageSkew", "WithinLimit", "").await?;
    let status = part.status().await?.boot_image.context("there is no boot image")?;
    ensure!(
        status.node.as_deref() == Some(new.name()) && status.version.as_deref() == Some("9.4"),
        "the newest machine counts: {status:?}"
    );
    ensure!(
        status.too_old == 1 && status.too_old_nodes == [old.name()],
        "the older one is named: {status:?}"
    );

    let (v3, said) = demanding(part, "10.2.0", "9.5").await?;
    let why = format!("the newest machine, {}, was installed from 9.4", new.name());
    said.says(&[&why])?;
    part.until_true("BootImageSkew", "NextImageRefused", &why).await?;
    // The newest machine is deleted. The other one does not count for the next machine.
    part.leave(new).await?;
    let gone = format!("the newest machine so far, {} (now gone or silent)", new.name());
    part.until_true("BootImageSkew", "NextImageRefused", &gone).await?;
    berth(part, &["poll"]).await?.says(&[&gone])?;
    let target = part.status().await?.target.context("there is no target")?;
    ensure!(
        target.digest == v2.digest && target.digest != v1.digest,
        "the refused image was published: {target:?}"
    );

    boot_image(part, json!({ "enforcement": "Warn" })).await?;
    part.until_run(&v3, &[1], LONG).await?;
    part.until_true("BootImageSkew", "BootImageTooOld", &gone).await?;
    boot_image(part, json!({ "enforcement": "Disabled" })).await?;
    part.until_false("BootImageSkew", "Disabled", "not checked").await?;
    let (v4, _) = demanding(part, "10.3.0", "9.6").await?;
    part.until_run(&v4, &[1], LONG).await?;
    let status = part.status().await?.boot_image.unwrap_or_default();
    ensure!(status.too_old == 0 && status.too_old_nodes.is_empty(), "{status:?}");
    Ok(())
}

/// A machine that reports an old boot image refuses nothing, because two of the three newest machines are new enough. An
/// excluded machine does not count.
pub async fn one_of_three_machines_is_outvoted(part: &Part<'_>) -> Result<()> {
    for (n, version) in [(1, "9.4"), (2, "9.4"), (3, "0.1")] {
        installed_from(part.host(n), version)?;
    }
    begin(part).await?;
    let (v2, _) = demanding(part, "10.1.0", "9.2").await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_false("BootImageSkew", "WithinLimit", "").await?;
    let status = part.status().await?.boot_image.context("there is no boot image")?;
    ensure!(
        status.version.as_deref() == Some("9.4") && status.newest.len() == 3 && status.too_old_nodes == [part.node(3)],
        "{status:?}"
    );
    let (_, said) = demanding(part, "10.2.0", "9.5").await?;
    said.says(&["the median of the three newest machines, was installed from 9.4"])?;
    part.label(part.node(1), "berth.dev/exclude", Some("")).await?;
    part.soon("the excluded node is forgotten", || async {
        let newest = part.status().await?.boot_image.unwrap_or_default().newest;
        Ok(newest.len() == 2 && newest.iter().all(|machine| machine.node != part.node(1)))
    })
    .await
}

/// Rights that docs/boot-images.md gives the identity that writes the event.
const ROLE: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: berth-firstboot, namespace: default }
rules:
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: berth-firstboot, namespace: default }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: berth-firstboot }
subjects:
- { kind: ServiceAccount, name: berth-firstboot, namespace: default }
"#;

/// A simulated host on its first boot. Its agent does not run.
struct FirstBoot<'a> {
    part: &'a Part<'a>,
    host: &'a SimHost,
}

impl FirstBoot<'_> {
    fn configure(&self, image: &str, more: &str) -> Result<()> {
        let name = self.host.name();
        let text =
            format!("image = \"{image}\"\nkubeconfig = \"/etc/berth/kubeconfig\"\nnodeName = \"{name}\"\n{more}");
        fs::write(self.host.root().join("etc/berth/firstboot.toml"), text)?;
        Ok(())
    }

    async fn check(&self) -> Result<Said> {
        self.check_with(&[]).await
    }

    async fn check_with(&self, arguments: &[&str]) -> Result<Said> {
        let programs = tokio::task::spawn_blocking(programs::programs).await??;
        let mut command = Command::new(programs.agent);
        command.args(["firstboot", "--bus", &self.host.bus_address(), "--host-root"]);
        command.arg(self.host.root()).args(arguments);
        said::run(command).await
    }

    fn record(&self) -> Result<Value> {
        let path = self.host.root().join("var/lib/berth/firstboot.json");
        Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
    }

    /// Resets the host to a machine that has not been a node.
    fn forget(&self) -> Result<()> {
        let state = self.host.root().join("var/lib/berth");
        if state.is_symlink() {
            fs::remove_file(&state)?;
        } else if state.exists() {
            fs::remove_dir_all(&state)?;
        }
        Ok(())
    }
}

/// A first boot is refused, with an event. Then a registry hangs. Finally, the override releases the boot, and the node
/// reports this.
pub async fn a_refused_first_boot_is_reported(part: &Part<'_>) -> Result<()> {
    begin(part).await?;
    let cluster = part.cluster;
    let first = FirstBoot {
        part,
        host: part.host(1),
    };
    first.host.stop_agent().await;
    first.forget()?;
    installed_from(first.host, "9.0.1")?;
    cluster.control_plane.apply_yaml(ROLE).await?;
    let identity = cluster
        .control_plane
        .service_account_kubeconfig("default", "berth-firstboot", Bound::Nothing)
        .await?;
    fs::write(first.host.root().join("etc/berth/kubeconfig"), &identity.text)?;
    let labels = [("berth.dev/min-boot-image", "9.2")];
    let image = cluster
        .move_tag_to_labelled("first-boot-target", "10.1.0-first-boot", &labels)
        .await?;

    first.configure(&image.reference, "")?;
    first.check().await?.ends(3, &["Refused: "])?;
    an_event_is_there(&first, &image).await?;
    a_registry_that_does_not_speak(&first).await?;
    the_hosts_own_credentials_count(&first, &image).await?;
    a_change_that_outlives_the_deadline_is_undone(&first, &image).await?;
    a_change_without_a_record_is_not_begun(&first, &image).await?;

    first.forget()?;
    first.configure(&image.reference, "")?;
    first.check().await?.ends(3, &[])?;
    fs::write(first.host.root().join("etc/berth/firstboot.override"), "")?;
    first.check().await?.ends(0, &["Overridden: "])?;
    first.host.start_agent();
    the_node_reports_its_first_boot(&first).await
}

/// The event is in the API server, with machine, boot image, limit and remedy.
async fn an_event_is_there(first: &FirstBoot<'_>, image: &Published) -> Result<()> {
    let selector = "reason=FirstBootRefused";
    let events: Api<Event> = Api::all(first.part.cluster.client());
    let events = events.list(&ListParams::default().fields(selector)).await?.items;
    let name = first.host.name();
    let event = events
        .iter()
        .find(|event: &&Event| event.involved_object.name.as_deref() == Some(name))
        .context("no event")?;
    let message = event.message.as_deref().unwrap_or_default();
    let remedy = "install the machine from a newer boot image";
    for part in [name, "9.0.1", "older than the minimum 9.2", &image.reference, remedy] {
        ensure!(message.contains(part), "{part}: {event:?}");
    }
    ensure!(
        event.type_.as_deref() == Some("Warning") && event.involved_object.kind.as_deref() == Some("Node"),
        "{event:?}"
    );
    Ok(())
}

/// True if the BootcFleet names a machine that is held back.
async fn is_named(fleets: &Api<BootcFleet>, machine: &str) -> Result<bool> {
    let status = fleets.get(fleet::NAME).await?.status.unwrap_or_default();
    let words = format!("{machine}: installed from");
    let said = ("BootstrapHealthy", "False", "MachinesHeld", words.as_str());
    Ok(has_condition(&status.conditions, said) && status.held_machines.iter().any(|held| held.name == machine))
}

/// A held machine without a Node is named until it is dismissed, even without its event and under another leader.
pub async fn a_machine_that_never_joins(part: &Part<'_>) -> Result<()> {
    let client = part.cluster.client();
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client.clone(), "default");
    let event = json!({
        "metadata": { "name": "never-joined.1", "namespace": "default" },
        "type": "Warning", "reason": "FirstBootRefused", "action": "HoldKubelet",
        "note": "never-joined: installed from 9.0.1, older than the minimum 9.2",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "berth-firstboot", "reportingInstance": "never-joined",
        "regarding": { "apiVersion": "v1", "kind": "Node", "name": "never-joined", "uid": "never-joined" },
    });
    events
        .create(&PostParams::default(), &serde_json::from_value(event)?)
        .await?;
    let fleets: Api<BootcFleet> = Api::all(client.clone());
    part.until("the machine is named", LONG, || is_named(&fleets, "never-joined"))
        .await?;
    events.delete("never-joined.1", &DeleteParams::default()).await?;
    // Controller 0 leads.
    part.cluster.controllers.kill(0);
    part.cluster.controllers.start(0)?;
    crate::said::berth(part.cluster, &["dismiss", "other", "--yes"])
        .await?
        .ends(1, &["never-joined"])?;
    crate::said::berth(part.cluster, &["dismiss", "never-joined", "--yes"])
        .await?
        .well(&["is dismissed"])?;
    part.until("the machine is forgotten", LONG, || async {
        Ok(!is_named(&fleets, "never-joined").await?)
    })
    .await
}

/// A registry that accepts connections and never answers delays the boot only until the deadline.
async fn a_registry_that_does_not_speak(first: &FirstBoot<'_>) -> Result<()> {
    let mute = TcpListener::bind("127.0.0.1:0").await?;
    first.forget()?;
    first.configure(&format!("{}/os:1", mute.local_addr()?), "deadline = \"2s\"\n")?;
    let begin = Instant::now();
    first.check().await?.ends(0, &["RegistryAway: "])?;
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(30), "a deadline of 2 s took {took:?}");
    let record = first.record()?;
    ensure!(record["finished"] == true, "{record}");
    Ok(())
}

/// The registry requires credentials. The check needs the host's own auth file to compare the boot image.
async fn the_hosts_own_credentials_count(first: &FirstBoot<'_>, image: &Published) -> Result<()> {
    first.host.settings(|s| s.login = Some("dTpvbmU=".to_owned()));
    first.forget()?;
    first.configure(&image.reference, "deadline = \"8s\"\n")?;
    first
        .check()
        .await?
        .ends(0, &["ImageUnavailable: ", "unauthorized: authentication required"])?;
    let file = first.host.root().join("etc/ostree/auth.json");
    fs::create_dir_all(file.parent().context("a file without a directory")?)?;
    fs::write(
        &file,
        json!({ "auths": { "registry": { "auth": "dTpvbmU=" } } }).to_string(),
    )?;
    first.forget()?;
    first.configure(&image.reference, "")?;
    first.check().await?.ends(3, &["Refused: "])?;
    fs::remove_file(file)?;
    first.host.settings(|s| s.login = None);
    Ok(())
}

fn pulls(host: &SimHost) -> usize {
    let commands = host.commands().into_iter();
    let switches = commands.filter(|c| c.starts_with("/usr/bin/bootc switch "));
    switches.filter(|c| !c.ends_with("--help")).count()
}

/// A dry run only prints the planned change. The real change takes too long, so the pull is stopped and the boot
/// continues.
async fn a_change_that_outlives_the_deadline_is_undone(first: &FirstBoot<'_>, image: &Published) -> Result<()> {
    first.forget()?;
    let more = "deadline = \"10s\"\npivot = true\n[limit]\nminimumVersion = \"9.0\"\n";
    first.configure(&image.reference, more)?;
    let said = first.check_with(&["--dry-run"]).await?;
    let would = format!(
        "would update to {} ({}): this machine was installed from 9.0.1",
        image.reference, image.digest
    );
    said.ends(0, &[&would])?;
    ensure!(first.record().is_err(), "a dry run changes nothing");
    let (boots, pulled) = (first.part.boots(1), pulls(first.host));
    let usual = first.host.settings(|s| std::mem::replace(&mut s.pull_time, LONG));
    let begin = Instant::now();
    let said = first.check().await?;
    let took = begin.elapsed();
    first.host.settings(|s| s.pull_time = usual);
    said.ends(0, &["PivotFailed: ", "the pull did not end before the deadline"])?;
    let bounds = Duration::from_secs(10)..Duration::from_secs(60);
    ensure!(bounds.contains(&took), "a deadline of 10 s took {took:?}");
    ensure!(
        pulls(first.host) == pulled + 1,
        "the dry run pulled, or nothing did: {:?}",
        first.host.commands()
    );
    let (facts, units) = (first.host.facts(), first.host.units());
    ensure!(
        facts.staged.is_none() && !units.iter().any(|unit: &String| unit.starts_with("berth-pull-")),
        "{facts:?}, {units:?}"
    );
    let record = first.record()?;
    ensure!(
        record["finished"] == true && record.get("pivotsTo").is_none(),
        "{record}"
    );
    ensure!(first.part.boots(1) == boots, "the machine was rebooted");
    Ok(())
}

/// Without a record, an admin could not know why the target runs. If the record cannot be written, nothing is changed
/// or left staged.
async fn a_change_without_a_record_is_not_begun(first: &FirstBoot<'_>, image: &Published) -> Result<()> {
    first.forget()?;
    first.configure(&image.reference, "pivot = true\n[limit]\nminimumVersion = \"9.0\"\n")?;
    symlink("/nowhere/at/all", first.host.root().join("var/lib/berth"))?;
    let boots = first.part.boots(1);
    first.check().await?.ends(0, &["PivotFailed: "])?;
    let facts = first.host.facts();
    ensure!(facts.staged.is_none(), "{facts:?}");
    ensure!(first.part.boots(1) == boots, "the machine was rebooted");
    Ok(())
}

async fn the_node_reports_its_first_boot(first: &FirstBoot<'_>) -> Result<()> {
    let (part, name) = (first.part, first.host.name());
    part.soon("status.firstboot and its chapter", || async {
        let status = part.node_status(name).await?;
        let is_reported_held = status
            .firstboot
            .is_some_and(|check| check.held && check.outcome.as_str() == "Overridden");
        let chapter = status.timeline.firstboot;
        Ok(is_reported_held && chapter.is_some_and(|c| c.name.as_str() == "Firstboot" && c.end_time.is_some()))
    })
    .await?;
    let fleets: Api<BootcFleet> = Api::all(part.cluster.client());
    part.soon("BootstrapHealthy counts it", || async {
        let conditions = fleets.get(fleet::NAME).await?.status.unwrap_or_default().conditions;
        let words = format!("{name} (held back at first, then Overridden)");
        let said = ("BootstrapHealthy", "False", "FirstBootFailed", words.as_str());
        Ok(has_condition(&conditions, said))
    })
    .await
}
