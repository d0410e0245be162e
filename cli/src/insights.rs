//! Assessment of each node and pool, with the rules and words of `oc adm upgrade status`.

use std::borrow::Cow;

use berth_api::condition::{self, Verdict};
use berth_api::decode::Decoded;
use berth_api::insight::conditions::{AVAILABLE, DRAINING, PAUSED, PENDING, REBOOTING, UPDATED, WORKING};
use berth_api::insight::{NodeInsight, ScopeType};
use berth_api::node::{BootcNode, BootcNodeStatus, Phase};
use berth_api::pool::PhaseDurations;
use berth_api::waves;
use berth_core::finding;
use berth_core::insight::{Assessment, Held, Inputs, Unavailable, assessment, insight, is_silent, phase};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::known_node::KnownNode;
use crate::nodes::{self, NodeMessage, NodeRow, silence};
use crate::text::{clean, seconds};
use crate::unreadable::{pool_of, unreadable};

/// Number of nodes in each state. A node may count in several states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All nodes.
    pub total: usize,
    /// Nodes that run the desired image.
    pub updated: usize,
    /// Nodes that are available, or whose availability is unknown.
    pub available: usize,
    /// Nodes that are being updated and are not degraded.
    pub progressing: usize,
    /// Nodes that do not run the desired image.
    pub outdated: usize,
    /// Nodes being drained.
    pub draining: usize,
    /// Nodes that must wait because of a pause.
    pub excluded: usize,
    /// Degraded nodes.
    pub degraded: usize,
}

impl Counts {
    /// Returns the percentage of updated nodes, rounded down; 0 without nodes.
    pub fn percent(&self) -> usize {
        self.updated * 100 / self.total.max(1)
    }
}

/// A node, its assessment and its insight.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    /// The node as its agent reports it, except for the message, which also depends on the Node and the pool.
    #[serde(flatten)]
    pub row: NodeRow,
    /// Assessment in one word. Absent for a node without a pool.
    pub assessment: Option<&'static str>,
    /// Insight from the BootcNode, its Node and its pool. Absent for a node without a pool.
    pub insight: Option<NodeInsight>,
    /// Estimated time left, as printed.
    #[serde(skip)]
    pub(crate) estimate: String,
    /// Message without ages and waiting times. Compared to detect changes.
    #[serde(skip)]
    pub(crate) cause: String,
    #[serde(skip)]
    rank: (Assessment, usize),
}

impl NodeLine {
    /// Returns the phase of the insight, or the agent's phase for a node without a pool.
    pub(crate) fn phase(&self) -> &str {
        match &self.insight {
            Some(insight) => phase(insight),
            None => self.row.phase.map_or("", Phase::as_str),
        }
    }

    /// True if the node is degraded or unavailable.
    pub(crate) fn needs_attention(&self) -> bool {
        self.insight.is_some() && self.rank.0 <= Assessment::Unavailable
    }

    pub(crate) fn is(&self, assessment: Assessment) -> bool {
        self.insight.is_some() && self.rank.0 == assessment
    }
}

/// Facts about a pool that affect the lines of its nodes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PoolContext {
    /// True if the pool or the fleet is paused.
    pub(crate) paused: bool,
    pub(crate) medians: PhaseDurations,
}

/// Returns the line of one node. `node` is `None` if the Node could not be read.
pub(crate) fn line(
    of_pool: PoolContext,
    bootc: &Decoded<BootcNode>,
    node: Option<&KnownNode>,
    now: Timestamp,
) -> NodeLine {
    let status = &*status(bootc, now);
    let name = bootc.name_any();
    // A rebooting node may be silent for longer; the controller decides when that is too long.
    let is_reported = status.insight.as_ref().is_some_and(is_silent);
    let silent = silence(status, now).filter(|_| is_reported || status.phase != Some(Phase::Rebooting));
    let silent = silent.map(|age| nodes::silent(Some(&age)).text);
    let facts = Inputs {
        node: &name,
        pool: pool_of(bootc),
        scope: if node.is_some_and(|n| waves::is_control_plane(&n.view.labels)) {
            ScopeType::ControlPlane
        } else {
            ScopeType::WorkerPool
        },
        desired: bootc.spec.image.as_ref().map(|i| &i.digest),
        status,
        unavailable: node.map(unavailable),
        held: of_pool.paused.then_some(Held::Paused),
        told: &status.conditions,
        silent: silent.as_deref(),
        medians: of_pool.medians,
    };
    let mut row = nodes::row(bootc, now);
    let own = nodes::message(bootc, status, now);
    let Some(mut insight) = insight(&facts, status.insight.as_ref(), now) else {
        return NodeLine {
            row,
            assessment: None,
            insight: None,
            estimate: String::new(),
            cause: own.cause,
            rank: (Assessment::Completed, usize::MAX),
        };
    };
    insight.message = clean(&insight.message);
    insight.version = insight.version.as_deref().map(clean);
    let assessment = assessment(&insight);
    let message = message(&insight, assessment, status, own);
    row.message = message.text;
    NodeLine {
        assessment: Some(assessment.as_str()),
        rank: (assessment, rank(phase(&insight))),
        estimate: estimate(&insight, row.since, now),
        cause: message.cause,
        row,
        insight: Some(insight),
    }
}

