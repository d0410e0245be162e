//! Progress of a run.

use std::time::Instant;

/// Writes progress to standard error, with the time since the start.
#[derive(Debug, Clone, Copy)]
pub struct Progress(Instant);

impl Default for Progress {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Progress {
    /// Writes one line.
    pub fn say(&self, what: &str) {
        eprintln!("{:>6.1} s  {what}", self.0.elapsed().as_secs_f64());
    }
}
