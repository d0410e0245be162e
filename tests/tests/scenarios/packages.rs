//! The packages for hosts and admins, made as for a release but with stand-ins for the programs.
//! `tests/tests/real/packages.rs` boots an OS image with the package.

mod contents;
mod manual;
mod read;
mod root;
mod scripts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use berth_tests::packages;
use berth_tests::scratch::Scratch;
use berth_tests::tools::{ensure_packages, find_program};

use crate::said::Said;

const UNITS: [&str; 3] = [
    "berth-agent.service",
    "berth-firstboot.service",
    "berth-rollback-guard.service",
];

/// Both packages in both formats, the programs in `programs` and the manual pages in `man`. The directory is removed with
/// this value.
struct Made(Scratch);

impl Made {
    fn new() -> Result<Self> {
        let made = Self(Scratch::new("berth-packages-")?);
        let programs = made.path("programs");
        fs::create_dir(&programs)?;
        for name in ["berth-agent", "kubectl-berth"] {
            fs::write(programs.join(name), "stands for a program\n")?;
        }
        packages::make(&programs, made.0.path())?;
        Ok(made)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn deb(&self, name: &str) -> PathBuf {
        packages::deb(self.0.path(), name)
    }

    fn rpm(&self, name: &str) -> PathBuf {
        packages::rpm(self.0.path(), name)
    }
}

/// Installs a package of the distribution, unless the machine has its program.
fn need(program: &str, package: &str) -> Result<()> {
    if find_program(program).is_some() {
        return Ok(());
    }
    ensure_packages(&[package])
}

/// Runs a command, which must succeed. Returns its standard output.
fn run(command: &mut Command) -> Result<String> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command.output().with_context(|| format!("running {program}"))?;
    Ok(Said::of(&output).well(&[]).context(program)?.out)
}

/// True if the test runs as root. Otherwise prints that it is skipped.
fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: only root can install files that belong to root; run the tests with sudo");
    }
    is_root
}
