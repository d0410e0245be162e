//! What would happen: which nodes of a pool would go, to what, and what stands in the way.

use berth_api::condition;
use berth_api::keys;
use berth_api::membership::Conflict;
use berth_api::node::{BootcNodeStatus, DesiredImage, Phase};
use berth_api::pool::{BootcNodePool, Target};
use berth_api::waves::Waves;
use berth_api::{Digest, ImageRef, NodeName, PoolName};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::Snapshot;
use crate::members::{Member, Roster};
use crate::nodes::versions;
use crate::occupancy::Occupancy;
use crate::text::{clean, columns, cut, short, until};
use crate::waves::Holdup;

/// What would happen to a pool.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolPreview {
    /// Its name.
    pub name: String,
    /// The reference that its admin wrote.
    pub image: String,
    /// What it is resolved to, in words.
    pub target: Option<String>,
    /// Nodes that the selector matches and that belong to this pool.
    pub members: usize,
    /// Members that run the target already.
    pub up_to_date: usize,
    /// How many members may be worked on at once.
    pub capacity: usize,
    /// How much of that is free now.
    pub free: usize,
    /// What blocks the whole pool, or uses up its capacity.
    pub blocks: Vec<String>,
    /// The members that would go, in the order in which they would be asked, and nodes in conflict or excluded.
    pub nodes: Vec<PreviewRow>,
}

/// What would happen to a node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewRow {
    /// Its name.
    pub name: String,
    /// The wave that it goes in, when there is more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<String>,
    /// What it runs.
    pub from: String,
    /// What it would run.
    pub to: String,
    /// How far it is.
    pub state: String,
    /// What blocks this node.
    pub blocks: Vec<String>,
}

/// The pools that the snapshot shows, by name.
pub fn previews(snapshot: &Snapshot, now: Timestamp) -> Vec<PoolPreview> {
    let roster = Roster::of(snapshot);
    snapshot
        .shown()
        .into_iter()
        .map(|pool| preview(snapshot, pool, &roster, now))
        .collect()
}

fn preview(snapshot: &Snapshot, pool: &BootcNodePool, roster: &Roster<'_>, now: Timestamp) -> PoolPreview {
    let name = pool.name_any();
    let (waves, members, target) = (
        Waves::of(&pool.spec.rollout().waves),
        roster.members(&name),
        target(pool),
    );
    let occupancy = Occupancy::of(snapshot, pool, &members);
    let holdup = Holdup::of(pool, &waves, &members, target);
    let total = members.len();
    let mut going: Vec<_> = members.iter().filter(|m| !m.up_to_date(target)).collect();
    going.sort_by_key(|m| (waves.number(m.node.labels()), order(m)));
    let row = |m: &&Member<'_>| {
        let wave = waves.number(m.node.labels());
        let conflict = roster.membership.conflicts.get(&NodeName::new(m.name.clone()));
        let mut row = going_row(m, pool, target, conflict, now);
        row.wave = Some(waves.name(wave).to_owned());
        let blocker = holdup
            .as_ref()
            .filter(|h| h.keeps(wave) && m.bootc.is_none_or(|b| b.spec.hold.is_none()));
        row.blocks.extend(blocker.map(|h| h.waits.clone()));
        row
    };
    let mut rows: Vec<_> = going.iter().map(row).collect();
    // Without a wave that somebody wrote, and with one kind of nodes, the word would be the same in each row.
    if pool.spec.rollout().waves.is_empty() && rows.windows(2).all(|pair| matches!(pair, [a, b] if a.wave == b.wave)) {
        rows.iter_mut().for_each(|row| row.wave = None);
    }
    rows.extend(outsiders(snapshot, roster, &name));
    let mut blocks = pool_blocks(pool, &occupancy, target);
    blocks.extend(holdup.filter(|_| target.is_some()).and_then(|h| h.trouble(&waves)));
    PoolPreview {
        image: clean(pool.spec.image_ref()),
        target: target.map(words),
        members: total,
        up_to_date: total - going.len(),
        capacity: occupancy.capacity,
        free: occupancy.free(),
        blocks,
        nodes: rows,
        name,
    }
}

