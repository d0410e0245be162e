//! The verbs, one function each.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cli::{self, Cli, Verb};
use crate::host::{Host, ImageReference};
use crate::image::Image;
use crate::progress::{Progress, Task, subtask};
use crate::pull::{self, Pulled};
use crate::status;
use crate::sysroot::Sysroot;
use crate::{bound, install, origin};

/// File that shows the operating system that a reboot is required.
const REBOOT_REQUIRED: &str = "/run/reboot-required";

/// Runs the verb of the command line.
pub(crate) fn dispatch(cli: Cli) -> Result<()> {
    match cli.verb {
        Verb::Status(options) => status::run(&options).context("Status"),
        Verb::Switch(options) => switch(&options).context("Switching"),
        Verb::Upgrade(options) => upgrade(&options).context("Upgrading"),
        Verb::Rollback(options) => rollback(&options).context("Rollback"),
        Verb::Install(options) => install::run(&options),
    }
}

/// Opens a booted host's sysroot for writing, with its lock held.
fn writable() -> Result<Sysroot> {
    if status::in_container() {
        bail!(
            "Initializing storage: Preparing for write: Detected container; this command requires a booted host system."
        );
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("This command must be executed as the root user");
    }
    if !status::is_host() {
        bail!("Initializing storage: System not booted via bootc");
    }
    Sysroot::lock()
}

fn switch(options: &cli::Switch) -> Result<()> {
    let sysroot = writable()?;
    let host = status::read(&sysroot)?;
    let target = ImageReference {
        image: options.target.clone(),
        signature: options
            .enforce_container_sigpolicy
            .then(|| "containerPolicy".to_owned()),
        transport: options.transport.clone(),
    };
    if host.spec.image.as_ref() == Some(&target) {
        println!("Image specification is unchanged.");
        return reboot_if(options.apply && host.status.staged.is_some());
    }
    let mut progress = Progress::new(options.progress_fd)?;
    let pulled = obtain(&sysroot, &target, &mut progress).context("Switching (ostree)")?;
    let locked = options.download_only;
    stage(&sysroot, &target, &pulled, locked, &mut progress).context("Switching (ostree)")?;
    announce(queued(locked, "Queued for next boot"), &target, &pulled.image)?;
    sysroot.touch()?;
    reboot_if(options.apply)
}

fn upgrade(options: &cli::Upgrade) -> Result<()> {
    let sysroot = writable()?;
    let host = status::read(&sysroot)?;
    if options.from_downloaded {
        return from_downloaded(&sysroot, &host, options.apply);
    }
    let Some(target) = host.spec.image.clone() else {
        let incompatible = host.status.booted.as_ref().is_some_and(|b| b.incompatible);
        if incompatible {
            bail!(
                "Deployment contains local rpm-ostree modifications; cannot upgrade via bootc. You can run `rpm-ostree reset` to undo the modifications."
            );
        }
        bail!("No image source specified");
    };
    let digest = |entry: &Option<crate::host::BootEntry>| {
        let image = entry.as_ref().and_then(|e| e.image.as_ref());
        image.map(|i| i.image_digest.clone())
    };
    if options.check {
        let prepared = pull::prepare(&target.skopeo())?;
        if Some(&prepared.image.digest) == digest(&host.status.booted).as_ref() {
            println!("No changes in: {}", target.skopeo());
            return Ok(());
        }
        announce("Update available for", &target, &prepared.image)?;
        return sysroot.touch();
    }
    let mut progress = Progress::new(options.progress_fd)?;
    let pulled = obtain(&sysroot, &target, &mut progress)?;
    let fetched = Some(&pulled.image.digest);
    if fetched == digest(&host.status.staged).as_ref() {
        return staged_again(&sysroot, &host, options);
    }
    if fetched == digest(&host.status.booted).as_ref() {
        println!("No update available.");
        return Ok(());
    }
    stage(&sysroot, &target, &pulled, options.download_only, &mut progress)?;
    announce(queued(options.download_only, "Update for"), &target, &pulled.image)?;
    sysroot.touch()?;
    reboot_if(options.apply)
}

/// The fetched image is already staged: only its lock may change.
fn staged_again(sysroot: &Sysroot, host: &Host, options: &cli::Upgrade) -> Result<()> {
    let locked = host.status.staged.as_ref().is_some_and(|s| s.download_only);
    match (options.download_only, locked) {
        (true, false) => {
            sysroot.admin(&["lock-finalization"])?;
            println!("Staged deployment will not be applied on reboot");
        }
        (false, true) => {
            sysroot.admin(&["lock-finalization", "--unlock"])?;
            println!("Staged deployment will now be applied on reboot");
        }
        _ => println!("Staged update present, not changed."),
    }
    reboot_if(options.apply)
}

fn from_downloaded(sysroot: &Sysroot, host: &Host, apply: bool) -> Result<()> {
    let staged = host.status.staged.as_ref().context("No staged deployment found")?;
    if staged.download_only {
        sysroot.admin(&["lock-finalization", "--unlock"])?;
        println!("Staged deployment will now be applied on reboot");
    } else {
        println!("Staged deployment is already set to apply on reboot");
    }
    reboot_if(apply)
}

