//! Reads a running pull's progress: bootc's JSON lines from a FIFO on the host.
//!
//! The agent reports the progress, and locks the image as soon as it is staged. bootc writes progress only to a pipe.
//! When the pipe is full, bootc blocks and keeps the sysroot locked. systemd opens the pipe in both directions, so
//! bootc does not notice a missing reader. Therefore a reader must always exist: the agent, or else the unit
//! `berth-progress.service`, which waits for a lock that the kernel releases when the agent dies.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::node::Progress;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::host::bus::Changes;

/// Size of the pipe, in bytes: the largest size without privileges.
const PIPE_SIZE: i32 = 1 << 20;
/// Maximum length of a progress line, in bytes. Longer lines are ignored. Each line lists all layers so far.
const MAX_LINE: usize = 256 << 10;
/// Minimum time between two wake-ups of the agent by progress reports.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);
const RATE_WINDOW: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(rename = "type", default)]
    type_: String,
    #[serde(default)]
    task: String,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    bytes_total: u64,
    #[serde(default)]
    subtasks: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineContent {
    /// Bytes downloaded so far, and in total.
    Download(u64, u64),
    /// The image is staged. bootc still runs, to pull bound images and clean up.
    Staged,
}

pub(super) fn parse(line: &[u8]) -> Option<LineContent> {
    let line: Line = serde_json::from_slice(line).ok()?;
    match (line.type_.as_str(), line.task.as_str()) {
        ("ProgressBytes", "pulling" | "") => Some(LineContent::Download(line.bytes, line.bytes_total)),
        ("ProgressSteps", "staging") => {
            let mut parts = line.subtasks.as_array()?.iter();
            let deployed = parts.any(|part| part["subtask"] == "deploying" && part["completed"] == true);
            deployed.then_some(LineContent::Staged)
        }
        _ => None,
    }
}

#[derive(Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    overlong: bool,
}

impl Lines {
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (head, tail) = bytes.split_at(end);
            self.push(head);
            if !self.overlong {
                each(&self.buffer);
            }
            self.overlong = false;
            self.buffer.clear();
            bytes = tail.get(1..).unwrap_or_default();
        }
        self.push(bytes);
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.overlong || self.buffer.len() + bytes.len() > MAX_LINE {
            self.overlong = true;
            self.buffer = Vec::new();
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }
}

/// Computes the average download rate over [`RATE_WINDOW`].
#[derive(Default)]
pub(super) struct Meter {
    samples: VecDeque<(Instant, u64)>,
    pub(super) latest: Option<Progress>,
}

impl Meter {
    pub(super) fn add(&mut self, now: Instant, bytes: u64, bytes_total: u64) {
        if self.samples.back().is_some_and(|(_, last)| *last > bytes) {
            self.samples.clear();
        }
        self.samples.push_back((now, bytes));
        while self.samples.len() > 2
            && self
                .samples
                .get(1)
                .is_some_and(|(at, _)| now.duration_since(*at) >= RATE_WINDOW)
        {
            self.samples.pop_front();
        }
        let rate = self.samples.front().map_or(0, |(at, first)| {
            let milliseconds = now.duration_since(*at).as_millis().max(1);
            let rate = u128::from(bytes.saturating_sub(*first)) * 1000 / milliseconds;
            u64::try_from(rate).unwrap_or(u64::MAX)
        });
        self.latest = Some(Progress {
            bytes,
            bytes_total,
            bytes_per_second: rate,
        });
    }
}

/// Reads the progress of one pull until this value is dropped.
pub(super) struct ProgressReader {
    path: PathBuf,
    meter: Arc<Mutex<Meter>>,
    task: tokio::task::JoinHandle<()>,
    /// Held while this process reads the pipe.
    _lock: File,
}

