//! The first boot of a machine: whether the image that it was installed from can reach its target, and what follows. Pure.
//!
//! A machine that is no node yet has no berth, and none is needed: nothing runs there. So this ends for good as soon as a
//! kubelet may have run.

use std::path::Path;

use berth_api::Digest;
use berth_api::boot_image::{BootImageLimit, NodeBootImage};
use berth_api::condition::one_line;
use berth_api::firstboot::{FirstbootOutcome as Outcome, NodeFirstboot};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::skew::{Skew, skew};

pub mod config;
pub mod node;
pub mod words;

use config::{Config, OnViolation};

/// Tries to reboot into a target. After them it is no accident that the machine does not arrive there.
pub const MAX_PIVOTS: u32 = 3;

/// Memory of a first boot, in `/var/lib/berth/firstboot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The check is over for good: the kubelet may have run.
    pub finished: bool,
    /// Tries to reboot into the target: each is counted before its reboot is asked for.
    #[serde(default)]
    pub pivots: u32,
    /// Digest that the last of them goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pivots_to: Option<Digest>,
    /// Part that the cluster is told.
    pub status: NodeFirstboot,
}

/// The target, as the registry tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Digest of its manifest for this machine.
    pub digest: Digest,
    /// Its version.
    pub version: Option<String>,
    /// Limit that it sets for boot images.
    pub limit: Option<BootImageLimit>,
}

/// The registry's answer about the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nobody has asked.
    NotAsked,
    /// The host did not get as far as to ask; why.
    HostFailed(String),
    /// The registry cannot be reached, in the host tool's words.
    Away(String),
    /// The registry does not give the target. That may change: a tag or credentials may come late.
    Withheld(String),
    /// The target is of no use to any machine, or not to this one.
    Useless(String),
    /// The target.
    Found(Target),
}

/// Digest that the machine runs. It is asked for only where it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Booted {
    /// Nobody has asked, or the host cannot tell; the reason.
    Unknown(String),
    /// The machine runs this.
    Digest(Digest),
}

/// Failure to change to the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Error, in one line.
    pub message: String,
    /// Another try cannot help.
    pub is_final: bool,
}

/// Everything that the next step depends on.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Memory that an earlier run has left.
    pub record: Option<&'a Record>,
    /// An agent or a kubelet has run on this machine.
    pub is_node: bool,
    /// The override file is there.
    pub is_overridden: bool,
    /// The installer's note about the boot image; `None` where there is none.
    pub boot_image: Option<&'a NodeBootImage>,
    /// The registry's answer.
    pub answer: &'a Answer,
    /// Image that runs.
    pub booted: &'a Booted,
    /// The last try to change to the target, if it failed.
    pub trouble: Option<&'a Trouble>,
    /// The deadline is over.
    pub is_late: bool,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing is to be done: an earlier run has ended this, or the machine became a node without it.
    Done,
    /// Ask the registry, after a pause if it was asked before.
    Ask,
    /// Stage the target and reboot into it, after a pause if that was tried before.
    Pivot(Target, Verdict),
    /// Record this, tell people, and let the boot go on or hold the kubelet back.
    End(Verdict),
}

/// Result of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Outcome.
    pub outcome: Outcome,
    /// The kubelet is held back.
    pub holds: bool,
    /// The machine has changed to the target.
    pub pivoted: bool,
    /// Finding, in one sentence without a full stop.
    pub found: String,
    /// Remedy; empty where nothing is to be done.
    pub remedy: String,
}

