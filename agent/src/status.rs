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
use serde_json::json;

use crate::clients::with_deadline;
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
            draft: None,
            progress: None,
            blockers: None,
        }
    }

    /// Takes over the status of an object. The first call for an object returns the status, for the agent's memory.
    /// Later calls only record changes by other clients. The next [`StatusWriter::write`] then overwrites these
    /// changes.
    pub fn adopt<'a>(&mut self, object: &'a BootcNode) -> Option<&'a BootcNodeStatus> {
        let version = version(object);
        let first = self.uid != object.metadata.uid;
        let status = own(object.status.clone().unwrap_or_default());
        if first {
            self.uid = object.metadata.uid.clone();
        } else if version <= self.version || status == self.known {
            return None;
        }
        self.version = version;
        self.known = status;
        self.draft = None;
        object.status.as_ref().filter(|_| first)
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
        let params = PatchParams::apply(keys::MANAGER_AGENT).force();
        let patch = Patch::Apply(&body);
        let request = self.api.patch_status(&self.name, &params, &patch);
        let stored = with_deadline(TIMEOUT, request).await?;
        self.version = version(&stored);
        self.known = status;
        self.draft = None;
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
    use super::*;

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
