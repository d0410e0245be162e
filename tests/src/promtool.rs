//! Prometheus's own tool, by which metrics and alerts are judged.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tools::find_program;

/// Runs promtool in this directory, with this on its standard input.
///
/// # Errors
/// When it is not on `PATH`, or finds something; with all that it said.
pub fn promtool(directory: &Path, args: &[&str], input: &str) -> Result<()> {
    let program = find_program("promtool")
        .context("promtool is not on PATH; make test fetches it, or see https://prometheus.io/download")?;
    let mut child = Command::new(program)
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run promtool")?;
    child.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "promtool {args:?}: {out}{error}");
    Ok(())
}
