//! Why one node is offered no berth now, when it may be, and which change would get it one.

use berth_api::NodeName;
use berth_api::condition::{self, node as types};
use berth_api::pool::BootcNodePool;
use berth_api::text::names;
use berth_api::waves::is_control_plane;
use berth_core::controller::explain::{Case, Change, Explanation, explain};
use berth_core::controller::plan::{BlockReason, PoolFacts};
use berth_core::controller::quorum::{Cause, Verdict};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::Snapshot;
use crate::admin::Mark;
use crate::members::{Member, Roster, is_excluded};
use crate::preview::{PoolPreview, preview};
use crate::text::{clean, seconds, until};

/// Nodes that are named of those that go before.
const NAMED: usize = 3;

/// Answer for one node.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    /// Name of the node.
    pub node: String,
    /// Its pool, or the one that it would belong to.
    pub pool: Option<String>,
    /// Image that it runs, the one that it would run, and how far it is.
    pub state: String,
    /// True when the plan offers it a berth now.
    pub offered: bool,
    /// Reasons for which it is offered none, the plan's own first.
    pub why: Vec<String>,
    /// Time when it goes, as far as that can be said.
    pub when: Vec<String>,
    /// Changes each of which is enough, the smallest first.
    pub alone: Vec<ChangeLine>,
    /// Changes that are enough together, when none is alone.
    pub together: Vec<ChangeLine>,
    /// Facts that are not known here.
    pub notes: Vec<String>,
}

/// One change.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeLine {
    /// The change in words.
    pub words: String,
    /// The setting of the pool that makes it, as `--what-if` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
}

/// Explains why a node is offered no berth.
///
/// # Errors
/// When there is no such Node.
pub fn explanation(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<NodeExplanation, String> {
    let roster = Roster::of(snapshot, now);
    let member = roster
        .node(node)
        .ok_or_else(|| format!("there is no Node {node:?}; kubectl get nodes lists them"))?;
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
        of_pool(&mut answer, snapshot, &roster, (pool, member), now);
    } else {
        answer.why.push("no pool selects it: nothing is asked of it".to_owned());
    }
    Ok(answer)
}

/// Says what would be if the node were included.
fn excluded(answer: &mut NodeExplanation, snapshot: &Snapshot, now: Timestamp) {
    let node = &answer.node;
    let include = ChangeLine {
        words: format!("it is not excluded: kubectl berth include {node}"),
        setting: None,
    };
    answer
        .why
        .push("it is excluded: no pool has it, and nothing is asked of it".to_owned());
    let Ok(then) = explanation(&snapshot.labelled(node, Mark::Excluded, false), node, now) else {
        return;
    };
    if then.offered {
        answer.alone.push(include);
    } else if let [only] = then.alone.as_slice() {
        answer.together = vec![include, only.clone()];
    } else {
        let rest = then.why.into_iter().map(|why| format!("if it were included: {why}"));
        answer.why.extend(rest);
    }
    answer.notes = then.notes;
}

fn of_pool(
    answer: &mut NodeExplanation,
    snapshot: &Snapshot,
    roster: &Roster<'_>,
    (pool, member): (&BootcNodePool, &Member<'_>),
    now: Timestamp,
) {
    let shown = preview(snapshot, pool, roster, now);
    let row = shown.nodes.iter().find(|row| row.name == member.name);
    if let Some(row) = row {
        answer.state = format!("{} -> {}, {}", or_nothing(&row.from), or_nothing(&row.to), row.state);
    }
    if shown.target.is_none() {
        answer.why.extend(shown.blocks);
        answer
            .notes
            .push("nothing more can be said before the image is resolved".to_owned());
        return;
    }
    let Some(case) = case(roster, pool, member, now) else {
        answer.why.push("the pool is being deleted".to_owned());
        return;
    };
    let Some(found) = explain(&case) else {
        answer
            .why
            .push("nothing of it is known to the pool's plan yet".to_owned());
        return;
    };
    answer.offered = found.wait.is_none();
    let own = row.map(|row| row.blocks.clone()).unwrap_or_default();
    answer.why = reasons(&found, &shown, own, pool);
    if let (Some(BlockReason::ControlPlane(cause)), Some((told, message))) = (found.wait, told(member))
        && cause == told
        && let Some(first) = answer.why.first_mut()
    {
        // It names the nodes that are waited for.
        *first = format!("it {message}");
    }
    answer.when = times(&found, &case, &shown, pool, now);
    let line = |change: &Change| ChangeLine {
        words: change.words(&case),
        setting: change.setting().map(|(path, value)| format!("{path}={value}")),
    };
    answer.alone = found.alone.iter().map(line).collect();
    answer.together = found.together.iter().map(line).collect();
    answer.notes = notes(member, &found);
}

fn or_nothing(text: &str) -> &str {
    if text.is_empty() { "?" } else { text }
}

/// The case of a member: the facts that its pool's plan is made from here, with what the controller last said of I11.
fn case(roster: &Roster<'_>, pool: &BootcNodePool, member: &Member<'_>, now: Timestamp) -> Option<Case> {
    let world = &roster.world;
    let seen = world.pool(&pool.name_any())?;
    let mut facts: PoolFacts = world.facts(seen);
    let name = NodeName::from(member.name.as_str());
    let cause = told(member).map(|(cause, _)| cause);
    if let Some(own) = facts.members.iter_mut().find(|own| own.name == name) {
        own.control_plane = cause.map(|cause| Verdict {
            withhold: Some(cause),
            ..Verdict::default()
        });
    }
    Some(Case::new(name, facts, world.rules(seen, now)?, now))
}

/// Returns the cause that the controller gives for the control plane in the node's condition `Waiting`, and its message.
fn told(member: &Member<'_>) -> Option<(Cause, String)> {
    let status = member.status();
    let told = condition::find_true(&status.conditions, types::WAITING)?;
    let cause = Cause::ALL.iter().copied().find(|cause| cause.as_str() == told.reason)?;
    Some((cause, clean(&told.message)))
}

fn reasons(found: &Explanation, shown: &PoolPreview, own: Vec<String>, pool: &BootcNodePool) -> Vec<String> {
    let Some(wait) = found.wait else { return vec![] };
    let mut why = vec![format!("it {}", wait.words())];
    // The plan's own words say so already.
    let is_said = |line: &String| *line == wait.words() || wait == BlockReason::HeldBack;
    why.extend(own.into_iter().filter(|line| !is_said(line)));
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
            "go before it: {}",
            names(before.into_iter().take(NAMED), count)
        ));
    }
    let status = pool
        .status
        .as_ref()
        .filter(|s| wait == BlockReason::UpToDate && s.available.is_some());
    let resolved = status.and_then(|s| condition::find(&s.conditions, condition::pool::IMAGE_RESOLVED));
    why.extend(resolved.map(|c| format!("the tag points at another image: {}: {}", c.reason, clean(&c.message))));
    why
}

