//! Everything about one node, for the page's drawer.

use std::mem;

use berth_api::condition;
use berth_core::insight::Assessment;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use super::about::About;
use super::commands::{self, Act, NodeMarks};
use super::frame::{Frame, NodeState};
use crate::explain::{NodeExplanation, explanation, explanation_text};
use crate::members::{is_excluded, is_held_back};
use crate::snapshot::Snapshot;
use crate::story::{Story, render_story, story};
use crate::text::clean;
use crate::what_if::{WhatIf, fields, patch, spec_with};

/// Width of the story, in columns.
const WIDTH: usize = 100;

/// Everything about one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Drawer {
    now: Timestamp,
    /// The node as in the list; `None` if it is in no pool that is shown.
    node: Option<NodeState>,
    /// `None` if no pool has the node.
    story: Option<Story>,
    /// The story, or why there is none.
    story_text: String,
    /// `None` if there is no Node.
    explanation: Option<NodeExplanation>,
    /// The explanation, or why there is none.
    explanation_text: String,
    /// Settings that the explanation assumes.
    what_if: Vec<String>,
    /// Command that makes these settings.
    what_if_command: Option<Act>,
    /// Fields that a setting can have.
    fields: Vec<String>,
    /// Conditions of the BootcNode.
    conditions: Vec<Condition>,
    /// Findings about the node.
    health: Vec<Value>,
    commands: Vec<Act>,
}

/// Settings of a pool to assume.
#[derive(Debug, Default)]
pub(super) struct Assumed<'a> {
    /// As the user wrote them.
    pub(super) words: &'a [String],
    pub(super) settings: &'a [WhatIf],
    pub(super) pool: &'a str,
    /// Note of the API server's check.
    pub(super) note: Option<String>,
}

/// Returns the pool that settings for a node are about. Fails if the node is in no pool.
pub(super) fn pool_of(snapshot: &Snapshot, node: &str, settings: &[WhatIf], now: Timestamp) -> Result<String, String> {
    let found = explanation(snapshot, node, now)?;
    let name = found
        .pool
        .ok_or_else(|| format!("node {node} is in no pool, so its pool has no setting to change"))?;
    let pool = snapshot
        .pool(&name)
        .ok_or_else(|| format!("there is no pool {name:?}"))?;
    spec_with(pool, settings)?;
    Ok(name)
}

/// Returns everything about a node; `None` if there is no such node. `shown`: the state that the pages show. The
/// explanation assumes the settings; the rest is about the cluster as it is.
pub(super) fn drawer(
    snapshot: &mut Snapshot,
    (about, shown): (&About, &Frame),
    node: &str,
    assumed: &Assumed<'_>,
    now: Timestamp,
) -> Result<Option<Drawer>, String> {
    let is_there = snapshot.nodes.iter().any(|found| found.name() == node);
    let told = story(snapshot, node, now);
    if !is_there && told.is_err() {
        return Ok(None);
    }
    let story_text = render_story(snapshot, node, now, WIDTH).unwrap_or_else(|why| why);
    let line = shown.nodes.iter().find(|line| line.name == node).cloned();
    let marks = marks(snapshot, node, line.as_ref());
    let conditions = conditions(snapshot, node);
    let (explanation, explanation_text) = explained(snapshot, node, assumed, now)?;
    Ok(Some(Drawer {
        now,
        story: told.ok().map(cleaned),
        story_text,
        explanation,
        explanation_text,
        what_if: assumed.words.to_vec(),
        what_if_command: command(about, assumed)?,
        fields: fields(),
        conditions,
        health: findings(shown, node),
        commands: commands::of_node(about, node, marks),
        node: line,
    }))
}

fn command(about: &About, assumed: &Assumed<'_>) -> Result<Option<Act>, String> {
    if assumed.settings.is_empty() {
        return Ok(None);
    }
    let patch = patch(assumed.settings)?;
    Ok(Some(commands::of_settings(about, assumed.pool, &patch)))
}

