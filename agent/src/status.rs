//! The one writer of the BootcNode's status: writes when something changed, progress no more often than asked.

use std::time::{Duration, Instant};

use berth_api::condition::node::REBOOT_TIMED_OUT;
use berth_api::keys;
use berth_api::names::NodeName;
use berth_api::node::{BootcNode, BootcNodeStatus, Phase, Progress};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::clients::with_deadline;
use crate::watches::version;

/// Field manager of the agent's server-side apply.
const MANAGER: &str = "berth-agent";
/// A status that cannot be written soon must not hold up the work.
const DEADLINE: Duration = Duration::from_secs(5);
/// Least time between two reports of who holds up a drain.
const BLOCKERS_INTERVAL: Duration = Duration::from_secs(2);

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
    /// When this process saw `known.phase` begin, and how long it had lasted by then.
    phase: (Instant, Duration),
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
            phase: (Instant::now(), Duration::ZERO),
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
            self.phase = (Instant::now(), lasted(&status, Timestamp::now()));
        } else if version <= self.version || status == self.known {
            return None;
        } else if status.phase != self.known.phase {
            // A write of ours whose answer was lost: the time that the phase before it took is not this one's. It would
            // end a drain that has just begun, or have it use force.
            self.phase = (Instant::now(), Duration::ZERO);
        }
        self.version = version;
        self.known = status;
        object.status.as_ref().filter(|_| first)
    }

    /// The status as it was written last.
    pub fn known(&self) -> &BootcNodeStatus {
        &self.known
    }

    /// How long the node has been in that phase; zero when it is in another. Counted by this process's own clock, so
    /// that setting the host's neither ends a drain nor makes one endless.
    pub fn in_phase(&self, phase: Phase) -> Duration {
        match self.known.phase == Some(phase) {
            true => self.phase.0.elapsed() + self.phase.1,
            false => Duration::ZERO,
        }
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
        self.pace_blockers(&mut status);
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
        let stored = with_deadline(DEADLINE, request).await?;
        if status.phase != self.known.phase {
            self.phase = (Instant::now(), Duration::ZERO);
        }
        self.version = version(&stored);
        self.known = status;
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

/// A status without what the controller says in it. Who applies a condition owns it from then on: an agent that took
/// this one over would say for ever after that its node does not come back.
fn own(mut status: BootcNodeStatus) -> BootcNodeStatus {
    status
        .conditions
        .retain(|condition| condition.type_ != REBOOT_TIMED_OUT);
    status
}

/// How long the phase of a status has lasted, by the clock that wrote it; nothing longer than a day is believed.
fn lasted(status: &BootcNodeStatus, now: Timestamp) -> Duration {
    let since = status
        .phase_start_time
        .as_ref()
        .and_then(|t| Duration::try_from(now.duration_since(t.0)).ok());
    since.unwrap_or_default().min(Duration::from_secs(24 * 3600))
}

fn rate(bytes: u64, time: Duration) -> u64 {
    bytes.saturating_mul(1000) / u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn object(version: &str, phase: Phase, since: SignedDuration) -> BootcNode {
        let mut object = BootcNode::default();
        object.metadata.uid = Some("u1".to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object.status = Some(BootcNodeStatus {
            phase: Some(phase),
            phase_start_time: Some(Time::from(Timestamp::now() - since)),
            ..BootcNodeStatus::default()
        });
        object
    }

    #[tokio::test]
    async fn a_phase_whose_write_was_not_answered_begins_anew() {
        crate::clients::install_crypto().ok();
        let unused = Client::try_from(kube::Config::new("http://127.0.0.1:1/".parse().unwrap())).unwrap();
        let mut writer = StatusWriter::new(unused, &NodeName::from("n1"));
        let hour = Duration::from_secs(3600);
        // What a former process wrote goes on.
        writer.adopt(&object("1", Phase::Waiting, SignedDuration::from_hours(2)));
        assert!(writer.in_phase(Phase::Waiting) >= hour && writer.in_phase(Phase::Draining).is_zero());
        // The watch tells of a write that this process takes for lost.
        writer.adopt(&object("2", Phase::Draining, SignedDuration::ZERO));
        assert!(
            writer.in_phase(Phase::Draining) < hour,
            "{:?}",
            writer.in_phase(Phase::Draining)
        );
    }
}
