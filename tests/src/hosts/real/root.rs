//! Root file system below all OS images: a small Debian, created with `mmdebstrap`.

use std::path::PathBuf;

use anyhow::Result;

use super::shell::{sha256, tool};
use super::{cache, shell};

/// Packages that hosts need in addition to the kubelet and bootc.
const PACKAGES: [&str; 18] = [
    "systemd",
    "systemd-sysv",
    "dbus",
    "polkitd",
    "iproute2",
    "ca-certificates",
    "ostree",
    "ostree-boot",
    "skopeo",
    "containerd",
    "runc",
    "iptables",
    "conntrack",
    "kmod",
    "curl",
    "procps",
    "jq",
    "containernetworking-plugins",
];
/// Additional packages for a real bootc.
const REAL_BOOTC: [&str; 1] = ["podman"];
/// Additional packages for a real rpm-ostree. It runs as a user that systemd allocates, and it layers packages in a
/// sandbox over FUSE.
const REAL_RPM_OSTREE: [&str; 3] = ["libnss-systemd", "bubblewrap", "fuse3"];

/// The root file system, and a cache key for everything derived from it.
#[derive(Debug, Clone)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    pub(super) key: String,
}

/// Name of the Debian release on hosts.
fn suite() -> String {
    std::env::var("BERTH_TEST_SUITE").unwrap_or_else(|_| "trixie".to_owned())
}

/// Returns the root file system; creates it if it is missing.
pub(super) fn ensure(real_bootc: bool, real_rpm_ostree: bool) -> Result<Root> {
    let suite = suite();
    let mut packages = PACKAGES.to_vec();
    if real_bootc {
        packages.extend(REAL_BOOTC);
    }
    if real_rpm_ostree {
        packages.extend(REAL_RPM_OSTREE);
    }
    let list = packages.join(",");
    let hash = sha256(format!("{suite}\n{list}").as_bytes());
    let key = format!("{suite}-{}", hash.get(..16).unwrap_or(&hash));
    let path = cache::directory(&format!("osroot-{key}"), |to| {
        let include = format!("--include={list}");
        let to = to.join("root");
        let mut command = std::process::Command::new("mmdebstrap");
        command.args(["--quiet", "--variant=minbase", &include, &suite]).arg(to);
        command.args(mirror());
        shell::run(&mut command).map(drop)
    })?;
    Ok(Root {
        path: path.join("root"),
        key,
    })
}

/// Debian mirror that this machine uses. `None` on a machine without Debian, where `mmdebstrap` uses its default.
fn mirror() -> Option<String> {
    let format = "$(ORIGIN) $(REPO_URI)";
    let lines = tool("apt-get", &["indextargets", "--format", format, "Created-By: Packages"]);
    let lines = lines.unwrap_or_default();
    let mut uris = lines.lines().filter_map(|line| line.strip_prefix("Debian "));
    uris.find(|uri| !uri.contains("security")).map(str::to_owned)
}
