//! The turns in a log: each node and its berth, the images before and after, and the proof that the turn ended well.

use berth_api::berth::{BerthState, HoldPhase, Holding, Outcome};
use jiff::Timestamp;
use serde::Serialize;

use crate::evidence::Evidence;
use crate::history::{History, RecordedState};
use crate::hosts::{HostChange, HostEvent};
use crate::violation::Violation;

/// A turn of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Name of the node.
    pub node: String,
    /// UID of its Node.
    pub uid: String,
    /// Name of the Lease.
    pub berth: String,
    /// Digest that the node ran when it took the berth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Last digest that the berth licensed.
    pub to: String,
    /// Time of the take, or of the turn's first recorded state if the log begins later.
    pub start: Timestamp,
    /// Time of the close; absent while the turn is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Timestamp>,
    /// Last boot that the berth was committed for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed_boot: Option<String>,
    /// Boot ID of the host when it gave the berth back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_boot: Option<String>,
    /// Outcome written by the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// Evidence about the turn's last boot, from the log.
    pub proof: Proof,
    /// Verdict on the turn.
    pub verdict: Verdict,
    /// Audit IDs of the turn's lines.
    #[serde(rename = "auditIDs")]
    pub audit_ids: Vec<String>,
}

/// Evidence about a turn's last boot, from the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Proof {
    /// The turn ended without a reboot.
    NoReboot,
    /// The log shows which image the host ran when it gave the berth back, and that the Node was Ready in that boot.
    Booted {
        /// Digest of the running image.
        digest: String,
        /// First time when the Node was Ready in this boot.
        ready: Timestamp,
    },
    /// The log lacks the evidence.
    Missing {
        /// The evidence that is missing.
        what: &'static str,
    },
    /// The outcome of the turn is a failure, or an admin or the controller ended the turn.
    Failed,
    /// The turn is still open at the end of the log.
    Open,
}

/// Verdict on a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Verdict {
    /// The turn broke no rule.
    Kept,
    /// The turn broke rules.
    Violated {
        /// Names of the rules.
        rules: Vec<&'static str>,
    },
    /// The log lacks necessary evidence.
    NotJudged,
    /// The turn is still open at the end of the log.
    Open,
}

struct Draft<'a> {
    states: Vec<&'a RecordedState>,
    end: Option<&'a RecordedState>,
    has_gap: bool,
}

/// Returns all turns, ordered by their start.
pub(crate) fn turns(history: &History, hosts: &[HostEvent], wrong: &[Violation], evidence: &Evidence) -> Vec<Turn> {
    let mut turns: Vec<Turn> = history
        .values()
        .flat_map(|states| drafts(states))
        .filter_map(|draft| draft.turn(hosts, wrong, evidence))
        .collect();
    turns.sort_by(|a, b| (a.start, &a.berth).cmp(&(b.start, &b.berth)));
    turns
}

/// Splits the states of a berth into runs with one holder each.
fn drafts(states: &[RecordedState]) -> Vec<Draft<'_>> {
    let mut drafts: Vec<Draft<'_>> = vec![];
    let mut open = false;
    for (place, state) in states.iter().enumerate() {
        let holding = state.berth.holding();
        let goes_on = drafts.last().filter(|_| open).and_then(|draft| draft.states.last());
        let same = goes_on.and_then(|last| last.berth.holding()).map(|h| &h.uid) == holding.map(|h| &h.uid);
        match (holding, drafts.last_mut().filter(|_| open)) {
            (Some(_), Some(draft)) if same => {
                draft.has_gap |= state.after_gap;
                draft.states.push(state);
            }
            (Some(_), _) => drafts.push(Draft {
                states: vec![state],
                end: None,
                // If this is the berth's first state in the log, the log lacks the take.
                has_gap: state.after_gap || place == 0,
            }),
            (None, Some(draft)) => {
                draft.has_gap |= state.after_gap;
                draft.end = matches!(state.berth.state, BerthState::Closed(_)).then_some(state);
            }
            (None, None) => {}
        }
        open = holding.is_some();
    }
    drafts
}

impl Draft<'_> {
    fn turn(&self, hosts: &[HostEvent], wrong: &[Violation], evidence: &Evidence) -> Option<Turn> {
        let first = self.states.first()?;
        let last = self.states.last()?.berth.holding()?;
        let committed = self
            .states
            .iter()
            .rev()
            .filter_map(|s| s.berth.holding())
            .find(|h| h.phase == HoldPhase::Committed);
        let outcome = match last.phase {
            HoldPhase::Releasing(outcome) => Some(outcome),
            _ => None,
        };
        let is_open = self.end.is_none();
        let proof = match outcome {
            _ if self.has_gap => Proof::Missing {
                what: "writes of this berth",
            },
            None if is_open => Proof::Open,
            // The berth was closed, but not by its holder.
            None => Proof::Failed,
            Some(outcome) => proof(last, committed, outcome, hosts),
        };
        let all = self.states.iter().copied().chain(self.end);
        let audit_ids: Vec<String> = all.map(|s| s.audit_id.clone()).filter(|id| !id.is_empty()).collect();
        let until = self.end.map(|s| s.at);
        let mut rules = vec![];
        for violation in wrong {
            let is_line = violation.audit_ids.iter().any(|id| audit_ids.contains(id));
            let is_within = violation.at >= first.at && until.is_none_or(|until| violation.at <= until);
            if is_line || (is_within && violation.node.as_deref() == Some(last.node.as_str())) {
                rules.push(violation.rule);
            }
        }
        rules.sort_unstable();
        rules.dedup();
        let verdict = match &proof {
            _ if !rules.is_empty() => Verdict::Violated { rules },
            Proof::Missing { .. } => Verdict::NotJudged,
            Proof::Open => Verdict::Open,
            // Without this evidence, some rules that apply to every turn could not be checked.
            _ if !(evidence.nodes && evidence.published && evidence.pool_statuses) => Verdict::NotJudged,
            _ => Verdict::Kept,
        };
        Some(Turn {
            node: last.node.to_string(),
            uid: last.uid.to_string(),
            berth: first.berth.name(),
            from: last.from.as_ref().map(ToString::to_string),
            to: last.target.to_string(),
            start: first.at,
            end: until,
            committed_boot: committed.map(|h| h.boot_id.to_string()),
            final_boot: outcome.map(|_| last.boot_id.to_string()),
            outcome: outcome.map(Outcome::as_str),
            proof,
            verdict,
            audit_ids,
        })
    }
}

fn proof(last: &Holding, committed: Option<&Holding>, outcome: Outcome, hosts: &[HostEvent]) -> Proof {
    if committed.is_none_or(|h| h.boot_id == last.boot_id) && outcome != Outcome::Updated {
        return Proof::NoReboot;
    }
    if outcome == Outcome::Failed {
        return Proof::Failed;
    }
    let of_host = hosts.iter().filter(|e| e.host == last.node.as_str());
    let booted = of_host.clone().find_map(|e| match &e.change {
        HostChange::Up { boot_id, digest, .. } if *boot_id == last.boot_id.as_str() => Some(digest.clone()),
        _ => None,
    });
    let ready = of_host.clone().find_map(|e| match &e.change {
        HostChange::Ready { boot_id } if *boot_id == last.boot_id.as_str() => Some(e.at),
        _ => None,
    });
    match (booted, ready) {
        (None, _) => Proof::Missing {
            what: "a status of the agent in the new boot",
        },
        (_, None) => Proof::Missing {
            what: "a status of the Node in the new boot",
        },
        (Some(digest), Some(ready)) => Proof::Booted { digest, ready },
    }
}
