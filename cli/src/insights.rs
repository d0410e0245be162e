//! Assessment of each pool and node in the words, the order and the columns of `oc adm upgrade status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use berth_api::condition;
use berth_api::fleet::BootcFleet;
use berth_api::insight::conditions::{AVAILABLE, DRAINING, PAUSED, PENDING, REBOOTING, UPDATED, WORKING};
use berth_api::insight::{NodeInsight, ScopeType};
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_api::{duration, waves};
use berth_core::insight::{Assessment, Facts, Held, Unavailable, assessment, insight, phase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;

use crate::Snapshot;
use crate::nodes::silence;
use crate::text::{clean, columns, cut, seconds};

/// Nodes of a pool that are shown unless all are asked for. Those that need a look are shown besides.
const SHOWN: usize = 10;

/// A pool and its nodes, assessed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolInsight {
    /// Name of the pool.
    pub name: String,
    /// Assessment in one word.
    pub assessment: &'static str,
    /// Number of nodes by what is true of them.
    #[serde(flatten)]
    pub counts: Counts,
    /// Its nodes, those that need a look first.
    pub nodes: Vec<NodeLine>,
}

/// Number of nodes by what is true of them. A node may be counted in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All of them.
    pub total: usize,
    /// Nodes that run the desired image.
    pub updated: usize,
    /// Nodes that are not known to be unavailable.
    pub available: usize,
    /// Nodes that are on their way, and not degraded.
    pub progressing: usize,
    /// Nodes that do not run the desired image.
    pub outdated: usize,
    /// Nodes that move their pods away.
    pub draining: usize,
    /// Nodes that an admin holds back.
    pub excluded: usize,
    /// Nodes with trouble.
    pub degraded: usize,
}

/// A node's insight, and its assessment.
#[derive(Debug, Clone, Serialize)]
pub struct NodeLine {
    /// Assessment in one word.
    pub assessment: &'static str,
    /// The insight, with all that this program knows.
    pub insight: NodeInsight,
    #[serde(skip)]
    rank: (Assessment, usize),
    /// Time to go, as it is printed.
    #[serde(skip)]
    estimate: String,
}

/// The pools to show, by name.
pub fn insights(snapshot: &Snapshot, now: Timestamp) -> Vec<PoolInsight> {
    let nodes: BTreeMap<String, &Node> = snapshot.nodes.iter().map(|n| (n.name_any(), n)).collect();
    let pools = snapshot.shown().into_iter();
    pools.map(|pool| of_pool(snapshot, pool, &nodes, now)).collect()
}

fn of_pool(snapshot: &Snapshot, pool: &BootcNodePool, nodes: &BTreeMap<String, &Node>, now: Timestamp) -> PoolInsight {
    let name = pool.name_any();
    let fleet = |fleet: &BootcFleet| fleet.spec.paused;
    let paused = pool.spec.paused() || snapshot.fleet.as_ref().is_some_and(fleet);
    let members = snapshot.bootc_nodes.iter().filter(|n| n.spec.pool_name == name);
    let lines = members.filter_map(|host| line(pool, host, nodes.get(&host.name_any()).copied(), paused, now));
    let mut nodes: Vec<NodeLine> = lines.collect();
    nodes.sort_by(|a, b| (a.rank, &a.insight.name).cmp(&(b.rank, &b.insight.name)));
    let counts = counts(&nodes);
    PoolInsight {
        name: clean(&name),
        assessment: of_counts(&counts),
        counts,
        nodes,
    }
}

fn line(pool: &BootcNodePool, host: &BootcNode, node: Option<&Node>, paused: bool, now: Timestamp) -> Option<NodeLine> {
    let status = host.status.clone().unwrap_or_default();
    let name = host.name_any();
    let silent = silence(&status, now).map(|age| format!("no word from its agent for {age}"));
    let facts = Facts {
        node: &name,
        pool: &host.spec.pool_name,
        scope: match node.is_some_and(|n| waves::is_control_plane(n.labels())) {
            true => ScopeType::ControlPlane,
            false => ScopeType::WorkerPool,
        },
        desired: host.spec.image.as_ref().map(|i| &i.digest),
        status: &status,
        unavailable: node.map(unavailable),
        held: paused.then_some(Held::Paused),
        told: &status.conditions,
        silent: silent.as_deref(),
        medians: pool.status.as_ref().map(|s| s.phase_durations).unwrap_or_default(),
    };
    let mut insight = insight(&facts, status.insight.as_ref(), now)?;
    insight.message = clean(&insight.message);
    insight.version = insight.version.as_deref().map(clean);
    let since = status.phase_start_time.as_ref().map(|t| t.0);
    let assessment = assessment(&insight);
    Some(NodeLine {
        assessment: assessment.as_str(),
        rank: (assessment, rank(phase(&insight))),
        estimate: estimate(&insight, since, now),
        insight,
    })
}

/// Reasons for which a Node is not available, the gravest first. A condition that the Node does not have says nothing.
fn unavailable(node: &Node) -> Vec<Unavailable> {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let of: BTreeMap<&str, &str> = conditions.map(|c| (c.type_.as_str(), c.status.as_str())).collect();
    let pressed = |type_: &str| of.get(type_).is_some_and(|status| *status != "False");
    let unschedulable = node.spec.as_ref().is_some_and(|s| s.unschedulable == Some(true));
    let reasons = [
        (of.get("Ready") != Some(&"True"), Unavailable::NotReady),
        (pressed("DiskPressure"), Unavailable::DiskPressure),
        (pressed("NetworkUnavailable"), Unavailable::NetworkUnavailable),
        (unschedulable, Unavailable::Unschedulable),
    ];
    let reasons = reasons.into_iter().filter(|(is, _)| *is);
    reasons.map(|(_, reason)| reason).collect()
}

