//! The queue of notes, and the task that writes them as events.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::keys;
use berth_shell::request::within;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::Note;

/// Events that may wait to be written; more are dropped.
const QUEUE: usize = 512;
/// Room that is kept for warnings: a burst of turns must not crowd them out.
const KEPT_FOR_WARNINGS: usize = QUEUE / 2;
/// Recorders that are kept.
const RECORDERS: usize = 64;
/// Least time between two events: a wave of hundreds of nodes must not take the API server's time from the rollout.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest time that writing an event may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Takes notes, and has them written in the background.
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

    /// Queues the event. It is dropped when too many wait already; one that is no warning sooner than one that is.
    pub fn tell(&self, note: Note) {
        let Note { warning, reason, .. } = note;
        if !warning && self.0.capacity() <= KEPT_FOR_WARNINGS {
            tracing::debug!(reason, "event dropped: too many wait to be written");
        } else if let Err(error) = self.0.try_send(note) {
            tracing::warn!(reason, %error, "event dropped; its object says the same");
        }
    }
}

struct Writer {
    client: Client,
    reporter: Reporter,
    /// Recorders by message. A recorder takes a second event with the same reason about the same object for a
    /// repetition of the first, and keeps the first one's note. With one recorder nobody would learn of the second node
    /// whose berth was closed.
    recorders: BTreeMap<String, Recorder>,
}

impl Writer {
    async fn write(mut self, mut notes: Receiver<Note>) {
        while let Some(note) = notes.recv().await {
            let event = note.event();
            let recorder = self.recorder(&note);
            let written: anyhow::Result<()> = within(DEADLINE, recorder.publish(&event, &note.about)).await;
            if let Err(error) = written {
                tracing::warn!(reason = note.reason, %error, "event not written; its object says the same");
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn recorder(&mut self, note: &Note) -> Recorder {
        if self.recorders.len() >= RECORDERS && !self.recorders.contains_key(&note.message) {
            self.recorders.clear();
        }
        let new = || Recorder::new(self.client.clone(), self.reporter.clone());
        self.recorders.entry(note.message.clone()).or_insert_with(new).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_turns_leaves_room_for_warnings() {
        let (sender, mut notes) = mpsc::channel(QUEUE);
        let events = Events(sender);
        let note = |warning| Note {
            warning,
            ..Note::reboot_timed_out(&"n1".into(), &"u".into(), "why".to_owned(), None)
        };
        for _ in 0..2 * QUEUE {
            events.tell(note(false));
        }
        for _ in 0..2 * QUEUE {
            events.tell(note(true));
        }
        let queued: Vec<Note> = std::iter::from_fn(|| notes.try_recv().ok()).collect();
        let warnings = queued.iter().filter(|note| note.warning).count();
        assert_eq!((queued.len(), warnings), (QUEUE, KEPT_FOR_WARNINGS));
    }
}
