//! Creates the first deployment of a sysroot that is not booted, as an installer does on a real machine.

use anyhow::Result;

use crate::cli;
use crate::host::ImageReference;
use crate::origin;
use crate::progress::Progress;
use crate::pull;
use crate::sysroot::Sysroot;

/// Stateroot that `bootc install` creates.
const STATEROOT: &str = "default";

/// Pulls and deploys an image. Prints the checksum of the deployment.
pub(crate) fn run(options: &cli::Install) -> Result<()> {
    let sysroot = Sysroot::at(&options.sysroot, STATEROOT)?;
    // A power failure may lose the hosts of a test: only the cache would be worth a sync, and it can be rebuilt.
    sysroot.ostree(&["config", "set", "core.fsync", "false"])?;
    let reference = ImageReference::registry(&options.target);
    let prepared = pull::prepare(&options.source)?;
    let pulled = pull::import(&sysroot, &reference, prepared, &mut Progress::default())?;
    let file = sysroot.path.join("origin.tmp");
    std::fs::write(&file, origin::text(&reference))?;
    let os = format!("--os={STATEROOT}");
    let from = format!("--origin-file={}", file.display());
    sysroot.admin(&["deploy", &os, &from, "--karg=rw", &pulled.commit])?;
    std::fs::remove_file(&file)?;
    sysroot.touch()?;
    println!("{}", pulled.commit);
    Ok(())
}
