//! The units and directories of `berth-agent`, as systemd sees them in a root directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Made, UNITS, is_root, need, run};
use crate::said::Said;

/// Unpacks the `.deb`, and returns its root directory.
fn unpack(made: &Made) -> Result<PathBuf> {
    need("dpkg-deb", "dpkg")?;
    need("systemctl", "systemd")?;
    let root = made.path("root");
    let package = made.deb("berth-agent");
    run(Command::new("dpkg-deb").arg("--extract").args([&package, &root]))?;
    Ok(root)
}

/// Fedora disables units that no preset names, Debian enables them.
#[test]
fn the_preset_enables_all_but_the_agent() -> Result<()> {
    for default in ["enable *\n", "disable *\n"] {
        let made = Made::new()?;
        let root = unpack(&made)?;
        fs::write(root.join("usr/lib/systemd/system-preset/99-default.preset"), default)?;
        let root = format!("--root={}", root.display());
        run(Command::new("systemctl").args([&root, "preset"]).args(UNITS))?;
        for (unit, expected) in UNITS.iter().zip(["disabled", "enabled", "enabled"]) {
            let output = Command::new("systemctl").args([&root, "is-enabled", unit]).output()?;
            let said = Said::of(&output);
            ensure!(said.out.trim() == expected, "{unit}: {said:?}");
        }
    }
    Ok(())
}

const CREATED: [&str; 6] = [
    "etc/berth",
    "etc/containers",
    "etc/ostree",
    "run/berth",
    "run/ostree",
    "var/lib/berth",
];

/// Creates the directories as systemd does at boot. Returns their permissions.
fn create_directories(root: &Path) -> Result<Vec<(&'static str, u32)>> {
    let argument = format!("--root={}", root.display());
    run(Command::new("systemd-tmpfiles").args([&argument, "--create", "berth.conf"]))?;
    let mut modes = vec![];
    for path in CREATED {
        modes.push((path, fs::metadata(root.join(path))?.permissions().mode() & 0o7777));
    }
    Ok(modes)
}

#[test]
fn missing_directories_are_created_at_boot() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let made = Made::new()?;
    let root = unpack(&made)?;
    fs::remove_dir(root.join("etc/berth"))?;
    let created = create_directories(&root)?;
    ensure!(created.iter().all(|(_, mode)| *mode == 0o755), "{created:?}");
    fs::set_permissions(root.join("etc/berth"), fs::Permissions::from_mode(0o700))?;
    let kept = create_directories(&root)?;
    ensure!(kept.contains(&("etc/berth", 0o700)), "{kept:?}");
    Ok(())
}