/// Returns the status for the insight. If the BootcNode cannot be decoded completely, the status reports this.
fn status(bootc: &Decoded<BootcNode>, now: Timestamp) -> Cow<'_, BootcNodeStatus> {
    let status = bootc.status.as_ref().map_or_else(Cow::default, Cow::Borrowed);
    let Some(found) = unreadable(bootc) else {
        return status;
    };
    let mut status = status.into_owned();
    let verdict = Verdict::yes(found.reason, found.message);
    condition::set(
        &mut status.conditions,
        condition::node::NODE_DEGRADED,
        verdict,
        None,
        now,
    );
    Cow::Owned(status)
}

/// Returns the message for the table: the agent's own message (`own`) or the insight's message. The insight's message
/// is cut after 100 characters. But only the insight covers the Node's conditions and the controller's findings, such
/// as a reboot that timed out.
fn message(insight: &NodeInsight, assessment: Assessment, status: &BootcNodeStatus, own: NodeMessage) -> NodeMessage {
    let degraded = condition::is_true(&status.conditions, condition::node::NODE_DEGRADED);
    let implausible = condition::is_true(&status.conditions, condition::node::IMPLAUSIBLE);
    let is_theirs = match assessment {
        // A node that may be compromised cannot hide that by a problem that it reports.
        Assessment::Degraded => implausible || !degraded && !is_silent(insight),
        Assessment::Unavailable => true,
        _ => own.text.is_empty(),
    };
    if is_theirs {
        NodeMessage::new(&insight.message)
    } else {
        own
    }
}

pub(crate) fn sort(lines: &mut [NodeLine]) {
    lines.sort_by(|a, b| (a.rank, &a.row.name).cmp(&(b.rank, &b.row.name)));
}

/// Returns why a Node is unavailable, the most severe reason first. A Node without the condition Ready, or that cannot be
/// decoded completely, counts as not Ready; other missing conditions are ignored.
fn unavailable(node: &KnownNode) -> Vec<Unavailable> {
    let conditions = node.conditions.iter();
    let mut reasons: Vec<Unavailable> = conditions.filter_map(finding::unavailable::reason).collect();
    if !node.view.ready && !reasons.contains(&Unavailable::NotReady) {
        reasons.push(Unavailable::NotReady);
    }
    if node.view.unschedulable {
        reasons.push(Unavailable::Unschedulable);
    }
    reasons.sort();
    reasons
}

/// Returns the position of a phase in the table.
fn rank(phase: &str) -> usize {
    let order = [DRAINING, WORKING, REBOOTING, PAUSED, PENDING, UPDATED];
    order.iter().position(|p| *p == phase).unwrap_or(order.len())
}

/// Returns the estimated time left: `+4m`, `-` for an updated or paused node, `?` if the time is unknown or already
/// over.
fn estimate(insight: &NodeInsight, since: Option<Timestamp>, now: Timestamp) -> String {
    if matches!(phase(insight), UPDATED | PAUSED) {
        return "-".to_owned();
    }
    let whole = insight.est_to_complete.as_ref().and_then(|whole| whole.get().ok());
    let left = whole.zip(since).map(|(whole, since)| {
        let whole = i64::try_from(whole.as_secs()).unwrap_or(i64::MAX);
        whole.saturating_sub(now.as_second().saturating_sub(since.as_second()))
    });
    match left.and_then(|left| u64::try_from(left).ok()) {
        Some(left) if left > 0 => format!("+{}", seconds(left)),
        _ => "?".to_owned(),
    }
}

/// Counts nodes, except those without a pool.
pub(crate) fn counts<'a>(nodes: impl IntoIterator<Item = &'a NodeLine>) -> Counts {
    let mut counts = Counts::default();
    for node in nodes {
        let Some(insight) = &node.insight else {
            continue;
        };
        let phase = phase(insight);
        let degraded = node.is(Assessment::Degraded);
        let is_unavailable = condition::find(&insight.conditions, AVAILABLE).is_some_and(|c| c.status == "False");
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

/// Assessment of a pool in one word, the worst first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PoolAssessment {
    /// A node is degraded, or the pool is stalled until an admin acts.
    Degraded,
    /// Nodes are being updated, or some nodes are updated.
    Progressing,
    /// Nodes must wait because of a pause.
    Excluded,
    /// No node has begun its update.
    Pending,
    /// Every node runs the desired image.
    Completed,
    /// The pool has no nodes.
    #[default]
    Empty,
}

impl PoolAssessment {
    /// Returns the word that is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Degraded => "Degraded",
            Self::Progressing => "Progressing",
            Self::Excluded => "Excluded",
            Self::Pending => "Pending",
            Self::Completed => "Completed",
            Self::Empty => "Empty",
        }
    }

    /// Returns the assessment for the counts. `is_stalled`: the pool makes no progress until an admin acts. In two
    /// cases, a pool is Degraded here but not in `oc`: a node is degraded, or a stalled pool has outdated nodes.
    pub(crate) const fn of(counts: &Counts, is_stalled: bool) -> Self {
        match counts {
            Counts { total: 0, .. } => Self::Empty,
            counts if counts.degraded > 0 => Self::Degraded,
            counts if is_stalled && counts.updated < counts.total => Self::Degraded,
            counts if counts.updated == counts.total => Self::Completed,
            counts if counts.excluded > 0 => Self::Excluded,
            counts if counts.progressing == 0 && counts.updated == 0 => Self::Pending,
            _ => Self::Progressing,
        }
    }
}
