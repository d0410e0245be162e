//! `kubectl berth explain`: why a node is offered no berth now, when it may be, and which changes would get it one.

use berth_api::NodeName;
use berth_api::condition::{self, node as types};
use berth_api::pool::BootcNodePool;
use berth_api::text::names;
use berth_api::waves::is_control_plane;
use berth_core::controller::explain::{Case, Change, Explanation, explain};
use berth_core::controller::plan::BlockReason;
use berth_core::controller::quorum::{Cause, Verdict};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::mark::Mark;
use crate::members::{Member, Roster, is_excluded};
use crate::preview::{PoolPreview, preview};
use crate::snapshot::Snapshot;
use crate::text::{clean, count, seconds, until};

/// Maximum number of nodes ahead of this node that an explanation names.
const NAMED: usize = 3;

/// Explanation for one node.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    /// Name of the node.
    pub node: String,
    /// The node's pool; for an excluded node, the pool that it would belong to.
    pub pool: Option<String>,
    /// Current image, target image and progress.
    pub state: String,
    /// True if the plan offers the node a berth now.
    pub offered: bool,
    /// Why the node is offered no berth. The plan's own reason comes first.
    pub why: Vec<String>,
    /// When the node may be updated, if known.
    pub when: Vec<String>,
    /// Changes that would each be sufficient for a berth, the smallest first.
    pub alone: Vec<ChangeLine>,
    /// Changes that would together be sufficient for a berth. Used if no single change is sufficient.
    pub together: Vec<ChangeLine>,
    /// Facts that only the controller knows.
    pub notes: Vec<String>,
}

/// A change that would help the node to get a berth, alone or together with other changes.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeLine {
    /// Description of the change.
    pub words: String,
    /// The change as a value for `--what-if`; absent if the change is not a pool's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
}