/// Returns the story without control characters and credentials. The text of the story is clean already.
fn cleaned(mut story: Story) -> Story {
    for blocker in &mut story.blockers {
        blocker.pod = clean(&blocker.pod);
        blocker.reason = clean(&blocker.reason);
    }
    for turn in &mut story.turns {
        turn.berth = clean(&turn.berth);
        turn.reason = turn.reason.as_deref().map(clean);
    }
    for update in &mut story.updates {
        let versions = update.from.iter_mut().chain([&mut update.to]);
        for image in versions {
            image.version = image.version.as_deref().map(clean);
        }
    }
    story
}

/// Returns the explanation and its text, with the assumed settings.
fn explained(
    snapshot: &mut Snapshot,
    node: &str,
    assumed: &Assumed<'_>,
    now: Timestamp,
) -> Result<(Option<NodeExplanation>, String), String> {
    if assumed.settings.is_empty() {
        return Ok(explained_as_is(snapshot, node, now));
    }
    let changed = snapshot.pools.iter().position(|pool| pool.name_any() == assumed.pool);
    let pool = changed.and_then(|at| snapshot.pools.get_mut(at));
    let pool = pool.ok_or_else(|| format!("there is no pool {:?}", assumed.pool))?;
    // The status is not changed, just as right after an admin changes the spec.
    let then = spec_with(pool, assumed.settings)?;
    let spec = mem::replace(&mut pool.spec, then);
    snapshot.notes.extend(assumed.note.clone());
    let answer = explained_as_is(snapshot, node, now);
    if let Some(pool) = changed.and_then(|at| snapshot.pools.get_mut(at)) {
        pool.spec = spec;
    }
    Ok(answer)
}

/// Returns the explanation and its text. Without an explanation, the text says why there is none.
fn explained_as_is(snapshot: &Snapshot, node: &str, now: Timestamp) -> (Option<NodeExplanation>, String) {
    match (explanation(snapshot, node, now), &snapshot.nodes_unread) {
        (Ok(found), _) => {
            let text = explanation_text(found.clone(), &snapshot.notes, 0);
            (Some(found), text)
        }
        (Err(_), Some(why)) => (None, format!("cannot read the Nodes: {why}")),
        (Err(why), None) => (None, why),
    }
}

fn marks(snapshot: &Snapshot, node: &str, line: Option<&NodeState>) -> NodeMarks {
    let found = snapshot.nodes.iter().find(|found| found.name() == node);
    NodeMarks {
        is_there: found.is_some(),
        is_held_back: found.is_some_and(|node| is_held_back(&node.view)),
        is_excluded: found.is_some_and(|node| is_excluded(&node.view)),
        is_stuck: line.is_some_and(|line| line.berth == "held" && line.is(Assessment::Degraded)),
    }
}

fn conditions(snapshot: &Snapshot, node: &str) -> Vec<Condition> {
    let found = snapshot.bootc_nodes.iter().find(|found| found.name_any() == node);
    let status = found.and_then(|found| found.status.as_ref());
    let mut conditions = status.map(|status| status.conditions.clone()).unwrap_or_default();
    for condition in &mut conditions {
        condition.message = clean(&condition.message);
        condition.reason = clean(&condition.reason);
    }
    conditions.sort_by_key(|found| position(&found.type_));
    conditions
}

/// Returns the position of a condition's type in the documentation.
fn position(type_: &str) -> usize {
    let all = condition::node::ALL;
    all.iter().position(|known| *known == type_).unwrap_or(all.len())
}

fn findings(frame: &Frame, node: &str) -> Vec<Value> {
    let resource = format!("nodes/{node}");
    let health = frame.health.iter();
    health.filter(|found| is_about(found, &resource)).cloned().collect()
}

fn is_about(found: &Value, resource: &str) -> bool {
    let resources = found.get("resources").and_then(Value::as_array);
    resources.is_some_and(|all| all.iter().any(|one| one == resource))
}
