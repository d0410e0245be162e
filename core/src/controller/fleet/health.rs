//! Computes the BootcFleet's status: whether the fleet is updating and whether anything is wrong. Pure.

use std::time::Duration;

use berth_api::condition::{self, CommonReason, Verdict, Word, fleet as types};
use berth_api::fleet::{BootcFleetStatus, FleetNodes, MAX_POOLS, PoolSummary};
use berth_api::pool::BootcNodePoolStatus;
use jiff::Timestamp;

use crate::controller::fleet::held::Machines;
use crate::controller::image::{Answers, QueryFailure};
use crate::controller::view::FirstBoot;
use crate::text::few;

#[cfg(test)]
mod tests;

/// Usual time without a report before the status lists an agent as silent. Agents report every 120 s, so two reports
/// are then missing. See [`silent_after`].
pub const SILENT_AFTER: Duration = Duration::from_secs(270);

/// Time that a new leader gets to poll all registries once.
const FIRST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(6 * 60);

/// Returns how long an agent may be silent before the status lists it. A node whose agent is silent for longer than
/// `agent_silence` is offered no berth. Admins raise `agent_silence` if agents report less often.
pub fn silent_after(agent_silence: Duration) -> Duration {
    SILENT_AFTER.max(agent_silence.mul_f64(0.3)).min(agent_silence)
}

/// Reasons of a failed poll that mean that the registry is unavailable. Other reasons have other causes, such as a
/// missing image.
const AWAY: [&str; 3] = ["RegistryUnavailable", "InvalidAnswer", "RateLimited"];

/// Agent of a pool's member.
#[derive(Debug, Clone, Copy)]
pub struct Agent<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Time since the agent's last report.
    pub quiet: Duration,
    /// True if the node reboots under a berth, so that its agent may be silent.
    pub rebooting: bool,
    /// True if the agent reports that the API server lets it write to other nodes' objects, or that it could not check
    /// this.
    pub unguarded: bool,
    /// Result of the check of the machine's first boot; `None` if the boot was not checked.
    pub firstboot: Option<FirstBoot>,
}

impl Agent<'_> {
    /// True if the agent has been silent for too long and its node is not rebooting under a berth.
    pub fn is_silent(&self, silent_after: Duration) -> bool {
        self.quiet >= silent_after && !self.rebooting
    }
}

/// The parts of a pool that the fleet's health depends on.
#[derive(Debug, Clone, Copy)]
pub struct PoolState<'a> {
    /// Name of the pool.
    pub name: &'a str,
    /// Status of the pool; empty until it is first written.
    pub status: &'a BootcNodePoolStatus,
    /// Last failure to poll the pool's image.
    pub trouble: Option<&'a QueryFailure>,
    /// True if this leader has polled the pool's image, with or without success. Also true if it may not query the
    /// image's registry.
    pub is_asked: bool,
}

impl<'a> PoolState<'a> {
    /// Returns the state of a pool. `answers`: `None` if no registry may be queried for the pool.
    pub fn of(name: &'a str, status: &'a BootcNodePoolStatus, answers: Option<&'a Answers>) -> Self {
        Self {
            name,
            status,
            trouble: answers.and_then(Answers::trouble),
            is_asked: answers.is_none_or(Answers::is_asked),
        }
    }

    fn has(&self, type_: &str) -> bool {
        condition::is_true(&self.status.conditions, type_)
    }
}

/// Input for the fleet's status.
#[derive(Debug)]
pub struct FleetStatusFacts<'a> {
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Current status.
    pub old: &'a BootcFleetStatus,
    /// `spec.paused`
    pub paused: bool,
    /// The pools, sorted by name.
    pub pools: &'a [PoolState<'a>],
    /// Agents of all pool members, sorted by node name.
    pub agents: &'a [Agent<'a>],
    /// Machines that are held back on their first boot, and such machines that have joined since.
    pub machines: Machines,
    /// Error from listing the events that report machines held back on their first boot.
    pub events_unread: Option<String>,
    /// A message for each of Berth's objects that cannot be read.
    pub unreadable: &'a [String],
    /// Number of pools in `unreadable`.
    pub unreadable_pools: usize,
    /// True if the controller's watches are stale. The controller may then have missed reports of agents.
    pub deaf: bool,
    /// Time since this leader began to receive reports of agents.
    pub listened: Duration,
    /// Longest silence of an agent before the status lists it.
    pub silent_after: Duration,
}

