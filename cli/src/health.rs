//! Health findings of the fleet, its pools and its nodes. Nodes with the same finding share a line.

use std::collections::BTreeMap;

use berth_api::condition::{self, CommonReason, fleet as of_fleets, pool as of_pools};
use berth_api::decode::Decoded;
use berth_api::insight::conditions::{DRAINING, REBOOTING, WORKING};
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_api::text::names;
use berth_core::controller::implausible::Contradiction;
use berth_core::finding::kind::{Impact, Kind, Level};
use berth_core::finding::{self, Finding, Subject};
use berth_core::insight::Assessment;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::insights::NodeLine;
use crate::known_node::KnownNode;
use crate::nodes::silent_since;
use crate::snapshot::Snapshot;
use crate::text::clean;
use crate::unreadable::{pool_of, subject, unreadable};
use crate::view::PoolView;

/// Maximum number of nodes named in a message.
const NAMED: usize = 3;

/// A health finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthInsight {
    /// Severity.
    pub level: Level,
    /// Effect on the update and the cluster.
    pub impact: Impact,
    /// Start of the finding, if known. For a finding about several nodes, the earliest start.
    pub since: Option<Timestamp>,
    /// Summary in one line.
    pub message: String,
    /// Pool that the finding is about; absent for a finding about the fleet.
    pub pool: Option<String>,
    /// Objects that the finding is about, such as `nodes/n1`.
    pub resources: Vec<String>,
    /// Reason and message of the condition that caused the finding.
    pub description: String,
    /// Steps for the admin.
    pub remedy: Vec<String>,
    /// Commands in the remedy.
    #[serde(skip)]
    pub(crate) commands: Vec<String>,
    #[serde(skip)]
    pub(crate) kind: Kind,
    /// Reason of the condition that caused the finding.
    #[serde(skip)]
    pub(crate) reason: String,
}

impl HealthInsight {
    /// Returns one insight for the findings: a single finding about the fleet or a pool, or the same finding about one
    /// or more nodes. `None` if there are no findings.
    fn of(findings: &[Finding]) -> Option<Self> {
        let first = findings.first()?;
        let name = first.subject.name();
        let (pool, message, then) = match &first.subject {
            Subject::Fleet => (None, first.words(), None),
            Subject::Pool(pool) => (Some(pool), first.words(), poll(first)),
            Subject::Node(_, pool) => {
                let details = ("details", format!("kubectl berth node {name}"));
                (Some(pool), of_nodes(findings, pool.as_str()), Some(details))
            }
        };
        let mut commands: Vec<String> = first.commands().iter().map(|command| clean(command)).collect();
        if let Some((_, command)) = &then
            && !commands.contains(command)
        {
            commands.push(clean(command));
        }
        let then = then.map(|(what, command)| format!("{what}: {command}"));
        let same = (findings.len() > 1).then(|| "do the same for the other nodes".to_owned());
        let remedy = [first.remedy()].into_iter().chain(same).chain(then);
        Some(Self {
            level: first.level(),
            impact: first.impact(),
            since: findings.iter().filter_map(|found| found.since).min(),
            message: clean(&message),
            pool: pool.map(ToString::to_string),
            resources: findings.iter().map(|found| clean(&found.subject.to_string())).collect(),
            description: clean(&first.line()),
            remedy: remedy.map(|step| clean(&step)).collect(),
            commands,
            kind: first.kind,
            reason: first.reason.to_string(),
        })
    }
}

/// Returns the one-line summary of a finding about one or more nodes.
fn of_nodes(findings: &[Finding], pool: &str) -> String {
    let words = findings.first().map(Finding::words).unwrap_or_default();
    let all: Vec<&str> = findings.iter().map(|found| found.subject.name()).collect();
    if let [one] = all.as_slice() {
        return format!("Node {one} {words}");
    }
    let words = match words.split_once(' ') {
        Some(("is", rest)) => format!("are {rest}"),
        Some(("has", rest)) => format!("have {rest}"),
        _ => words,
    };
    let named = names(all.iter().take(NAMED), all.len());
    format!("{} nodes of pool {pool} {words}: {named}", all.len())
}

