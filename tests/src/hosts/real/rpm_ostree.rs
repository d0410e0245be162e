//! rpm-ostree for hosts. The stand-in for its daemon is installed with files below `/etc` and `/var`, which every
//! update keeps. A real one is part of every image.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::programs::stand_in;

/// A file of a host: path, permissions, content.
pub type HostFile = (String, u32, Vec<u8>);

/// Variable that names a directory with a real rpm-ostree for all hosts. The directory contains the daemon, its
/// libraries and unit, and files for D-Bus and polkit.
const REAL: &str = "BERTH_TEST_RPM_OSTREE";

pub(super) fn real() -> Option<PathBuf> {
    std::env::var_os(REAL).map(PathBuf::from)
}

/// True if hosts have a real rpm-ostree.
pub fn is_rpm_ostree_real() -> bool {
    real().is_some()
}

const SERVICE: [(&str, &str); 4] = [
    // The rollback guard calls the command line tool.
    (
        "etc/systemd/system/berth-rollback-guard.service.d/rpm-ostree.conf",
        "[Service]\nEnvironment=PATH=/var/lib/rpm-ostreed/bin:/usr/sbin:/usr/bin\n",
    ),
    (
        "etc/systemd/system/rpm-ostreed.service",
        include_str!("../../../osimage/rpm-ostreed.service"),
    ),
    (
        "etc/dbus-1/system-services/org.projectatomic.rpmostree1.service",
        include_str!("../../../osimage/rpm-ostreed.activation"),
    ),
    (
        "etc/dbus-1/system.d/org.projectatomic.rpmostree1.conf",
        include_str!("../../../osimage/rpm-ostreed.policy"),
    ),
];

/// Stand-in for the command line tool. Supports only `rollback`, without the daemon.
const TOOL: &str = "#!/bin/sh
[ \"$*\" = rollback ] && exec /var/lib/rpm-ostreed/standin roll-back
exit 1
";

/// Files that install rpm-ostree on a host, unless its image has a real one.
pub fn rpm_ostree() -> Result<Vec<HostFile>> {
    if is_rpm_ostree_real() {
        return Ok(vec![]);
    }
    let program = stand_in("standin-rpm-ostree")?;
    let program = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
    let mut files: Vec<HostFile> = SERVICE
        .iter()
        .map(|(path, text)| ((*path).to_owned(), 0o644, text.as_bytes().to_vec()))
        .collect();
    files.push(("var/lib/rpm-ostreed/standin".to_owned(), 0o755, program));
    files.push(("var/lib/rpm-ostreed/bin/rpm-ostree".to_owned(), 0o755, TOOL.into()));
    Ok(files)
}
