//! Debian's packages that real hosts need.

use anyhow::Result;

/// Packages that the machine needs in addition to every Debian's.
const PACKAGES: [&str; 7] = [
    "mmdebstrap",
    "systemd-container",
    "skopeo",
    "ostree",
    "iproute2",
    "util-linux",
    "e2fsprogs",
];

pub(super) fn ensure() -> Result<()> {
    crate::tools::ensure_packages(&PACKAGES)
}
