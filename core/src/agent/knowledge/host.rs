use std::time::Duration;

use berth_api::digest::Digest;
use berth_api::names::BootId;

use super::event::{Look, Services};
use crate::agent::facts::{HostHealth, Os};
use crate::agent::host_policy::Rules;
use crate::{Moment, Now};

/// Interval between reads of a host that Berth cannot update, or that runs an unexpected image.
const HOST_READ_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq)]
pub struct HostView {
    pub(super) services: Services,
    /// Last error of the host's services, and the moment of the first request that they did not answer. `None` while
    /// they answer.
    pub unreachable: Option<(String, Moment)>,
    pub rules: Rules,
    pub os: Os,
    /// True if `os` was read after the last event that may have changed the host's deployments.
    pub fresh: bool,
    /// True if the last read found no armed image, and nothing that this agent process did after the read could have
    /// armed one.
    pub disarmed: bool,
    /// When the deployments were last read.
    pub looked: Moment,
    pub(super) rivals: Vec<String>,
    pub finalization_failed: bool,
}

impl HostView {
    pub(super) fn unread(boot_id: BootId, now: Moment) -> Self {
        Self {
            services: Services::under(boot_id),
            unreachable: None,
            rules: Rules::default(),
            os: Os::Unknown,
            fresh: false,
            disarmed: false,
            looked: now,
            rivals: vec![],
            finalization_failed: false,
        }
    }

    pub fn boot_id(&self) -> &BootId {
        &self.services.boot_id
    }

    pub(super) fn staged_digest(&self) -> Option<&Digest> {
        self.os.staged().and_then(|staged| staged.digest.as_ref())
    }

    pub(super) fn is_staged_locked(&self, digest: &Digest) -> bool {
        self.os.staged().is_some_and(|staged| staged.locked) && self.staged_digest() == Some(digest)
    }

    /// Returns the health of the running boot, as last read. `None` if it was not read, or while the host shuts down:
    /// units then fail only because other units have stopped.
    pub(super) fn health(&self) -> Option<&HostHealth> {
        let health = self.services.health.as_ref();
        health.filter(|_| !self.services.shutting_down)
    }

    /// Records that the host's services did not answer. The agent may have missed a change of the host meanwhile, so it
    /// reads the host again before the next decision.
    pub(super) fn silent(&mut self, why: String, now: &Now) {
        let since = self.unreachable.take().map_or(now.clock, |(_, since)| since);
        self.unreachable = Some((why, since));
        self.fresh = false;
    }

    /// Records the services' answers. Returns true if the services had been silent before.
    pub(super) fn answered(&mut self, services: Services, now: &Now) -> bool {
        self.services = services;
        let unusable = matches!(self.os, Os::Unusable { .. }) || self.os.refusal().is_some();
        if unusable && self.looked_long_ago(now) {
            self.fresh = false;
        }
        self.unreachable.take().is_some()
    }

    pub(super) fn looked_at(&mut self, look: Look, now: &Now) {
        self.os = look.os;
        self.rivals = look.rivals;
        self.finalization_failed = look.finalization_failed;
        self.fresh = true;
        self.looked = now.clock;
        if let Some(deployments) = self.os.deployments() {
            self.disarmed = deployments.staged.as_ref().is_none_or(|s| s.locked);
        }
    }

    pub(super) fn looked_long_ago(&self, now: &Now) -> bool {
        now.clock.since(self.looked) >= HOST_READ_INTERVAL
    }

    pub(super) fn forget_os(&mut self) {
        self.os = Os::Unknown;
        self.fresh = false;
    }
}
