//! Kubernetes events for things that somebody should look at. They are a courtesy: nothing depends on them, and the
//! status of the objects tells the same.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, ClosedReason};
use berth_api::node::BootcNode;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_api::{Digest, keys};
use berth_shell::request::within;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Events that may wait to be written; more are dropped.
const QUEUE: usize = 64;
/// Longest time that writing an event may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// The longest note that the API takes, in bytes.
const MAX_NOTE: usize = 1024;

/// An event to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// True for an event that asks for somebody's attention.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// CamelCase: what was done about it.
    pub action: &'static str,
    /// One line.
    pub message: String,
    /// The object that it is about.
    pub about: ObjectReference,
}

impl Note {
    /// Event of a node that holds a berth and does not come back.
    pub fn reboot_timed_out(name: &str, uid: &str, message: String) -> Self {
        let about = reference::<BootcNode>(name, Some(uid.to_owned()));
        Self {
            warning: true,
            reason: "RebootTimedOut",
            action: "Report",
            message,
            about,
        }
    }

    /// Event of a rollout that has halted, because too many nodes failed.
    pub fn halted(pool: &BootcNodePool, message: String) -> Self {
        Self {
            warning: true,
            reason: "RolloutHalted",
            action: "Halt",
            message,
            about: pool.object_ref(&()),
        }
    }

    /// Events of a pool's image: one that is available and not in force, and one that has come into force.
    pub fn of_image(pool: &BootcNodePool, old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) -> Vec<Self> {
        let named = |version: &Option<String>, digest: &Digest| match version {
            Some(version) => format!("{version} ({digest})"),
            None => digest.to_string(),
        };
        let note = |reason, action, message| Self {
            warning: false,
            reason,
            action,
            message,
            about: pool.object_ref(&()),
        };
        let mut notes = vec![];
        let before = old.available.as_ref().map(|a| &a.digest);
        if let Some(available) = new.available.as_ref().filter(|a| Some(&a.digest) != before) {
            let image = named(&available.version, &available.digest);
            let message = format!(
                "the tag of {} points at {image}, which is not in force",
                pool.spec.image_ref()
            );
            notes.push(note("ImageAvailable", "Watch", message));
        }
        if let (Some(before), Some(after)) = (&old.target, &new.target)
            && before.digest != after.digest
        {
            let images = [before, after].map(|image| named(&image.version, &image.digest));
            let message = format!(
                "{} was adopted from {}; before it was {}",
                images[1], after.image, images[0]
            );
            notes.push(note("ImageAdopted", "Adopt", message));
        }
        notes
    }

    /// Event of a berth that was closed although its holder has not given it back; `None` for any other write.
    pub fn closed(pool: &BootcNodePool, before: Option<&Berth>, after: &Berth) -> Option<Self> {
        let BerthState::Closed(closed) = &after.state else {
            return None;
        };
        let (reason, warning, why) = match closed.reason {
            ClosedReason::Gone => ("BerthGone", false, "its Node is gone"),
            ClosedReason::Excluded => ("BerthExcluded", true, "its Node is excluded and not Ready"),
            _ => return None,
        };
        let holder = before?.holding()?;
        let berth = after.name();
        let message = format!(
            "berth {berth} of node {} is closed without having been given back: {why}",
            holder.node
        );
        Some(Self {
            warning,
            reason,
            action: "Close",
            message,
            about: pool.object_ref(&()),
        })
    }

    fn event(&self) -> Event {
        let mut end = self.message.len().min(MAX_NOTE);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        Event {
            type_: if self.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: self.reason.to_owned(),
            note: self.message.get(..end).map(str::to_owned),
            action: self.action.to_owned(),
            secondary: None,
        }
    }
}

fn reference<K: Resource<DynamicType = ()>>(name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(name.to_owned()),
        uid,
        ..ObjectReference::default()
    }
}

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

    /// Queues the event.
    pub fn tell(&self, note: Note) {
        if let Err(error) = self.0.try_send(note) {
            tracing::debug!(%error, "event dropped");
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
        }
    }

    fn recorder(&mut self, note: &Note) -> Recorder {
        if self.recorders.len() >= QUEUE && !self.recorders.contains_key(&note.message) {
            self.recorders.clear();
        }
        let new = || Recorder::new(self.client.clone(), self.reporter.clone());
        self.recorders.entry(note.message.clone()).or_insert_with(new).clone()
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::Offer;
    use berth_api::pool::{Available, BootcNodePoolSpec, Target};

    use super::*;

    #[test]
    fn only_berths_that_were_taken_away_are_told_of() {
        let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
        let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let offer = Offer {
            node: "n1".into(),
            uid: "u".into(),
            target,
            open_until: None,
        };
        let offered = Berth::new("p".into(), 0, 1).offered(offer).unwrap();
        let held = offered.taken(&"n1".into(), &"u".into(), None, "b".into()).unwrap();
        let gone = held.ended(ClosedReason::Gone).unwrap();
        let note = Note::closed(&pool, Some(&held), &gone).unwrap();
        assert_eq!(
            (note.reason, note.about.kind.as_deref()),
            ("BerthGone", Some("BootcNodePool"))
        );
        assert!(
            note.message.contains("n1") && note.message.contains("p-0"),
            "{}",
            note.message
        );
        let excluded = Note::closed(&pool, Some(&held), &held.ended(ClosedReason::Excluded).unwrap()).unwrap();
        assert!(excluded.warning && excluded.reason == "BerthExcluded");
        assert_eq!(
            Note::closed(&pool, Some(&offered), &offered.ended(ClosedReason::Gone).unwrap()),
            None,
            "it held nothing"
        );
        assert_eq!(Note::closed(&pool, Some(&held), &held.stamped(9)), None);
    }

    #[test]
    fn a_new_image_is_told_of_once() {
        let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
        let digest = |n: u8| -> Digest { format!("sha256:{}", n.to_string().repeat(64)).parse().unwrap() };
        let status = |target: u8, available: Option<u8>| BootcNodePoolStatus {
            target: Some(Target {
                image: "quay.io/os:1".into(),
                digest: digest(target),
                version: Some(format!("{target}.0")),
                metadata: None,
                platforms: vec![],
                publish_time: None,
            }),
            available: available.map(|n| Available {
                digest: digest(n),
                version: None,
                since: jiff::Timestamp::UNIX_EPOCH.into(),
                seen_seconds: 0,
            }),
            ..BootcNodePoolStatus::default()
        };
        let told = |old: BootcNodePoolStatus, new: BootcNodePoolStatus| -> Vec<&str> {
            let notes = Note::of_image(&pool, &old, &new);
            notes.iter().map(|note| note.reason).collect()
        };
        assert_eq!(told(status(1, None), status(1, Some(2))), ["ImageAvailable"]);
        assert_eq!(told(status(1, Some(2)), status(2, None)), ["ImageAdopted"]);
        assert!(told(status(1, Some(2)), status(1, Some(2))).is_empty());
        assert!(
            told(BootcNodePoolStatus::default(), status(1, None)).is_empty(),
            "the first is no news"
        );
        let adopted = &Note::of_image(&pool, &status(1, None), &status(2, None))[0].message;
        assert!(
            adopted.starts_with("2.0 (sha256:2") && adopted.contains("before it was 1.0"),
            "{adopted}"
        );
    }

    #[test]
    fn a_note_fits() {
        let note = Note::reboot_timed_out("n1", "u", "ü".repeat(2000));
        assert_eq!(note.event().note.map(|n| n.len()), Some(MAX_NOTE));
        assert_eq!(note.about.api_version.as_deref(), Some("berth.dev/v1alpha1"));
    }
}