impl Verdict {
    fn new(outcome: Outcome, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            outcome,
            holds: false,
            pivoted: false,
            found: found.into(),
            remedy: remedy.into(),
        }
    }

    /// Verdict where the configuration cannot be read: a mistake in a file must not cost a machine.
    pub fn invalid_config(error: &str) -> Self {
        let remedy = "correct it for the next machines; this one goes on as it was installed";
        let found = format!("nothing was compared, since {} is wrong: {error}", config::PATH);
        Self::new(Outcome::InvalidConfig, found, remedy)
    }

    /// Verdict on a machine that was a node before anybody compared it.
    pub fn not_first_boot() -> Self {
        let found = "an agent or a kubelet has run here before: nothing was compared";
        Self::new(Outcome::NotFirstBoot, found, "")
    }

    /// Verdict where the host does not let the check do its work.
    pub fn host_failed(error: &str) -> Self {
        let remedy = "look at the journal of berth-firstboot.service";
        let found = format!("nothing was compared, since the host failed: {error}");
        Self::new(Outcome::HostFailed, found, remedy)
    }

    /// The same, unless an earlier run has refused this machine: what cannot be compared now does not let it go.
    #[must_use]
    pub fn unless_refused(self, before: Option<&Record>) -> Self {
        let is_refused = |record: &&Record| !record.finished && record.status.outcome == Outcome::Refused;
        if before.filter(is_refused).is_none() {
            return self;
        }
        Self {
            outcome: Outcome::Refused,
            holds: true,
            pivoted: false,
            found: format!("this machine was refused at an earlier boot, and now {}", self.found),
            remedy: "see to that and reboot, or install the machine from a newer boot image; an override file lets it go on \
                     as it is"
                .to_owned(),
        }
    }

    /// The same, unless it holds the kubelet back and this override file, which is there, lets the machine go on.
    #[must_use]
    pub fn overridden_by(self, file: &Path) -> Self {
        if !self.holds {
            return self;
        }
        let found = format!("{}; {} lets it go on", self.found, file.display());
        Self::new(Outcome::Overridden, found, "")
    }

    /// Says whether the check is over for good. Who is held back may be let go by a later run.
    pub fn is_over(&self) -> bool {
        !self.holds
    }

    /// One line with all of it.
    pub fn message(&self) -> String {
        match self.remedy.is_empty() {
            true => one_line(&self.found),
            false => one_line(&format!("{}; {}", self.found, self.remedy)),
        }
    }
}

