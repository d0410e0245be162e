//! bootc's progress protocol: JSON lines in a pipe.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_tests::bootc::progress;
use serde_json::Value;

/// Minimum interval between two events that may be dropped.
const INTERVAL: Duration = Duration::from_millis(200);

/// Pipe for progress, if the caller gave one.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    out: Option<File>,
    started: bool,
    last: Option<Instant>,
}

impl Progress {
    /// Writes to this file descriptor, which must be a pipe.
    pub(crate) fn new(fd: Option<u32>) -> Result<Self> {
        let Some(fd) = fd else {
            return Ok(Self::default());
        };
        if fd <= 2 {
            bail!("Cannot use fd {fd} for progress JSON");
        }
        let path = format!("/proc/self/fd/{fd}");
        let meta = std::fs::metadata(&path).with_context(|| format!("Opening progress fd {fd}"))?;
        if !meta.file_type().is_fifo() {
            bail!("Opening progress fd {fd}: not a pipe");
        }
        let out = OpenOptions::new()
            .write(true)
            .open(&path)
            .with_context(|| format!("Opening progress fd {fd}"))?;
        Ok(Self {
            out: Some(out),
            ..Self::default()
        })
    }

    /// Sends an event that must not be lost.
    pub(crate) fn send(&mut self, event: &Value) {
        self.last = Some(Instant::now());
        if !self.started {
            self.started = true;
            self.write(&progress::start());
        }
        self.write(event);
    }

    /// Sends an event, unless the last one was sent less than [`INTERVAL`] ago.
    pub(crate) fn send_lossy(&mut self, event: impl FnOnce() -> Value) {
        if self.out.is_some() && self.last.is_none_or(|last| last.elapsed() >= INTERVAL) {
            self.send(&event());
        }
    }

    fn write(&mut self, event: &Value) {
        let Some(out) = &mut self.out else { return };
        let line = format!("{event}\n");
        if let Err(error) = out.write_all(line.as_bytes()) {
            // The reader is gone; that must not stop an update.
            eprintln!("Failed to write to jsonl: {error}");
            self.out = None;
        }
    }
}
