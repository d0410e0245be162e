//! Queue of events, and the task that writes them.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::keys;
use berth_shell::request::within;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::Note;

/// Capacity of the queue; further events are dropped.
const QUEUE: usize = 512;
/// Slots of the queue that are reserved for warnings, so that a burst of other events cannot crowd warnings out.
const KEPT_FOR_WARNINGS: usize = QUEUE / 2;
const RECORDERS: usize = 64;
/// Minimum time between two events, so that a wave of hundreds of nodes does not delay the rollout's own requests.
const EVENT_INTERVAL: Duration = Duration::from_millis(50);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Handle that queues events; a background task writes them.
#[derive(Debug, Clone)]
pub struct Events(Sender<Note>);

impl Events {
    /// Starts the writer. `identity` names this process in the events.
    pub fn start(client: Client, identity: &str) -> Self {
        let (sender, notes) = mpsc::channel(QUEUE);
        let controller = format!("{}/controller", keys::GROUP);
        let reporter = Reporter {
            controller,
            instance: Some(identity.to_owned()),
        };
        tokio::spawn(
            Writer {
                client,
                reporter,
                recorders: BTreeMap::new(),
            }
            .write(notes),
        );
        Self(sender)
    }

    /// Queues an event. Drops a warning if the queue is full, and any other event if the queue is half full.
    pub fn queue(&self, note: Note) {
        let Note { warning, reason, .. } = note;
        if !warning && self.0.capacity() <= KEPT_FOR_WARNINGS {
            tracing::debug!(reason, "event dropped: too many events are queued");
        } else if let Err(error) = self.0.try_send(note) {
            tracing::warn!(reason, %error, "event dropped; see the object's status");
        }
    }
}

struct Writer {
    client: Client,
    reporter: Reporter,
    /// Recorders by message. A recorder treats a second event with the same reason and object as a repetition, and
    /// keeps only the first message. With a single recorder, events about two closed berths of a pool would become one.
    recorders: BTreeMap<String, Recorder>,
}

impl Writer {
    async fn write(mut self, mut notes: Receiver<Note>) {
        while let Some(note) = notes.recv().await {
            let event = note.event();
            let recorder = self.recorder(&note);
            let written: anyhow::Result<()> = within(WRITE_TIMEOUT, recorder.publish(&event, &note.about)).await;
            if let Err(error) = written {
                tracing::warn!(reason = note.reason, %error, "event not written; see the object's status");
            }
            tokio::time::sleep(EVENT_INTERVAL).await;
        }
    }

    fn recorder(&mut self, note: &Note) -> Recorder {
        if self.recorders.len() >= RECORDERS && !self.recorders.contains_key(&note.message) {
            self.recorders.clear();
        }
        let recorder = self
            .recorders
            .entry(note.message.clone())
            .or_insert_with(|| Recorder::new(self.client.clone(), self.reporter.clone()));
        recorder.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_turns_leaves_room_for_warnings() {
        let (sender, mut notes) = mpsc::channel(QUEUE);
        let events = Events(sender);
        fn note(warning: bool) -> Note {
            Note {
                warning,
                ..Note::reboot_timed_out(&"n1".into(), &"u".into(), "why".to_owned(), None)
            }
        }
        for _ in 0..2 * QUEUE {
            events.queue(note(false));
        }
        for _ in 0..2 * QUEUE {
            events.queue(note(true));
        }
        let queued: Vec<Note> = std::iter::from_fn(|| notes.try_recv().ok()).collect();
        let warnings = queued.iter().filter(|note| note.warning).count();
        assert_eq!((queued.len(), warnings), (QUEUE, KEPT_FOR_WARNINGS));
    }
}