fn rollback(options: &cli::Rollback) -> Result<()> {
    let sysroot = writable()?;
    let host = status::read(&sysroot)?;
    change_order(&sysroot, &host).context("Rollback (ostree)")?;
    mark_reboot_required("bootc: Reboot required for rollback")?;
    sysroot.touch()?;
    reboot_if(options.apply)
}

fn change_order(sysroot: &Sysroot, host: &Host) -> Result<()> {
    let rollback = host.status.rollback.as_ref().context("No rollback available")?;
    if rollback.image.is_none() {
        bail!("Rollback is not container image based");
    }
    if host.status.staged.is_some() {
        sysroot.admin(&["undeploy", "0"])?;
    }
    let list = sysroot.deployments()?;
    let booted = list.iter().position(|d| d.booted).context("No booted deployment")?;
    let stateroot = list.get(booted).map(|d| d.stateroot.clone());
    let other = list
        .iter()
        .position(|d| !d.booted && Some(&d.stateroot) == stateroot.as_ref())
        .context("No rollback available")?;
    if host.status.rollback_queued {
        println!("notice: Reverting queued rollback state");
        sysroot.admin(&["set-default", &booted.to_string()])?;
        println!("Next boot: current deployment");
    } else {
        sysroot.admin(&["set-default", &other.to_string()])?;
        println!("Next boot: rollback deployment");
    }
    Ok(())
}

/// Gets an image into the repository; no registry is needed if it was pulled before by digest.
fn obtain(sysroot: &Sysroot, target: &ImageReference, progress: &mut Progress) -> Result<Pulled> {
    if let Some(pulled) = pull::present(sysroot, target)? {
        return Ok(pulled);
    }
    let prepared = pull::prepare(&target.skopeo())?;
    pull::import(sysroot, target, prepared, progress)
}

fn stage(
    sysroot: &Sysroot,
    target: &ImageReference,
    pulled: &Pulled,
    lock: bool,
    progress: &mut Progress,
) -> Result<()> {
    let task = Task {
        name: "staging",
        description: "Deploying Image",
        id: &pulled.image.digest,
        total: 3,
    };
    let parts = |done: usize| {
        let all = [
            subtask("merging", "Merging Image", "fetching", done > 0),
            subtask("deploying", "Deploying Image", "deploying", done > 1),
            subtask("bound_images", "Pulling Bound Images", "bound_images", done > 2),
            subtask("cleanup", "Removing old images", "cleanup", done > 3),
        ];
        let shown = (done + 1).min(all.len());
        all.into_iter().take(shown).collect::<Vec<_>>()
    };
    progress.steps(&task, 0, &parts(0));
    progress.steps(&task, 1, &parts(1));
    let file = std::path::Path::new("/run/standin-bootc.origin");
    std::fs::write(file, origin::text(target)).context("Writing origin")?;
    let stateroot = format!("--stateroot={}", sysroot.booted_stateroot()?);
    let from = format!("--origin-file={}", file.display());
    let mut args = vec!["deploy", "--stage", &stateroot, &from];
    if lock {
        args.push("--lock-finalization");
    }
    args.push(&pulled.commit);
    sysroot.admin(&args).context("Deploying")?;
    progress.steps(&task, 1, &parts(2));
    // If this fails, the deployment stays staged, as with bootc up to 1.16.9.
    bound::pull(sysroot).context("Pulling bound images")?;
    progress.steps(&task, 2, &parts(3));
    pull::forget_unused(sysroot, &status::images(sysroot)?).context("Cleanup")?;
    mark_reboot_required(&format!("bootc: Reboot required for image: {}", pulled.image.digest))?;
    progress.steps(&task, 3, &parts(4));
    Ok(())
}

fn queued(locked: bool, otherwise: &str) -> &str {
    match locked {
        true => "Staged but not queued for next boot",
        false => otherwise,
    }
}

fn announce(title: &str, target: &ImageReference, image: &Image) -> Result<()> {
    println!("{title}: {}", target.skopeo());
    if let Some(version) = image.status(target)?.version {
        println!("  Version: {version}");
    }
    println!("  Digest: {}", image.digest);
    Ok(())
}

fn mark_reboot_required(text: &str) -> Result<()> {
    std::fs::write(REBOOT_REQUIRED, format!("{text}\n")).context("Writing /run/reboot-required")
}

fn reboot_if(wanted: bool) -> Result<()> {
    if !wanted {
        return Ok(());
    }
    let mut command = Command::new("systemd-run");
    command.args(["--quiet", "--", "systemctl", "reboot", "--message=Initiated by bootc"]);
    if !command.status().context("Running systemd-run")?.success() {
        bail!("Initiating reboot failed");
    }
    // As bootc: wait until the shutdown ends this process.
    loop {
        std::thread::park();
    }
}
