//! Distribution packages of the harness.

use std::fs::File;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::cache::cache_dir;
use super::find::find_program;
use crate::process;

/// Ensures that these distribution packages are installed.
///
/// As root on Debian and derivatives it installs missing ones; elsewhere the error has the command to run.
pub fn ensure_packages(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let command = format!("apt-get install --no-install-recommends {list}");
    if find_program("apt-get").is_none() {
        bail!(
            "packages are missing (Debian names: {list}), and this machine has no apt-get to install them; on Debian run: {command}"
        );
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("packages are missing; run: sudo {command}");
    }
    let lock = File::create(cache_dir()?.join(".packages.lock"))?;
    lock.lock().context("waiting for another installation")?;
    let started = Instant::now();
    eprintln!("berth-tools: installing {list}");
    apt_get(&missing)
        .or_else(|_| apt(&["update", "-q"]).and_then(|()| apt_get(&missing)))
        .with_context(|| format!("{command} failed"))?;
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("berth-tools: {list}: installed in {seconds:.1} s");
    Ok(())
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

fn apt_get(packages: &[&str]) -> Result<()> {
    let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .output()
        .context("apt-get")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{}", process::last_lines(&text, 10));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_package_is_not_installed() {
        assert!(!is_installed("berth-no-such-package"));
        assert!(is_installed("coreutils") || find_program("dpkg-query").is_none());
    }
}
