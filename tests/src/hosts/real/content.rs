//! Small files that make a test host out of a plain Debian, most of them from `tests/osimage`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::shell::sha256;

/// A file of the image: path, permissions, content.
type File = (&'static str, u32, &'static str);

/// Lists files of the image. Each entry has the path in the image, the permissions, and the source file in
/// `tests/osimage`.
macro_rules! files {
    ($($path:literal $mode:literal $file:literal)*) => {
        [$(($path, $mode, include_str!(concat!("../../../osimage/", $file)))),*]
    };
}

const FILES: [File; 15] = files! {
    "usr/lib/systemd/system/boot-id.service" 0o644 "boot-id.service"
    "usr/lib/systemd/system/soft-boot.service" 0o644 "soft-boot.service"
    "usr/bin/soft-boot" 0o755 "soft-boot"
    "usr/lib/systemd/system/kubelet.service" 0o644 "kubelet.service"
    "usr/lib/systemd/system/host-network.service" 0o644 "host-network.service"
    "usr/lib/systemd/system/guest-images.service" 0o644 "guest-images.service"
    "usr/lib/systemd/system/containerd.service.d/host.conf" 0o644 "containerd.conf"
    "usr/lib/systemd/system.conf.d/host.conf" 0o644 "manager.conf"
    "usr/lib/systemd/journald.conf.d/host.conf" 0o644 "journald.conf"
    "etc/kubernetes/kubelet.yaml" 0o644 "kubelet.yaml"
    "etc/containerd/config.toml" 0o644 "containerd.toml"
    "etc/cni/net.d/10-pods.conflist" 0o644 "cni.conflist"
    "etc/containers/policy.json" 0o644 "policy.json"
    "usr/bin/runc-on-host" 0o755 "runc-on-host"
    "usr/lib/ostree/prepare-root.conf" 0o644 "prepare-root.conf"
};

const PLACEHOLDERS: [File; 3] = [
    // No kernel is ever started, but ostree requires one.
    ("usr/lib/modules/6.12.0-berth/vmlinuz", 0o644, "kernel\n"),
    ("usr/lib/modules/6.12.0-berth/initramfs.img", 0o644, "initramfs\n"),
    // Each host gets its own; images have an empty file.
    ("etc/machine-id", 0o444, ""),
];

/// Directories that a bootable image needs in addition to Debian's directories.
const DIRECTORIES: [&str; 10] = [
    "sysroot",
    "boot",
    "dev",
    "proc",
    "run",
    "sys",
    "tmp",
    "var",
    "etc/kubernetes/pki",
    "etc/containerd/conf.d",
];

const WANTED: [&str; 5] = [
    "boot-id.service",
    "soft-boot.service",
    "kubelet.service",
    "host-network.service",
    "guest-images.service",
];

/// Debian's units that are useless on a test host.
const MASKED: [&str; 9] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "getty@tty1.service",
    "console-getty.service",
    "systemd-pstore.service",
    "systemd-resolved.service",
    "systemd-networkd.service",
];

/// Hash of everything that [`write`] writes.
pub(super) fn hash() -> String {
    let files: String = FILES
        .iter()
        .chain(&PLACEHOLDERS)
        .map(|(path, mode, text)| format!("{path} {mode} {text}\0"))
        .collect();
    sha256(format!("{files}{DIRECTORIES:?}{WANTED:?}{MASKED:?}").as_bytes())
}

pub(super) fn write(root: &Path) -> Result<()> {
    for directory in DIRECTORIES {
        fs::create_dir_all(root.join(directory))?;
    }
    symlink("sysroot/ostree", root.join("ostree"))?;
    for (path, mode, text) in FILES.into_iter().chain(PLACEHOLDERS) {
        put(root, path, mode, text.as_bytes())?;
    }
    let wants = root.join("usr/lib/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants)?;
    for unit in WANTED {
        symlink(format!("../{unit}"), wants.join(unit))?;
    }
    let masks = root.join("etc/systemd/system");
    fs::create_dir_all(&masks)?;
    for unit in MASKED {
        symlink("/dev/null", masks.join(unit))?;
    }
    Ok(())
}

/// Writes a file below a root, and creates its directories.
pub(super) fn put(root: &Path, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
    let path = room(root, path)?;
    fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

pub(super) fn link(root: &Path, path: &str, target: &str) -> Result<()> {
    let path = room(root, path)?;
    symlink(target, &path).with_context(|| format!("linking {}", path.display()))
}

/// Prepares a path for a new file: creates its directories, and removes an existing file. Returns the full path.
fn room(root: &Path, path: &str) -> Result<PathBuf> {
    let path = root.join(path.trim_start_matches('/'));
    let parent = path.parent().context("the file's path has no directory")?;
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    // An existing file may be a hard link shared with other hosts: replace it, never write to it.
    if path.symlink_metadata().is_ok() {
        fs::remove_file(&path).with_context(|| format!("replacing {}", path.display()))?;
    }
    Ok(path)
}
