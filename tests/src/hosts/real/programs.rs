//! Stand-ins for programs on hosts that are not available as packages.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::shell::{run, sha256_file};
use crate::process::last_lines;
use crate::programs::workspace_root;

/// Path of a stand-in, stripped: cargo's binary has a hundred megabytes of debug information.
pub(super) fn stand_in(name: &str) -> Result<PathBuf> {
    // Cargo puts it beside the programs, and one directory above the integration tests.
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let directories = program.ancestors().skip(1).take(2);
    let path = match directories.map(|d| d.join(name)).find(|path| path.is_file()) {
        Some(path) => path,
        None => build(name)?,
    };
    let hash = sha256_file(&path)?;
    let directory = super::cache::directory(&format!("{name}-{}", hash.get(..16).unwrap_or(&hash)), |to| {
        run(Command::new("strip").arg("-o").arg(to.join("program")).arg(&path)).map(drop)
    })?;
    Ok(directory.join("program"))
}

/// Builds a stand-in that cargo has not built before.
fn build(name: &str) -> Result<PathBuf> {
    let manifest = workspace_root().join("tests/Cargo.toml");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "build",
        "--quiet",
        "--bin",
        name,
        "--message-format=json-render-diagnostics",
    ]);
    command.arg("--manifest-path").arg(manifest);
    let out = command.output().context("running cargo")?;
    if !out.status.success() {
        bail!(
            "building {name}: {}",
            last_lines(&String::from_utf8_lossy(&out.stderr), 20)
        );
    }
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo reported no executable for {name}"))
}
