//! Writes the agent's part of the BootcNode's status. No other module writes the status. This one writes only changes,
//! and the progress of a pull only as often as the spec asks.

use std::time::{Duration, Instant};

use berth_api::condition::node::OF_CONTROLLER;
use berth_api::decode::Decoded;
use berth_api::keys;
use berth_api::names::NodeName;
use berth_api::node::{BootcNode, BootcNodeStatus, Progress};
use berth_core::agent::pace;
use berth_core::agent::step::Step;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::clients::{RequestError, with_deadline};
use crate::watches::version;

/// Timeout of a write. Short, so that a slow API server does not delay the update.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest time between two status writes that change the list of pods that block a drain.
const BLOCKERS_INTERVAL: Duration = Duration::from_secs(2);

/// A status whose write is delayed, because the status may change again in a moment.
#[derive(Debug)]
struct Draft {
    status: BootcNodeStatus,
    /// Time of the first status that was delayed.
    since: Instant,
    /// True if [`Draft::due`] has already returned zero.
    was_due: bool,
}

impl Draft {
    fn due(&mut self) -> Option<Duration> {
        if self.was_due {
            return None;
        }
        let left = pace::SETTLE.saturating_sub(self.since.elapsed());
        self.was_due = left.is_zero();
        Some(left)
    }
}

/// Writes the status and remembers the last write.
#[derive(Debug)]
pub struct StatusWriter {
    api: Api<Decoded<BootcNode>>,
    name: String,
    /// UID of the object that has the status `known`.
    uid: Option<String>,
    known: BootcNodeStatus,
    /// resourceVersion of the object with the status `known`.
    version: u64,
    /// Why the stored status cannot be decoded.
    unread: Option<String>,
    /// True if another client may have changed the stored status since the last write.
    foreign: bool,
    draft: Option<Draft>,
    progress: Option<(Instant, u64)>,
    blockers: Option<Instant>,
}

impl StatusWriter {
    /// Creates a writer that has not written yet.
    pub fn new(client: Client, node: &NodeName) -> Self {
        Self {
            api: Api::all(client),
            name: node.to_string(),
            uid: None,
            known: BootcNodeStatus::default(),
            version: 0,
            unread: None,
            foreign: false,
            draft: None,
            progress: None,
            blockers: None,
        }
    }

