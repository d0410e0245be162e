//! `status --watch`: redraws the status in place on a terminal. For a file or a pipe, appends a line for each change.

mod lines;
mod live;
mod screen;

use std::fmt::Debug;
use std::future::Future;
use std::io::{ErrorKind, Write};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_api::decode::Decoded;
use berth_api::keys;
use berth_shell::listen::with_watch_listener;
use futures::stream::{BoxStream, select_all, unfold};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as follow};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::render::Detail;
use crate::snapshot::known;
use crate::table::Look;

use lines::Lines;
use live::{Kind, Live, WatchEvent};
pub use screen::{Frames, Size};

const MIN_DRAW_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two drawings while nothing changes. Redrawing keeps the shown ages current.
const DRAW_INTERVAL: Duration = Duration::from_secs(1);
const PAGE_SIZE: u32 = 500;
/// Seconds until each watch is renewed, so that a hung watch is noticed.
const WATCH_TIMEOUT: u32 = 60;

/// Choice of what to watch, and how to show it.
#[derive(Debug)]
pub struct Watching {
    /// Namespace of the berths.
    pub namespace: String,
    /// The only pool to show; `None` for all.
    pub pool: Option<String>,
    /// Amount of detail to show.
    pub detail: Detail,
    /// Maximum wait for the first status.
    pub limit: Duration,
    /// `Some` to redraw on a terminal: true with colors, false without. `None` to append lines.
    pub colours: Option<bool>,
}

/// Shows the status on `out` until `end`, or until the reader closes the pipe.
pub async fn watch(client: &Client, watching: &Watching, out: impl Write, end: impl Future<Output = ()>) -> Result<()> {
    let mut events = pin!(all_events(client, &watching.namespace));
    let mut end = pin!(end);
    let mut live = Live::of(watching.pool.clone());
    let first = async {
        while !live.is_complete() && live.refused().is_none() {
            let Some(item) = events.next().await else { break };
            live.take(item, Timestamp::now());
        }
    };
    tokio::select! {
        () = &mut end => return Ok(()),
        begun = tokio::time::timeout(watching.limit, first) => begun.is_ok(),
    };
    if let Some(why) = live.refused() {
        bail!("{why}");
    }
    if !live.is_complete() {
        let why = live
            .stale(Timestamp::now())
            .map_or_else(|| "the API server does not answer".to_owned(), |stale| stale.why);
        bail!(
            "the API server did not return all objects within {} s: {why}",
            watching.limit.as_secs()
        );
    }
    if let Some(pool) = &watching.pool {
        known(pool, &live.pools())?;
    }
    let mut view = View::new(watching, out);
    let mut drawn = Instant::now();
    let mut changed = true;
    loop {
        if changed || drawn.elapsed() >= DRAW_INTERVAL {
            match view.show(&mut live) {
                // The reader has closed the pipe, as after `| head`.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                shown => shown.context("cannot write the status")?,
            }
            (drawn, changed) = (Instant::now(), false);
        }
        // Events that arrive within `MIN_DRAW_INTERVAL` after a drawing are drawn together.
        let mut next = drawn + DRAW_INTERVAL;
        loop {
            tokio::select! {
                biased;
                () = &mut end => return Ok(()),
                () = sleep_until(next) => break,
                Some(item) = events.next() => {
                    if live.take(item, Timestamp::now()) {
                        (changed, next) = (true, drawn + MIN_DRAW_INTERVAL);
                    }
                }
            }
        }
    }
}

struct View<W: Write> {
    detail: Detail,
    form: Form,
    out: W,
}

enum Form {
    /// Redraws frames on a terminal: true with colors, false without.
    Screen(Frames, bool),
    Lines(Lines),
}

impl<W: Write> View<W> {
    fn new(watching: &Watching, out: W) -> Self {
        let form = match watching.colours {
            Some(colours) => Form::Screen(Frames::default(), colours),
            None => Form::Lines(Lines::default()),
        };
        let mut this = Self {
            detail: watching.detail,
            form,
            out,
        };
        this.cursor(screen::HIDE);
        this
    }

