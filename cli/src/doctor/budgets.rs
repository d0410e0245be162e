//! Checks of the disruption budgets: which ones keep a node from being drained.

use std::collections::BTreeSet;

use berth_api::pool::{Drain, OnTimeout};
use berth_core::text::few;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::core::SelectorExt;

use super::check::{Check, Outcome, Topic};
use super::commands::{Commands, quoted};
use super::facts::Facts;
use super::roster::Member;
use super::workload::{Budget, PodPlace, Pods, Workload, key};
use crate::text::{clean, count};

/// Checks the budgets of all namespaces.
pub(crate) fn check(facts: &Facts, members: &[Member<'_>]) -> Vec<Check> {
    let budgets = match &facts.budgets {
        Ok(budgets) => budgets,
        Err(unseen) => return vec![unseen.check(Topic::Budgets)],
    };
    let mut found = vec![];
    for budget in budgets {
        if let Some(why) = never(budget) {
            found.extend(blocking(facts, budget, &why, members));
        }
    }
    match &facts.workloads {
        Ok(workloads) => found.extend(
            workloads
                .iter()
                .filter_map(|workload| crowded(facts, workload, budgets)),
        ),
        Err(unseen) => found.push(unseen.check(Topic::Budgets)),
    }
    if found.is_empty() {
        let message = format!("disruption budgets let every node go ({} checked)", budgets.len());
        found.push(Check::ok(Topic::Budgets, &message));
    }
    found
}

/// Returns why a budget never allows a disruption, whichever of its pods are ready. `None` if it may allow one.
pub(crate) fn never(budget: &Budget) -> Option<String> {
    let (spec, status) = (budget.spec.as_ref()?, budget.status.as_ref()?);
    let is_observed = status
        .observed_generation
        .is_none_or(|seen| Some(seen) == budget.metadata.generation);
    if !is_observed || status.disruptions_allowed > 0 {
        return None;
    }
    let conditions = status.conditions.iter().flatten();
    let mut failed = conditions.filter(|c| c.type_ == "DisruptionAllowed" && c.reason == "SyncFailed");
    if let Some(failed) = failed.next() {
        return Some(format!("Kubernetes cannot compute it: {}", failed.message));
    }
    if status.expected_pods == 0 || status.desired_healthy < status.expected_pods {
        return None;
    }
    let pods = count(usize::try_from(status.expected_pods).unwrap_or_default(), "pod");
    Some(match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => format!("maxUnavailable is {} (of {pods})", number(most)),
        (None, Some(least)) => format!("minAvailable is {} (of {pods})", number(least)),
        (None, None) => format!("all must be available ({pods})"),
    })
}

fn number(number: &IntOrString) -> String {
    match number {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => clean(text),
    }
}

/// Effect of a budget on the members of the pools.
struct Effect {
    nodes: BTreeSet<String>,
    /// True if a drain of one of the nodes never ends, false if all pools force a drain after its timeout.
    is_forever: bool,
}

