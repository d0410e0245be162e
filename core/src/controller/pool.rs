//! A pool as one pass sees it.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::membership;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus, DEFAULT_REBOOT_TIMEOUT, DigestFailures, PhaseDurations};
use berth_api::{NodeName, PoolName, duration, keys, waves};
use jiff::Timestamp;

use crate::controller::gate::FleetGate;
use crate::controller::gates::Inputs;
use crate::controller::memory::Soaks;
use crate::controller::plan::{Estimate, Failures, Wave};
use crate::controller::snapshot::Objects;
use crate::controller::view::{PoolView, Report};

/// A pool as this pass sees it.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// The object; `None` for a pool that is gone while its berths are still there.
    pub object: Option<BootcNodePool>,
    /// True if it is being deleted, or gone.
    pub deleting: bool,
    /// Error in its selector.
    pub bad_selector: Option<String>,
    /// Words on why its reference may not be used; none when it may.
    pub refused: Option<String>,
}

/// Says whether a pool is still what the watch showed of it, as far as the admin writes it. `now`: as it was just read.
pub fn is_as_shown(shown: &Pool, now: Option<&BootcNodePool>) -> bool {
    let key = |pool: &BootcNodePool| {
        let metadata = &pool.metadata;
        let deleting = metadata.deletion_timestamp.is_some();
        (metadata.uid.clone(), metadata.generation, deleting)
    };
    shown.object.as_ref().map(key) == now.map(key)
}

impl Pool {
    /// The pools that can be read. Berths and members of one that cannot are left as they are.
    pub fn readable(pools: &Objects<PoolView>) -> Vec<Pool> {
        pools
            .values()
            .filter_map(|entry| {
                let object = entry.view.object.as_ref().ok()?.clone();
                let selector = membership::selector(object.spec.node_selector.as_ref());
                Some(Pool {
                    name: entry.view.name.clone(),
                    deleting: object.metadata.deletion_timestamp.is_some(),
                    bad_selector: selector.err(),
                    refused: None,
                    object: Some(object),
                })
            })
            .collect()
    }

    /// A pool that only its berths still name.
    pub fn orphaned(name: PoolName) -> Pool {
        Pool {
            name,
            object: None,
            deleting: true,
            bad_selector: None,
            refused: None,
        }
    }

    /// The target in force.
    pub fn target(&self) -> Option<&berth_api::pool::Target> {
        self.object.as_ref()?.status.as_ref().and_then(|s| s.target.as_ref())
    }

    /// Medians of what its members measured.
    pub(super) fn estimates(&self) -> PhaseDurations {
        let status = self.object.as_ref().and_then(|object| object.status.as_ref());
        status.map(|status| status.phase_durations).unwrap_or_default()
    }

    /// The request for a poll of its tag. One that the status has no room to repeat is none.
    pub fn poll_request(&self) -> Option<&str> {
        let annotations = self.object.as_ref()?.metadata.annotations.as_ref()?;
        let request = annotations.get(keys::ANNOTATION_POLL_REQUESTED_AT)?;
        (1..=64).contains(&request.len()).then_some(request)
    }

    /// The spec names another reference than the one that the target was resolved from, or one that is not allowed: what is
    /// published is no longer wanted, and what is wanted instead is not known yet.
    pub fn unresolved(&self) -> bool {
        let reference = self.object.as_ref().map(|o| o.spec.image_ref());
        self.target()
            .is_some_and(|target| self.refused.is_some() || Some(target.image.as_str()) != reference)
    }

    /// Says whether the pool waits for the one of that name.
    pub fn comes_after(&self, name: &PoolName) -> bool {
        let object = self.object.as_ref();
        object.is_some_and(|object| object.spec.after().iter().any(|after| after == name.as_str()))
    }

    /// The pool's capacity for so many members.
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

    /// The failures on record, unless the admin has asked to forget them.
    pub fn failures(&self) -> Failures {
        let (Some(object), Some(status)) = (&self.object, self.status()) else {
            return Failures::new();
        };
        if is_news(object.spec.retry_token(), status.retry_token.as_deref()) {
            return Failures::new();
        }
        let nodes = |f: &DigestFailures| f.nodes.iter().map(|n| NodeName::from(n.as_str())).collect();
        status.failures.iter().map(|f| (f.digest.clone(), nodes(f))).collect()
    }

