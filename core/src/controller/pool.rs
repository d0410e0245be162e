//! A pool, as read at the start of one pass.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::pool::{BootcNodePool, BootcNodePoolStatus, DEFAULT_REBOOT_TIMEOUT, PhaseDurations};
use berth_api::{Digest, NodeName, PoolName, keys, waves};
use jiff::Timestamp;

use crate::controller::gate::FleetGate;
use crate::controller::gates::Inputs;
use crate::controller::overdue::Timeouts;
use crate::controller::plan::{Estimate, Failures, Wave};
use crate::controller::snapshot::Objects;
use crate::controller::soaks::Soaks;
use crate::controller::view::{PoolView, Report};

/// A pool, as read at the start of one pass.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Name of the pool.
    pub name: PoolName,
    /// The BootcNodePool; `None` if it is gone but its berths still exist.
    pub object: Option<BootcNodePool>,
    /// True if the pool is being deleted or is gone.
    pub deleting: bool,
    /// Why the fleet does not allow the registry of the pool's image; `None` if the registry is allowed.
    pub refused: Option<String>,
}

/// True if the watch shows the pool's current spec: `shown`, from the watch, has the UID, generation and deletion state
/// of `now`, the latest read. `now` is `None` if the pool is gone.
pub fn is_as_shown(shown: &Pool, now: Option<&BootcNodePool>) -> bool {
    match (&shown.object, now) {
        (Some(shown), Some(now)) => {
            let (shown, now) = (&shown.metadata, &now.metadata);
            shown.uid == now.uid
                && shown.generation == now.generation
                && shown.deletion_timestamp.is_some() == now.deletion_timestamp.is_some()
        }
        (shown, now) => shown.is_none() && now.is_none(),
    }
}

impl Pool {
    /// Returns the pools that can be read. The controller changes no berths and no members of unreadable pools.
    pub fn readable(pools: &Objects<PoolView>) -> Vec<Pool> {
        pools
            .values()
            .filter_map(|entry| {
                let object = entry.view.object.as_ref().ok()?.clone();
                Some(Pool {
                    name: entry.view.name.clone(),
                    deleting: object.metadata.deletion_timestamp.is_some(),
                    refused: None,
                    object: Some(object),
                })
            })
            .collect()
    }

    /// Returns a pool that is gone but still has berths.
    pub fn orphaned(name: PoolName) -> Pool {
        Pool {
            name,
            object: None,
            deleting: true,
            refused: None,
        }
    }

    /// Returns the error in the pool's node selector; `None` if the selector is valid.
    pub fn bad_selector(&self) -> Option<&str> {
        self.object.as_ref()?.spec.selector().err()
    }

    /// Returns the current target.
    pub fn target(&self) -> Option<&berth_api::pool::Target> {
        self.object.as_ref()?.status.as_ref().and_then(|s| s.target.as_ref())
    }

    pub(super) fn estimates(&self) -> PhaseDurations {
        let status = self.object.as_ref().and_then(|object| object.status.as_ref());
        status.map(|status| status.phase_durations).unwrap_or_default()
    }

    /// Returns the annotation that requests a poll of the tag. A value that is empty or too long for the status is
    /// ignored.
    pub fn poll_request(&self) -> Option<&str> {
        let annotations = self.object.as_ref()?.metadata.annotations.as_ref()?;
        let request = annotations.get(keys::ANNOTATION_POLL_REQUESTED_AT)?;
        (1..=64).contains(&request.len()).then_some(request)
    }

    /// True if the target does not match the spec: it was resolved from another reference, or the fleet does not allow
    /// the registry in the spec. The image that matches the spec is not known yet, so members must not begin an update.
    pub fn is_unresolved(&self) -> bool {
        let (Some(object), Some(target)) = (&self.object, self.target()) else {
            return false;
        };
        self.refused.is_some() || !target.is_of(object.spec.image_ref())
    }

    /// True if this pool's `rollout.after` names the given pool.
    pub fn comes_after(&self, name: &PoolName) -> bool {
        let object = self.object.as_ref();
        object.is_some_and(|object| object.spec.after().iter().any(|after| after == name.as_str()))
    }

    /// Returns how many of `members` members may be unavailable at once; 0 if the pool is being deleted or is gone.
    pub fn capacity(&self, members: usize) -> usize {
        match &self.object {
            Some(object) if !self.deleting => object.spec.capacity(members),
            _ => 0,
        }
    }

    pub(super) fn published(&self) -> usize {
        let status = self.object.as_ref().and_then(|o| o.status.as_ref());
        status.map_or(0, |s| s.berths.total as usize)
    }

    fn status(&self) -> Option<&BootcNodePoolStatus> {
        self.object.as_ref()?.status.as_ref()
    }

    /// True if the admin has just requested a retry, and the status does not show it yet.
    pub fn is_retried(&self) -> bool {
        let (Some(object), Some(status)) = (&self.object, self.status()) else {
            return false;
        };
        is_news(object.spec.retry_token(), status.retry_token.as_deref())
    }

    /// True if the target has this digest for some platform.
    pub fn has_target(&self, digest: &Digest) -> bool {
        self.target()
            .is_some_and(|target| target.platforms.iter().any(|platform| platform.digest == *digest))
    }

    /// Returns the recorded failures. Empty if the admin has just requested a retry.
    pub fn failures(&self) -> Failures {
        let Some(status) = self.status().filter(|_| !self.is_retried()) else {
            return Failures::new();
        };
        let mut failures = Failures::new();
        for failure in &status.failures {
            let nodes = failure.nodes.iter().map(|node| NodeName::from(node.as_str()));
            failures.insert(failure.digest.clone(), nodes.collect());
        }
        failures
    }