/// Returns the check for a budget that never allows a disruption. `None` if it has no pod on a member.
fn blocking(facts: &Facts, budget: &Budget, why: &str, members: &[Member<'_>]) -> Option<Check> {
    let name = shown(budget);
    let pods = match facts.places.of_budgets.get(&key(budget)) {
        Some(Ok(pods)) => pods,
        Some(Err(unseen)) => {
            let check = unseen.check(Topic::Budgets);
            return Some(Check {
                message: format!("not known: nodes of the pods of budget {name}"),
                ..check
            });
        }
        None => return None,
    };
    let message = format!("budget {name} never lets a node go: {why}");
    let has_pools = facts.snapshot.as_ref().is_ok_and(|snapshot| !snapshot.pools.is_empty());
    if !has_pools {
        let check = Check::warning(Topic::Budgets, &message).because("no node with one of its pods could be drained");
        return Some(repaired(facts, budget, check));
    }
    let effect = effect(pods, members);
    if effect.nodes.is_empty() {
        return pods.is_partial.then(|| {
            Check::note(Topic::Budgets, &message).because("it has too many pods to look whether one is on a member")
        });
    }
    let nodes = few(effect.nodes.iter().map(|node| clean(node)));
    let (result, cause) = match (effect.is_forever, owner(budget)) {
        (true, None) => (Outcome::Broken, format!("drains of these nodes time out: {nodes}")),
        (true, Some(owner)) => {
            let cause = format!(
                "drains of these nodes time out, unless {owner}, which owns the budget, moves the pods: {nodes}"
            );
            (Outcome::Warning, cause)
        }
        (false, _) => (
            Outcome::Warning,
            format!("drains of these nodes wait until drain.timeout: {nodes}"),
        ),
    };
    Some(repaired(
        facts,
        budget,
        Check::new(Topic::Budgets, result, &message).because(&cause),
    ))
}

fn shown(budget: &Budget) -> String {
    let (namespace, name) = key(budget);
    clean(&format!("{namespace}/{name}"))
}

/// Returns kind and name of the object that manages the budget.
fn owner(budget: &Budget) -> Option<String> {
    let owners = budget.owner_references();
    let owner = owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .or(owners.first())?;
    Some(clean(&format!("{} {}", owner.kind, owner.name)))
}

fn effect(pods: &Pods, members: &[Member<'_>]) -> Effect {
    let mut effect = Effect {
        nodes: BTreeSet::new(),
        is_forever: false,
    };
    for member in members {
        let drain = member.pool.spec.drain();
        let on_it = pods.pods.iter().filter(|pod| pod.node == member.name);
        if on_it.filter(|pod| is_evicted(pod, &drain)).count() > 0 {
            effect.nodes.insert(member.name.clone());
            effect.is_forever |= drain.on_timeout() != OnTimeout::Force;
        }
    }
    effect
}

/// True if a drain by these rules evicts the pod, so that its budget counts.
fn is_evicted(pod: &PodPlace, drain: &Drain) -> bool {
    let selector = drain.pod_selector.as_ref().and_then(|selector| selector.get().ok());
    let is_selected = selector.is_none_or(|selector| selector.matches(&pod.labels));
    drain.is_enabled() && drain.disable_eviction != Some(true) && is_selected
}

fn repaired(facts: &Facts, budget: &Budget, check: Check) -> Check {
    if let Some(owner) = owner(budget) {
        return check.remedy(&format!(
            "change {owner}, which owns the budget, so that one pod may be away"
        ));
    }
    let check = check
        .remedy("let one pod be away, where the budget is kept; with a single replica, that is an outage of this pod");
    check.commands([allow_one(&facts.commands, budget)])
}

fn allow_one(commands: &Commands, budget: &Budget) -> String {
    let (namespace, name) = key(budget);
    let patch = r#"{"spec":{"minAvailable":null,"maxUnavailable":1}}"#;
    let kubectl = commands.kubectl();
    let (namespace, name) = (quoted(&namespace), quoted(&name));
    format!(
        "{kubectl} -n {namespace} patch poddisruptionbudget {name} --type=merge -p {}",
        quoted(patch)
    )
}

/// Returns a check if several budgets select the pods of a workload: the API server then evicts none of them.
fn crowded(facts: &Facts, workload: &Workload, budgets: &[Budget]) -> Option<Check> {
    let of_it: Vec<&Budget> = budgets.iter().filter(|budget| workload.is_of(budget)).collect();
    if of_it.len() < 2 || workload.replicas == 0 {
        return None;
    }
    let names = few(of_it.iter().map(|budget| clean(&budget.name_any())));
    let workload = clean(&format!("{}/{}", workload.namespace, workload.name));
    let kubectl = facts.commands.kubectl();
    let message = format!("several budgets select the pods of {workload}: {names}");
    let check = Check::warning(Topic::Budgets, &message)
        .because("the API server evicts no pod that has two budgets, so no node with one of its pods can be drained");
    Some(check.remedy(&format!(
        "change their selectors, or delete all but one: {kubectl} -n {} get poddisruptionbudgets",
        clean(&of_it.first()?.namespace()?)
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn budget(spec: Value, status: Value) -> Budget {
        let object =
            json!({"metadata": {"namespace": "shop", "name": "db", "generation": 1}, "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn status(allowed: i32, expected: i32, desired: i32) -> Value {
        json!({
            "disruptionsAllowed": allowed, "expectedPods": expected, "desiredHealthy": desired, "currentHealthy": expected,
            "observedGeneration": 1,
        })
    }

    #[test]
    fn a_budget_never_allows_a_disruption_if_all_pods_must_be_available() {
        let mut unobserved = status(0, 2, 2);
        unobserved["observedGeneration"] = json!(0);
        for (spec, status, expected) in [
            (
                json!({"maxUnavailable": 0}),
                status(0, 3, 3),
                Some("maxUnavailable is 0 (of 3 pods)"),
            ),
            (
                json!({"maxUnavailable": "0%"}),
                status(0, 3, 3),
                Some("maxUnavailable is 0% (of 3 pods)"),
            ),
            (
                json!({"minAvailable": 2}),
                status(0, 2, 2),
                Some("minAvailable is 2 (of 2 pods)"),
            ),
            (
                json!({"minAvailable": 5}),
                status(0, 2, 5),
                Some("minAvailable is 5 (of 2 pods)"),
            ),
            (
                json!({"minAvailable": "100%"}),
                status(0, 4, 4),
                Some("minAvailable is 100% (of 4 pods)"),
            ),
            // A percentage is rounded up.
            (
                json!({"minAvailable": "51%"}),
                status(0, 1, 1),
                Some("minAvailable is 51% (of 1 pod)"),
            ),
            // A pod is not ready now.
            (json!({"minAvailable": 2}), status(0, 3, 2), None),
            (json!({"maxUnavailable": 1}), status(0, 3, 2), None),
            (json!({"minAvailable": 2}), status(1, 3, 2), None),
            // The budget selects no pod.
            (json!({"maxUnavailable": 0}), status(0, 0, 0), None),
            (json!({"minAvailable": 2}), unobserved, None),
        ] {
            assert_eq!(never(&budget(spec.clone(), status)).as_deref(), expected, "{spec}");
        }
    }

    #[test]
    fn a_budget_that_kubernetes_cannot_compute_allows_nothing() {
        let mut status = status(0, 0, 0);
        status["conditions"] = json!([{
            "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "found no controllers for pod \"db-0\"",
        }]);
        let found = never(&budget(json!({"maxUnavailable": 1}), status)).unwrap();
        assert_eq!(
            found,
            r#"Kubernetes cannot compute it: found no controllers for pod "db-0""#
        );
    }
}