/// The next step.
pub fn next(facts: &Facts<'_>) -> Step {
    if facts.record.is_some_and(|record| record.finished) {
        return Step::Done;
    }
    if facts.is_node {
        return match (facts.trouble, facts.record) {
            (Some(trouble), _) => Step::End(overtaken(facts, trouble)),
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
        Answer::NotAsked => return without_target(facts, away(facts, "it was not asked in time")),
        Answer::HostFailed(why) => return without_target(facts, Verdict::host_failed(why)),
        Answer::Away(why) => return without_target(facts, away(facts, why)),
        Answer::Withheld(why) => {
            return without_target(
                facts,
                unusable(facts, why, "correct the image, or the host's credentials"),
            );
        }
        Answer::Useless(why) => {
            return without_target(facts, unusable(facts, why, "correct the image, or build it anew"));
        }
    };
    let verdict = judge(facts, target);
    match verdict.outcome {
        Outcome::Allowed | Outcome::Overridden if facts.config.pivot => pivot(facts, target, verdict),
        _ => Step::End(verdict),
    }
}

/// The end of a reboot into a target that the machine runs now.
fn arrived(facts: &Facts<'_>) -> Option<Verdict> {
    let record = facts.record?;
    let Booted::Digest(booted) = facts.booted else {
        return None;
    };
    let target = record.pivots_to.as_ref().filter(|digest| *digest == booted)?;
    Some(Verdict {
        pivoted: true,
        ..Verdict::new(
            record.status.outcome,
            format!("changed to {} ({target}) before the kubelet ran", facts.config.image),
            "",
        )
    })
}

/// The end where there is no target to compare with.
fn without_target(facts: &Facts<'_>, verdict: Verdict) -> Step {
    let verdict = verdict.unless_refused(facts.record);
    Step::End(match facts.is_overridden {
        true => verdict.overridden_by(&facts.config.override_file),
        false => verdict,
    })
}

fn unusable(facts: &Facts<'_>, why: &str, remedy: &str) -> Verdict {
    let found = format!(
        "nothing was compared, since {} cannot be had: {why}",
        facts.config.image
    );
    Verdict::new(Outcome::ImageUnavailable, found, remedy)
}

fn away(facts: &Facts<'_>, why: &str) -> Verdict {
    let found = format!(
        "nothing was compared, since the registry of {} did not answer within {} s: {why}",
        facts.config.image,
        facts.config.deadline.as_secs()
    );
    let remedy = "the machine goes on as it was installed; look at its network and at the registry";
    Verdict::new(Outcome::RegistryAway, found, remedy)
}

/// Compares the machine with the target.
fn judge(facts: &Facts<'_>, target: &Target) -> Verdict {
    let limit = facts.config.limit_for(target.limit.as_ref());
    let boot = facts.boot_image.and_then(|image| image.version.as_deref());
    let words = |why: &str| {
        let note = facts
            .boot_image
            .and_then(|image| Some((&image.source, image.error.as_ref()?)));
        let note = note
            .map(|(source, error)| format!(" ({source}: {error})"))
            .unwrap_or_default();
        format!("this machine {why}{note}; the target is {}", name(facts, target))
    };
    let overriding = |why: &str| {
        let found = format!("{}; {} lets it go on", words(why), facts.config.override_file.display());
        Verdict::new(Outcome::Overridden, found, "")
    };
    match skew(boot, target.version.as_deref(), &[&limit]) {
        Skew::NoLimit => {
            let found = format!("neither {} nor the configuration sets a limit", name(facts, target));
            Verdict::new(Outcome::Allowed, found, "")
        }
        Skew::Within => Verdict::new(
            Outcome::Allowed,
            words(&format!(
                "was installed from {}, which is new enough",
                boot.unwrap_or_default()
            )),
            "",
        ),
        Skew::Exceeded(why) | Skew::Unknown(why) if facts.is_overridden => overriding(&why),
        Skew::Exceeded(why) => {
            let holds = facts.config.on_violation == OnViolation::Block;
            let go_on = format!("create {} and reboot", facts.config.override_file.display());
            let remedy = match holds {
                true => format!("install the machine from a newer boot image; to let it go on as it is, {go_on}"),
                false => "install the machine from a newer boot image".to_owned(),
            };
            Verdict {
                holds,
                ..Verdict::new(Outcome::Refused, words(&why), remedy)
            }
        }
        Skew::Unknown(why) => Verdict::new(
            Outcome::Unknown,
            words(&why),
            "the machine goes on as it was installed, and does not change to the target; compare by hand",
        )
        .unless_refused(facts.record),
    }
}

fn name(facts: &Facts<'_>, target: &Target) -> String {
    match &target.version {
        Some(version) => format!("{} ({version})", facts.config.image),
        None => facts.config.image.to_string(),
    }
}

/// The end of a machine that may change to the target, and does not.
fn pivot_failed(target: &str, why: &str) -> Verdict {
    let found = format!("the machine may change to {target}, and did not: {why}");
    let remedy = "the machine goes on as it was installed; once it is a node, its pool updates it";
    Verdict::new(Outcome::PivotFailed, found, remedy)
}

/// The end of a change to the target in whose course the machine became a node: from now on it changes under a berth only.
fn overtaken(facts: &Facts<'_>, trouble: &Trouble) -> Verdict {
    pivot_failed(&facts.config.image.to_string(), &trouble.message)
}

/// The step of a machine that may change to the target.
fn pivot(facts: &Facts<'_>, target: &Target, permitted: Verdict) -> Step {
    let failed = |why: &str| Step::End(pivot_failed(&name(facts, target), why));
    let pivots = facts.record.map_or(0, |record| record.pivots);
    match (facts.booted, facts.trouble) {
        (Booted::Digest(booted), _) if *booted == target.digest => Step::End(Verdict {
            found: format!("{}; it runs already", permitted.found),
            ..permitted
        }),
        (Booted::Unknown(why), _) => failed(&format!("what it runs cannot be told: {why}")),
        (_, Some(trouble)) if trouble.is_final || facts.is_late => failed(&trouble.message),
        _ if pivots >= MAX_PIVOTS => failed(&format!("after {pivots} tries to reboot into it, it does not run it")),
        _ if facts.is_late => failed("the deadline is over"),
        _ => Step::Pivot(target.clone(), permitted),
    }
}

/// The record of a verdict. `begin` and `now` are of the machine's clock.
pub fn record(
    facts: &Facts<'_>,
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
    // After a reboot into the target nobody asks the registry again.
    let told = before.filter(|_| verdict.pivoted).map(|before| &before.status);
    let version = facts.boot_image.and_then(|image| image.version.clone());
    let whole = |time: Timestamp| Time(Timestamp::from_second(time.as_second()).unwrap_or(time));
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
                .or_else(|| told?.digest.clone()),
            version: target
                .and_then(|target| target.version.clone())
                .or_else(|| told?.version.clone()),
            boot_image_version: version.or_else(|| told?.boot_image_version.clone()),
            pivoted: verdict.pivoted,
            held: verdict.holds || before.is_some_and(|before| before.status.held),
            start_time: earlier.or(Some(whole(begin))),
            end_time: Some(whole(now)),
        },
    }
}

/// The record of a check that could not begin.
pub fn record_of_failure(before: Option<&Record>, verdict: &Verdict, now: Timestamp) -> Record {
    let time = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
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
