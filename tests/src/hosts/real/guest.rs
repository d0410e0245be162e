//! The container image for pods on test hosts, which is also their sandbox (pause) image: one static program.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::cache;
use super::shell::{sha256, sha256_file, tool};
use crate::images::ImageSpec;

/// Name of the image on every host; no registry has it.
pub const GUEST_IMAGE: &str = "berth.test/guest:1";

const SOURCE: &str = include_str!("../../../osimage/guest.c");

/// Returns the image's static program, for use in other images: `guest serve PORT [S]` answers HTTP and exits S seconds
/// after SIGTERM, `guest ignore` ignores SIGTERM, `guest` alone waits for it.
pub fn guest_program() -> Result<PathBuf> {
    Ok(ensure()?.program)
}

/// The image as an archive for containerd.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) archive: PathBuf,
    program: PathBuf,
    pub(super) digest: String,
}

/// Returns the image; builds it if it is missing.
pub(super) fn ensure() -> Result<Guest> {
    let hash = sha256(format!("{GUEST_IMAGE}\n{SOURCE}").as_bytes());
    let name = format!("guest-{}", hash.get(..16).unwrap_or(&hash));
    let directory = cache::directory(&name, |to| {
        let source = to.join("guest.c");
        fs::write(&source, SOURCE)?;
        let tree = to.join("tree");
        fs::create_dir(&tree)?;
        let (binary, source) = (tree.join("guest"), source.as_os_str());
        tool(
            "cc",
            &[
                "-static".as_ref(),
                "-Os".as_ref(),
                "-s".as_ref(),
                "-o".as_ref(),
                binary.as_os_str(),
                source,
            ],
        )?;
        let image = ImageSpec::program(&binary, &[])?.build()?;
        image.write_archive(&to.join("guest.tar"), GUEST_IMAGE)
    })?;
    let archive = directory.join("guest.tar");
    let digest = sha256_file(&archive)?;
    let program = directory.join("tree/guest");
    Ok(Guest {
        archive,
        program,
        digest,
    })
}
