//! Checks that the API server refuses the writes that the admission policies forbid.

use berth_api::condition::{self, fleet as types};

use super::check::{Check, Topic};
use super::facts::{Answer, Facts};
use super::findings;
use super::policies;
use super::roster::Member;
use crate::health::HealthInsight;

/// Least number of reporting agents that have tested the policies: an agent needs another node for its test.
const TESTERS: usize = 2;

/// Checks that the policies work. A dry-run write of this command shows it; otherwise the agents' own dry runs do.
pub(crate) fn check(facts: &Facts, members: &[Member<'_>], health: &[HealthInsight]) -> Vec<Check> {
    let mut found = findings::of(Topic::Guard, health);
    found.extend(accepted(facts));
    found.extend(refused_otherwise(facts));
    if !found.is_empty() {
        return found;
    }
    // Without the policies there is nothing to test, and another check names them.
    if !policies::are_installed(facts) {
        return vec![];
    }
    let refused = facts
        .policy_probes
        .iter()
        .filter(|(_, answer)| **answer == Ok(Answer::Refused));
    let refused: Vec<&str> = refused.map(|(policy, _)| *policy).collect();
    if !refused.is_empty() {
        let message = format!("dry-run writes are refused by {}", refused.join(", "));
        return vec![Check::ok(Topic::Guard, &message)];
    }
    if is_tested_by_agents(facts, members) {
        return vec![Check::ok(
            Topic::Guard,
            "the agents' own dry-run writes to other nodes' objects are refused",
        )];
    }
    let unseen = facts.policy_probes.values().find_map(|answer| answer.as_ref().err());
    match unseen {
        Some(unseen) => vec![unseen.check(Topic::Guard)],
        None => {
            let message = "the cluster has no Node or BootcNode to test the admission policies with";
            vec![Check::note(Topic::Guard, message)]
        }
    }
}

/// Returns a check for each policy that let a forbidden write pass.
fn accepted(facts: &Facts) -> Vec<Check> {
    let accepted = facts
        .policy_probes
        .iter()
        .filter(|(_, answer)| **answer == Ok(Answer::Accepted));
    let checks = accepted.map(|(policy, _)| {
        let message = format!("a dry-run write was accepted that the policy {policy} must refuse");
        let commands = facts.commands.policies(facts.release().as_ref());
        Check::broken(Topic::Guard, &message)
            .because("the policy or its binding is missing, was changed, or does not match")
            .remedy("apply the admission policies again, with their bindings: docs/runbooks/BerthUnguarded.md")
            .commands(commands)
    });
    checks.collect()
}

/// Returns a check for each policy that could not be tested, because something else refused the write.
fn refused_otherwise(facts: &Facts) -> Vec<Check> {
    let mut found = vec![];
    for (policy, answer) in &facts.policy_probes {
        if let Ok(Answer::RefusedOtherwise(words)) = answer {
            let message = format!("a dry-run write was refused before the policy {policy} could refuse it");
            let check = Check::warning(Topic::Guard, &message).because(words);
            found.push(check.remedy("if an agent's permission is missing, apply manifests/base/rbac.yaml again; else see the webhook or policy that the cause names"));
        }
    }
    found
}

/// True if agents report that the API server refuses their writes to other nodes' objects.
pub(crate) fn is_tested_by_agents(facts: &Facts, members: &[Member<'_>]) -> bool {
    let fleet = facts
        .snapshot
        .as_ref()
        .ok()
        .and_then(|snapshot| snapshot.fleet.as_ref());
    let status = fleet.and_then(|fleet| fleet.status.as_ref());
    let is_guarded = status.is_some_and(|status| condition::is_true(&status.conditions, types::GUARDED));
    is_guarded && members.iter().filter(|member| member.status().is_some()).count() >= TESTERS
}