/// Returns the last step of the remedy and its command if the finding is about a pool's image: poll the tag. `None` for
/// other findings.
fn poll(found: &Finding) -> Option<(&'static str, String)> {
    let is_of_image = matches!(
        found.kind,
        Kind::ImageUnresolved | Kind::FeedFailing | Kind::FeedInterrupted
    );
    is_of_image.then(|| {
        (
            "then poll the tag",
            format!("kubectl berth poll {}", found.subject.name()),
        )
    })
}

/// Sorts findings: the most severe first, then the newest.
pub(crate) fn sort(health: &mut [HealthInsight]) {
    health.sort_by(|a, b| (b.level, b.since, &a.message).cmp(&(a.level, a.since, &b.message)));
}

pub(crate) fn of_fleet(snapshot: &Snapshot) -> Vec<HealthInsight> {
    let findings = finding::fleet::findings(conditions_of_fleet(snapshot));
    findings
        .into_iter()
        .filter_map(|found| HealthInsight::of(&[found]))
        .collect()
}

fn conditions_of_fleet(snapshot: &Snapshot) -> &[Condition] {
    let status = snapshot.fleet.as_ref().and_then(|fleet| fleet.status.as_ref());
    status.map(|status| status.conditions.as_slice()).unwrap_or_default()
}

pub(crate) fn of_pool(
    snapshot: &Snapshot,
    pool: &BootcNodePool,
    view: &PoolView,
    nodes: &BTreeMap<&str, &KnownNode>,
    now: Timestamp,
) -> Vec<HealthInsight> {
    let mut groups = of_nodes_of_pool(snapshot, view, nodes, now);
    let has_node_errors = groups.iter().flatten().any(|found| found.level() == Level::Error);
    let is_liar_named = groups.iter().flatten().any(|found| found.kind == Kind::Implausible);
    let name = pool.name_any().as_str().into();
    let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice());
    let conditions = conditions.unwrap_or_default();
    let is_outdated = view.counts.excluded > 0;
    for c in finding::pool::notable(conditions) {
        // The findings about the pool's nodes already show why the pool is Degraded. A node may report problems of its
        // own, to hide that its reports cannot be true.
        let is_hidden = !is_liar_named && Contradiction::from_word(&c.reason).is_some();
        if c.type_ != of_pools::DEGRADED || !has_node_errors || is_hidden {
            groups.push(vec![finding::pool::finding(&name, c, is_outdated)]);
        }
    }
    groups.extend(finding::unread::finding(pool, now).map(|found| vec![found]));
    // The controller may not have seen the pause yet.
    if is_outdated && !condition::is_true(conditions, of_pools::PAUSED) {
        groups.push(vec![finding::pool::paused(pool, &name)]);
    }
    if let Some(first) = view.berths.unreadable.first() {
        let subject = Subject::Pool(name);
        let found = Finding::new(Kind::BerthUnreadable, subject, CommonReason::UnreadableLease, first);
        groups.push(vec![found]);
    }
    groups.iter().filter_map(|group| HealthInsight::of(group)).collect()
}

/// Returns the findings about the nodes of a pool, in groups. Each group has the nodes with the same finding.
fn of_nodes_of_pool(
    snapshot: &Snapshot,
    view: &PoolView,
    nodes: &BTreeMap<&str, &KnownNode>,
    now: Timestamp,
) -> Vec<Vec<Finding>> {
    let bootcs = snapshot.bootc_nodes.iter().filter(|bootc| pool_of(bootc) == view.name);
    let bootcs: BTreeMap<String, &Decoded<BootcNode>> = bootcs.map(|bootc| (bootc.name_any(), bootc)).collect();
    // If the fleet's condition AgentsHealthy already reports silent agents, do not report them here again.
    let agents = condition::find(conditions_of_fleet(snapshot), of_fleets::AGENTS_HEALTHY);
    let is_silence_reported = agents.is_some_and(|c| c.status == "False");
    let mut groups: BTreeMap<(Kind, String), Vec<Finding>> = BTreeMap::new();
    for line in &view.nodes {
        let Some(bootc) = bootcs.get(&line.row.name) else {
            continue;
        };
        let node = nodes.get(line.row.name.as_str()).copied();
        for found in of_node(line, bootc, node, now) {
            if found.kind != Kind::AgentSilent || !is_silence_reported {
                groups.entry((found.kind, found.words())).or_default().push(found);
            }
        }
    }
    groups.into_values().collect()
}