    /// Takes over the status of an object. The first call for an object returns the status, for the agent's memory.
    /// Later calls only record changes by other clients. The next [`StatusWriter::write`] then overwrites these
    /// changes. A status that cannot be decoded counts as empty, and the next write replaces it.
    pub fn adopt<'a>(&mut self, object: &'a Decoded<BootcNode>) -> Option<&'a BootcNodeStatus> {
        let version = version(object);
        let first = self.uid != object.metadata.uid;
        if !first && version <= self.version {
            return None;
        }
        self.note_unread(object.status_error.as_deref());
        let status = own(object.status.clone().unwrap_or_default());
        if first {
            self.uid = object.metadata.uid.clone();
        } else if status == self.known {
            return None;
        }
        self.version = version;
        self.known = status;
        self.foreign = true;
        self.draft = None;
        object.status.as_ref().filter(|_| first)
    }

    /// Stores why the status cannot be decoded, and logs each error once.
    fn note_unread(&mut self, error: Option<&str>) {
        if self.unread.as_deref() == error {
            return;
        }
        if let Some(error) = error {
            tracing::warn!(error, "cannot parse the status of the BootcNode; replacing the status");
        }
        self.unread = error.map(str::to_owned);
    }

    /// Returns the status whose write is delayed, or else the status that was last written.
    pub fn before(&self) -> &BootcNodeStatus {
        self.draft.as_ref().map_or(&self.known, |draft| &draft.status)
    }

    /// Returns the time until the delayed status must be written; `None` if no write is delayed. Returns zero only once
    /// per status. If the write then fails, the next heartbeat retries it.
    pub fn due(&mut self) -> Option<Duration> {
        self.draft.as_mut()?.due()
    }

    /// Writes the status if it changed. A status that may change again in a moment is written later, by the rules of
    /// [`pace`]. A status counts as written only after the API server has accepted it.
    pub async fn write(
        &mut self,
        mut status: BootcNodeStatus,
        next: &Step,
        progress_interval: Duration,
    ) -> anyhow::Result<()> {
        if self.uid.is_none() {
            return Ok(());
        }
        if pace::may_pass(next, &status, &self.known) {
            let since = self.draft.as_ref().map_or_else(Instant::now, |draft| draft.since);
            if since.elapsed() < pace::SETTLE {
                self.draft = Some(Draft {
                    status,
                    since,
                    was_due: false,
                });
                return Ok(());
            }
        }
        self.pace(&mut status, progress_interval);
        self.pace_blockers(&mut status);
        // A change of `insight` alone causes no write.
        let insight = std::mem::replace(&mut status.insight, self.known.insight.clone());
        if status == self.known {
            self.draft = None;
            return Ok(());
        }
        status.insight = insight;
        let body = json!({
            "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
            "kind": "BootcNode",
            "metadata": { "name": self.name, "uid": self.uid },
            "status": status,
        });
        if self.unread.is_some() {
            self.clear().await?;
        }
        let stored = match self.apply(&body).await {
            Err(error) if self.foreign && is_invalid(&error) => {
                tracing::warn!(%error, "the API server refuses the BootcNode's status beside changes by others; replacing it");
                self.clear().await?;
                self.apply(&body).await?
            }
            answer => answer?,
        };
        self.version = version(&stored);
        self.known = status;
        self.foreign = false;
        self.draft = None;
        Ok(())
    }

    async fn apply(&self, body: &Value) -> Result<Decoded<BootcNode>, RequestError> {
        let params = PatchParams::apply(keys::MANAGER_AGENT).force();
        let patch = Patch::Apply(body);
        with_deadline(TIMEOUT, self.api.patch_status(&self.name, &params, &patch)).await
    }

    /// Removes the stored status, which cannot be decoded, or cannot be changed. A server-side apply would leave the
    /// fields of other field managers. The controller writes its own conditions again.
    async fn clear(&mut self) -> anyhow::Result<()> {
        let body = json!({ "metadata": { "uid": self.uid }, "status": null });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&body));
        let request = self.api.patch_status(&self.name, &params, &patch);
        let stored = with_deadline(TIMEOUT, request).await?;
        self.version = version(&stored);
        self.known = BootcNodeStatus::default();
        self.unread = stored.status_error;
        self.foreign = false;
        Ok(())
    }

    /// Limits how often a drain's blockers are written. The list may change every second, but admins need only the pods
    /// that block for longer.
    fn pace_blockers(&mut self, status: &mut BootcNodeStatus) {
        if status.drain_blockers == self.known.drain_blockers {
            return;
        }
        let recently = self.blockers.is_some_and(|at| at.elapsed() < BLOCKERS_INTERVAL);
        if recently && status.phase == self.known.phase {
            status.drain_blockers = self.known.drain_blockers.clone();
        } else {
            self.blockers = Some(Instant::now());
        }
    }

    /// Keeps the last written progress until `interval` has passed. Then writes the new progress, and computes its
    /// rate. If `interval` is zero, removes the progress.
    fn pace(&mut self, status: &mut BootcNodeStatus, interval: Duration) {
        let Some(progress) = &mut status.progress else {
            self.progress = None;
            return;
        };
        if interval.is_zero() {
            status.progress = None;
            return;
        }
        match self.progress {
            Some((at, _)) if at.elapsed() < interval => status.progress = self.known.progress,
            before => {
                let rate = before.map_or(0, |(at, bytes)| {
                    rate(progress.bytes.saturating_sub(bytes), at.elapsed())
                });
                *progress = Progress {
                    bytes_per_second: rate,
                    ..*progress
                };
                self.progress = Some((Instant::now(), progress.bytes));
            }
        }
    }
}

/// True if the API server did not accept the object that the write would have left.
fn is_invalid(error: &RequestError) -> bool {
    error.status().is_some_and(|status| status.code == 422)
}

/// Removes the controller's conditions. With server-side apply, the agent would own each condition that it writes. The
/// controller could then no longer remove the condition.
fn own(mut status: BootcNodeStatus) -> BootcNodeStatus {
    status
        .conditions
        .retain(|condition| !OF_CONTROLLER.contains(&condition.type_.as_str()));
    status
}

