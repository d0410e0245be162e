//! Creates the first deployment of a sysroot that is not booted, as an installer does on a real machine.

use std::path::Path;

use anyhow::Result;
use berth_tests::bootc::document::ImageReference;

use crate::origin;
use crate::progress::Progress;
use crate::pull;
use crate::sysroot::Sysroot;

const STATEROOT: &str = "default";

/// Pulls the image `source` (in skopeo's syntax), and deploys it under the name `target`. Prints the deployment's
/// checksum.
pub(crate) fn run(path: &Path, source: &str, target: &str) -> Result<()> {
    let sysroot = Sysroot::at(path, STATEROOT)?;
    // No fsync: a power failure may lose test hosts, and the cache can be rebuilt.
    sysroot.ostree(&["config", "set", "core.fsync", "false"])?;
    let reference = ImageReference::registry(target, false);
    let prepared = pull::prepare(source)?;
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
