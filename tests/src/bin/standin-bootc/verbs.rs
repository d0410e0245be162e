//! Makes the changes that bootc's rules ([`berth_tests::bootc::decide`]) return.

use anyhow::{Context, Error, Result, bail};
use berth_tests::bootc::cli::Verb;
use berth_tests::bootc::document::ImageReference;
use berth_tests::bootc::{Change, NOT_BOOTED, announcement, decide, progress as events, reboot_required};

use crate::progress::Progress;
use crate::pull::{self, Pulled};
use crate::sysroot::Sysroot;
use crate::{bound, origin, status};

/// File that exists when the operating system needs a reboot.
const REBOOT_REQUIRED: &str = "/run/reboot-required";

pub(crate) fn run(verb: &Verb) -> Result<()> {
    let done = match verb {
        Verb::Status(_) => status::print(),
        _ => change(verb),
    };
    done.context(verb.title())
}

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
        bail!(NOT_BOOTED);
    }
    Sysroot::lock()
}

fn change(verb: &Verb) -> Result<()> {
    let sysroot = writable()?;
    let host = status::read(&sysroot)?;
    match decide(verb, &host).map_err(Error::msg)? {
        Change::Nothing { words } => println!("{words}"),
        Change::Stage { target, lock } => {
            let mut progress = Progress::new(progress_fd(verb))?;
            let pulled = obtain(&sysroot, &target, &mut progress).context("Switching (ostree)")?;
            stage(&sysroot, &target, &pulled, lock, &mut progress).context("Switching (ostree)")?;
            let version = pulled.image.status(&target)?.version;
            let words = announcement(&target, lock, version.as_deref(), &pulled.image.digest);
            println!("{words}");
            sysroot.touch()?;
        }
        Change::Unlock { words } => {
            sysroot.admin(&["lock-finalization", "--unlock"])?;
            println!("{words}");
        }
        Change::Reorder { back, words } => {
            if host.status.staged.is_some() {
                sysroot.admin(&["undeploy", "0"])?;
            }
            set_default(&sysroot, back).context("Rollback (ostree)")?;
            println!("{words}");
            mark_reboot_required("bootc: Reboot required for rollback\n")?;
            sysroot.touch()?;
        }
    }
    Ok(())
}

fn progress_fd(verb: &Verb) -> Option<u32> {
    match verb {
        Verb::Switch(switch) => switch.progress_fd,
        _ => None,
    }
}

/// Puts the booted deployment first in the boot order, or the rollback deployment if `booted` is false.
fn set_default(sysroot: &Sysroot, booted: bool) -> Result<()> {
    let list = sysroot.deployments()?;
    let stateroot = sysroot.booted_stateroot()?;
    let first = list
        .iter()
        .position(|d| d.booted == booted && d.stateroot == stateroot)
        .context("No rollback available")?;
    sysroot.admin(&["set-default", &first.to_string()]).map(drop)
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
    let digest = &pulled.image.digest;
    progress.send(&events::staging(digest, 0));
    progress.send(&events::staging(digest, 1));
    let origin = origin::text(target);
    sysroot.stage(&origin, &pulled.commit, lock)?;
    progress.send(&events::staging(digest, 2));
    // If this fails, the deployment stays staged, as with bootc up to 1.16.9.
    bound::pull(sysroot).context("Pulling bound images")?;
    progress.send(&events::staging(digest, 3));
    pull::forget_unused(sysroot).context("Cleanup")?;
    mark_reboot_required(&reboot_required(digest))?;
    progress.send(&events::staging(digest, 4));
    Ok(())
}

fn mark_reboot_required(text: &str) -> Result<()> {
    std::fs::write(REBOOT_REQUIRED, text).context("Writing /run/reboot-required")
}
