//! Runs system tools.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::last_lines;

/// Runs a command; returns its standard output, or an error with the last lines of its standard error.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program}"))?;
    check(&program, &out)?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

pub(super) fn check(program: &str, out: &Output) -> Result<()> {
    if !out.status.success() {
        let words = String::from_utf8_lossy(&out.stderr);
        bail!("{program} ({}): {}", out.status, last_lines(&words, 15));
    }
    Ok(())
}

/// Runs work that waits for processes and files on a blocking thread of the runtime.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.context("a blocking thread panicked")?
}

/// [`run`] for a program and its arguments.
pub(super) fn tool<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String> {
    run(Command::new(program).args(args))
}

/// SHA-256 of a file, in hex digits. `sha256sum` is several times faster than an unoptimised build of our own code.
pub(super) fn sha256_file(path: &Path) -> Result<String> {
    let line = tool("sha256sum", &[path])?;
    let hex = line.trim_start_matches('\\').split_whitespace().next();
    hex.map(str::to_owned)
        .with_context(|| format!("sha256sum of {}", path.display()))
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}
