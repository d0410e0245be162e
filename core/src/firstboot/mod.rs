//! The first-boot check: compares a machine's boot image (the image that it was installed from) with its target, and
//! decides whether the machine may join its cluster. Pure.
//!
//! The check needs no berth, because the machine runs no workload yet. As soon as a kubelet may have run, the check is
//! over for good.

use berth_api::Digest;
use berth_api::boot_image::{BootImageLimit, NodeBootImage};
use berth_api::firstboot::{FirstbootOutcome as Outcome, NodeFirstboot};
use jiff::Timestamp;

use crate::skew::{Skew, skew};
use crate::whole_seconds;

pub mod config;
pub mod messages;
pub mod node;
mod record;
mod verdict;

use config::{Config, OnViolation};
pub use record::Record;
pub use verdict::Verdict;

/// Maximum number of reboots into a target. If the machine still runs another image after them, more reboots would not
/// help.
pub const MAX_PIVOTS: u32 = 3;

/// The OS image that the machine should run, as the registry describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Digest of the target's manifest for the platform of this machine.
    pub digest: Digest,
    /// Version of the image.
    pub version: Option<String>,
    /// Limit for boot images, from the target's labels.
    pub limit: Option<BootImageLimit>,
}

/// The registry's answer to a query about the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The registry was not queried yet.
    NotAsked,
    /// An error of the host prevented the query; has the error.
    HostFailed(String),
    /// The registry cannot be reached; has the error of the host tool.
    Away(String),
    /// The registry does not serve the target; has the reason. A later query may succeed, because an admin may add the
    /// tag or the credentials.
    Withheld(String),
    /// The registry serves the target, but this machine cannot use it; has the reason. Another query would not help.
    Useless(String),
    /// The registry described the target.
    Found(Target),
}

/// Digest of the running image. The check queries the host for it only when a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Booted {
    /// The digest was not queried, or the query failed; has the reason.
    Unknown(String),
    /// The machine runs this digest.
    Digest(Digest),
}

/// Error of a pivot, which updates the machine to its target before its kubelet runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PivotError {
    /// Error, in one line.
    pub message: String,
    /// True if another attempt would not help.
    pub is_final: bool,
}

/// Inputs of [`next`].
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    /// The configuration of the check.
    pub config: &'a Config,
    /// Record that an earlier run of the check wrote; `None` at the first run.
    pub record: Option<&'a Record>,
    /// True if an agent or a kubelet has already run on this machine.
    pub is_node: bool,
    /// True if the override file exists: the machine may join whatever the check finds.
    pub is_overridden: bool,
    /// The boot image, from the record of the installer; `None` without such a record.
    pub boot_image: Option<&'a NodeBootImage>,
    /// The registry's answer about the target.
    pub answer: &'a Answer,
    /// The running image.
    pub booted: &'a Booted,
    /// Error of the last pivot, if it failed.
    pub pivot_error: Option<&'a PivotError>,
    /// True if the configured deadline has passed.
    pub is_late: bool,
}

/// The next step of a first-boot check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing is left to do: an earlier run has finished the check, or the machine became a node meanwhile.
    Done,
    /// Query the registry about the target. Before a repeated query, wait.
    Ask,
    /// Stage the target and reboot into it. Before a repeated attempt, wait. The verdict is recorded first.
    Pivot(Target, Verdict),
    /// Record and report this verdict. Then let the kubelet start, or hold it back.
    End(Verdict),
}

/// Returns the next step of the check.
pub fn next(facts: &Inputs<'_>) -> Step {
    if facts.record.is_some_and(|record| record.finished) {
        return Step::Done;
    }
    if facts.is_node {
        return match (facts.pivot_error, facts.record) {
            (Some(pivot_error), _) => Step::End(overtaken(facts, pivot_error)),
            (None, Some(_)) => Step::Done,
            (None, None) => Step::End(Verdict::not_first_boot()),
        };
    }
    if let Some(arrived) = arrived(facts) {
        return Step::End(arrived);
    }
    let target = match facts.answer {
        Answer::Found(target) => target,
        Answer::NotAsked | Answer::HostFailed(_) | Answer::Away(_) | Answer::Withheld(_) if !facts.is_late => {
            return Step::Ask;
        }
        Answer::NotAsked => return without_target(facts, away(facts, "the check had no time to query the registry")),
        Answer::HostFailed(why) => return without_target(facts, Verdict::host_failed(why)),
        Answer::Away(why) => return without_target(facts, away(facts, why)),
        Answer::Withheld(why) => {
            return without_target(facts, unusable(facts, why, "fix the image or the host's credentials"));
        }
        Answer::Useless(why) => {
            return without_target(
                facts,
                unusable(facts, why, "fix the image in the configuration, or rebuild the image"),
            );
        }
    };
    let verdict = judge(facts, target);
    match verdict.outcome {
        Outcome::Allowed | Outcome::Overridden if facts.config.pivot => pivot(facts, target, verdict),
        _ => Step::End(verdict),
    }
}

