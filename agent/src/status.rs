//! The one writer of the BootcNode's status: writes when something changed, progress no more often than asked.

use std::time::{Duration, Instant};

use berth_api::condition::node::OF_CONTROLLER;
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

/// A status that cannot be written soon must not hold up the work.
const DEADLINE: Duration = Duration::from_secs(5);
/// Least time between two reports of who holds up a drain.
const BLOCKERS_INTERVAL: Duration = Duration::from_secs(2);

/// A status that is kept back.
#[derive(Debug)]
struct Draft {
    status: BootcNodeStatus,
    /// Moment at which it was new.
    since: Instant,
    /// True if [`pace::SETTLE`] was found to be over.
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

/// Writes the status, and knows what it wrote.
#[derive(Debug)]
pub struct StatusWriter {
    api: Api<BootcNode>,
    name: String,
    /// UID of the object that `known` is the status of.
    uid: Option<String>,
    known: BootcNodeStatus,
    /// resourceVersion of the object when `known` was its status.
    version: u64,
    /// A status that is not written yet, since it may be over in a moment.
    draft: Option<Draft>,
    progress: Option<(Instant, u64)>,
    blockers: Option<Instant>,
}

impl StatusWriter {
    /// A writer that has written nothing yet.
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

    /// Takes over the status of an object seen for the first time, and gives it to the caller to remember by. Of an
    /// object that is known, takes over what somebody else made of its status, so that it is written again.
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

    /// The status before the next one: as it was written last, or as it would be written if it lasted.
    pub fn before(&self) -> &BootcNodeStatus {
        self.draft.as_ref().map_or(&self.known, |draft| &draft.status)
    }

    /// Time until a status has to be written that may be over by then; `None` if there is none. Zero is returned once for each: where the
    /// write then fails, or there is no object to write to, it is tried again with the next sign of life and the like, and not at once.
    pub fn due(&mut self) -> Option<Duration> {
        self.draft.as_mut()?.due()
    }

    /// Writes the status if it says something new. If the state before this step may be over in a moment, it is kept back for
    /// as long as [`pace`] says.
    ///
    /// # Errors
    /// When the API server does not answer in time or refuses; nothing is remembered as written then.
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
        // The insight goes with a write that is made anyway: what it says beyond the rest can wait.
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
        let stored = with_deadline(DEADLINE, request).await?;
        self.version = version(&stored);
        self.known = status;
        self.draft = None;
        Ok(())
    }

    /// Pods come and go in a drain by the second; who is in the way for long is what a person wants to know.
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

    /// Keeps the progress that was written while the next is not due, and adds the rate to one that is.
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

/// A status without the conditions that the controller writes. Who applies a condition owns it from then on: an agent
/// that took one over would repeat it for ever.
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
    fn what_the_controller_says_is_not_repeated() {
        let condition = |type_: &str| {
            let condition = json!({
                "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            serde_json::from_value(condition).unwrap()
        };
        let status = BootcNodeStatus {
            conditions: ["Waiting", "Staged", "RebootTimedOut"].map(condition).into(),
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
