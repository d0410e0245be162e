//! The verbs of this program, which the daemon runs as child processes.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, bail};
use berth_tests::bootc::document::ImageReference;
use berth_tests::hosts::real::sysroot_lock;
use berth_tests::rpmostreed::{Deployment, ProgressEvent, StageRequest};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::daemon::STAGED_LOCK;
use crate::image::Image;
use crate::origin::Origin;
use crate::sysroot::{self, Sysroot};
use crate::{fetch, layers, origin, pull};

/// Origin group with the packages that rpm-ostree layers.
const PACKAGES: &str = "\n[packages]\nrequested=";

pub(crate) fn dispatch(verb: &str, argument: Option<&str>) -> Result<()> {
    let argument = argument.unwrap_or_default();
    match verb {
        "list" => println!("{}", serde_json::to_string(&list(&enter()?)?)?),
        "stage" => stage(&serde_json::from_str(argument).context("cannot parse the stage request")?)?,
        "undeploy" => println!("{}", undeploy(argument)?),
        "roll-back" => roll_back()?,
        "unlock" => println!("{}", unlock()?),
        other => bail!("unknown verb {other}"),
    }
    Ok(())
}

/// Path of the lock file of a child process. The process mounts the file, so the daemon removes it after the process
/// has ended.
pub(crate) fn own_lock(process: u32) -> String {
    format!("/run/standin-rpm-ostree.{process}.lock")
}

/// Opens the sysroot. Mounts a lock file of this process over the host's, because the process only reads, or its daemon
/// already holds the host's lock.
fn enter() -> Result<Sysroot> {
    let own = own_lock(std::process::id());
    File::create(&own).with_context(|| format!("making {own}"))?;
    unshare(CloneFlags::CLONE_NEWNS).context("creating a mount namespace")?;
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, slave, None::<&str>).context("creating a mount namespace")?;
    // ostree removes its lock file on release, so the file may be missing. A mount needs it.
    let lock = sysroot_lock::PATH;
    sysroot_lock::open(Path::new(lock)).with_context(|| format!("making {lock}"))?;
    let bind = MsFlags::MS_BIND;
    mount(Some(own.as_str()), lock, None::<&str>, bind, None::<&str>)
        .with_context(|| format!("mounting over {lock}"))?;
    Sysroot::lock()
}

pub(crate) fn say(event: &ProgressEvent) {
    if let Ok(line) = serde_json::to_string(event) {
        println!("{line}");
    }
}

fn list(sysroot: &Sysroot) -> Result<Vec<Deployment>> {
    let lock_file = Path::new(STAGED_LOCK).exists();
    let all = sysroot.deployments()?;
    all.iter().map(|d| shown(sysroot, d, lock_file)).collect()
}

fn shown(sysroot: &Sysroot, deployment: &sysroot::Deployment, lock_file: bool) -> Result<Deployment> {
    let text = sysroot.origin(deployment)?;
    let packages = value(&text, "requested=").split(';');
    let packages: Vec<_> = packages.filter(|p| !p.is_empty()).map(str::to_owned).collect();
    let image =
        Image::of_commit(sysroot, &deployment.checksum)?.context("a deployment is not from a container image")?;
    let reference = Origin::parse(&text)?.image.context("an origin has no image")?;
    let status = image.status(&reference)?;
    let time = status.timestamp.and_then(|t| t.parse::<jiff::Timestamp>().ok());
    Ok(Deployment {
        osname: deployment.stateroot.clone(),
        checksum: deployment.checksum.clone(),
        serial: deployment.serial,
        booted: deployment.booted,
        staged: deployment.staged,
        pinned: deployment.pinned,
        lock_file: deployment.staged && lock_file,
        version: status.version,
        timestamp: time.and_then(|t| u64::try_from(t.as_second()).ok()).unwrap_or_default(),
        refspec: value(&text, "container-image-reference=").to_owned(),
        digest: image.digest,
        base: layers::base(sysroot, &deployment.checksum, &packages)?,
        packages,
    })
}

