//! Progress of fetches and builds, for a person who waits.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two lines where they are kept, as in a log.
const INTERVAL: Duration = Duration::from_secs(20);
/// Time between two changes of the line on a terminal.
const MOVES: Duration = Duration::from_millis(200);

/// A line on standard error that says how far something is: on a terminal one line that moves, elsewhere one every 20 s.
#[derive(Debug)]
pub(super) struct Progress {
    begun: Instant,
    shown: Instant,
    is_terminal: bool,
}

impl Progress {
    /// Begins, and says what is done.
    pub(super) fn begin(what: &str) -> Self {
        eprintln!("berth-tools: {what}");
        let now = Instant::now();
        Self {
            begun: now,
            shown: now,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Shows the line if it is due. `line` gets the time since the beginning.
    pub(super) fn show(&mut self, line: impl FnOnce(Duration) -> String) {
        let interval = if self.is_terminal { MOVES } else { INTERVAL };
        if self.shown.elapsed() < interval {
            return;
        }
        self.shown = Instant::now();
        let line = line(self.begun.elapsed());
        let mut output = std::io::stderr();
        // A line that cannot be shown is no reason to end a build.
        let _ = if self.is_terminal {
            // Erases what a longer line before left.
            write!(output, "\r\x1b[2Kberth-tools: {line}").and_then(|()| output.flush())
        } else {
            writeln!(output, "berth-tools: {line}")
        };
    }

    /// Ends it with a line that stays.
    pub(super) fn end(self, what: &str) {
        self.erase();
        eprintln!("berth-tools: {what} in {:.1} s", self.begun.elapsed().as_secs_f64());
    }

    /// Removes the line that moves.
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

/// "about 3 min left", from the share that is done; empty while that is too little to tell.
pub(super) fn time_left(elapsed: Duration, done: u64, of: u64) -> String {
    if done < 20 || done > of {
        return String::new();
    }
    // Counts of packages and megabytes are far below 2^52.
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
    fn the_time_left_is_told_when_enough_is_done() {
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
