//! Notes workloads with a single replica: they are away while their node is updated.

use std::collections::BTreeSet;

use berth_core::text::few;
use kube::core::{Selector, SelectorExt};

use super::check::{Check, Topic};
use super::facts::Facts;
use super::roster::Member;
use super::workload::{PodPlace, Workload};
use crate::text::{clean, count};

/// Checks the workloads of all namespaces.
pub(crate) fn check(facts: &Facts, members: &[Member<'_>]) -> Vec<Check> {
    let topic = Topic::SingleReplicas;
    let (budgets, workloads) = match (&facts.budgets, &facts.workloads) {
        (Ok(budgets), Ok(workloads)) => (budgets, workloads),
        // The check of the budgets reports that they cannot be read.
        (Err(_), _) => return vec![],
        (_, Err(unseen)) => return vec![unseen.check(topic)],
    };
    let single: Vec<&Workload> = workloads
        .iter()
        .filter(|workload| workload.is_single(budgets))
        .collect();
    if single.is_empty() {
        return vec![Check::ok(topic, "no workload has a single replica without a budget")];
    }
    let pods = match &facts.places.all {
        Ok(pods) => pods,
        Err(unseen) => return vec![unseen.check(topic)],
    };
    let has_pools = facts.snapshot.as_ref().is_ok_and(|snapshot| !snapshot.pools.is_empty());
    // Without a pool any node may become a member.
    let members: Option<BTreeSet<&str>> =
        has_pools.then(|| members.iter().map(|member| member.name.as_str()).collect());
    let is_on_member =
        |pod: &PodPlace| !pod.node.is_empty() && members.as_ref().is_none_or(|names| names.contains(pod.node.as_str()));
    let of_members: Vec<&PodPlace> = pods.pods.iter().filter(|pod| is_on_member(pod)).collect();
    let names: Vec<String> = single
        .into_iter()
        .filter(|workload| has_pod(workload, &of_members))
        .map(|workload| clean(&format!("{}/{}", workload.namespace, workload.name)))
        .collect();
    let partial = if pods.is_partial {
        format!(" (of the first {} of the cluster)", count(pods.pods.len(), "pod"))
    } else {
        String::new()
    };
    if names.is_empty() {
        return vec![Check::ok(
            topic,
            &format!("no workload on a member has a single replica without a budget{partial}"),
        )];
    }
    let message = format!(
        "{} without a budget{partial}: {}",
        count(names.len(), "single replica"),
        few(names)
    );
    let check = Check::note(topic, &message)
        .because("each is away while its node is drained, until its pod runs on another node");
    vec![check.remedy("if that matters, run two replicas with a budget that lets one go")]
}

fn has_pod(workload: &Workload, pods: &[&PodPlace]) -> bool {
    let Ok(selector) = Selector::try_from(workload.selector.clone()) else {
        return false;
    };
    pods.iter()
        .any(|pod| pod.namespace == workload.namespace && selector.matches(&pod.labels))
}
