//! `status --watch`: redraws the status in place on a terminal. For a file or a pipe, appends a line for each change.

mod lines;
mod live;
mod screen;

use std::fmt::Debug;
use std::future::Future;
use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_api::decode::Decoded;
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_shell::listen::with_watch_listener;
use futures::stream::{BoxStream, select_all, unfold};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::known_node::KnownNode;
use crate::render::Detail;
use crate::snapshot::known;
use crate::table::Look;

use lines::Lines;
pub(crate) use live::{Live, Stale, WatchEvent};

use live::Kind;
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
    let begun = tokio::select! {
        () = &mut end => return Ok(()),
        begun = begin(&mut events, watching.pool.clone(), watching.limit) => begun?,
    };
    let view = View::new(watching, out);
    let mut shown = Shown { live: begun, view };
    tokio::select! {
        () = end => Ok(()),
        ended = follow(events, &mut shown) => ended,
    }
}

/// Reads all objects. Fails if the objects that are needed cannot be read within `limit`, or if there is no pool with
/// the name `only`.
pub(crate) async fn begin(
    events: &mut (impl Stream<Item = WatchEvent> + Unpin),
    only: Option<String>,
    limit: Duration,
) -> Result<Live> {
    let mut live = Live::of(only.clone());
    let first = async {
        while !live.is_complete() && live.refused().is_none() {
            let Some(item) = events.next().await else { break };
            live.take(item, Timestamp::now());
        }
    };
    // If the time is over, the error below names the objects that are missing.
    tokio::time::timeout(limit, first).await.unwrap_or_default();
    if let Some(why) = live.refused() {
        bail!("{why}");
    }
    if !live.is_complete() {
        let why = live
            .stale(Timestamp::now())
            .map_or_else(|| "the API server does not answer".to_owned(), |stale| stale.why);
        bail!(
            "the API server did not return all objects within {} s: {why}",
            limit.as_secs()
        );
    }
    if let Some(pool) = &only {
        known(pool, &live.pools())?;
    }
    Ok(live)
}

/// Shows objects that watches keep up to date.
pub(crate) trait Follower {
    /// Applies an event. Returns true if there may be something new to show.
    fn take(&mut self, event: WatchEvent) -> bool;
    /// Shows the objects. Returns [`ControlFlow::Break`] if the reader is gone.
    fn show(&mut self) -> Result<ControlFlow<()>>;
}

/// Passes events to the follower. Lets it show the objects at once, and again each [`DRAW_INTERVAL`], or
/// [`MIN_DRAW_INTERVAL`] after the last time if something has changed.
pub(crate) async fn follow(
    mut events: impl Stream<Item = WatchEvent> + Unpin,
    follower: &mut impl Follower,
) -> Result<()> {
    let mut drawn = Instant::now();
    let mut changed = true;
    loop {
        if changed || drawn.elapsed() >= DRAW_INTERVAL {
            if follower.show()?.is_break() {
                return Ok(());
            }
            (drawn, changed) = (Instant::now(), false);
        }
        // Events that arrive within `MIN_DRAW_INTERVAL` after a drawing are drawn together.
        let mut next = drawn + DRAW_INTERVAL;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(next) => break,
                Some(item) = events.next() => {
                    if follower.take(item) {
                        (changed, next) = (true, drawn + MIN_DRAW_INTERVAL);
                    }
                }
            }
        }
    }
}

/// The status on a terminal or in a pipe.
struct Shown<W: Write> {
    live: Live,
    view: View<W>,
}

impl<W: Write> Follower for Shown<W> {
    fn take(&mut self, event: WatchEvent) -> bool {
        self.live.take(event, Timestamp::now())
    }

    fn show(&mut self) -> Result<ControlFlow<()>> {
        match self.view.show(&mut self.live) {
            // The reader has closed the pipe, as after `| head`.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
            shown => {
                shown.context("cannot write the status")?;
                Ok(ControlFlow::Continue(()))
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
pub(crate) fn all_events(client: &Client, namespace: &str) -> impl Stream<Item = WatchEvent> + use<> {
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
            |event| WatchEvent::BootcNode(Box::new(event.map(compact))),
        ),
        events(Api::all(listening(client, &answered, Kind::Nodes)), None, |event| {
            WatchEvent::Node(Box::new(event.map(projected)))
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
    watcher::watcher(api, config).default_backoff().map(wrap).boxed()
}

fn projected(event: Event<Decoded<Node>>) -> Event<KnownNode> {
    match event {
        Event::Apply(node) => Event::Apply(node.into()),
        Event::Delete(node) => Event::Delete(node.into()),
        Event::Init => Event::Init,
        Event::InitApply(node) => Event::InitApply(node.into()),
        Event::InitDone => Event::InitDone,
    }
}

/// Frees the unused capacity of a BootcNode's lists: a kilobyte for each node, for as long as the watch lasts.
fn compact(mut event: Event<Decoded<BootcNode>>) -> Event<Decoded<BootcNode>> {
    match &mut event {
        Event::Apply(bootc) | Event::InitApply(bootc) => {
            if let Some(status) = &mut bootc.status {
                status.conditions.shrink_to_fit();
                status.turns.shrink_to_fit();
                status.timeline.updates.shrink_to_fit();
                for update in &mut status.timeline.updates {
                    update.chapters.shrink_to_fit();
                }
            }
        }
        Event::Delete(_) | Event::Init | Event::InitDone => {}
    }
    event
}