/// Returns the fleet's new status.
pub fn status(facts: &FleetStatusFacts<'_>, now: Timestamp) -> BootcFleetStatus {
    let mut conditions = facts.old.conditions.clone();
    let verdicts = [
        (types::UPDATING, Some(updating(facts))),
        (types::PAUSED, Some(paused(facts))),
        (types::CONTROLLER_HEALTHY, Some(controller(facts))),
        (types::AGENTS_HEALTHY, agents(facts)),
        (types::REGISTRY_REACHABLE, registry(facts)),
        (types::FEEDS_HEALTHY, Some(feeds(facts))),
        (types::GUARDED, Some(guarded(facts))),
        (types::BOOTSTRAP_HEALTHY, Some(bootstrap(facts))),
    ];
    for (type_, verdict) in verdicts {
        if let Some(verdict) = verdict {
            condition::set(&mut conditions, type_, verdict, facts.generation, now);
        }
    }

    BootcFleetStatus {
        observed_generation: facts.generation,
        nodes: facts.pools.iter().map(|pool| nodes(pool.status)).sum(),
        pools: facts.pools.iter().take(MAX_POOLS).map(summary).collect(),
        held_machines: facts.machines.held.clone(),
        joined_machines: facts.machines.joined.clone(),
        conditions,
    }
}

fn summary(pool: &PoolState<'_>) -> PoolSummary {
    PoolSummary {
        name: pool.name.to_owned(),
        nodes: nodes(pool.status),
        state: state(pool.status).to_string(),
    }
}

fn nodes(status: &BootcNodePoolStatus) -> FleetNodes {
    FleetNodes {
        total: status.nodes.total,
        updated: status.nodes.updated,
        degraded: status.nodes.degraded,
        unavailable: status.nodes.unavailable,
    }
}

/// Returns the pool's state in one word: the reason of its condition `Ready`.
fn state(status: &BootcNodePoolStatus) -> Word {
    let ready = condition::find(&status.conditions, condition::pool::READY);
    ready.map_or(CommonReason::NotJudged.into(), |ready| Word::stored(&ready.reason))
}

fn updating(facts: &FleetStatusFacts<'_>) -> Verdict {
    let stalled = pools_with(facts, condition::pool::STALLED);
    let going = pools_with(facts, condition::pool::RECONCILING);
    let total: FleetNodes = facts.pools.iter().map(|pool| nodes(pool.status)).sum();
    let updated = format!("{} of {} nodes updated", total.updated, total.total);
    if !going.is_empty() {
        Verdict::yes(
            CommonReason::Progressing,
            format!("{updated}; in progress: {}", few(going)),
        )
    } else if facts.unreadable_pools > 0 {
        let pools = format!("{} pools cannot be read; see ControllerHealthy", facts.unreadable_pools);
        Verdict::unknown(CommonReason::UnreadableObjects, pools)
    } else if facts.pools.is_empty() {
        Verdict::no(CommonReason::NoPools, "there is no BootcNodePool")
    } else if !stalled.is_empty() {
        let message = format!("{updated}; waiting for a person: {}", few(stalled));
        Verdict::no(CommonReason::Stalled, message)
    } else if facts.pools.iter().all(|pool| pool.has(condition::pool::READY)) {
        Verdict::no(CommonReason::AllUpdated, updated)
    } else {
        let rest = facts.pools.iter().filter(|pool| !pool.has(condition::pool::READY));
        let rest = few(rest.map(|pool| format!("{} ({})", pool.name, state(pool.status))));
        Verdict::no(CommonReason::Waiting, format!("{updated}; waiting: {rest}"))
    }
}

/// Returns the pools whose condition of this type is True, each with its progress.
fn pools_with(facts: &FleetStatusFacts<'_>, type_: &str) -> Vec<String> {
    let pools = facts.pools.iter().filter(|pool| pool.has(type_));
    pools
        .map(|pool| {
            let nodes = &pool.status.nodes;
            format!(
                "{}: {} of {} ({})",
                pool.name,
                nodes.updated,
                nodes.total,
                state(pool.status)
            )
        })
        .collect()
}

