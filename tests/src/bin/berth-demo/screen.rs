//! The live table: what `kubectl berth status` prints, again and again in the same place. Without a terminal it is
//! printed each time that it says something new.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::Client;
use kubectl_berth::{Scope, Snapshot, render, views};

/// Time between two looks at the cluster.
const EVERY: Duration = Duration::from_millis(200);
/// Namespace of the programs.
const NAMESPACE: &str = berth_api::keys::NAMESPACE;

/// The table on the screen.
pub(crate) struct Screen {
    client: Client,
    began: Instant,
    /// Lines that the next table overwrites.
    lines: usize,
    /// Text of the last table, without the ages, which change all the time.
    said: String,
}

impl Screen {
    /// Starts with nothing shown.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            began: Instant::now(),
            lines: 0,
            said: String::new(),
        }
    }

    /// Shows the table for ever.
    ///
    /// # Errors
    /// When it cannot be written. A read that fails is left out: the next one may work.
    pub(crate) async fn run(&mut self) -> Result<()> {
        loop {
            self.show().await?;
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Shows the table once.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) async fn show(&mut self) -> Result<()> {
        let Ok(snapshot) = Snapshot::read(&self.client, NAMESPACE, Scope::Status).await else {
            return Ok(());
        };
        let now = Timestamp::now();
        let seconds = self.began.elapsed().as_secs_f64();
        match terminal() {
            Some((width, height)) => {
                let text = format!("{seconds:.1} s\n{}", render(&snapshot, now, width));
                let frame = frame(&text, self.lines, height);
                self.lines = text.lines().count().min(height.saturating_sub(1));
                write(&frame)
            }
            None => {
                let said = serde_json::to_string(&views(&snapshot, now))?;
                if said == self.said {
                    return Ok(());
                }
                self.said = said;
                write(&format!("{seconds:.1} s\n{}\n", render(&snapshot, now, 0)))
            }
        }
    }
}

/// Width and height, if standard output is a terminal that moves its cursor.
fn terminal() -> Option<(usize, usize)> {
    let moves = std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
    let (width, height) = terminal_size::terminal_size().filter(|_| moves && stdout().is_terminal())?;
    Some((usize::from(width.0), usize::from(height.0)))
}

/// The text in place of the last `before` lines, no higher than the screen. Each line is cleared behind its end and
/// nothing before that, so that it does not flicker.
fn frame(text: &str, before: usize, height: usize) -> String {
    let mut out = String::new();
    if before > 0 {
        let _ = write!(out, "\x1b[{before}A");
    }
    for line in text.lines().take(height.saturating_sub(1)) {
        let _ = write!(out, "{line}\x1b[K\r\n");
    }
    out + "\x1b[J"
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_overwrites_the_one_before() {
        assert_eq!(frame("a\nb\n", 0, 24), "a\x1b[K\r\nb\x1b[K\r\n\x1b[J");
        assert_eq!(frame("c\n", 2, 24), "\x1b[2Ac\x1b[K\r\n\x1b[J");
        assert_eq!(
            frame("a\nb\nc\n", 0, 3),
            "a\x1b[K\r\nb\x1b[K\r\n\x1b[J",
            "no higher than the screen"
        );
    }
}
