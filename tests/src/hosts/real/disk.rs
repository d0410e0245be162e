//! Disk of a host: its own ostree sysroot, a cheap copy of a template that exists once per image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::osimage::{OsImage, OsImages};
use super::ostree::{META_CONFIG, META_DIGEST, image_ref, unquote};
use super::shell::{run, tool};
use super::{bls, cache, content};

const STATEROOT: &str = "ostree/deploy/default";
/// Image reference in the template's deployment; each copy gets a real reference.
const TEMPLATE_REFERENCE: &str = "template.invalid/os";

/// Shell script that runs the stand-in's installer in a chroot. The chroot is the hosts' root file system, because that
/// has the matching ostree. The script's mounts end with its mount namespace.
const INSTALL: &str = r#"set -e
root=$1 work=$2 layout=$3 target=$4
mount --bind "$work" "$root/mnt"
mount --bind "$layout" "$root/mnt/layout"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
exec chroot "$root" /mnt/bootc standin-install /mnt/sysroot oci:/mnt/layout "$target"
"#;

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) sysroot: PathBuf,
}

/// Image of a deployment, from ostree's own metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BootedImage {
    pub(super) digest: String,
    pub(super) version: String,
}

impl Disk {
    pub(super) fn install(images: &OsImages, image: &OsImage, reference: &str, sysroot: &Path) -> Result<Self> {
        let template = template(images, image)?;
        copy(&template, sysroot)?;
        let disk = Self {
            sysroot: sysroot.to_owned(),
        };
        disk.rename(image, reference)?;
        Ok(disk)
    }

    pub(super) fn next(&self) -> Result<PathBuf> {
        bls::default_deployment(&self.sysroot)
    }

    /// Deployments in the order of the boot loader.
    pub(super) fn deployments(&self) -> Result<Vec<PathBuf>> {
        bls::deployments(&self.sysroot)
    }

    /// Writes a file below `/etc` of the next deployment or below `/var`.
    pub(super) fn put(&self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let root = match path.trim_start_matches('/').split_once('/') {
            Some(("var", _)) => self.sysroot.join(STATEROOT),
            _ => self.next()?,
        };
        content::put(&root, path, mode, bytes)
    }

    /// Image that the deployment at this path was created from.
    pub(super) fn image(&self, deployment: &Path) -> Result<BootedImage> {
        let name = deployment
            .file_name()
            .context("the deployment's path has no name")?
            .to_string_lossy();
        let commit = name.split('.').next().unwrap_or_default();
        // A commit with layered packages has no image metadata; its parent is the commit of the image.
        let parent = format!("{commit}^");
        let commit = match self.metadata(commit, META_DIGEST) {
            Ok(_) => commit,
            Err(_) => &parent,
        };
        let config = self.metadata(commit, META_CONFIG)?;
        let config: serde_json::Value = serde_json::from_str(&config).context("parsing the image configuration")?;
        let version = &config["config"]["Labels"]["org.opencontainers.image.version"];
        Ok(BootedImage {
            digest: self.metadata(commit, META_DIGEST)?,
            version: version.as_str().unwrap_or_default().to_owned(),
        })
    }

    fn metadata(&self, commit: &str, key: &str) -> Result<String> {
        let repo = format!("--repo={}", self.sysroot.join("ostree/repo").display());
        let key = format!("--print-metadata-key={key}");
        unquote(&tool("ostree", &["show", &repo, &key, commit])?)
    }

    /// Changes origin and ref of the deployment to the image's name in the host's registry.
    fn rename(&self, image: &OsImage, reference: &str) -> Result<()> {
        let deployment = self.next()?;
        let name = deployment
            .file_name()
            .context("the deployment's path has no name")?
            .to_string_lossy();
        let origin = format!("[origin]\ncontainer-image-reference=ostree-unverified-registry:{reference}\n");
        let directory = format!("{STATEROOT}/deploy/{name}.origin");
        content::put(&self.sysroot, &directory, 0o644, origin.as_bytes())?;
        let old = self
            .sysroot
            .join(head(&format!("{TEMPLATE_REFERENCE}@{}", image.digest)));
        let commit = fs::read(&old).with_context(|| format!("reading {}", old.display()))?;
        fs::remove_file(&old)?;
        content::put(&self.sysroot, &head(reference), 0o644, &commit)
    }
}

/// Path of the ref of an image in a sysroot.
fn head(name: &str) -> String {
    format!("ostree/repo/refs/heads/{}", image_ref(&format!("docker://{name}")))
}

/// Returns the sysroot with this image deployed; creates it if it is missing.
fn template(images: &OsImages, image: &OsImage) -> Result<PathBuf> {
    let digest = image.digest.trim_start_matches("sha256:");
    let name = format!("ossysroot-{}-{}", images.root.key, digest.get(..16).unwrap_or(digest));
    let directory = cache::directory(&name, |to| {
        cache::prune("ossysroot-", 3)?;
        fs::copy(&images.bootc, to.join("bootc"))?;
        fs::create_dir(to.join("layout"))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]);
        command.args(["sh", "-c", INSTALL, "install"]);
        command.arg(&images.root.path).arg(to).arg(&image.layout);
        command.arg(format!("{TEMPLATE_REFERENCE}@{}", image.digest));
        run(&mut command)?;
        fs::remove_file(to.join("bootc"))?;
        fs::remove_dir(to.join("layout")).context("removing the mount point")
    })?;
    Ok(directory.join("sysroot"))
}

/// Copies a sysroot. Objects and checked-out files are hard links, because they are replaced but never modified. Files
/// that are modified or locked are copied.
fn copy(template: &Path, to: &Path) -> Result<()> {
    let deployment = bls::default_deployment(template)?;
    let deployment = deployment
        .strip_prefix(fs::canonicalize(template)?)
        .context("the deployment is outside its sysroot")?;
    fs::create_dir_all(to)?;
    let everything = template.join(".");
    let shared = tool("cp", &["-al".as_ref(), everything.as_os_str(), to.as_os_str()]);
    if shared.is_err() {
        // Another file system: hard links are impossible.
        let copy = [
            "-a".as_ref(),
            "--reflink=auto".as_ref(),
            everything.as_os_str(),
            to.as_os_str(),
        ];
        return tool("cp", &copy).map(drop);
    }
    let own = [
        deployment.join("etc"),
        Path::new(STATEROOT).join("var"),
        Path::new("boot").into(),
        "ostree/repo/tmp".into(),
    ];
    for part in own {
        let (from, mine) = (template.join(&part), to.join(&part));
        fs::remove_dir_all(&mine).with_context(|| format!("removing {}", mine.display()))?;
        tool("cp", &["-a".as_ref(), from.as_os_str(), mine.as_os_str()])?;
    }
    for lock in ["ostree/lock", "ostree/repo/.lock", "ostree/repo/config"] {
        let (from, mine) = (template.join(lock), to.join(lock));
        if mine.exists() {
            fs::remove_file(&mine)?;
            fs::copy(from, mine)?;
        }
    }
    Ok(())
}
