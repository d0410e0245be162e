//! Checks that an agent runs on every member.

use std::collections::BTreeMap;

use berth_core::text::few;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};

use super::check::{Check, Outcome, Topic};
use super::facts::{AGENT, Facts};
use super::findings;
use super::roster::Member;
use crate::health::HealthInsight;
use crate::text::{clean, count};

/// Checks the agents of all members.
pub(crate) fn check(facts: &Facts, members: &[Member<'_>], health: &[HealthInsight]) -> Vec<Check> {
    let without: Vec<&Member<'_>> = members.iter().filter(|member| member.status().is_none()).collect();
    let (new, old): (Vec<&Member<'_>>, Vec<&Member<'_>>) = without.iter().partition(|member| member.is_new);
    let mut found: Vec<Check> = set(facts, members).into_iter().collect();
    if !old.is_empty() {
        found.push(missing(facts, &old));
    }
    if !new.is_empty() {
        let names = few(new.iter().map(|member| clean(&member.name)));
        let message = format!("agents of new members have not reported yet: {names}");
        found.push(Check::note(Topic::Agents, &message).remedy("run this again in a minute"));
    }
    found.extend(findings::of(Topic::Agents, health));
    let is_well = found.iter().all(|check| check.result < Outcome::Warning);
    if is_well && !members.is_empty() {
        let reporting = members.len() - without.len();
        let words = format!("{} of {} report", reporting, count(members.len(), "member"));
        found.insert(0, Check::ok(Topic::Agents, &format!("agents: {words}")));
    }
    found
}

/// Names of members whose agents do not report, for the read of the agents' pods.
pub(crate) fn is_any_missing(members: &[Member<'_>]) -> bool {
    members.iter().any(|member| member.status().is_none())
}

/// Returns a check of the DaemonSet: unknown, missing, or not ready. `None` if it is as it should be.
fn set(facts: &Facts, members: &[Member<'_>]) -> Option<Check> {
    let set = match &facts.daemon_set {
        Err(unseen) => return Some(unseen.check(Topic::Agents)),
        Ok(None) => return no_set(facts, members),
        Ok(Some(set)) => set.status.clone().unwrap_or_default(),
    };
    let wanted = set.desired_number_scheduled;
    let ready = set.number_ready;
    if ready >= wanted {
        let is_alone = members.is_empty() && wanted > 0;
        return is_alone.then(|| Check::ok(Topic::Agents, &format!("agents: {ready} of {wanted} pods are ready")));
    }
    let see = format!(
        "{} -n {} get pods -l app.kubernetes.io/name={AGENT} -o wide",
        facts.commands.kubectl(),
        facts.namespace
    );
    let message = format!("agents: {ready} of {wanted} pods of DaemonSet {AGENT} are ready");
    let check = Check::warning(Topic::Agents, &message).remedy(&format!("find out why the others are not: {see}"));
    Some(
        check.remedy(
            "a node without bootc or rpm-ostree needs no agent: exclude it with a nodeSelector of the DaemonSet",
        ),
    )
}

fn no_set(facts: &Facts, members: &[Member<'_>]) -> Option<Check> {
    let reporting = members.iter().filter(|member| member.status().is_some()).count();
    if reporting > 0 {
        return None;
    }
    let check = Check::warning(Topic::Agents, &format!("DaemonSet {AGENT} is not installed"))
        .because("agents run in its pods, unless they are services of their hosts")
        .remedy("install Berth, or the agent on each host");
    Some(check.commands(facts.commands.everything(facts.release().as_ref())))
}

/// Returns the check for members without an agent, with the reasons why their pods do not run.
fn missing(facts: &Facts, members: &[&Member<'_>]) -> Check {
    let names = few(members.iter().map(|member| clean(&member.name)));
    let message = match members {
        [one] => format!("no agent reports on node {names}, a member of pool {}", one.pool_name()),
        all => format!("no agents report on {} members: {names}", all.len()),
    };
    let check = Check::broken(Topic::Agents, &message);
    match &facts.agent_pods {
        Err(unseen) => check.because(&format!("its node is not updated; {}: {}", unseen.what, unseen.why)),
        Ok(pods) => check.because(&causes(members, pods)),
    }
    .remedy(&format!(
        "see why the agent does not run: {} -n {} get pods -l app.kubernetes.io/name={AGENT} -o wide",
        facts.commands.kubectl(),
        facts.namespace
    ))
    .remedy("docs/runbooks/BerthAgentSilent.md; a node that needs no updates: kubectl berth exclude NODE")
}

/// Returns why the agents of these members do not run: the same reason on several nodes is named once.
fn causes(members: &[&Member<'_>], pods: &[Pod]) -> String {
    let mut causes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in members {
        let of_node = pods.iter().find(|pod| node(pod) == Some(&member.name));
        let cause = of_node.map_or_else(|| "no pod of the DaemonSet is there".to_owned(), cause);
        causes.entry(cause).or_default().push(clean(&member.name));
    }
    let words = causes
        .into_iter()
        .map(|(cause, nodes)| format!("{cause} ({})", few(nodes)));
    words.collect::<Vec<_>>().join("; ")
}

fn node(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

/// Returns why a pod does not run, or that it runs.
fn cause(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    if let Some(words) = trouble(&status) {
        return words;
    }
    let phase = status.phase.unwrap_or_default();
    if phase == "Running" {
        return "its pod runs, but its agent does not report: read its log".to_owned();
    }
    format!("its pod is {}", if phase.is_empty() { "not started" } else { &phase })
}

fn trouble(status: &PodStatus) -> Option<String> {
    let containers = status.container_statuses.iter().flatten();
    let waits = containers.filter_map(waiting).next();
    let scheduling = status.conditions.iter().flatten();
    let unscheduled = scheduling.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
    let unscheduled = unscheduled
        .map(|c| words(c.reason.as_deref(), c.message.as_deref()))
        .next();
    waits.or(unscheduled)
}

fn waiting(container: &ContainerStatus) -> Option<String> {
    let ContainerState { waiting, .. } = container.state.clone()?;
    let waiting = waiting?;
    Some(words(waiting.reason.as_deref(), waiting.message.as_deref()))
}

fn words(reason: Option<&str>, message: Option<&str>) -> String {
    let reason = reason.unwrap_or("its pod waits");
    match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{}: {}", clean(reason), clean(message)),
        None => clean(reason),
    }
}