/// Nodes that the selector matches and that do not go: in conflict, or excluded.
fn outsiders(snapshot: &Snapshot, roster: &Roster<'_>, pool: &str) -> Vec<PreviewRow> {
    let name = PoolName::from(pool);
    let mut rows = Vec::new();
    for node in &snapshot.nodes {
        let node_name = NodeName::new(node.name_any());
        let stays = roster.membership.pool_of(&node_name) == Some(&name);
        let found = roster
            .membership
            .conflicts
            .get(&node_name)
            .filter(|c| !stays && c.pools.contains(&name));
        if let (Some(found), Some(member)) = (found, roster.node(&node.name_any())) {
            rows.push(outsider(&member, "conflict", found.message()));
        }
    }
    for member in roster.excluded(pool) {
        let how = format!(
            "label {}; kubectl berth include {} takes it off",
            keys::LABEL_EXCLUDE,
            member.name
        );
        rows.push(outsider(&member, "excluded", how));
    }
    rows
}

/// What the pool's reference is resolved to; nothing while that speaks of an older spec.
fn target(pool: &BootcNodePool) -> Option<&Target> {
    let target = pool.status.as_ref()?.target.as_ref()?;
    (target.image == pool.spec.image_ref()).then_some(target)
}

fn words(target: &Target) -> String {
    match &target.version {
        Some(version) => format!("{} ({})", clean(version), short(&target.digest)),
        None => short(&target.digest),
    }
}

/// The controller's order: unavailable nodes first, then those whose last turn did not end badly, then by name.
fn order(member: &Member<'_>) -> (bool, bool, String) {
    let status = member.status();
    (
        member.unavailable().is_none(),
        status.last_turn.is_some(),
        member.name.clone(),
    )
}

/// What blocks all of it, or uses up its capacity.
fn pool_blocks(pool: &BootcNodePool, occupancy: &Occupancy, target: Option<&Target>) -> Vec<String> {
    let mut blocks = Vec::new();
    let conditions = pool.status.as_ref().map(|s| &*s.conditions).unwrap_or_default();
    let said = |type_: &str, status: &str| {
        let found = condition::find(conditions, type_).filter(|c| c.status == status);
        found.map(|c| format!("{}: {}", c.reason, clean(&c.message)))
    };
    if target.is_none() {
        let why = said(condition::pool::IMAGE_RESOLVED, "False").map_or_else(String::new, |why| format!(": {why}"));
        blocks.push(format!(
            "{} is not resolved to a digest yet{why}",
            clean(pool.spec.image_ref())
        ));
    }
    if pool.spec.paused() {
        blocks.push("paused: images are staged, but nothing reboots until rollout.paused is false".to_owned());
    } else if let Some(why) = said(condition::pool::PAUSED, "True") {
        blocks.push(format!("paused: {why}"));
    }
    blocks.extend(said(condition::pool::ROLLOUT_HALTED, "True").map(|why| format!("halted: {why}")));
    blocks.extend(said(condition::pool::WINDOW_OPEN, "False").map(|why| format!("no window is open: {why}")));
    blocks.extend(
        occupancy
            .users
            .values()
            .map(|why| format!("{why}, which uses up capacity")),
    );
    blocks
}

fn outsider(member: &Member<'_>, state: &str, why: String) -> PreviewRow {
    PreviewRow {
        name: member.name.clone(),
        wave: None,
        from: versions(member.status().booted.as_ref(), None).0,
        to: String::new(),
        state: state.to_owned(),
        blocks: vec![why],
    }
}

fn going_row(
    member: &Member<'_>,
    pool: &BootcNodePool,
    target: Option<&Target>,
    conflict: Option<&Conflict>,
    now: Timestamp,
) -> PreviewRow {
    let status = member.status();
    let digest = member.wanted(target);
    let desired = digest.zip(target).map(|(digest, target)| DesiredImage {
        reference: String::new(),
        digest: digest.clone(),
        index_digest: target.digest.clone(),
        version: target.version.clone(),
    });
    let (from, to) = versions(status.booted.as_ref(), desired.as_ref());
    PreviewRow {
        name: member.name.clone(),
        wave: None,
        from,
        to: if target.is_none() { unresolved(pool) } else { to },
        state: state(&status, digest),
        blocks: blocks(member, &status, target, conflict, now),
    }
}

/// The tag or digest that the admin asked for, while nobody knows what is behind it.
fn unresolved(pool: &BootcNodePool) -> String {
    match pool.spec.image_ref().parse::<ImageRef>() {
        Ok(reference) => match (reference.digest(), reference.tag()) {
            (Some(digest), _) => short(digest),
            (None, tag) => format!(":{}", tag.unwrap_or_default()),
        },
        Err(_) => String::new(),
    }
}

