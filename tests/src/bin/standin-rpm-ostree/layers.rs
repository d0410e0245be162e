//! Layered packages: a commit on top of the image's, with a file for each package.

use anyhow::{Context, Result};

use crate::pull::Pulled;
use crate::sysroot::Sysroot;

const FILES: &str = "usr/lib/layered-packages";

/// Creates a commit with these packages on top of the image's commit. Like a commit by rpm-ostree, it has no image
/// metadata.
pub(crate) fn commit(sysroot: &Sysroot, pulled: &Pulled, packages: &[String]) -> Result<String> {
    let tree = sysroot.repo().join("tmp/standin-layers");
    if tree.exists() {
        std::fs::remove_dir_all(&tree).context("emptying the directory of layered packages")?;
    }
    let files = tree.join(FILES);
    std::fs::create_dir_all(&files).context("making the directory of layered packages")?;
    for package in packages {
        std::fs::write(files.join(package), format!("{package}\n")).context("layering a package")?;
    }
    let base = &pulled.commit;
    let args = [
        "commit".to_owned(),
        "--orphan".to_owned(),
        format!("--parent={base}"),
        "--no-bindings".to_owned(),
        "--owner-uid=0".to_owned(),
        "--owner-gid=0".to_owned(),
        format!("--tree=ref={base}"),
        format!("--tree=dir={}", tree.display()),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let commit = sysroot.ostree(&args).context("Assembling the layers")?;
    std::fs::remove_dir_all(&tree).context("removing the directory of layered packages")?;
    Ok(commit.trim().to_owned())
}

/// Commit of the image below a layered deployment.
pub(crate) fn base(sysroot: &Sysroot, checksum: &str, packages: &[String]) -> Result<Option<String>> {
    if packages.is_empty() {
        return Ok(None);
    }
    let parent = sysroot.ostree(&["rev-parse", &format!("{checksum}^")])?;
    Ok(Some(parent.trim().to_owned()))
}