fn paused(facts: &FleetStatusFacts<'_>) -> Verdict {
    if facts.paused {
        let message =
            "every pool is paused: no node begins to pull; nodes that have committed to a reboot still reboot";
        Verdict::yes(CommonReason::Paused, message)
    } else {
        Verdict::no(CommonReason::NotPaused, "each pool follows its own spec")
    }
}

/// Returns the condition `ControllerHealthy`: False if the controller cannot read some of Berth's objects. A controller
/// that does not run cannot set the condition.
fn controller(facts: &FleetStatusFacts<'_>) -> Verdict {
    match facts.unreadable {
        [] => Verdict::yes(CommonReason::AsExpected, ""),
        some => Verdict::no(
            CommonReason::UnreadableObjects,
            format!("cannot be read: {}", few(some.iter().cloned())),
        ),
    }
}

/// Returns the condition `AgentsHealthy`. `None` leaves the current condition unchanged. This happens if the watches
/// are stale. It also happens if the condition is False and this leader has not listened for long enough to clear it.
fn agents(facts: &FleetStatusFacts<'_>) -> Option<Verdict> {
    if facts.deaf {
        return None;
    }
    let silent = facts.agents.iter().filter(|agent| agent.is_silent(facts.silent_after));
    let silent: Vec<&Agent<'_>> = silent.collect();
    if !silent.is_empty() {
        let names = few(silent.iter().map(|agent| agent.node.to_owned()));
        let message = format!(
            "{} of {} agents silent for {} s: {names}",
            silent.len(),
            facts.agents.len(),
            facts.silent_after.as_secs()
        );
        return Some(Verdict::no(CommonReason::AgentsSilent, message));
    }
    let said = condition::find(&facts.old.conditions, types::AGENTS_HEALTHY);
    if said.is_some_and(|said| said.status == "False") && facts.listened < facts.silent_after {
        return None;
    }
    Some(match facts.agents {
        [] => Verdict::unknown(CommonReason::NoNodes, "no pool has a node"),
        _ => Verdict::yes(CommonReason::AsExpected, ""),
    })
}

/// Returns the condition `RegistryReachable`. `None` leaves a False condition unchanged until a new leader has polled
/// the images of all pools.
fn registry(facts: &FleetStatusFacts<'_>) -> Option<Verdict> {
    let mut away = vec![];
    for pool in facts.pools {
        if let Some(trouble) = pool.trouble.filter(|trouble| AWAY.contains(&&*trouble.reason)) {
            away.push(format!("{}: {}", pool.name, trouble.message));
        }
    }
    let said = condition::find(&facts.old.conditions, types::REGISTRY_REACHABLE);
    let was_away = said.is_some_and(|said| said.status == "False");
    let is_new = facts.listened < FIRST_ANSWERS_TIMEOUT && facts.pools.iter().any(|pool| !pool.is_asked);
    if was_away && away.is_empty() && is_new {
        return None;
    }
    Some(match (facts.pools, away.is_empty()) {
        ([], _) => Verdict::unknown(CommonReason::NoPools, "there is no BootcNodePool"),
        (_, true) => Verdict::yes(CommonReason::AsExpected, ""),
        (_, false) => Verdict::no(
            CommonReason::RegistryAway,
            format!(
                "the registries of these pools cannot be queried; the pools keep their current images: {}",
                few(away)
            ),
        ),
    })
}

/// Returns the condition `FeedsHealthy`: False if a pool gets no new images. The message names each such pool and the
/// start of its failure. This time comes from the pool's own condition, which survives a change of leader.
fn feeds(facts: &FleetStatusFacts<'_>) -> Verdict {
    let failing: Vec<String> = facts.pools.iter().filter_map(failing_feed).collect();
    if facts.pools.is_empty() {
        Verdict::unknown(CommonReason::NoPools, "there is no BootcNodePool")
    } else if failing.is_empty() {
        Verdict::yes(CommonReason::AsExpected, "")
    } else {
        let message = format!(
            "{} of {} pools get no new image: {}; see their conditions ImageResolved and FeedFailing",
            failing.len(),
            facts.pools.len(),
            few(failing)
        );
        Verdict::no(CommonReason::FeedsFailing, message)
    }
}

