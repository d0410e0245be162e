//! Objects of the cluster, and the state that the connected pages show.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use axum::body::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::broadcast;

use super::about::About;
use super::change::change;
use super::frame::{Frame, frame};
use super::growth::Growth;
use crate::snapshot::Snapshot;
use crate::watch::{Follower, Live, Stale, WatchEvent};

/// Number of events that a connection may be late. A page that is later than that gets the whole state again.
const EVENTS_KEPT: usize = 16;

/// Objects of the cluster, and the state that the connected pages show.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) about: About,
    live: Live,
    /// Random text that only this run of the dashboard has. Another program may take its port after its end, and a page
    /// that is still open must not believe that program.
    run: String,
    /// State that the connected pages show; `None` while no page is connected.
    frame: Option<Frame>,
    growth: Growth,
    /// ID of the last event.
    id: u64,
    changes: broadcast::Sender<Bytes>,
}

/// Event that replaces everything on the page.
#[derive(Serialize)]
struct StateEvent<'a> {
    run: &'a str,
    #[serde(flatten)]
    about: &'a About,
    #[serde(flatten)]
    frame: &'a Frame,
}

impl Hub {
    pub(super) fn of(about: About, live: Live, run: String) -> Self {
        Self {
            about,
            live,
            run,
            frame: None,
            growth: Growth::default(),
            id: 0,
            changes: broadcast::Sender::new(EVENTS_KEPT),
        }
    }

    /// Calls `look` with all objects and the current time. If objects may be outdated, the time is when they became so:
    /// nothing is known about what happened since.
    pub(super) fn look<T>(&mut self, look: impl FnOnce(&mut Snapshot, &About, Timestamp) -> T) -> T {
        let about = &self.about;
        let now = Timestamp::now();
        let now = self.live.stale(now).map_or(now, |stale| stale.since);
        self.live.with_snapshot(|snapshot| look(snapshot, about, now))
    }

    /// Calls `look` with all objects, the state that the pages show, and the same time as in [`Self::look`].
    pub(super) fn look_with_frame<T>(&mut self, look: impl FnOnce(&mut Snapshot, &About, &Frame, Timestamp) -> T) -> T {
        let is_kept = self.frame.is_some();
        let frame = self.taken_frame();
        let answer = self.look(|snapshot, about, now| look(snapshot, about, &frame, now));
        self.frame = is_kept.then_some(frame);
        answer
    }

    /// Returns the whole state as an event, and the events that follow it.
    pub(super) fn subscribe(&mut self) -> (Bytes, broadcast::Receiver<Bytes>) {
        let events = self.changes.subscribe();
        let frame = self.taken_frame();
        let state = StateEvent {
            run: &self.run,
            about: &self.about,
            frame: &frame,
        };
        let event = event("state", self.id, &state);
        self.frame = Some(frame);
        (event, events)
    }

    /// Sends the changes to the connected pages. If no page is connected, makes no report.
    fn refresh(&mut self) {
        if self.changes.receiver_count() == 0 {
            self.frame = None;
            return;
        }
        let (after, timeline) = self.current();
        let before = self.frame.take().unwrap_or_default();
        if let Some(change) = change(&before, &after, timeline) {
            self.id += 1;
            // Sending fails only if the last page has just left.
            self.changes.send(event("change", self.id, &change)).unwrap_or_default();
        }
        self.frame = Some(after);
    }

    /// Takes the state that the pages show. Makes it if no page is connected.
    fn taken_frame(&mut self) -> Frame {
        match self.frame.take() {
            Some(frame) => frame,
            None => self.current().0,
        }
    }

    /// Returns the state, and the pools whose timelines have changed.
    fn current(&mut self) -> (Frame, Vec<String>) {
        let now = Timestamp::now();
        let stale: Option<Stale> = self.live.stale(now);
        let (about, growth) = (&self.about, &mut self.growth);
        self.live
            .with_snapshot(|snapshot| (frame(snapshot, about, stale, now), growth.changed(snapshot, now)))
    }
}

/// Returns a server-sent event. The data is one line of JSON.
fn event(name: &str, id: u64, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\nid: {id}\ndata: {data}\n\n").into()
}

/// A hub that requests and the watches share.
#[derive(Debug, Clone)]
pub(super) struct SharedHub(Arc<Mutex<Hub>>);

impl SharedHub {
    pub(super) fn of(hub: Hub) -> Self {
        Self(Arc::new(Mutex::new(hub)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Hub> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower for SharedHub {
    fn take(&mut self, event: WatchEvent) -> bool {
        self.lock().live.take(event, Timestamp::now())
    }

    fn show(&mut self) -> Result<ControlFlow<()>> {
        self.lock().refresh();
        Ok(ControlFlow::Continue(()))
    }
}