/// Returns the verdict on a machine that now runs the target it pivoted to. `None` if it runs another image, or did not
/// pivot.
fn arrived(facts: &Inputs<'_>) -> Option<Verdict> {
    let record = facts.record?;
    let Booted::Digest(booted) = facts.booted else {
        return None;
    };
    let target = record.pivots_to.as_ref().filter(|digest| *digest == booted)?;
    Some(Verdict {
        pivoted: true,
        ..Verdict::new(
            record.status.outcome,
            format!(
                "updated to {} ({target}) before the kubelet started",
                facts.config.image
            ),
            "",
        )
    })
}

/// Returns the last step of a check that could not get any information about the target.
fn without_target(facts: &Inputs<'_>, verdict: Verdict) -> Step {
    let verdict = verdict.unless_refused(facts.record);
    if facts.is_overridden {
        Step::End(verdict.overridden_by(&facts.config.override_file))
    } else {
        Step::End(verdict)
    }
}

fn unusable(facts: &Inputs<'_>, why: &str, remedy: &str) -> Verdict {
    let found = format!("check skipped: cannot get {}: {why}", facts.config.image);
    Verdict::new(Outcome::ImageUnavailable, found, remedy)
}

fn away(facts: &Inputs<'_>, why: &str) -> Verdict {
    let found = format!(
        "check skipped: the registry of {} did not answer within {} s: {why}",
        facts.config.image,
        facts.config.deadline.as_secs()
    );
    let remedy = "check the machine's network and the registry; the machine joins with its installed image";
    Verdict::new(Outcome::RegistryAway, found, remedy)
}

/// Returns the verdict from the comparison of the machine's boot image with the limit for boot images.
fn judge(facts: &Inputs<'_>, target: &Target) -> Verdict {
    let limit = facts.config.limit_for(target.limit.as_ref());
    let boot = facts.boot_image.and_then(|image| image.version.as_deref());
    match skew(boot, target.version.as_deref(), &[&limit]) {
        Skew::NoLimit => {
            let found = format!(
                "neither {} nor the configuration sets a limit for boot images",
                name(facts, target)
            );
            Verdict::new(Outcome::Allowed, found, "")
        }
        Skew::Within => {
            let boot = boot.unwrap_or_default();
            let why = format!("was installed from {boot}, which is new enough");
            Verdict::new(Outcome::Allowed, finding(facts, target, &why), "")
        }
        Skew::Exceeded(why) | Skew::Unknown(why) if facts.is_overridden => {
            let found = finding(facts, target, &why);
            let found = format!("{found}; overridden by {}", facts.config.override_file.display());
            Verdict::new(Outcome::Overridden, found, "")
        }
        Skew::Exceeded(why) => {
            let holds = facts.config.on_violation == OnViolation::Block;
            let remedy = if holds {
                let join = format!("create {} and reboot", facts.config.override_file.display());
                format!("install the machine from a newer boot image; to let it join anyway, {join}")
            } else {
                "install the machine from a newer boot image".to_owned()
            };
            Verdict {
                holds,
                ..Verdict::new(Outcome::Refused, finding(facts, target, &why), remedy)
            }
        }
        Skew::Unknown(why) => Verdict::new(
            Outcome::Unknown,
            finding(facts, target, &why),
            "compare the versions by hand; the machine joins with its installed image, without updating to the target",
        )
        .unless_refused(facts.record),
    }
}

/// Returns the result of the comparison as a message. `why` is the end of a sentence that begins with "this machine".
fn finding(facts: &Inputs<'_>, target: &Target, why: &str) -> String {
    let image = facts.boot_image;
    let note = match image.and_then(|image| Some((&image.source, image.error.as_ref()?))) {
        Some((source, error)) => format!(" ({source}: {error})"),
        None => String::new(),
    };
    format!("this machine {why}{note}; the target is {}", name(facts, target))
}

