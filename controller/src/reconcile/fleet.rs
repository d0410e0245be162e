//! State that all pools share, and the one write for it: the BootcFleet's status.

use berth_api::condition::fleet::PAUSED;
use berth_api::condition::{Verdict, Why, set};
use berth_api::fleet::{BootcFleet, BootcFleetStatus, NAME};
use jiff::Timestamp;

use super::{Reconciler, Seen};
use crate::leader::Lost;

impl Reconciler {
    /// Makes the BootcFleet say that it is obeyed.
    pub(super) async fn fleet(&mut self, seen: &Seen) -> Result<(), Lost> {
        let Some(fleet) = &seen.snapshot.fleet else {
            return Ok(());
        };
        let object = match &fleet.view.object {
            Ok(object) => object,
            Err(error) => {
                tracing::warn!(%error, "BootcFleet cannot be read; no berth of any pool is offered until it can");
                return Ok(());
            }
        };
        let status = status(object, seen.wall);
        if object.status.as_ref() == Some(&status) || !self.memory.backoffs.ready(PAUSED, seen.now) {
            return Ok(());
        }
        let mut object = object.clone();
        object.metadata.resource_version = Some(fleet.version.clone());
        object.status = Some(status);
        let result = self
            .kube
            .replace_status(&self.kube.all::<BootcFleet>(), NAME, &object)
            .await;
        if self.outcome(PAUSED, result)?.is_some() {
            tracing::info!(paused = object.spec.paused, "BootcFleet");
        }
        Ok(())
    }
}

fn status(object: &BootcFleet, now: Timestamp) -> BootcFleetStatus {
    let generation = object.metadata.generation;
    let mut conditions = object.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default();
    let verdict = match object.spec.paused {
        true => Verdict::yes(
            Why::Paused,
            "every pool is paused, and no node begins to pull; what is committed finishes",
        ),
        false => Verdict::no(Why::NotPaused, "each pool goes by its own spec"),
    };
    set(&mut conditions, PAUSED, verdict, generation, now);
    BootcFleetStatus {
        observed_generation: generation,
        conditions,
    }
}

#[cfg(test)]
mod tests {
    use berth_api::fleet::BootcFleetSpec;

    use super::*;

    #[test]
    fn a_fleet_says_what_it_is_and_since_when() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let mut fleet = BootcFleet::new(
            NAME,
            BootcFleetSpec {
                paused: true,
                ..BootcFleetSpec::default()
            },
        );
        fleet.metadata.generation = Some(1);
        let first = status(&fleet, at(1));
        assert_eq!(
            (first.observed_generation, first.conditions[0].status.as_str()),
            (Some(1), "True")
        );
        fleet.status = Some(first.clone());
        assert_eq!(status(&fleet, at(2)), first, "nothing to write");
        fleet.spec.paused = false;
        fleet.metadata.generation = Some(2);
        let second = status(&fleet, at(3));
        assert_eq!(
            (
                second.conditions[0].reason.as_str(),
                second.conditions[0].last_transition_time.0
            ),
            ("NotPaused", at(3))
        );
        assert_eq!(second.observed_generation, Some(2));
    }
}