fn rate(bytes: u64, time: Duration) -> u64 {
    bytes.saturating_mul(1000) / u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::fake_api_server;
    use berth_core::agent::step::WaitReason;

    /// A BootcNode. If its status is not `good`, the status cannot be decoded.
    fn object(version: u64, good: bool) -> Value {
        let time = if good {
            "2026-01-01T00:00:00Z"
        } else {
            "9999-12-31T23:59:59Z"
        };
        json!({
            "metadata": { "name": "n1", "uid": "u", "resourceVersion": version.to_string() },
            "spec": {}, "status": { "phase": "Idle", "heartbeatTime": time },
        })
    }

    #[tokio::test]
    async fn a_status_that_cannot_be_decoded_is_removed_once() {
        let sent = Arc::new(Mutex::new(vec![]));
        let calls = sent.clone();
        let client = fake_api_server::client(move |call| {
            let mut calls = calls.lock().unwrap();
            calls.push(call.body.clone());
            let mut stored = object(7 + calls.len() as u64, true);
            if call.body["status"].is_null() {
                stored["status"] = Value::Null;
            }
            (200, stored)
        });
        let mut writer = StatusWriter::new(client, &"n1".into());
        let bad = |version| serde_json::from_value(object(version, false)).unwrap();
        assert_eq!(writer.adopt(&bad(7)), None);
        assert!(writer.unread.as_deref().unwrap().starts_with("status: "));
        let (phase, next) = (
            Some(berth_api::node::Phase::Idle),
            Step::Wait(WaitReason::NoBerth, None),
        );
        let status = BootcNodeStatus {
            phase,
            ..BootcNodeStatus::default()
        };
        // The second write changes nothing. The watch shows an old version of the object in between.
        for _ in 0..2 {
            writer.write(status.clone(), &next, Duration::ZERO).await.unwrap();
            assert_eq!((&writer.unread, &writer.known), (&None, &status));
            assert_eq!(writer.adopt(&bad(7)), None);
        }
        let bodies = std::mem::take(&mut *sent.lock().unwrap());
        let [cleared, applied] = bodies.as_slice() else {
            panic!("{bodies:?}")
        };
        assert_eq!(*cleared, json!({ "metadata": { "uid": "u" }, "status": null }));
        assert_eq!(applied["status"]["phase"], "Idle");
        // Another client writes such a status again.
        writer.adopt(&bad(20));
        writer.write(status.clone(), &next, Duration::ZERO).await.unwrap();
        assert_eq!(sent.lock().unwrap().len(), 2);
    }

    /// Server-side apply leaves the fields of other field managers, and the rest may be invalid together with them.
    #[tokio::test]
    async fn a_status_that_others_made_invalid_is_removed_once() {
        let sent = Arc::new(Mutex::new(vec![]));
        let calls = sent.clone();
        let client = fake_api_server::client(move |call| {
            let mut calls = calls.lock().unwrap();
            let is_cleared = calls.iter().any(|body: &Value| body["status"].is_null());
            calls.push(call.body.clone());
            if !call.body["status"].is_null() && !is_cleared {
                let refused = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
                    "message": "status.notApplied: Invalid value: null",
                });
                return (422, refused);
            }
            (200, object(7 + calls.len() as u64, true))
        });
        let mut writer = StatusWriter::new(client, &"n1".into());
        let decoded = |version| serde_json::from_value(object(version, true)).unwrap();
        assert!(writer.adopt(&decoded(7)).is_some());
        let next = Step::Wait(WaitReason::NoBerth, None);
        let status = |phase| BootcNodeStatus {
            phase: Some(phase),
            ..BootcNodeStatus::default()
        };
        let [pending, staging] = [berth_api::node::Phase::Pending, berth_api::node::Phase::Staging];
        writer.write(status(pending), &next, Duration::ZERO).await.unwrap();
        assert_eq!(sent.lock().unwrap().len(), 3, "refused, removed, written");
        // No other client has written since, so the agent's own status is at fault, and stays.
        sent.lock().unwrap().clear();
        writer.write(status(staging), &next, Duration::ZERO).await.unwrap_err();
        assert_eq!(sent.lock().unwrap().len(), 1);
    }

    #[test]
    fn conditions_of_the_controller_are_not_repeated() {
        let status = BootcNodeStatus {
            conditions: ["Waiting", "Staged", "RebootTimedOut"].map(|type_| {
                let condition = json!({
                    "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
                });
                serde_json::from_value(condition).unwrap()
            }).into(),
            ..BootcNodeStatus::default()
        };
        let kept: Vec<String> = own(status).conditions.into_iter().map(|c| c.type_).collect();
        assert_eq!(kept, ["Staged"]);
    }

    #[test]
    fn a_status_that_was_kept_back_is_due_once() {
        let mut draft = Draft {
            status: BootcNodeStatus::default(),
            since: Instant::now(),
            was_due: false,
        };
        assert!(draft.due().is_some_and(|left| !left.is_zero()), "not yet");
        draft.since = Instant::now().checked_sub(pace::SETTLE).unwrap();
        assert_eq!(draft.due(), Some(Duration::ZERO));
        assert_eq!(
            draft.due(),
            None,
            "where the write failed, it is not tried again at once"
        );
    }
}