impl ProgressReader {
    /// Creates the FIFO if needed, locks the file `lock`, and starts to read. Notifies `staged` at the first line that
    /// reports the image as staged.
    pub(super) fn start(path: &Path, lock: &Path, changes: Changes, staged: oneshot::Sender<()>) -> io::Result<Self> {
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(lock)?;
        lock.try_lock()?;
        if !std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_fifo()) {
            let _ = std::fs::remove_file(path);
            mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        }
        // Open for writing too. Otherwise reading would end when bootc closes the pipe.
        let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(path)?;
        if let Err(error) = fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE)) {
            tracing::debug!(%error, "cannot enlarge the pipe for bootc's progress; the pipe keeps its default size");
        }
        let meter = Arc::new(Mutex::new(Meter::default()));
        let task = tokio::spawn(read(pipe, meter.clone(), changes, staged));
        Ok(Self {
            path: path.to_path_buf(),
            meter,
            task,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the latest progress; `None` until bootc reports any.
    pub(super) fn latest(&self) -> Option<Progress> {
        self.meter.lock().unwrap_or_else(|e| e.into_inner()).latest
    }
}

impl Drop for ProgressReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for ProgressReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgressReader")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

async fn read(mut pipe: pipe::Receiver, meter: Arc<Mutex<Meter>>, changes: Changes, staged: oneshot::Sender<()>) {
    let mut staged = Some(staged);
    let mut lines = Lines::default();
    let mut chunk = [0; 4096];
    let mut woken: Option<Instant> = None;
    loop {
        let length = match pipe.read(&mut chunk).await {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) => {
                tracing::debug!(%error, "cannot read bootc's progress");
                return;
            }
        };
        let now = Instant::now();
        let mut news = false;
        lines.feed(chunk.get(..length).unwrap_or_default(), |line| {
            match parse(line) {
                Some(LineContent::Download(bytes, total)) => {
                    meter.lock().unwrap_or_else(|e| e.into_inner()).add(now, bytes, total);
                    news = true;
                }
                Some(LineContent::Staged) => {
                    // Sending fails only if the receiver is gone.
                    let _ = staged.take().map(|staged| staged.send(()));
                }
                None => {}
            }
        });
        if news && woken.is_none_or(|last| now.duration_since(last) >= WAKE_INTERVAL) {
            woken = Some(now);
            changes.bump();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_only_what_it_knows() {
        let known = br#"{"type":"ProgressBytes","task":"pulling","bytes":5,"bytesTotal":9,"subtasks":[{"id":"x"}]}"#;
        assert_eq!(parse(known), Some(LineContent::Download(5, 9)));
        fn steps(parts: &str) -> String {
            format!(r#"{{"type":"ProgressSteps","task":"staging","subtasks":{parts}}}"#)
        }
        let staged = r#"[{"subtask":"merging","completed":true},{"subtask":"deploying","completed":true}]"#;
        assert_eq!(parse(steps(staged).as_bytes()), Some(LineContent::Staged));
        for early in [
            r#"[{"subtask":"merging","completed":true},{"subtask":"deploying","completed":false}]"#,
            r#"[{"subtask":"deploying","completed":"yes"},7]"#,
            "[]",
            "true",
        ] {
            assert_eq!(parse(steps(early).as_bytes()), None, "{early}");
        }
        for other in [
            r#"{"type":"Start","version":"0.1.0"}"#,
            r#"{"type":"ProgressSteps","task":"staging","steps":3}"#,
            r#"{"type":"ProgressBytes","task":"other","bytes":1}"#,
            r#"{"type":"ProgressBytes","bytes":"many"}"#,
            r#"{"type":7}"#,
            "",
            "[",
        ] {
            assert_eq!(parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn drops_only_overlong_lines() {
        let mut lines = Lines::default();
        let mut seen = vec![];
        let text = [b"a\n".as_slice(), &vec![b'x'; MAX_LINE + 1], b"\nb\n", b"c"].concat();
        for chunk in text.chunks(1000) {
            lines.feed(chunk, |line| seen.push(line.to_vec()));
        }
        assert_eq!(seen, [b"a", b"b"]);
    }

    #[test]
    fn the_rate_covers_the_last_seconds() {
        let mut meter = Meter::default();
        let start = Instant::now();
        meter.add(start, 0, 100_000);
        for second in 1..=20u64 {
            let now = start + Duration::from_secs(second);
            meter.add(now, second.min(10) * 1000, 100_000);
            if second == 10 {
                assert_eq!(meter.latest.unwrap().bytes_per_second, 1000);
            }
        }
        assert_eq!(meter.latest.unwrap().bytes_per_second, 0);
        assert!(meter.samples.len() < 10);
        meter.add(start + Duration::from_secs(21), 1, 2);
        assert_eq!(meter.latest.unwrap().bytes, 1, "a new download starts from nothing");
    }

    proptest! {
        #[test]
        fn never_panics(text: Vec<u8>, cuts in 1usize..9) {
            let mut lines = Lines::default();
            let mut joined = vec![];
            for chunk in text.chunks(cuts) {
                lines.feed(chunk, |line| {
                    joined.extend_from_slice(line);
                    joined.push(b'\n');
                    let _ = parse(line);
                });
            }
            prop_assert!(text.starts_with(&joined));
        }
    }
}
