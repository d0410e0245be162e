//! Runs system tools.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

pub(super) use crate::process::{check, run};

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
