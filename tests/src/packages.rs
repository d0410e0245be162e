//! Packages for hosts and admins, made by `scripts/dist.sh` as for a release. The manual pages are written by this crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use berth_agent::cli::Args;
use berth_shell::man;
use clap::CommandFactory;
use kubectl_berth::arguments::Arguments;

use crate::dist::{VERSION, run_script};
use crate::process::run;

const SCRIPT: &str = r#"
    need_go_tool nfpm
    package_kinds amd64 "$1" "$2" "$3"
"#;

/// Writes the manual pages of agent and plugin into a directory.
pub fn write_manual(to: &Path) -> Result<()> {
    man::write(Args::command(), "8", to).context("cannot write the pages of berth-agent")?;
    man::write(Arguments::command(), "1", to).context("cannot write the pages of kubectl berth")
}

/// Makes all packages for amd64 in a directory. `programs` is a directory with `berth-agent` and `kubectl-berth`.
pub fn make(programs: &Path, to: &Path) -> Result<()> {
    let manual = to.join("man");
    fs::create_dir_all(&manual)?;
    write_manual(&manual)?;
    // Listed before gzip adds files to the directory.
    let pages: Vec<fs::DirEntry> = fs::read_dir(&manual)?.collect::<Result<_, _>>()?;
    for page in pages {
        run(Command::new("gzip").args(["-9", "--no-name"]).arg(page.path()))?;
    }
    run_script(SCRIPT, &[programs, &manual, to])
}

/// Path of the package for Debian and its relatives, in the directory of [`make`].
pub fn deb(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}_{VERSION}_amd64.deb"))
}

/// Path of the package for Fedora, RHEL and their relatives, in the directory of [`make`].
pub fn rpm(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}-{VERSION}-1.x86_64.rpm"))
}