    /// Returns `rollout.rebootTimeout`: how long a rebooting holder may be silent before `RebootTimedOut` reports it.
    pub fn reboot_timeout(&self) -> Duration {
        let object = self.object.as_ref();
        object.map_or(DEFAULT_REBOOT_TIMEOUT, |object| object.spec.reboot_timeout())
    }

    /// Returns how long a holder of the pool's berths may be silent. `pool`: `None` if the pool cannot be read.
    /// `silence`: maximum time between two reports of a running agent.
    pub fn timeouts(pool: Option<&Self>, silence: Duration) -> Timeouts {
        Timeouts {
            reboot: pool.map_or(DEFAULT_REBOOT_TIMEOUT, Pool::reboot_timeout),
            silence,
        }
    }

    /// Returns the longest time of a turn without a problem, if each step takes as long as it may: the drain, and two
    /// reboots with their proofs, since the node may roll back. `margin`: time for everything else. `None` if the pool
    /// does not exist.
    pub fn turn_limit(&self, margin: Duration) -> Option<Duration> {
        let spec = &self.object.as_ref()?.spec;
        let health = spec.health.clone().unwrap_or_default();
        let reboot = spec.reboot_timeout().saturating_add(health.deadline());
        let steps = spec.drain().timeout().saturating_add(reboot.saturating_mul(2));
        Some(steps.saturating_add(margin))
    }

    /// Returns the drain timeout; [`Duration::MAX`] if the pool does not exist.
    fn drain_timeout(&self) -> Duration {
        let object = self.object.as_ref();
        object.map_or(Duration::MAX, |object| object.spec.drain().timeout())
    }

    /// Returns the expected drain and reboot time of a node: its last measurement or the pool's median, whichever is
    /// lower. Without a median, the pool's timeout is the upper bound.
    ///
    /// A node is measured again only after its estimate fits into a window. With the higher value, one slow turn or a
    /// slow pool could keep the node out of all windows forever.
    pub(super) fn estimate_of(&self, report: &Report) -> Estimate {
        let expected = self.estimate();
        Estimate {
            drain: lower(expected.drain, report.measured.drain, self.drain_timeout()),
            reboot: lower(expected.reboot, report.measured.reboot, self.reboot_timeout()),
        }
    }

    /// Returns the expected drain and reboot time in this pool; zero where unknown.
    pub fn estimate(&self) -> Estimate {
        let medians = self.status().map(|s| s.phase_durations).unwrap_or_default();
        Estimate {
            drain: seconds(medians.drain_seconds).min(self.drain_timeout()),
            reboot: seconds(medians.reboot_seconds).min(self.reboot_timeout()),
        }
    }

    /// Returns the input for the pool's gates; `None` if the pool is gone.
    pub fn gate_inputs(
        &self,
        fleet: Option<FleetGate>,
        clock_synchronized: bool,
        now: Timestamp,
    ) -> Option<Inputs<'_>> {
        let expected = self.estimate();
        Some(Inputs {
            pool: &self.name,
            spec: &self.object.as_ref()?.spec,
            fleet,
            clock_synchronized,
            needed: expected.drain.saturating_add(expected.reboot),
            now,
        })
    }

    /// Returns the waves of the spec, then the two waves that Berth adds: the remaining nodes, and the control plane.
    pub(super) fn waves(&self, soaks: &Soaks) -> Vec<Wave> {
        let rollout = self
            .object
            .as_ref()
            .map(|o| o.spec.rollout().clone())
            .unwrap_or_default();
        let named = rollout.waves.iter();
        let named = named.map(|wave| (wave.name.clone(), rollout.soak_time_of(Some(wave))));
        let implied = [waves::REST, waves::CONTROL_PLANE].map(|name| (name.to_owned(), rollout.soak_time_of(None)));
        let told = self.status().map(|s| s.waves.as_slice()).unwrap_or_default();
        let mut waves = vec![];
        for (name, soak) in named.chain(implied) {
            let told = told.iter().find(|w| w.name == name).map_or(0, |w| w.soaked_seconds);
            let seen = self
                .target()
                .map(|target| soaks.soaked(&self.name, &target.digest, &name));
            let soaked = seen.unwrap_or_default().max(Duration::from_secs(told));
            waves.push(Wave { name, soak, soaked });
        }
        waves
    }
}

/// Returns the lower of the node's own measurement and the pool's median (`expected`). If the median is unknown (zero),
/// returns the lower of the measurement and `timeout`.
fn lower(expected: Duration, own: Option<Duration>, timeout: Duration) -> Duration {
    if expected.is_zero() {
        own.unwrap_or_default().min(timeout)
    } else {
        own.unwrap_or(expected).min(expected)
    }
}

fn seconds(number: Option<u32>) -> Duration {
    Duration::from_secs(number.unwrap_or_default().into())
}

/// True if the retry token requests a new retry: it is not empty and differs from `obeyed`, the last handled token. So
/// an admin can remove the token, and the recorded failures stay.
pub(super) fn is_news(token: &str, obeyed: Option<&str>) -> bool {
    !token.is_empty() && obeyed != Some(token)
}

/// Returns the pools that exist and are not being deleted. Unreadable pools are included.
pub fn lasting(pools: &Objects<PoolView>) -> BTreeSet<PoolName> {
    let lasting = pools.values().filter(|entry| match &entry.view.object {
        Ok(object) => object.metadata.deletion_timestamp.is_none(),
        Err(_) => true,
    });
    lasting.map(|entry| entry.view.name.clone()).collect()
}

#[cfg(test)]
pub(super) mod tests;
