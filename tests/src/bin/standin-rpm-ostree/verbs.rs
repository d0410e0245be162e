//! The work of the daemon, each verb in its own process.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, bail};
use berth_tests::hosts::real::sysroot_lock;
use berth_tests::rpmostreed::{Deployment, ProgressEvent, StageRequest};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::daemon::STAGED_LOCK;
use crate::host::ImageReference;
use crate::image::Image;
use crate::origin::Origin;
use crate::sysroot::{self, Sysroot};
use crate::{fetch, layers, origin, pull};

/// Origin group with the packages that rpm-ostree layers.
const PACKAGES: &str = "\n[packages]\nrequested=";

/// Runs a verb.
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

/// Path of a process's own lock file. The daemon removes it: it is busy until the process has ended.
pub(crate) fn own_lock(process: u32) -> String {
    format!("/run/standin-rpm-ostree.{process}.lock")
}

/// Opens the sysroot for a process that only reads, or whose daemon holds the lock: mounts its own lock file over the host's.
fn enter() -> Result<Sysroot> {
    let own = own_lock(std::process::id());
    File::create(&own).with_context(|| format!("making {own}"))?;
    unshare(CloneFlags::CLONE_NEWNS).context("creating a mount namespace")?;
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, slave, None::<&str>).context("creating a mount namespace")?;
    // ostree removes the file when it releases the lock.
    let lock = sysroot_lock::PATH;
    sysroot_lock::open(Path::new(lock)).with_context(|| format!("making {lock}"))?;
    let bind = MsFlags::MS_BIND;
    mount(Some(own.as_str()), lock, None::<&str>, bind, None::<&str>)
        .with_context(|| format!("mounting over {lock}"))?;
    Sysroot::lock()
}

/// Prints an event for the listeners of the transaction.
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
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let packages = value("requested=").unwrap_or_default().split(';');
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
        refspec: value("container-image-reference=").unwrap_or_default().to_owned(),
        digest: image.digest,
        base: layers::base(sysroot, &deployment.checksum, &packages)?,
        packages,
    })
}

fn stage(wanted: &StageRequest) -> Result<()> {
    let sysroot = enter()?;
    let reference = ImageReference {
        image: wanted.reference.image.clone(),
        signature: wanted.reference.signed.then(|| "containerPolicy".to_owned()),
        transport: "registry".to_owned(),
    };
    say(&ProgressEvent::Message(format!(
        "Pulling manifest: {}",
        wanted.reference.refspec
    )));
    let pulled = fetch::obtain(&sysroot, &reference, |image| {
        let digest = &image.digest;
        match wanted.newer_only && is_older(&sysroot, image, &reference)? {
            true => bail!(
                "Upgrade target revision '{digest}' is chronologically older than current revision; use --allow-downgrade to permit"
            ),
            false => Ok(()),
        }
    })?;
    let commit = match wanted.packages.is_empty() {
        true => pulled.commit.clone(),
        false => layers::commit(&sysroot, &pulled, &wanted.packages)?,
    };
    say(&ProgressEvent::Message("Staging deployment".to_owned()));
    let mut text = origin::text(&reference);
    if !wanted.packages.is_empty() {
        text += &format!("{PACKAGES}{};\n", wanted.packages.join(";"));
    }
    let file = "/run/standin-rpm-ostree.origin";
    fs::write(file, text).with_context(|| format!("writing {file}"))?;
    let stateroot = format!("--stateroot={}", sysroot.booted_stateroot()?);
    let from = format!("--origin-file={file}");
    let mut deploy = vec!["deploy", "--stage", &stateroot, &from];
    if wanted.lock {
        deploy.push("--lock-finalization");
    }
    deploy.push(&commit);
    sysroot.admin(&deploy).context("Deploying")?;
    // ostree's command also locks with a file, which rpm-ostree does not create.
    match fs::remove_file(STAGED_LOCK) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {STAGED_LOCK}"));
        }
        _ => {}
    }
    forget_unused(&sysroot).context("Cleaning up")
}

fn is_older(sysroot: &Sysroot, image: &Image, reference: &ImageReference) -> Result<bool> {
    let all = sysroot.deployments()?;
    let booted = all.iter().find(|d| d.booted).context("there is no booted deployment")?;
    let booted = Image::of_commit(sysroot, &booted.checksum)?.context("a deployment is not from a container image")?;
    let time = |image: &Image| -> Result<Option<jiff::Timestamp>> {
        Ok(image.status(reference)?.timestamp.and_then(|t| t.parse().ok()))
    };
    Ok(time(image)? < time(&booted)?)
}

fn forget_unused(sysroot: &Sysroot) -> Result<()> {
    let mut keep = vec![];
    for deployment in sysroot.deployments()? {
        let origin = Origin::parse(&sysroot.origin(&deployment)?)?;
        keep.extend(origin.image.zip(Image::of_commit(sysroot, &deployment.checksum)?));
    }
    pull::forget_unused(sysroot, &keep)
}

/// Removes all deployments before or after the booted one, except pinned ones; `false` if there are none.
fn undeploy(which: &str) -> Result<bool> {
    let sysroot = enter()?;
    let all = sysroot.deployments()?;
    let booted = all
        .iter()
        .position(|d| d.booted)
        .context("there is no booted deployment")?;
    let meant = match which {
        "pending" => 0..booted,
        _ => booted + 1..all.len(),
    };
    // Last one first: a removal shifts those behind it.
    let unpinned = |index: &usize| all.get(*index).is_some_and(|d| !d.pinned);
    let indices: Vec<usize> = meant.rev().filter(unpinned).collect();
    for index in &indices {
        sysroot.admin(&["undeploy", &index.to_string()])?;
    }
    if !indices.is_empty() {
        forget_unused(&sysroot)?;
    }
    Ok(!indices.is_empty())
}

/// Removes the locks of the staged deployment; `false` if it is not locked.
fn unlock() -> Result<bool> {
    let sysroot = enter()?;
    let said = sysroot.admin(&["lock-finalization", "--unlock"])?;
    Ok(!said.contains("already"))
}

/// Puts the rollback deployment first in the boot order, or the booted one if another is already first.
fn roll_back() -> Result<()> {
    let sysroot = enter()?;
    let all = sysroot.deployments()?;
    let booted = all
        .iter()
        .position(|d| d.booted)
        .context("there is no booted deployment")?;
    let first = match booted {
        0 => all.get(1).map(|_| 1).context("No rollback deployment found")?,
        queued => queued,
    };
    sysroot.admin(&["set-default", &first.to_string()]).map(drop)
}