fn times(found: &Explanation, case: &Case, shown: &PoolPreview, pool: &BootcNodePool, now: Timestamp) -> Vec<String> {
    let mut when = vec![];
    let Some(wait) = found.wait else {
        when.push("the plan offers it a berth now".to_owned());
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
            "to stage an image takes about {} in this pool",
            seconds(staging.into())
        ));
    }
    // A number in the order is no promise while nothing goes, and time alone ends none of these.
    let is_shut = match wait {
        BlockReason::Halted => true,
        BlockReason::Gate | BlockReason::TooLate => found.opens.is_none(),
        _ => false,
    };
    match found.ahead.filter(|_| !is_shut) {
        None => when.push("its turn does not come by itself".to_owned()),
        Some(ahead) => {
            let going = shown.nodes.iter().filter(|row| row.turn.is_some()).count();
            let mut line = format!(
                "its turn is number {} of {going}, {} at a time",
                ahead + 1,
                case.facts.capacity
            );
            let turn = medians.drain_seconds.zip(medians.reboot_seconds);
            let rounds = ahead.checked_div(case.facts.capacity).unwrap_or_default() as u64;
            if let Some((drain, reboot)) = turn.filter(|_| rounds > 0) {
                let turn = u64::from(drain) + u64::from(reboot);
                line += &format!(
                    "; it begins about {} after the first, since a turn takes {} here",
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
    // Only the controller knows which nodes without the label run an API server.
    let is_server = is_control_plane(member.node.labels()) || told(member).is_some();
    if found
        .wait
        .is_none_or(|wait| matches!(wait, BlockReason::UpToDate | BlockReason::HasBerth))
        && !is_server
    {
        return vec![];
    }
    let mut notes =
        vec!["only the controller knows which nodes let offers lapse before, and its own writes under way".to_owned()];
    if is_server {
        let is_closed = matches!(
            found.wait,
            Some(BlockReason::Gate | BlockReason::Order | BlockReason::Halted)
        );
        let told = match told(member) {
            // The controller does not judge the control plane while nothing goes.
            Some((cause, _)) if is_closed => format!("; last said of this node: {}", cause.as_str()),
            Some((cause, _)) => format!("; of this node it says {}", cause.as_str()),
            None => "; of this node nothing is known".to_owned(),
        };
        notes.push(format!("only the controller knows which API servers answer{told}"));
    }
    notes
}

/// The explanation as text. Lines that are longer than `width` go on in the next one, unless that is 0.
///
/// # Errors
/// When there is no such Node.
pub fn render_explanation(snapshot: &Snapshot, node: &str, now: Timestamp, width: usize) -> Result<String, String> {
    let answer = explanation(snapshot, node, now)?;
    let mut lines: Vec<String> = snapshot.notes.iter().map(|note| format!("! {}", clean(note))).collect();
    let of = answer
        .pool
        .as_ref()
        .map_or_else(String::new, |pool| format!(" of pool {pool}"));
    let state = Some(&answer.state).filter(|state| !state.is_empty());
    lines.push(format!(
        "Node {node}{of}{}",
        state.map_or_else(String::new, |state| format!(": {state}"))
    ));
    let mut section = |head: &str, items: Vec<String>| {
        if !items.is_empty() {
            lines.push(format!("  {head}"));
            lines.extend(items.into_iter().map(|item| format!("    - {item}")));
        }
    };
    let words = |changes: &[ChangeLine]| changes.iter().map(|change| change.words.clone()).collect::<Vec<_>>();
    let setting = answer.alone.iter().find_map(|change| change.setting.clone());
    section("Why not now:", answer.why);
    section("When:", answer.when);
    section("Any one of these would let it go now:", words(&answer.alone));
    section(
        "No single change would let it go now; these together would:",
        words(&answer.together),
    );
    section("Not known here:", answer.notes);
    if let Some(setting) = setting {
        lines.push(format!(
            "  To see what comes of it: kubectl berth explain {node} --what-if {setting}"
        ));
    }
    Ok(lines.iter().map(|line| wrapped(line, width)).collect())
}

/// The line, and what does not fit on lines of its own, indented as its words are.
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
    fn a_long_line_goes_on_under_its_own_words() {
        assert_eq!(
            wrapped("    - one two three", 12),
            "    - one\n      two\n      three\n"
        );
        assert_eq!(wrapped("    - one two three", 0), "    - one two three\n");
        assert_eq!(wrapped("averylongword", 5), "averylongword\n", "a word is not cut");
    }
}