/// Value of a key in an origin; empty if it is missing.
fn value<'a>(origin: &'a str, key: &str) -> &'a str {
    let found = origin.lines().find_map(|line| line.strip_prefix(key));
    found.unwrap_or_default()
}

fn stage(wanted: &StageRequest) -> Result<()> {
    let sysroot = enter()?;
    let reference = ImageReference::registry(&wanted.reference.image, wanted.reference.signed);
    say(&ProgressEvent::Message(format!(
        "Pulling manifest: {}",
        wanted.reference.refspec
    )));
    let pulled = fetch::obtain(&sysroot, &reference, |image| {
        let digest = &image.digest;
        if wanted.newer_only && is_older(&sysroot, image, &reference)? {
            bail!(
                "Upgrade target revision '{digest}' is chronologically older than current revision; use --allow-downgrade to permit"
            );
        }
        Ok(())
    })?;
    let commit = if wanted.packages.is_empty() {
        pulled.commit
    } else {
        layers::commit(&sysroot, &pulled, &wanted.packages)?
    };
    say(&ProgressEvent::Message("Staging deployment".to_owned()));
    let mut text = origin::text(&reference);
    if !wanted.packages.is_empty() {
        text += &format!("{PACKAGES}{};\n", wanted.packages.join(";"));
    }
    sysroot.stage(&text, &commit, wanted.lock)?;
    // ostree's command also locks with a file, which rpm-ostree does not create.
    match fs::remove_file(STAGED_LOCK) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {STAGED_LOCK}"));
        }
        _ => {}
    }
    pull::forget_unused(&sysroot).context("Cleaning up")
}

fn time_of(image: &Image, reference: &ImageReference) -> Result<Option<jiff::Timestamp>> {
    Ok(image.status(reference)?.timestamp.and_then(|t| t.parse().ok()))
}

fn is_older(sysroot: &Sysroot, image: &Image, reference: &ImageReference) -> Result<bool> {
    let all = sysroot.deployments()?;
    let booted = Image::of_commit(sysroot, &all[booted(&all)?].checksum)?;
    let booted = booted.context("a deployment is not from a container image")?;
    Ok(time_of(image, reference)? < time_of(&booted, reference)?)
}

fn booted(all: &[sysroot::Deployment]) -> Result<usize> {
    let booted = all.iter().position(|d| d.booted);
    booted.context("there is no booted deployment")
}

/// Removes all deployments before or after the booted one, except pinned ones; `false` if there are none.
fn undeploy(which: &str) -> Result<bool> {
    let sysroot = enter()?;
    let all = sysroot.deployments()?;
    let booted = booted(&all)?;
    let meant = match which {
        "pending" => 0..booted,
        _ => booted + 1..all.len(),
    };
    let mut is_changed = false;
    // Last one first: a removal shifts those behind it.
    for index in meant.rev().filter(|index| !all[*index].pinned) {
        sysroot.admin(&["undeploy", &index.to_string()])?;
        is_changed = true;
    }
    if is_changed {
        pull::forget_unused(&sysroot)?;
    }
    Ok(is_changed)
}

/// Removes the locks of the staged deployment; `false` if it is not locked.
fn unlock() -> Result<bool> {
    let sysroot = enter()?;
    let said = sysroot.admin(&["lock-finalization", "--unlock"])?;
    Ok(!said.contains("already"))
}

/// Puts the rollback deployment first in the boot order. If the booted deployment is not first, puts that one first.
fn roll_back() -> Result<()> {
    let sysroot = enter()?;
    let all = sysroot.deployments()?;
    let first = match booted(&all)? {
        0 => all.get(1).map(|_| 1).context("No rollback deployment found")?,
        queued => queued,
    };
    sysroot.admin(&["set-default", &first.to_string()]).map(drop)
}