    /// Time after which a reboot counts as failed.
    pub fn reboot_timeout(&self) -> Duration {
        let object = self.object.as_ref();
        object.map_or(DEFAULT_REBOOT_TIMEOUT, |object| object.spec.reboot_timeout())
    }

    /// Longest time for which pods are waited with, unless they are to be waited with for ever.
    fn drain_timeout(&self) -> Duration {
        let object = self.object.as_ref();
        object.map_or(Duration::MAX, |object| object.spec.drain().timeout())
    }

    /// Expected length of a drain and a reboot of a node that measured these: what it did itself, with an earlier image, but
    /// no longer than what its pool has measured, or the pool's timeouts before that. One slow turn must not shut it out of
    /// its windows for ever; nor may a slow pool, since only those that fit measure anew.
    pub(super) fn estimate_of(&self, report: &Report) -> Estimate {
        let either = |expected: Duration, own: Option<Duration>, timeout: Duration| match (expected, own) {
            (Duration::ZERO, own) => own.unwrap_or_default().min(timeout),
            (expected, own) => own.unwrap_or(expected).min(expected),
        };
        let expected = self.estimate();
        Estimate {
            drain: either(expected.drain, report.drain, self.drain_timeout()),
            reboot: either(expected.reboot, report.reboot, self.reboot_timeout()),
        }
    }

    /// Expected length of a drain and a reboot in this pool, as far as it is known.
    pub fn estimate(&self) -> Estimate {
        let seconds = |s: Option<u32>| Duration::from_secs(s.unwrap_or_default().into());
        let medians = self.status().map(|s| s.phase_durations).unwrap_or_default();
        Estimate {
            drain: seconds(medians.drain_seconds).min(self.drain_timeout()),
            reboot: seconds(medians.reboot_seconds).min(self.reboot_timeout()),
        }
    }

    /// Inputs of the pool's gates; `None` for a pool that is gone.
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

    /// The waves of the spec, and those that it does not name.
    pub(super) fn waves(&self, soaks: &Soaks) -> Vec<Wave> {
        let rollout = self.object.as_ref().map(|o| o.spec.rollout()).unwrap_or_default();
        let soak = |text: Option<&str>| duration::parse_or(text.or(rollout.soak_time.as_deref()), Duration::ZERO);
        let named = rollout
            .waves
            .iter()
            .map(|w| (w.name.clone(), soak(w.soak_time.as_deref())));
        let implied = [waves::REST, waves::CONTROL_PLANE].map(|name| (name.to_owned(), soak(None)));
        let told = self.status().map(|s| s.waves.as_slice()).unwrap_or_default();
        let wave = |(name, soak): (String, Duration)| {
            let told = told.iter().find(|w| w.name == name).map_or(0, |w| w.soaked_seconds);
            let seen = self
                .target()
                .map(|target| soaks.soaked(&self.name, &target.digest, &name));
            let soaked = seen.unwrap_or_default().max(Duration::from_secs(told));
            Wave { name, soak, soaked }
        };
        named.chain(implied).map(wave).collect()
    }
}

/// Says whether a retry token asks for something that was not done for the last one. A token that is taken away asks
/// for nothing: no agent acts on it, and its failures stay on record.
pub(super) fn is_news(token: &str, obeyed: Option<&str>) -> bool {
    !token.is_empty() && obeyed != Some(token)
}

/// Returns the pools that exist and are not being deleted, as far as they can be read.
pub fn lasting(pools: &Objects<PoolView>) -> BTreeSet<PoolName> {
    let is_deleting = |pool: &PoolView| {
        let object = pool.object.as_ref();
        object.is_ok_and(|object| object.metadata.deletion_timestamp.is_some())
    };
    let lasting = pools.values().filter(|entry| !is_deleting(&entry.view));
    lasting.map(|entry| entry.view.name.clone()).collect()
}

#[cfg(test)]
pub(super) mod tests;