fn state(status: &BootcNodeStatus, wanted: Option<&Digest>) -> String {
    let staged = status
        .staged
        .as_ref()
        .filter(|s| s.digest.is_some() && s.digest.as_ref() == wanted);
    match (staged, status.phase) {
        (_, Some(phase @ (Phase::Draining | Phase::Rebooting | Phase::Proving | Phase::Releasing))) => {
            phase.as_str().to_lowercase()
        }
        (Some(staged), _) if staged.locked => "staged".to_owned(),
        (Some(_), _) => "staged, not locked".to_owned(),
        (None, Some(Phase::Staging)) => match status.progress.filter(|p| p.bytes_total > 0) {
            Some(p) => format!("staging {}%", p.bytes.min(p.bytes_total) * 100 / p.bytes_total),
            None => "staging".to_owned(),
        },
        _ => "not staged yet".to_owned(),
    }
}

fn blocks(
    member: &Member<'_>,
    status: &BootcNodeStatus,
    target: Option<&Target>,
    conflict: Option<&Conflict>,
    now: Timestamp,
) -> Vec<String> {
    let mut blocks: Vec<_> = conflict.map(Conflict::message).into_iter().collect();
    let Some(bootc) = member.bootc else {
        blocks.push("nothing is published to it yet".to_owned());
        return blocks;
    };
    if bootc.status.is_none() {
        blocks.push("no word from an agent yet".to_owned());
    }
    if member
        .node
        .uid()
        .is_some_and(|uid| !bootc.spec.node_uid.is_empty() && uid != bootc.spec.node_uid)
    {
        blocks.push("its BootcNode is of an older Node of that name".to_owned());
    }
    let digest = member.wanted(target);
    if target.is_some() && digest.is_none() {
        blocks.push(format!("the image has no manifest for {}", member.architecture()));
    }
    if digest.is_some_and(|digest| status.failed_digests.contains(digest)) {
        blocks.push("this digest failed here and is not tried again".to_owned());
    }
    let degraded = condition::find(&status.conditions, condition::node::NODE_DEGRADED);
    if let Some(c) = degraded.filter(|c| c.status == "True") {
        blocks.push(format!("{}: {}", c.reason, clean(&c.message)));
    }
    if let Some(hold) = &bootc.spec.hold {
        blocks.push(format!("{}: {}", hold.reason, clean(&hold.message)));
    }
    let turn = status
        .last_turn
        .as_ref()
        .filter(|t| Some(&t.digest) == digest && t.next_try_time.0 > now);
    if let Some(turn) = turn {
        blocks.push(format!(
            "last turn: {}, next {}",
            turn.outcome,
            until(turn.next_try_time.0, now)
        ));
    }
    blocks
}

/// The preview as text. No line is longer than `width`, unless that is 0.
pub fn render_preview(snapshot: &Snapshot, now: Timestamp, width: usize) -> String {
    let mut out = String::new();
    for note in &snapshot.notes {
        out += &(cut(&format!("! {}", clean(note)), width) + "\n");
    }
    let previews = previews(snapshot, now);
    if previews.is_empty() {
        out += "There are no pools: nothing is asked of any node. Create a BootcNodePool to begin.\n";
    }
    for (i, preview) in previews.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out += &text(preview, width);
    }
    out
}

fn text(preview: &PoolPreview, width: usize) -> String {
    let target = preview
        .target
        .as_ref()
        .map_or_else(String::new, |target| format!(" = {target}"));
    let mut lines = vec![format!("Pool {}  {}{target}", preview.name, preview.image)];
    let going = preview.members - preview.up_to_date;
    lines.push(format!(
        "  {} nodes, {} up to date, {going} would go, at most {} at a time, {} free now",
        preview.members, preview.up_to_date, preview.capacity, preview.free
    ));
    lines.extend(preview.blocks.iter().map(|block| format!("  ! {block}")));
    let mut out: String = lines.iter().map(|line| cut(line, width) + "\n").collect();
    if !preview.nodes.is_empty() {
        let rows: Vec<Vec<String>> = preview
            .nodes
            .iter()
            .map(|n| {
                let wave = n.wave.clone().unwrap_or_default();
                vec![
                    n.name.clone(),
                    wave,
                    n.from.clone(),
                    n.to.clone(),
                    n.state.clone(),
                    n.blocks.join("; "),
                ]
            })
            .collect();
        out += &columns(&["NAME", "WAVE", "FROM", "TO", "STATE", "BLOCKED BY"], &rows, width);
    }
    out
}
