//! The live table: the output of `kubectl berth status`, redrawn in place. Without a terminal it is printed each time it changes.

use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::Client;
use kubectl_berth::watch::{Frames, Size};
use kubectl_berth::{Detail, Look, Picture, Scope, Snapshot, picture, render, report};

const UPDATE_INTERVAL: Duration = Duration::from_millis(200);
/// Width of a picture if the output is not a terminal.
const DEFAULT_WIDTH: usize = 100;
const NAMESPACE: &str = berth_api::keys::NAMESPACE;

pub(crate) struct Screen {
    client: Client,
    began: Instant,
    frames: Frames,
    /// Text of the last table. Leaves out the ages, because they always change.
    said: String,
}

impl Screen {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            began: Instant::now(),
            frames: Frames::default(),
            said: String::new(),
        }
    }

    pub(crate) async fn run(&mut self) -> Result<()> {
        loop {
            self.show().await?;
            tokio::time::sleep(UPDATE_INTERVAL).await;
        }
    }

    /// Prints the table if it changed.
    pub(crate) async fn show(&mut self) -> Result<()> {
        let Ok(snapshot) = Snapshot::read(&self.client, NAMESPACE, Scope::Status).await else {
            return Ok(());
        };
        let now = Timestamp::now();
        let seconds = self.began.elapsed().as_secs_f64();
        let (size, detail) = (terminal(), Detail::default());
        let look = Look {
            width: size.map_or(0, |size| size.width),
            colours: false,
        };
        let text = format!("{seconds:.1} s\n{}", render(&snapshot, now, look, detail));
        if let Some(size) = size {
            return write(&self.frames.next(&text, size));
        }
        let report = report(&snapshot, now);
        let pools = report.pools.iter();
        let said: Vec<_> = pools
            .map(|pool| {
                let rows: Vec<_> = pool.nodes.iter().map(|node| &node.row).collect();
                (&pool.counts, &pool.berths, &pool.progressing, rows)
            })
            .collect();
        let said = serde_json::to_string(&said)?;
        if said == self.said {
            return Ok(());
        }
        self.said = said;
        write(&(text + "\n"))
    }
}

/// The rollout of a pool, as `kubectl berth timeline` draws it.
pub(crate) async fn rollout(client: &Client, pool: &str) -> Result<Picture> {
    let snapshot = Snapshot::read(client, NAMESPACE, Scope::WithoutNodes).await?;
    picture(&snapshot, pool, Timestamp::now()).map_err(anyhow::Error::msg)
}

pub(crate) fn print(picture: &Picture) {
    println!(
        "{}",
        picture.render(terminal().map_or(DEFAULT_WIDTH, |size| size.width))
    );
}

/// Width and height, if standard output is a terminal with cursor movement.
fn terminal() -> Option<Size> {
    let moves = std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
    let (width, height) = terminal_size::terminal_size().filter(|_| moves && stdout().is_terminal())?;
    Some(Size {
        width: width.0.into(),
        height: height.0.into(),
    })
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}
