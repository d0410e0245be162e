//! What would happen: which nodes of a pool would go, to what, and what stands in the way.

use std::collections::BTreeMap;

use berth_api::berth::{BerthState, HoldPhase, lease};
use berth_api::condition;
use berth_api::keys;
use berth_api::membership::{self, Conflict, Membership, PoolSelector, Rule};
use berth_api::node::{BootcNode, BootcNodeStatus, DesiredImage, Phase};
use berth_api::pool::{BootcNodePool, Target};
use berth_api::{Digest, ImageRef, NodeName, PoolName};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;

use crate::Snapshot;
use crate::status::versions;
use crate::text::{clean, columns, cut, short, until};

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
    /// The members that would go, in the order in which they would be asked, and nodes in conflict.
    pub nodes: Vec<PreviewRow>,
}

/// What would happen to a node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewRow {
    /// Its name.
    pub name: String,
    /// What it runs.
    pub from: String,
    /// What it would run.
    pub to: String,
    /// How far it is.
    pub state: String,
    /// What blocks this node.
    pub blocks: Vec<String>,
}

/// Why a member counts as unavailable, or holds capacity.
type Users = BTreeMap<String, String>;

/// What is known of one member.
struct Member<'a> {
    name: String,
    node: &'a Node,
    bootc: Option<&'a BootcNode>,
}

impl Member<'_> {
    fn status(&self) -> BootcNodeStatus {
        self.bootc.and_then(|b| b.status.clone()).unwrap_or_default()
    }

    fn architecture(&self) -> String {
        let info = self.node.status.as_ref().and_then(|s| s.node_info.as_ref());
        info.map(|i| i.architecture.clone()).unwrap_or_default()
    }

    /// Why it does not serve, when it does not.
    fn unavailable(&self) -> Option<&'static str> {
        let ready = self
            .node
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let cordoned = self.node.spec.as_ref().is_some_and(|s| s.unschedulable == Some(true));
        match (ready, cordoned) {
            (false, _) => Some("is NotReady"),
            (true, true) => Some("is cordoned"),
            (true, false) => None,
        }
    }
}

/// Who belongs where, by the controller's own rule.
fn belonging(snapshot: &Snapshot, bootc: &BTreeMap<String, &BootcNode>) -> Membership {
    let pools: Vec<_> = snapshot
        .pools
        .iter()
        .map(|pool| {
            let rule = match membership::selector(pool.spec.node_selector.as_ref()) {
                _ if pool.metadata.deletion_timestamp.is_some() => Rule::Nothing,
                Ok(selector) => Rule::Select(selector),
                Err(_) => Rule::Keep,
            };
            PoolSelector { name: PoolName::new(pool.name_any()), rule }
        })
        .collect();
    let nodes: Vec<_> = snapshot
        .nodes
        .iter()
        .map(|node| {
            let current = bootc.get(&node.name_any()).map(|b| PoolName::new(b.spec.pool_name.clone()));
            (NodeName::new(node.name_any()), node.labels(), current)
        })
        .collect();
    membership::membership(&pools, nodes.iter().map(|(name, labels, current)| (name, *labels, current.as_ref())))
}

/// The pools that the snapshot shows, by name.
pub fn previews(snapshot: &Snapshot, now: Timestamp) -> Vec<PoolPreview> {
    let bootc: BTreeMap<String, &BootcNode> = snapshot.bootc_nodes.iter().map(|node| (node.name_any(), node)).collect();
    let belonging = belonging(snapshot, &bootc);
    snapshot.shown().into_iter().map(|pool| preview(snapshot, pool, &bootc, &belonging, now)).collect()
}

