//! The status as it changes, from the API server's watches: drawn again in its place on a terminal, a line for each change
//! elsewhere.

mod lines;
mod live;
mod screen;

use std::fmt::Debug;
use std::future::Future;
use std::io::{ErrorKind, Write};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
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
use live::{Kind, Live, News};
pub use screen::{Frames, Size};

/// Least time between two drawings.
const LEAST: Duration = Duration::from_millis(250);
/// Time after which a view is drawn although nothing has changed: ages go on.
const TICK: Duration = Duration::from_secs(1);
/// Objects of one answer to a list.
const PAGE: u32 = 500;
/// Time after which each watch is asked for anew, in seconds: so one that hangs is found out.
const WATCH_FOR: u32 = 60;

/// Choice of what to watch, and how to show it.
#[derive(Debug)]
pub struct Watching {
    /// Namespace of the berths.
    pub namespace: String,
    /// The only pool to show.
    pub pool: Option<String>,
    /// Amount to show.
    pub detail: Detail,
    /// Longest time until there is something to show.
    pub limit: Duration,
    /// The output is a terminal that moves its cursor, and has colours or not. `None`: lines are appended.
    pub colours: Option<bool>,
}

/// Shows the status on `out` until `end`, or until nobody reads it any more.
///
/// # Errors
/// When there is nothing to show within the limit, there is no such pool, or the output cannot be written.
pub async fn watch(client: &Client, watching: &Watching, out: impl Write, end: impl Future<Output = ()>) -> Result<()> {
    let mut news = pin!(news(client, &watching.namespace));
    let mut end = pin!(end);
    let mut live = Live::of(watching.pool.clone());
    let first = async {
        while !live.is_complete() && live.refused().is_none() {
            let Some(item) = news.next().await else { break };
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
            .old(Timestamp::now())
            .map_or_else(|| "it does not answer".to_owned(), |old| old.why);
        bail!(
            "the API server could not be watched within {} s: {why}",
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
        if changed || drawn.elapsed() >= TICK {
            match view.show(&mut live) {
                // Nobody reads it any more, as after `| head`.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                shown => shown.context("cannot write the status")?,
            }
            (drawn, changed) = (Instant::now(), false);
        }
        // What comes within the least time is drawn together.
        let mut next = drawn + TICK;
        loop {
            tokio::select! {
                biased;
                () = &mut end => return Ok(()),
                () = sleep_until(next) => break,
                Some(item) = news.next() => {
                    if live.take(item, Timestamp::now()) {
                        (changed, next) = (true, drawn + LEAST);
                    }
                }
            }
        }
    }
}

/// View on the screen, and its place.
struct View<W: Write> {
    detail: Detail,
    to: To,
    out: W,
}

enum To {
    /// A terminal with its frames, and whether it has colours.
    Screen(Frames, bool),
    Lines(Lines),
}

impl<W: Write> View<W> {
    fn new(watching: &Watching, out: W) -> Self {
        let to = match watching.colours {
            Some(colours) => To::Screen(Frames::default(), colours),
            None => To::Lines(Lines::default()),
        };
        let mut this = Self {
            detail: watching.detail,
            to,
            out,
        };
        this.cursor(screen::HIDE);
        this
    }

    /// Hides or shows the cursor of a terminal. One that cannot be written is told of by the next text.
    fn cursor(&mut self, how: &str) {
        if matches!(self.to, To::Screen(..)) {
            self.print(how).unwrap_or_default();
        }
    }

    fn print(&mut self, text: &str) -> std::io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    fn show(&mut self, live: &mut Live) -> std::io::Result<()> {
        let now = Timestamp::now();
        let (report, old) = (live.report(now), live.old(now));
        let text = match &mut self.to {
            To::Screen(frames, colours) => {
                let size = size();
                let look = Look {
                    width: size.width,
                    colours: *colours,
                };
                let text = screen::text(report, old.as_ref(), now, look, self.detail);
                frames.next(&text, size)
            }
            To::Lines(lines) => lines.next(&report, old.as_ref(), now),
        };
        self.print(&text)
    }
}

impl<W: Write> Drop for View<W> {
    fn drop(&mut self) {
        self.cursor(screen::SHOW);
    }
}

/// Size of the terminal, asked for each time: people change it.
fn size() -> Size {
    let known = terminal_size::terminal_size();
    known.map_or(Size { width: 80, height: 24 }, |(width, height)| Size {
        width: width.0.into(),
        height: height.0.into(),
    })
}

/// Everything that the watches tell. They begin again by themselves after errors.
fn news(client: &Client, namespace: &str) -> impl Stream<Item = News> + use<> {
    let (answered, answers) = mpsc::unbounded_channel();
    let of = |kind: Kind| {
        let answered = answered.clone();
        with_watch_listener(client, move |starts| {
            if starts {
                // An error says that the view has ended.
                answered.send(News::Answered(kind)).unwrap_or_default();
            }
        })
    };
    let leases = Api::namespaced(of(Kind::Leases), namespace);
    let answers = unfold(answers, async |mut answers| Some((answers.recv().await?, answers)));
    select_all([
        events(Api::all(of(Kind::Pools)), None, |event| News::Pool(Box::new(event))),
        events(Api::all(of(Kind::Hosts)), None, |event| News::Host(Box::new(event))),
        events(Api::all(of(Kind::Nodes)), None, |event| {
            News::Node(Box::new(event.map(trimmed)))
        }),
        // The controller's own lease lies beside the berths.
        events(leases, Some(keys::LABEL_POOL), |event| News::Lease(Box::new(event))),
        events(Api::all(of(Kind::Fleets)), None, |event| News::Fleet(Box::new(event))),
        answers.boxed(),
    ])
}

fn events<K>(
    api: Api<K>,
    labels: Option<&str>,
    news: impl Fn(watcher::Result<Event<K>>) -> News + Send + 'static,
) -> BoxStream<'static, News>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut config = watcher::Config::default().page_size(PAGE).timeout(WATCH_FOR);
    config.label_selector = labels.map(str::to_owned);
    follow(api, config).default_backoff().map(news).boxed()
}

/// A Node without what is most of it and never shown.
fn trimmed(event: Event<Node>) -> Event<Node> {
    let trim = |mut node: Node| {
        node.metadata.managed_fields = None;
        node.metadata.annotations = None;
        if let Some(status) = &mut node.status {
            (status.images, status.volumes_attached, status.volumes_in_use) = (None, None, None);
        }
        node
    };
    match event {
        Event::Apply(node) => Event::Apply(trim(node)),
        Event::Delete(node) => Event::Delete(trim(node)),
        Event::InitApply(node) => Event::InitApply(trim(node)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}
