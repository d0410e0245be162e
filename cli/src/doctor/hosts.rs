//! Checks of the members' hosts, from the reports of their agents: rollback guard, first boot, other updaters, clocks.

use std::collections::BTreeMap;

use berth_api::condition::{self, CommonReason, node as types, pool as of_pools};
use berth_core::text::few;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::check::{Check, Topic};
use super::findings;
use super::roster::Member;
use crate::health::HealthInsight;
use crate::text::{clean, count};

/// Checks that the rollback guard is installed where the pool wants it.
pub(crate) fn rollback_guard(members: &[Member<'_>]) -> Vec<Check> {
    let mut without: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut known = 0;
    for member in members {
        let Some(guard) = condition(member, types::ROLLBACK_GUARD) else {
            continue;
        };
        known += 1;
        if guard.status == "False" && guard.reason == CommonReason::NotInstalled.as_str() {
            without
                .entry(clean(&guard.message))
                .or_default()
                .push(clean(&member.name));
        }
    }
    if without.is_empty() {
        let words = match (members.len(), known) {
            (0, _) => return vec![],
            (_, 0) => {
                return vec![Check::note(
                    Topic::RollbackGuard,
                    "no agent has looked for the rollback guard yet",
                )];
            }
            (all, known) if all == known => format!("as the pools want it on {}", count(all, "host")),
            (all, known) => format!("as the pools want it on {known} of {}", count(all, "host")),
        };
        return vec![Check::ok(Topic::RollbackGuard, &format!("rollback guard: {words}"))];
    }
    let checks = without.into_iter().map(|(why, nodes)| {
        Check::warning(
            Topic::RollbackGuard,
            &format!("rollback guard is not installed on {}", few(nodes)),
        )
        .because(&format!(
            "an image whose agent does not start is not rolled back there; {why}"
        ))
        .remedy("repair the cause, or ship the unit in the image: docs/health.md#the-rollback-guard")
    });
    checks.collect()
}

/// Checks the first boots of machines.
pub(crate) fn first_boot(members: &[Member<'_>], health: &[HealthInsight]) -> Vec<Check> {
    let found = findings::of(Topic::FirstBoot, health);
    if !found.is_empty() || members.is_empty() {
        return found;
    }
    let checked = members
        .iter()
        .filter(|member| member.status().is_some_and(|status| status.firstboot.is_some()));
    let words = match checked.count() {
        0 => "first boot: not checked on any host (berth-firstboot.service is optional)".to_owned(),
        checked => format!("first boot: well on the {} that checked it", count(checked, "host")),
    };
    vec![Check::ok(Topic::FirstBoot, &words)]
}

/// Checks that no other program updates the hosts.
pub(crate) fn rivals(members: &[Member<'_>], health: &[HealthInsight]) -> Vec<Check> {
    let found = findings::of(Topic::Rivals, health);
    if !found.is_empty() || members.is_empty() {
        return found;
    }
    vec![Check::ok(
        Topic::Rivals,
        "no other updater is active on the members' hosts",
    )]
}

/// Checks the clocks of hosts and controller. Pools with windows need them. Each program checks its own clock; clocks
/// of different machines are not compared.
pub(crate) fn clocks(members: &[Member<'_>]) -> Vec<Check> {
    let off = members.iter().filter(|member| {
        member
            .status()
            .is_some_and(|status| status.clock_synchronized == Some(false))
    });
    let (needed, other): (Vec<&Member<'_>>, Vec<&Member<'_>>) = off.partition(|member| has_windows(member));
    let mut found = vec![];
    if !needed.is_empty() {
        let names = few(needed.iter().map(|member| clean(&member.name)));
        let message = format!("clocks are not synchronized: {names}");
        let check = Check::broken(Topic::Clocks, &message)
            .because("their pools have windows, so these nodes are offered no berth");
        found.push(check.remedy("start a time service on the hosts (timedatectl shows its state); for clocks that a hypervisor keeps, give the agent --trust-clock"));
    }
    if !other.is_empty() {
        let names = few(other.iter().map(|member| clean(&member.name)));
        let check = Check::note(Topic::Clocks, &format!("clocks are not synchronized: {names}"));
        found.push(check.because("their pools have no windows, so this stops no update"));
    }
    let mut pools: Vec<String> = members
        .iter()
        .filter(|member| is_of_controller(member))
        .map(Member::pool_name)
        .collect();
    pools.dedup();
    if !pools.is_empty() {
        let message = format!(
            "the controller's clock is not synchronized, so the windows of these pools stay closed: {}",
            few(pools.iter().map(|pool| clean(pool)))
        );
        found.push(Check::broken(Topic::Clocks, &message).remedy("start a time service on the controller's node"));
    }
    if found.is_empty() && !members.is_empty() {
        found.push(Check::ok(
            Topic::Clocks,
            "clocks: no host and no controller reports a clock that is not synchronized",
        ));
    }
    found
}

fn has_windows(member: &Member<'_>) -> bool {
    let rollout = member.pool.spec.rollout();
    !rollout.windows.is_empty() || !rollout.exclusions.is_empty()
}

fn is_of_controller(member: &Member<'_>) -> bool {
    let status = member.pool.status.as_ref();
    let window = status.and_then(|status| condition::find(&status.conditions, of_pools::WINDOW_OPEN));
    window.is_some_and(|window| window.reason == CommonReason::ClockNotSynchronized.as_str())
}

fn condition<'a>(member: &Member<'a>, type_: &str) -> Option<&'a Condition> {
    condition::find(&member.status()?.conditions, type_)
}
