//! Progress of downloads and builds for a waiting user.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const LOG_INTERVAL: Duration = Duration::from_secs(20);
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);

/// Progress on standard error: on a terminal one line that is updated, elsewhere a new line every 20 s.
#[derive(Debug)]
pub(super) struct Progress {
    begun: Instant,
    shown: Instant,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn begin(what: &str) -> Self {
        eprintln!("berth-tools: {what}");
        let now = Instant::now();
        Self {
            begun: now,
            shown: now,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Prints the line if it is due. `line` gets the time since the start.
    pub(super) fn show(&mut self, line: impl FnOnce(Duration) -> String) {
        let interval = if self.is_terminal {
            TERMINAL_INTERVAL
        } else {
            LOG_INTERVAL
        };
        if self.shown.elapsed() < interval {
            return;
        }
        self.shown = Instant::now();
        let line = line(self.begun.elapsed());
        let mut output = std::io::stderr();
        // An error must not end a build.
        let _ = if self.is_terminal {
            // Erases the previous, possibly longer line.
            write!(output, "\r\x1b[2Kberth-tools: {line}").and_then(|()| output.flush())
        } else {
            writeln!(output, "berth-tools: {line}")
        };
    }

    pub(super) fn end(self, what: &str) {
        self.erase();
        eprintln!("berth-tools: {what} in {:.1} s", self.begun.elapsed().as_secs_f64());
    }

    /// Erases the updated line.
    fn erase(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}

/// Remaining time estimated from the finished share, such as ", about 3 min left"; empty if the share is too small.
pub(super) fn time_left(elapsed: Duration, done: u64, of: u64) -> String {
    if done < 20 || done > of {
        return String::new();
    }
    // Package counts and megabytes are far below 2^52.
    let left = elapsed.as_secs_f64() * (of - done) as f64 / done as f64;
    if left < 60.0 {
        return format!(", about {left:.0} s left");
    }
    format!(", about {:.0} min left", (left / 60.0).ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_needs_some_progress() {
        let minute = Duration::from_secs(60);
        for (done, of, said) in [
            (0, 100, ""),
            (19, 1000, ""),
            (50, 100, ", about 1 min left"),
            (20, 100, ", about 4 min left"),
            (90, 100, ", about 7 s left"),
            (100, 100, ", about 0 s left"),
            (101, 100, ""),
        ] {
            assert_eq!(time_left(minute, done, of), said, "{done} of {of}");
        }
    }
}