fn of_node(line: &NodeLine, bootc: &Decoded<BootcNode>, node: Option<&KnownNode>, now: Timestamp) -> Vec<Finding> {
    if bootc.status.is_none() && bootc.error().is_none() {
        return vec![];
    }
    let mut found = troubles(bootc, now);
    // The assessment depends on the agent's own reports, which may hide that they cannot be true.
    found.retain(|found| matches!(found.kind, Kind::AgentSilent | Kind::Implausible) || line.is(Assessment::Degraded));
    // If the node has a worse problem, do not list its silent agent or blocked drain.
    let is_off = found.first().is_some_and(|first| {
        matches!(
            first.kind,
            Kind::NodeDegraded | Kind::RebootTimedOut | Kind::Implausible
        )
    });
    found.truncate(if is_off { 1 } else { found.len() });
    let subject = subject(bootc);
    // During a drain or a reboot a node is expected to be unavailable.
    let works = matches!(line.phase(), DRAINING | WORKING | REBOOTING);
    if let Some(node) = node.filter(|_| !works) {
        found.extend(finding::unavailable::findings(&subject, &node.conditions, now));
    }
    if line.phase() == DRAINING && !is_off {
        let status = bootc.status.as_ref();
        found.extend(status.and_then(|status| finding::node::drain(&subject, status, now)));
    }
    found
}

/// Returns the problems that a BootcNode reports, the most severe first. A silent agent comes last. If the BootcNode
/// cannot be decoded completely, this is its only known problem.
pub(crate) fn troubles(bootc: &Decoded<BootcNode>, now: Timestamp) -> Vec<Finding> {
    if let Some(found) = unreadable(bootc) {
        return vec![found];
    }
    let subject = subject(bootc);
    let status = bootc.status.clone().unwrap_or_default();
    let (conditions, is_unpublished) = (&status.conditions, bootc.spec.image.is_none());
    let own = finding::node::trouble(&subject, conditions, conditions, None, is_unpublished);
    let mut found: Vec<Finding> = own.into_iter().collect();
    let since = silent_since(&status, now);
    if since.is_some() || bootc.status.is_none() {
        found.push(finding::node::silent(subject, "its agent does not report", since));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admin::exclude;
    use crate::{report, story};

    #[test]
    fn an_unreadable_bootcnode_is_degraded_in_its_pool() {
        let status = json!({ "heartbeatTime": "9999-12-31T23:59:59Z" });
        for (spec, status, what) in [
            (
                json!({ "poolName": "p" }),
                status,
                "the BootcNode's status cannot be read, ",
            ),
            (
                json!(7),
                json!({ "phase": "Idle" }),
                "the BootcNode's spec cannot be read, ",
            ),
        ] {
            let snapshot: Snapshot = serde_json::from_value(json!({
                "pools": [{ "metadata": { "name": "p" }, "spec": { "nodeSelector": {}, "image": { "ref": "quay.io/example/os:1" } } }],
                "nodes": [{ "metadata": { "name": "n1", "uid": "u" } }],
                "bootcNodes": [{
                    "metadata": { "name": "n1", "labels": { "berth.dev/pool": "p" } }, "spec": spec, "status": status,
                }],
            }))
            .unwrap();
            let now = Timestamp::UNIX_EPOCH;
            let shown = report(&snapshot, now);
            assert!(shown.nodes_of_no_pool.is_empty());
            let line = &shown.pools[0].nodes[0];
            assert_eq!(line.assessment, Some("Degraded"));
            let expected = format!("UnreadableObjects: {what}");
            assert!(line.row.message.starts_with(&expected), "{}", line.row.message);
            assert!(
                shown.health.iter().any(|found| found.description.contains(what)),
                "{:?}",
                shown.health
            );
            assert!(!format!("{:?}", shown.health).contains("does not report"));
            assert_eq!(story(&snapshot, "n1", now).unwrap().pool, "p");
            let preview = crate::render_preview(&snapshot, now, 0);
            assert!(
                preview.contains(&expected) && !preview.contains("has reported yet"),
                "{preview}"
            );
            let plan = exclude(&snapshot, "n1", now).unwrap();
            assert!(
                plan.warnings.iter().any(|warning| warning.contains("BootcNode n1: ")),
                "{plan:?}"
            );
        }
    }
}
