//! Sorts the health findings of `status` into the doctor's checks.

use berth_core::agent::reason::Reason;
use berth_core::finding::kind::{Kind, Level};

use super::check::{Check, Outcome, Topic};
use crate::health::HealthInsight;

/// Returns the checks for the findings about this subject.
pub(crate) fn of(topic: Topic, health: &[HealthInsight]) -> Vec<Check> {
    health
        .iter()
        .filter(|found| self::topic(found) == topic)
        .map(check)
        .collect()
}

/// Returns the subject of the check that shows this finding.
fn topic(found: &HealthInsight) -> Topic {
    match found.kind {
        Kind::Unguarded => Topic::Guard,
        Kind::ObjectsUnreadable | Kind::ControllerBehind => Topic::Controller,
        Kind::AgentsSilent | Kind::AgentSilent => Topic::Agents,
        Kind::MachinesHeld | Kind::FirstBootFailed => Topic::FirstBoot,
        Kind::RegistryAway
        | Kind::ImageAvailable
        | Kind::ImageChecked
        | Kind::ImageUnresolved
        | Kind::TagUnchecked
        | Kind::ImageNotAdopted
        | Kind::FeedRefused
        | Kind::FeedFailing
        | Kind::FeedInterrupted => Topic::Registry,
        Kind::NodeDegraded if is(found, Reason::RivalUpdater.as_str()) => Topic::Rivals,
        Kind::NodeDegraded if is(found, Reason::Unguarded.as_str()) => Topic::Guard,
        _ => Topic::Health,
    }
}

fn is(found: &HealthInsight, reason: &str) -> bool {
    found.reason == reason
}

fn check(found: &HealthInsight) -> Check {
    let result = match found.level {
        Level::Info => Outcome::Note,
        Level::Warning => Outcome::Warning,
        Level::Error => Outcome::Broken,
    };
    let check = Check::new(self::topic(found), result, &found.message).because(&found.description);
    found.remedy.iter().fold(check, |check, step| check.remedy(step))
}
