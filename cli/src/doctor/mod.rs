//! `doctor`: checks before Berth is installed, and afterwards. Facts go in, checks with their remedies come out; only
//! [`read`] sends requests.

use jiff::Timestamp;

use crate::health::HealthInsight;
use crate::snapshot::Snapshot;
use crate::status::report;

mod agents;
mod budgets;
pub mod check;
mod commands;
mod controller;
mod crds;
mod diagnosis;
pub mod facts;
mod findings;
mod guard;
mod hosts;
mod images;
mod json;
mod policies;
mod probe;
mod read;
mod render;
mod requests;
mod roster;
pub mod seen;
mod server;
pub mod shipped;
mod singles;
mod versions;
pub mod workload;

use check::{Check, Outcome, Topic};
pub(crate) use commands::quoted;
pub use commands::{Commands, Origin};
pub use diagnosis::Diagnosis;
use facts::Facts;
pub use read::read;
pub use render::{render, render_commands};
use roster::{Member, members};
use versions::Skew;

/// Makes all checks.
pub fn diagnose(facts: &Facts, now: Timestamp) -> Diagnosis {
    let skew = Skew::of(facts);
    let empty = Snapshot::default();
    let snapshot = facts.snapshot.as_ref().unwrap_or(&empty);
    let (members, health) = (members(snapshot, now), report(snapshot, now).health);
    let mut checks = vec![
        server::version(facts),
        server::policies(facts),
        server::restriction(facts, &members),
        server::control_plane(facts),
    ];
    checks.extend(crds::check(facts, skew));
    checks.extend(policies::check(facts, skew));
    checks.extend(installed(facts, &members, &health));
    checks.extend(unread(facts, snapshot));
    checks.extend(budgets::check(facts, &members));
    checks.extend(singles::check(facts, &members));
    Diagnosis::of(checks)
}

/// Checks the programs. Those that need the pools are made only if the API server serves them.
fn installed(facts: &Facts, members: &[Member<'_>], health: &[HealthInsight]) -> Vec<Check> {
    let mut checks = controller::check(facts, health);
    checks.extend(guard::check(facts, members, health));
    checks.extend(agents::check(facts, members, health));
    if facts.deployment.as_ref().is_ok_and(Option::is_some) || !members.is_empty() {
        checks.extend(versions::check(facts, members));
    }
    checks.extend(hosts::rollback_guard(members));
    checks.extend(hosts::first_boot(members, health));
    checks.extend(hosts::rivals(members, health));
    checks.extend(hosts::clocks(members));
    checks.extend(images::registry(facts, health));
    checks.extend(images::secrets(facts));
    checks.extend(rollouts(facts, health));
    checks
}

/// Returns the findings that belong to no other check.
fn rollouts(facts: &Facts, health: &[HealthInsight]) -> Vec<Check> {
    let mut found = findings::of(Topic::Health, health);
    let has_pools = facts.snapshot.as_ref().is_ok_and(|snapshot| !snapshot.pools.is_empty());
    if found.is_empty() && has_pools {
        found.push(Check::ok(Topic::Health, "kubectl berth status has no other finding"));
    }
    found
}

/// Returns a check for each kind of Berth's objects that cannot be read.
fn unread(facts: &Facts, snapshot: &Snapshot) -> Vec<Check> {
    if let Err(unseen) = &facts.snapshot {
        return vec![unseen.check(Topic::Objects)];
    }
    // Findings report the objects that were read and cannot be decoded.
    let undecoded = snapshot.undecoded();
    let notes = snapshot.notes.iter().filter(|note| !undecoded.contains(note));
    let checks = notes.map(|note| {
        let remedy =
            "allow your user to read these objects (the message has the permission), or run this as another user";
        Check::new(Topic::Objects, Outcome::Unknown, note).remedy(remedy)
    });
    checks.collect()
}