/// Returns why a node is offered no berth.
pub fn explanation(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<NodeExplanation, String> {
    let roster = Roster::of(snapshot, now);
    let member = roster
        .node(node)
        .ok_or_else(|| format!("there is no Node {node:?}; to list the Nodes: kubectl get nodes"))?;
    let pool = roster.pool_of(node).and_then(|name| snapshot.pool(name.as_str()));
    let mut answer = NodeExplanation {
        node: node.to_owned(),
        pool: pool.map(ResourceExt::name_any),
        ..NodeExplanation::default()
    };
    let membership = &roster.world.membership;
    if is_excluded(member.node) {
        excluded(&mut answer, snapshot, now);
    } else if let Some(conflict) = membership.conflicts.get(&NodeName::from(node)) {
        answer.why.push(conflict.message());
    } else if let Some(pool) = pool {
        let member = member.clone();
        of_pool(&mut answer, snapshot, roster, (pool, &member), now);
    } else {
        answer
            .why
            .push("no pool selects the node, so Berth does not update it".to_owned());
    }
    Ok(answer)
}

/// For an excluded node, adds the effect of including the node again.
fn excluded(answer: &mut NodeExplanation, snapshot: &Snapshot, now: Timestamp) {
    let node = &answer.node;
    let include = ChangeLine {
        words: format!("the node is included: kubectl berth include {node}"),
        setting: None,
    };
    answer.why.push("the node is excluded, so it is in no pool".to_owned());
    let Ok(then) = explanation(&snapshot.labelled(node, Mark::Excluded, false), node, now) else {
        return;
    };
    if then.offered {
        answer.alone.push(include);
    } else if let [only] = then.alone.as_slice() {
        answer.together = vec![include, only.clone()];
    } else {
        let rest = then
            .why
            .into_iter()
            .map(|why| format!("if the node were included: {why}"));
        answer.why.extend(rest);
    }
    answer.notes = then.notes;
}

fn of_pool(
    answer: &mut NodeExplanation,
    snapshot: &Snapshot,
    roster: Roster<'_>,
    (pool, member): (&BootcNodePool, &Member<'_>),
    now: Timestamp,
) {
    let shown = preview(snapshot, pool, &roster, now);
    let case = case(&roster, pool, member, now);
    // The search for changes needs much memory itself.
    drop(roster);
    let (Some(shown), Some(case)) = (shown, case) else {
        return;
    };
    let row = shown.nodes.iter().find(|row| row.name == member.name);
    if let Some(row) = row {
        answer.state = format!("{} -> {}, {}", or_nothing(&row.from), or_nothing(&row.to), row.state);
    }
    if shown.target.is_none() {
        answer.why.extend(shown.blocks);
        answer
            .notes
            .push("everything that depends on the image, until the image is resolved".to_owned());
        return;
    }
    let Some(found) = explain(&case) else {
        answer
            .why
            .push("the controller's plan does not include the node yet".to_owned());
        return;
    };
    answer.offered = found.wait.is_none();
    let own = row.map(|row| row.blocks.clone()).unwrap_or_default();
    answer.why = reasons(&found, &shown, own, pool);
    if let (Some(BlockReason::ControlPlane(cause)), Some((reported, message))) =
        (found.wait, control_plane_wait(member))
        && cause == reported
        && let Some(first) = answer.why.first_mut()
    {
        // Use the controller's message, because it names the nodes that this node waits for.
        *first = format!("the node {message}");
    }
    answer.when = times(&found, &case, &shown, pool, now);
    answer.alone = change_lines(&found.alone, &case);
    answer.together = change_lines(&found.together, &case);
    answer.notes = notes(member, &found);
}

fn change_lines(changes: &[Change], case: &Case) -> Vec<ChangeLine> {
    let lines = changes.iter().map(|change| ChangeLine {
        words: change.words(case),
        setting: change.setting().map(|(path, value)| format!("{path}={value}")),
    });
    lines.collect()
}

fn or_nothing(text: &str) -> &str {
    if text.is_empty() { "?" } else { text }
}

/// Returns the input for [`explain`]: the facts of the member's pool. For a control plane node, adds the controller's
/// last reported reason to wait (I11).
fn case(roster: &Roster<'_>, pool: &BootcNodePool, member: &Member<'_>, now: Timestamp) -> Option<Case> {
    let (world, pool) = (&roster.world, pool.name_any());
    let mut facts = world.facts(&pool)?.clone();
    let name = NodeName::from(member.name.as_str());
    let cause = control_plane_wait(member).map(|(cause, _)| cause);
    if let Some(own) = facts.members.iter_mut().find(|own| own.name == name) {
        own.place.control_plane = cause.map(|cause| Verdict {
            withhold: Some(cause),
            ..Verdict::default()
        });
    }
    Some(Case::new(name, facts, world.rules(&pool, now)?, now))
}

/// Returns the reason and message of the node's condition `Waiting`, if the reason is about the control plane.
fn control_plane_wait(member: &Member<'_>) -> Option<(Cause, String)> {
    let status = member.status();
    let waiting = condition::find_true(&status.conditions, types::WAITING)?;
    Some((Cause::from_word(&waiting.reason)?, clean(&waiting.message)))
}

fn reasons(found: &Explanation, shown: &PoolPreview, own: Vec<String>, pool: &BootcNodePool) -> Vec<String> {
    let Some(wait) = found.wait else { return vec![] };
    let mut why = vec![format!("the node {}", wait.words())];
    // Leave out lines that repeat the plan's reason.
    if wait != BlockReason::HeldBack {
        why.extend(own.into_iter().filter(|line| *line != wait.words()));
    }
    let is_of_pool = matches!(
        wait,
        BlockReason::Gate
            | BlockReason::Halted
            | BlockReason::Order
            | BlockReason::Wave
            | BlockReason::Capacity
            | BlockReason::FleetCapacity
            | BlockReason::NoBerth
    );
    if is_of_pool {
        why.extend(shown.blocks.iter().cloned());
    }
    let first = found.ahead.unwrap_or_default();
    if matches!(
        wait,
        BlockReason::Capacity | BlockReason::FleetCapacity | BlockReason::NoBerth
    ) && first > 0
    {
        let before: Vec<&str> = shown.nodes.iter().take(first).map(|row| row.name.as_str()).collect();
        let count = before.len();
        why.push(format!(
            "nodes ahead in the order: {}",
            names(before.into_iter().take(NAMED), count)
        ));
    }
    let status = pool
        .status
        .as_ref()
        .filter(|s| wait == BlockReason::UpToDate && s.available.is_some());
    let resolved = status.and_then(|s| condition::find(&s.conditions, condition::pool::IMAGE_RESOLVED));
    why.extend(resolved.map(|c| {
        format!(
            "the tag points to another image, which the pool does not use: {} ({})",
            clean(&c.message),
            c.reason
        )
    }));
    why
}

fn times(found: &Explanation, case: &Case, shown: &PoolPreview, pool: &BootcNodePool, now: Timestamp) -> Vec<String> {
    let mut when = vec![];
    let Some(wait) = found.wait else {
        when.push("now: the controller's plan offers the node a berth".to_owned());
        return when;
    };
    if matches!(wait, BlockReason::UpToDate | BlockReason::HasBerth) {
        return when;
    }
    if let Some(opens) = found.opens {
        when.push(format!("at {opens} ({}), if nothing else changes", until(opens, now)));
    }
    let medians = pool.status.as_ref().map(|s| s.phase_durations).unwrap_or_default();
    if let (BlockReason::NotStaged | BlockReason::NotPublished, Some(staging)) = (wait, medians.staging_seconds) {
        when.push(format!(
            "staging an image takes about {} in this pool",
            seconds(staging.into())
        ));
    }
    // For these reasons no node may start until something changes, so a position in the order means nothing.
    let is_shut = match wait {
        BlockReason::Halted => true,
        BlockReason::Gate | BlockReason::TooLate => found.opens.is_none(),
        _ => false,
    };
    match found.ahead.filter(|_| !is_shut) {
        None => when.push("only after a change; waiting is not enough".to_owned()),
        Some(ahead) => {
            let going = shown.nodes.iter().filter(|row| row.turn.is_some()).count();
            let mut line = format!(
                "position {} of {going} ({} at a time)",
                ahead + 1,
                count(case.facts.capacity, "node")
            );
            let turn = medians.drain_seconds.zip(medians.reboot_seconds);
            let rounds = ahead.checked_div(case.facts.capacity).unwrap_or_default() as u64;
            if let Some((drain, reboot)) = turn.filter(|_| rounds > 0) {
                let turn = u64::from(drain) + u64::from(reboot);
                line += &format!(
                    "; begins about {} after the first (a turn takes {} in this pool)",
                    seconds(rounds * turn),
                    seconds(turn)
                );
            }
            when.push(line);
        }
    }
    when
}

fn notes(member: &Member<'_>, found: &Explanation) -> Vec<String> {
    // Only the controller knows which nodes without the control plane label run an API server.
    let is_server = is_control_plane(&member.node.labels) || control_plane_wait(member).is_some();
    if found
        .wait
        .is_none_or(|wait| matches!(wait, BlockReason::UpToDate | BlockReason::HasBerth))
        && !is_server
    {
        return vec![];
    }
    let mut notes = vec![
        "which nodes had earlier turns with this image, and which writes of the controller are in progress".to_owned(),
    ];
    if is_server {
        let is_closed = matches!(
            found.wait,
            Some(BlockReason::Gate | BlockReason::Order | BlockReason::Halted)
        );
        let reported = match control_plane_wait(member) {
            // The controller does not judge the control plane while no node may start.
            Some((cause, _)) if is_closed => format!(
                "; the controller last reported this reason for the node to wait: {}",
                cause.as_str()
            ),
            Some((cause, _)) => format!(
                "; the controller reports this reason for the node to wait: {}",
                cause.as_str()
            ),
            None => "; the controller reports no reason for this node to wait".to_owned(),
        };
        notes.push(format!("the answers of the API servers{reported}"));
    }
    notes
}

/// Returns the explanation as text, wrapped at `width` columns; 0 means unlimited.
pub fn render_explanation(snapshot: &Snapshot, node: &str, now: Timestamp, width: usize) -> Result<String, String> {
    let answer = explanation(snapshot, node, now)?;
    Ok(explanation_text(answer, &snapshot.notes, width))
}

/// Returns an explanation as text, with the notes of its snapshot before it.
pub(crate) fn explanation_text(answer: NodeExplanation, notes: &[String], width: usize) -> String {
    let node = &answer.node;
    let mut lines: Vec<String> = notes.iter().map(|note| format!("! {}", clean(note))).collect();
    let of = answer
        .pool
        .as_ref()
        .map_or_else(String::new, |pool| format!(" of pool {pool}"));
    let state = Some(&answer.state).filter(|state| !state.is_empty());
    lines.push(format!(
        "Node {node}{of}{}",
        state.map_or_else(String::new, |state| format!(": {state}"))
    ));
    let setting = answer.alone.iter().find_map(|change| change.setting.clone());
    let hint = setting.map(|setting| format!("  To see the effect: kubectl berth explain {node} --what-if {setting}"));
    section(&mut lines, "Why not now:", answer.why);
    section(&mut lines, "When:", answer.when);
    section(
        &mut lines,
        "Any one of these changes would get the node a berth now:",
        words(answer.alone),
    );
    section(
        &mut lines,
        "No single change is enough; these changes together would get the node a berth now:",
        words(answer.together),
    );
    section(&mut lines, "Not known here:", answer.notes);
    lines.extend(hint);
    lines.iter().map(|line| wrapped(line, width)).collect()
}

/// Adds the heading and its items. Adds nothing if there are no items.
fn section(lines: &mut Vec<String>, head: &str, items: Vec<String>) {
    if !items.is_empty() {
        lines.push(format!("  {head}"));
        lines.extend(items.into_iter().map(|item| format!("    - {item}")));
    }
}

fn words(changes: Vec<ChangeLine>) -> Vec<String> {
    changes.into_iter().map(|change| change.words).collect()
}

/// Wraps a line at `width` columns; continuation lines get the indent of the first line. A word longer than a line is
/// not cut.
fn wrapped(line: &str, width: usize) -> String {
    let indent = line.chars().take_while(|c| matches!(c, ' ' | '-')).count();
    let (head, words) = line.split_at(indent);
    let mut lines = vec![head.to_owned()];
    for word in words.split(' ') {
        let Some(last) = lines.last_mut() else { break };
        let length = last.chars().count();
        if length == indent {
            last.push_str(word);
        } else if width == 0 || length + 1 + word.chars().count() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(" ".repeat(indent) + word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn a_wrapped_line_keeps_its_indent() {
        assert_eq!(
            wrapped("    - one two three", 12),
            "    - one\n      two\n      three\n"
        );
        assert_eq!(wrapped("    - one two three", 0), "    - one two three\n");
        assert_eq!(wrapped("averylongword", 5), "averylongword\n", "a word is not cut");
    }
}
