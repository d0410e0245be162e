//! Builds OS images from a Containerfile, with buildah.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::osimage::{OsImage, OsImages};
use super::shell::{run, tool};

impl OsImages {
    /// Builds a Containerfile on an image, which is its build argument `BASE`. `context` is the directory of its files.
    /// The new image is in `work`, and must not outlive that directory.
    pub fn build_on(&self, base: &OsImage, containerfile: &str, context: &Path, work: &Path) -> Result<OsImage> {
        crate::tools::ensure_packages(&["buildah"])?;
        let (file, packages, built) = (work.join("Containerfile"), work.join("dpkg"), work.join("built"));
        fs::write(&file, containerfile)?;
        // buildah takes the path as an image name, and most paths are not valid names.
        symlink(&base.layout, work.join("base"))?;
        // OS images have an empty /var, and so no list of their packages.
        let list = self.root.path.join("var/lib/dpkg");
        tool("cp", &["-a".as_ref(), list.as_os_str(), packages.as_os_str()])?;
        let mut buildah = Command::new("buildah");
        buildah.arg("--root").arg(work.join("store"));
        buildah.arg("--runroot").arg(work.join("state"));
        buildah.args(["--storage-driver", "overlay", "build", "--isolation", "chroot"]);
        buildah.args(["--network", "host", "--build-arg", "BASE=oci:base"]);
        // Times of this build would change the digest, and the installed disk is cached by digest.
        buildah.args(["--timestamp", "0"]);
        buildah.arg(format!("--volume={}:/var/lib/dpkg", packages.display()));
        buildah.arg("--file").arg(&file);
        buildah.arg(format!("--tag=oci:{}", built.display()));
        run(buildah.arg(context).current_dir(work)).context("building the Containerfile")?;
        let index: Value = serde_json::from_slice(&fs::read(built.join("index.json"))?)?;
        let digest = index["manifests"][0]["digest"].as_str();
        Ok(OsImage {
            version: base.version.clone(),
            digest: digest.context("the image has no digest")?.to_owned(),
            layout: built,
        })
    }
}