/// Returns the pool's name, and the reason and the start time of its failure, if the pool gets no new images.
fn failing_feed(pool: &PoolState<'_>) -> Option<String> {
    let conditions = &pool.status.conditions;
    let unresolved = condition::find(conditions, condition::pool::IMAGE_RESOLVED).filter(|c| c.status == "False");
    let condition = unresolved.or_else(|| condition::find_true(conditions, condition::pool::FEED_FAILING))?;
    let since = condition.last_transition_time.0;
    Some(format!("{} ({} since {since:.0})", pool.name, condition.reason))
}

fn guarded(facts: &FleetStatusFacts<'_>) -> Verdict {
    let named: Vec<String> = facts
        .agents
        .iter()
        .filter(|agent| agent.unguarded)
        .map(|a| a.node.to_owned())
        .collect();
    match (facts.agents, named.is_empty()) {
        ([], _) => Verdict::unknown(CommonReason::NoNodes, "no pool has a node"),
        (_, true) => Verdict::yes(
            CommonReason::AsExpected,
            "no agent reports that it can write other nodes' objects",
        ),
        (_, false) => Verdict::no(
            crate::agent::reason::Reason::Unguarded,
            format!(
                "these nodes take no berth: {}; the API server lets their agents write to other nodes' objects, or \
                 this could not be checked; apply admission-policies.yaml",
                few(named)
            ),
        ),
    }
}

/// Returns the condition `BootstrapHealthy`: False if machines are held back on their first boot, or have joined
/// although their first boot failed.
fn bootstrap(facts: &FleetStatusFacts<'_>) -> Verdict {
    let nodes = bootstrap_of_nodes(facts);
    let held = &facts.machines.held;
    if held.is_empty() {
        return match &facts.events_unread {
            Some(error) if nodes.status != Some(false) => Verdict::unknown(
                CommonReason::EventsUnreadable,
                format!(
                    "cannot list the events of machines that are held back on their first boot: {error}; if the API \
                     server forbids the request, apply this version's Role berth-controller in namespace default"
                ),
            ),
            _ => nodes,
        };
    }
    let named = held.iter().map(|machine| machine.message.clone());
    let machines = match held.len() {
        1 => "1 machine is".to_owned(),
        count => format!("{count} machines are"),
    };
    let mut message = format!(
        "{machines} held back on first boot and did not join: {}; to dismiss one: kubectl berth dismiss MACHINE",
        few(named)
    );
    if nodes.status == Some(false) {
        message = format!("{message}; {}", nodes.message);
    }
    Verdict::no(CommonReason::MachinesHeld, message)
}

fn bootstrap_of_nodes(facts: &FleetStatusFacts<'_>) -> Verdict {
    let named: Vec<String> = facts.agents.iter().filter_map(first_boot_trouble).collect();
    let checked = facts.agents.iter().filter(|agent| agent.firstboot.is_some()).count();
    match (facts.agents, named.len()) {
        ([], _) => Verdict::unknown(CommonReason::NoNodes, "no pool has a node"),
        (_, 0) => Verdict::yes(
            CommonReason::AsExpected,
            format!(
                "{checked} of {} nodes were checked on their first boot",
                facts.agents.len()
            ),
        ),
        (_, count) => Verdict::no(
            CommonReason::FirstBootFailed,
            format!(
                "{count} of {checked} first-boot checks failed: {}; see status.firstboot of each node",
                few(named)
            ),
        ),
    }
}

/// Returns the node's name and the outcome of its first boot, if that boot went wrong or was held back.
fn first_boot_trouble(agent: &Agent<'_>) -> Option<String> {
    let FirstBoot { outcome, held } = agent.firstboot?;
    let words = if outcome.is_trouble() {
        outcome.as_str().to_owned()
    } else if held {
        format!("held back at first, then {}", outcome.as_str())
    } else {
        return None;
    };
    Some(format!("{} ({words})", agent.node))
}