fn name(facts: &Inputs<'_>, target: &Target) -> String {
    match &target.version {
        Some(version) => format!("{} ({version})", facts.config.image),
        None => facts.config.image.to_string(),
    }
}

/// Returns the verdict on a machine that was allowed to pivot, but could not.
fn pivot_failed(target: &str, why: &str) -> Verdict {
    let found = format!("the machine is allowed to update to {target}, but the update failed: {why}");
    let remedy = "the machine joins with its installed image; its pool updates it later";
    Verdict::new(Outcome::PivotFailed, found, remedy)
}

/// Returns the verdict on a machine whose kubelet started during the pivot. From then on, the machine needs a berth to
/// be updated.
fn overtaken(facts: &Inputs<'_>, pivot_error: &PivotError) -> Verdict {
    pivot_failed(&facts.config.image.to_string(), &pivot_error.message)
}

/// Returns the next step of a machine that may pivot.
fn pivot(facts: &Inputs<'_>, target: &Target, permitted: Verdict) -> Step {
    let pivots = facts.record.map_or(0, |record| record.pivots);
    let why = match (facts.booted, facts.pivot_error) {
        (Booted::Digest(booted), _) if *booted == target.digest => {
            return Step::End(Verdict {
                found: format!("{}; the machine already runs the target", permitted.found),
                ..permitted
            });
        }
        (Booted::Unknown(why), _) => format!("the running image is unknown: {why}"),
        (_, Some(pivot_error)) if pivot_error.is_final || facts.is_late => pivot_error.message.clone(),
        _ if pivots >= MAX_PIVOTS => {
            format!("the machine still runs another image after {pivots} reboots into the target")
        }
        _ if facts.is_late => "the deadline has passed".to_owned(),
        _ => return Step::Pivot(target.clone(), permitted),
    };
    Step::End(pivot_failed(&name(facts, target), &why))
}

/// Returns the record to store for this verdict. `begin` and `now` are the start and the end of this run, by the
/// machine's clock.
pub fn record(
    facts: &Inputs<'_>,
    verdict: &Verdict,
    pivots_to: Option<&Digest>,
    begin: Timestamp,
    now: Timestamp,
) -> Record {
    let target = match facts.answer {
        Answer::Found(target) => Some(target),
        _ => None,
    };
    let before = facts.record;
    // After a pivot, the registry is not queried again, so take the target from the earlier record.
    let earlier_target = before.filter(|_| verdict.pivoted).map(|before| &before.status);
    let version = facts.boot_image.and_then(|image| image.version.clone());
    let earlier = before.and_then(|before| before.status.start_time.clone());
    Record {
        finished: pivots_to.is_none() && verdict.is_over(),
        pivots: before.map_or(0, |before| before.pivots) + u32::from(pivots_to.is_some()),
        pivots_to: pivots_to.cloned(),
        status: NodeFirstboot {
            outcome: verdict.outcome,
            message: verdict.message(),
            image: facts.config.image.to_string(),
            digest: target
                .map(|target| target.digest.clone())
                .or_else(|| earlier_target?.digest.clone()),
            version: target
                .and_then(|target| target.version.clone())
                .or_else(|| earlier_target?.version.clone()),
            boot_image_version: version.or_else(|| earlier_target?.boot_image_version.clone()),
            pivoted: verdict.pivoted,
            held: verdict.holds || before.is_some_and(|before| before.status.held),
            start_time: earlier.or(Some(whole_seconds(begin))),
            end_time: Some(whole_seconds(now)),
        },
    }
}

/// Returns the record to store for a check that failed before it could start.
pub fn record_of_failure(before: Option<&Record>, verdict: &Verdict, now: Timestamp) -> Record {
    let time = whole_seconds(now);
    Record {
        finished: verdict.is_over(),
        pivots: before.map_or(0, |before| before.pivots),
        pivots_to: before.and_then(|before| before.pivots_to.clone()),
        status: NodeFirstboot {
            outcome: verdict.outcome,
            message: verdict.message(),
            image: before.map(|before| before.status.image.clone()).unwrap_or_default(),
            digest: None,
            version: None,
            boot_image_version: None,
            pivoted: false,
            held: before.is_some_and(|before| before.status.held),
            start_time: before
                .and_then(|before| before.status.start_time.clone())
                .or(Some(time.clone())),
            end_time: Some(time),
        },
    }
}

#[cfg(test)]
mod tests;