/// Order of the phases in the table.
fn rank(phase: &str) -> usize {
    let order = [DRAINING, WORKING, REBOOTING, PAUSED, PENDING, UPDATED];
    order.iter().position(|p| *p == phase).unwrap_or(order.len())
}

/// Time to go: `+4m`, `-` when nothing is to be done, `?` when nobody can tell or it takes longer than ever.
fn estimate(insight: &NodeInsight, since: Option<Timestamp>, now: Timestamp) -> String {
    if matches!(phase(insight), UPDATED | PAUSED) {
        return "-".to_owned();
    }
    let whole = insight
        .est_to_complete
        .as_deref()
        .and_then(|text| duration::parse(text).ok());
    let left = whole.zip(since).map(|(whole, since)| {
        let whole = i64::try_from(whole.as_secs()).unwrap_or(i64::MAX);
        whole.saturating_sub(now.as_second().saturating_sub(since.as_second()))
    });
    match left.and_then(|left| u64::try_from(left).ok()) {
        Some(left) if left > 0 => format!("+{}", seconds(left)),
        _ => "?".to_owned(),
    }
}

fn counts<'a>(nodes: impl IntoIterator<Item = &'a NodeLine>) -> Counts {
    let mut counts = Counts::default();
    for node in nodes {
        let phase = phase(&node.insight);
        let degraded = node.rank.0 == Assessment::Degraded;
        let is_unavailable = condition::find(&node.insight.conditions, AVAILABLE).is_some_and(|c| c.status == "False");
        counts.total += 1;
        counts.updated += usize::from(phase == UPDATED);
        counts.available += usize::from(!is_unavailable);
        counts.draining += usize::from(phase == DRAINING);
        counts.progressing += usize::from(matches!(phase, DRAINING | WORKING | REBOOTING) && !degraded);
        counts.excluded += usize::from(phase == PAUSED);
        counts.degraded += usize::from(degraded);
    }
    counts.outdated = counts.total - counts.updated;
    counts
}

/// Assessment of a pool. Unlike the original, one with a degraded node is never just pending.
fn of_counts(counts: &Counts) -> &'static str {
    match counts {
        Counts { total: 0, .. } => "Empty",
        counts if counts.degraded > 0 => "Degraded",
        counts if counts.updated == counts.total => "Completed",
        counts if counts.excluded > 0 => "Excluded",
        counts if counts.progressing == 0 && counts.updated == 0 => "Pending",
        _ => "Progressing",
    }
}

/// The tables. Without `all`, ten nodes of each pool, and those that need a look. No line is longer than `width`, unless
/// that is 0.
pub fn render_insights(snapshot: &Snapshot, now: Timestamp, width: usize, all: bool) -> String {
    let pools = insights(snapshot, now);
    let mut out = String::new();
    for note in &snapshot.notes {
        out += &(cut(&format!("! {}", clean(note)), width) + "\n");
    }
    if pools.is_empty() {
        return out + "There are no pools: nothing is asked of any node.\n";
    }
    let rows: Vec<_> = pools.iter().map(summary).collect();
    out += &columns(&["POOL", "ASSESSMENT", "COMPLETION", "STATUS"], &rows, width);
    for pool in pools.iter().filter(|pool| !pool.nodes.is_empty()) {
        let _ = writeln!(out, "\n{}", cut(&format!("Nodes of pool {}", pool.name), width));
        out += &table(pool, width, all);
    }
    out
}

fn summary(pool: &PoolInsight) -> Vec<String> {
    let counts = &pool.counts;
    let percent = counts.updated * 100 / counts.total.max(1);
    let mut status = format!(
        "{} Available, {} Progressing, {} Draining",
        counts.available, counts.progressing, counts.draining
    );
    for (number, word) in [(counts.excluded, "Excluded"), (counts.degraded, "Degraded")] {
        if number > 0 {
            let _ = write!(status, ", {number} {word}");
        }
    }
    let completion = format!("{percent}% ({}/{})", counts.updated, counts.total);
    vec![pool.name.clone(), pool.assessment.to_owned(), completion, status]
}

fn table(pool: &PoolInsight, width: usize, all: bool) -> String {
    let needs_a_look = |line: &NodeLine| line.rank.0 <= Assessment::Unavailable;
    let (shown, omitted): (Vec<_>, Vec<_>) = pool
        .nodes
        .iter()
        .enumerate()
        .partition(|(index, line)| all || *index < SHOWN || needs_a_look(line));
    let row = |(_, line): &(usize, &NodeLine)| {
        let insight = &line.insight;
        vec![
            clean(&insight.name),
            line.assessment.to_owned(),
            phase(insight).to_owned(),
            insight.version.clone().unwrap_or_else(|| "?".to_owned()),
            line.estimate.clone(),
            insight.message.clone(),
        ]
    };
    let heads = ["NAME", "ASSESSMENT", "PHASE", "VERSION", "EST", "MESSAGE"];
    let mut out = columns(&heads, &shown.iter().map(row).collect::<Vec<_>>(), width);
    if !omitted.is_empty() {
        let rest = counts(omitted.into_iter().map(|(_, line)| line));
        let line = format!(
            "  {} more: {} updated, {} outdated, {} progressing, {} held back; --details=nodes shows them",
            rest.total, rest.updated, rest.outdated, rest.progressing, rest.excluded
        );
        out += &(cut(&line, width) + "\n");
    }
    out
}
