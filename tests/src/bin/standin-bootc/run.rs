//! Runs `ostree` and other programs.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command; returns its standard output, or an error with its standard error.
pub(crate) fn output<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String> {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program}"))?;
    if !out.status.success() {
        let words = String::from_utf8_lossy(&out.stderr);
        let words = words.trim().trim_start_matches("error: ").to_owned();
        bail!("{program} ({}): {words}", out.status);
    }
    String::from_utf8(out.stdout).with_context(|| format!("output of {program}"))
}
