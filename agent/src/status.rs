//! The one writer of the BootcNode's status: writes when something changed, progress no more often than asked.

use std::time::{Duration, Instant};

use berth_api::keys;
use berth_api::names::NodeName;
use berth_api::node::{BootcNode, BootcNodeStatus, Phase, Progress};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::clients::with_deadline;

/// Field manager of the agent's server-side apply.
const MANAGER: &str = "berth-agent";
/// A status that cannot be written soon must not hold up the work.
const DEADLINE: Duration = Duration::from_secs(5);

/// Writes the status, and knows what it wrote.
#[derive(Debug)]
pub struct StatusWriter {
    api: Api<BootcNode>,
    name: String,
    /// UID of the object that `known` is the status of.
    uid: Option<String>,
    known: BootcNodeStatus,
    progress: Option<(Instant, u64)>,
}

impl StatusWriter {
    /// A writer that has written nothing yet.
    pub fn new(client: Client, node: &NodeName) -> Self {
        Self {
            api: Api::all(client),
            name: node.to_string(),
            uid: None,
            known: BootcNodeStatus::default(),
            progress: None,
        }
    }

    /// Takes over the status of an object seen for the first time, and gives it to the caller to remember by.
    pub fn adopt<'a>(&mut self, object: &'a BootcNode) -> Option<&'a BootcNodeStatus> {
        if self.uid == object.metadata.uid {
            return None;
        }
        self.uid = object.metadata.uid.clone();
        self.known = object.status.clone().unwrap_or_default();
        object.status.as_ref()
    }

    /// The status as it was written last.
    pub fn known(&self) -> &BootcNodeStatus {
        &self.known
    }

    /// How long the node has been in that phase, by its own clock; zero when it is in another.
    pub fn in_phase(&self, phase: Phase, now: Timestamp) -> Duration {
        let since = self.known.phase_start_time.as_ref().filter(|_| self.known.phase == Some(phase));
        since.and_then(|t| Duration::try_from(now.duration_since(t.0)).ok()).unwrap_or_default()
    }

    /// Writes the status if it says something new.
    ///
    /// # Errors
    /// When the API server does not answer in time or refuses; nothing is remembered as written then.
    pub async fn write(&mut self, mut status: BootcNodeStatus, progress_interval: Duration) -> anyhow::Result<()> {
        if self.uid.is_none() {
            return Ok(());
        }
        self.pace(&mut status, progress_interval);
        if status == self.known {
            return Ok(());
        }
        let body = json!({
            "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
            "kind": "BootcNode",
            "metadata": { "name": self.name, "uid": self.uid },
            "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&body);
        let request = self.api.patch_status(&self.name, &params, &patch);
        with_deadline(DEADLINE, request).await?;
        self.known = status;
        Ok(())
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
                let rate = before.map_or(0, |(at, bytes)| rate(progress.bytes.saturating_sub(bytes), at.elapsed()));
                *progress = Progress { bytes_per_second: rate, ..*progress };
                self.progress = Some((Instant::now(), progress.bytes));
            }
        }
    }
}

fn rate(bytes: u64, time: Duration) -> u64 {
    bytes.saturating_mul(1000) / u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