fn preview(
    snapshot: &Snapshot,
    pool: &BootcNodePool,
    bootc: &BTreeMap<String, &BootcNode>,
    belonging: &Membership,
    now: Timestamp,
) -> PoolPreview {
    let name = pool.name_any();
    let pool_name = PoolName::new(name.clone());
    let mut members = Vec::new();
    let mut rows = Vec::new();
    for node in &snapshot.nodes {
        let node_name = NodeName::new(node.name_any());
        let member = Member { name: node.name_any(), node, bootc: bootc.get(&node.name_any()).copied() };
        if belonging.pool_of.get(&node_name) == Some(&pool_name) {
            members.push(member);
        } else if let Some(found) = belonging.conflicts.get(&node_name).filter(|c| c.pools.contains(&pool_name)) {
            rows.push(conflict(&member, found));
        }
    }
    let target = target(pool);
    let (blocks, capacity, free) = capacity(snapshot, pool, &members, target);
    let total = members.len();
    let mut going: Vec<_> = members.iter().filter(|m| !up_to_date(m, target)).collect();
    going.sort_by_key(|m| order(m));
    let goes =
        going.iter().map(|m| going_row(m, pool, target, belonging.conflicts.get(&NodeName::new(m.name.clone())), now));
    rows.splice(0..0, goes);
    PoolPreview {
        image: clean(pool.spec.image_ref()),
        target: target.map(words),
        members: total,
        up_to_date: total - going.len(),
        capacity,
        free,
        blocks,
        nodes: rows,
        name,
    }
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

fn wanted<'a>(member: &Member<'_>, target: Option<&'a Target>) -> Option<&'a Digest> {
    target?.digest_for(&member.architecture())
}

fn up_to_date(member: &Member<'_>, target: Option<&Target>) -> bool {
    let booted = member.status().booted.and_then(|b| b.digest);
    booted.is_some() && booted.as_ref() == wanted(member, target)
}

/// The controller's order: unavailable nodes first, then those whose last turn did not end badly, then by name.
fn order(member: &Member<'_>) -> (bool, bool, String) {
    let status = member.status();
    (member.unavailable().is_none(), status.last_turn.is_some(), member.name.clone())
}

/// What blocks all of it, the capacity, and how much of it is free: `k - |H ∪ U ∪ R|`.
fn capacity(
    snapshot: &Snapshot,
    pool: &BootcNodePool,
    members: &[Member<'_>],
    target: Option<&Target>,
) -> (Vec<String>, usize, usize) {
    let mut blocks = Vec::new();
    if target.is_none() {
        let conditions = pool.status.as_ref().map(|s| &*s.conditions).unwrap_or_default();
        let resolved = condition::find(conditions, condition::pool::IMAGE_RESOLVED);
        let why = resolved.filter(|c| c.status == "False");
        let why = why.map_or_else(String::new, |c| format!(": {}: {}", c.reason, clean(&c.message)));
        blocks.push(format!("{} is not resolved to a digest yet{why}", clean(pool.spec.image_ref())));
    }
    if pool.spec.paused() {
        blocks.push("paused: images are staged, but nothing reboots until rollout.paused is false".to_owned());
    }
    let mut users = Users::new();
    for member in members {
        if let Some(why) = member.unavailable() {
            users.insert(member.name.clone(), format!("{} {why}", member.name));
        }
    }
    let name = pool.name_any();
    let berths = snapshot.leases.iter().filter(|l| l.labels().get(keys::LABEL_POOL) == Some(&name));
    for lease in berths {
        if let Some((node, why)) = user(lease) {
            users.insert(node, why);
        }
    }
    let capacity = pool.spec.capacity(members.len());
    blocks.extend(users.values().map(|why| format!("{why}, which uses up capacity")));
    (blocks, capacity, capacity.saturating_sub(users.len()))
}

/// Who uses a berth up, and how. A Lease that cannot be read counts as held.
fn user(lease: &k8s_openapi::api::coordination::v1::Lease) -> Option<(String, String)> {
    let name = lease.name_any();
    match lease::read(lease).map(|berth| berth.state) {
        Ok(BerthState::Closed(_)) => None,
        Ok(BerthState::Offered(offer)) => {
            let node = offer.node.to_string();
            let why = format!("{node} is offered berth {name}");
            Some((node, why))
        }
        Ok(BerthState::Held(holding)) => {
            let node = holding.node.to_string();
            let phase = match holding.phase {
                HoldPhase::Taken => "draining",
                HoldPhase::Committed => "rebooting",
                HoldPhase::Releasing(_) => "giving it back",
            };
            let why = format!("{node} holds berth {name} ({phase})");
            Some((node, why))
        }
        Err(error) => Some((format!("lease {name}"), clean(&error.to_string()))),
    }
}

fn conflict(member: &Member<'_>, found: &Conflict) -> PreviewRow {
    PreviewRow {
        name: member.name.clone(),
        from: versions(member.status().booted.as_ref(), None).0,
        to: String::new(),
        state: "conflict".to_owned(),
        blocks: vec![found.message()],
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
    let digest = wanted(member, target);
    let desired = digest.zip(target).map(|(digest, target)| DesiredImage {
        reference: String::new(),
        digest: digest.clone(),
        index_digest: target.digest.clone(),
        version: target.version.clone(),
    });
    let (from, to) = versions(status.booted.as_ref(), desired.as_ref());
    PreviewRow {
        name: member.name.clone(),
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
    let staged = status.staged.as_ref().filter(|s| s.digest.is_some() && s.digest.as_ref() == wanted);
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
    if member.node.uid().is_some_and(|uid| !bootc.spec.node_uid.is_empty() && uid != bootc.spec.node_uid) {
        blocks.push("its BootcNode is of an older Node of that name".to_owned());
    }
    let digest = wanted(member, target);
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
    let turn = status.last_turn.as_ref().filter(|t| Some(&t.digest) == digest && t.next_try_time.0 > now);
    if let Some(turn) = turn {
        blocks.push(format!("last turn: {}, next {}", turn.outcome, until(turn.next_try_time.0, now)));
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
    let target = preview.target.as_ref().map_or_else(String::new, |target| format!(" = {target}"));
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
            .map(|n| vec![n.name.clone(), n.from.clone(), n.to.clone(), n.state.clone(), n.blocks.join("; ")])
            .collect();
        out += &columns(&["NAME", "FROM", "TO", "STATE", "BLOCKED BY"], &rows, width);
    }
    out
}