    /// Hides or shows the cursor of a terminal. Ignores errors: if the output is broken, the next drawing fails too.
    fn cursor(&mut self, sequence: &str) {
        if matches!(self.form, Form::Screen(..)) {
            self.print(sequence).unwrap_or_default();
        }
    }

    fn print(&mut self, text: &str) -> std::io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    fn show(&mut self, live: &mut Live) -> std::io::Result<()> {
        let now = Timestamp::now();
        let (report, stale) = (live.report(now), live.stale(now));
        let text = match &mut self.form {
            Form::Screen(frames, colours) => {
                let size = size();
                let look = Look {
                    width: size.width,
                    colours: *colours,
                };
                let text = screen::text(report, stale.as_ref(), now, look, self.detail);
                frames.next(&text, size)
            }
            Form::Lines(lines) => lines.next(&report, stale.as_ref(), now),
        };
        self.print(&text)
    }
}

impl<W: Write> Drop for View<W> {
    fn drop(&mut self) {
        self.cursor(screen::SHOW);
    }
}

/// Returns the terminal's current size; 80 by 24 if it is unknown. The user may resize the terminal at any time.
fn size() -> Size {
    let known = terminal_size::terminal_size();
    known.map_or(Size { width: 80, height: 24 }, |(width, height)| Size {
        width: width.0.into(),
        height: height.0.into(),
    })
}

/// Returns a client that sends [`WatchEvent::Answered`] whenever the API server answers its watch of this kind.
fn listening(client: &Client, answered: &mpsc::UnboundedSender<WatchEvent>, kind: Kind) -> Client {
    let answered = answered.clone();
    with_watch_listener(client, move |starts| {
        if starts {
            // Sending fails only after the view has ended.
            answered.send(WatchEvent::Answered(kind)).unwrap_or_default();
        }
    })
}

/// Returns the events of all watches. Watches restart after errors.
fn all_events(client: &Client, namespace: &str) -> impl Stream<Item = WatchEvent> + use<> {
    let (answered, answers) = mpsc::unbounded_channel();
    let leases = Api::namespaced(listening(client, &answered, Kind::Leases), namespace);
    let answers = unfold(answers, async |mut answers| Some((answers.recv().await?, answers)));
    select_all([
        events(Api::all(listening(client, &answered, Kind::Pools)), None, |event| {
            WatchEvent::Pool(Box::new(event))
        }),
        events(
            Api::all(listening(client, &answered, Kind::BootcNodes)),
            None,
            |event| WatchEvent::BootcNode(Box::new(event)),
        ),
        events(Api::all(listening(client, &answered, Kind::Nodes)), None, |event| {
            WatchEvent::Node(Box::new(event.map(trimmed)))
        }),
        // The label leaves out the controller's own Lease.
        events(leases, Some(keys::LABEL_POOL), |event| {
            WatchEvent::Lease(Box::new(event))
        }),
        events(Api::all(listening(client, &answered, Kind::Fleets)), None, |event| {
            WatchEvent::Fleet(Box::new(event))
        }),
        answers.boxed(),
    ])
}

fn events<K>(
    api: Api<K>,
    labels: Option<&str>,
    wrap: impl Fn(watcher::Result<Event<K>>) -> WatchEvent + Send + 'static,
) -> BoxStream<'static, WatchEvent>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut config = watcher::Config::default().page_size(PAGE_SIZE).timeout(WATCH_TIMEOUT);
    config.label_selector = labels.map(str::to_owned);
    follow(api, config).default_backoff().map(wrap).boxed()
}

/// Removes the annotations of a Node, which are never shown.
fn trimmed(mut event: Event<Decoded<Node>>) -> Event<Decoded<Node>> {
    match &mut event {
        Event::Apply(node) | Event::Delete(node) | Event::InitApply(node) => {
            node.metadata.annotations = None;
        }
        Event::Init | Event::InitDone => {}
    }
    event
}
