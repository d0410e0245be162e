//! Preview of one pool, in the order of its plan.

use std::collections::BTreeSet;

use berth_api::condition::{self, CommonReason};
use berth_api::keys;
use berth_api::node::{BootcNodeStatus, DesiredImage, Phase};
use berth_api::platform::{Choice, Variant};
use berth_api::pool::{BootcNodePool, RebootPolicy, Target, WaveState};
use berth_api::text::names;
use berth_api::waves::is_control_plane;
use berth_api::{Digest, NodeName, PoolName, Written};
use berth_core::controller::forecast::{Forecast, Turn, forecast};
use berth_core::controller::gate::GateReason;
use berth_core::controller::plan::{BlockReason, Plan, PoolFacts};
use berth_core::controller::quorum::Meanwhile;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::known_node::KnownNode;
use crate::members::{Member, Roster};
use crate::nodes::{silence, versions};
use crate::snapshot::Snapshot;
use crate::text::{clean, short, until};
use crate::unreadable::unreadable;
use crate::world::Room;

/// Maximum number of nodes that are named in one line, or in successive lines with one node each.
const NAMED: usize = 3;

/// Preview of a pool.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolPreview {
    /// Name of the pool.
    pub name: String,
    /// Image reference in the spec.
    pub image: String,
    /// Version and digest of the target, if the reference is resolved.
    pub target: Option<String>,
    /// Number of members.
    pub members: usize,
    /// Number of members that run the target.
    pub up_to_date: usize,
    /// Number of members that may be updated at once.
    pub capacity: usize,
    /// Number of members that may begin their updates now: the unused capacity.
    pub free: usize,
    /// Maximum number of unavailable nodes across all pools, if the fleet has such a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet_limit: Option<usize>,
    /// Names of the pools that are updated before this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Reasons that block the whole pool, or use up its capacity.
    pub blocks: Vec<String>,
    /// Notes on assumptions, unknown facts, and API servers that will be down.
    pub notes: Vec<String>,
    /// Members to update, in the order of their berths; then members that cannot be updated; then nodes that are in
    /// conflict or excluded.
    pub nodes: Vec<PreviewRow>,
}

/// Preview of a node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewRow {
    /// Name of the node.
    pub name: String,
    /// Position in the order, from 1; `None` if the node is blocked until an admin acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
    /// The node's wave; `None` if the spec has no waves and all nodes are in the same built-in wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<String>,
    /// Image that the node runs.
    pub from: String,
    /// Image that the node would run.
    pub to: String,
    /// Progress of the node.
    pub state: String,
    /// Reasons that block this node.
    pub blocks: Vec<String>,
}

/// Returns previews of the pools to show, sorted by name.
pub fn previews(snapshot: &Snapshot, now: Timestamp) -> Vec<PoolPreview> {
    let roster = Roster::of(snapshot, now);
    snapshot
        .shown()
        .into_iter()
        .filter_map(|pool| preview(snapshot, pool, &roster, now))
        .collect()
}

/// A pool, its plan and the resulting order.
struct Outlook<'a> {
    roster: &'a Roster<'a>,
    pool: &'a BootcNodePool,
    target: Option<&'a Target>,
    facts: &'a PoolFacts,
    /// Plan that the controller would make now.
    plan: Plan,
    forecast: Forecast,
    now: Timestamp,
}

impl<'a> Outlook<'a> {
    /// Returns `None` if `roster` is from a snapshot without this pool.
    fn of(roster: &'a Roster<'a>, pool: &'a BootcNodePool, now: Timestamp) -> Option<Self> {
        let facts = roster.world.facts(&pool.name_any())?;
        let target = target(pool).filter(|_| !facts.unresolved);
        let plan = roster.world.plan(facts, now);
        let forecast = match target {
            Some(_) => forecast(facts, now),
            None => forecast(&facts.clone().with_unknown_image(), now),
        };
        Some(Self {
            roster,
            pool,
            target,
            facts,
            plan,
            forecast,
            now,
        })
    }

    fn wave(&self, number: usize) -> String {
        self.facts
            .waves
            .get(number)
            .map_or_else(String::new, |wave| clean(&wave.name))
    }

    /// Returns rows for the members to update, including those that cannot be updated now.
    fn rows(&self) -> Vec<PreviewRow> {
        let turns = &self.forecast.turns;
        let waves: Vec<usize> = turns.iter().map(|turn| turn.wave).collect();
        // Without waves in the spec, and with one kind of nodes, the wave would be the same in each row.
        let shows_waves =
            !self.pool.spec.rollout().waves.is_empty() || waves.windows(2).any(|pair| matches!(pair, [a, b] if a != b));
        let mut rows = vec![];
        for (place, turn) in turns.iter().enumerate() {
            let Some(member) = self.roster.node(turn.node.as_str()) else {
                continue;
            };
            let mut row = self.row(member);
            row.turn = turn.comes.then_some(place + 1);
            row.wave = shows_waves.then(|| self.wave(turn.wave));
            rows.push(row);
        }
        let known: BTreeSet<&str> = self.facts.members.iter().map(|m| m.name.as_str()).collect();
        let members = self.roster.members(&self.pool.name_any());
        for member in members.iter().filter(|m| !known.contains(m.name.as_str())) {
            let mut row = self.row(member);
            row.blocks.push("the node's BootcNode is being deleted".to_owned());
            rows.push(row);
        }
        rows
    }

    fn row(&self, member: &Member<'_>) -> PreviewRow {
        let status = member.status();
        let digest = member.wanted(self.target);
        let desired = digest.zip(self.target).map(|(digest, target)| DesiredImage {
            reference: Written::default(),
            digest: digest.clone(),
            index_digest: target.digest.clone(),
            version: target.version.clone(),
            signature: berth_api::pool::SignatureRule::AsBooted,
        });
        let (from, to) = versions(status.booted.as_ref(), desired.as_ref());
        PreviewRow {
            name: member.name.clone(),
            turn: None,
            wave: None,
            from,
            to: if self.target.is_none() {
                unresolved(self.pool)
            } else {
                to
            },
            state: state(&status, digest, self.pool.spec.reboot_policy()),
            blocks: self.blocks(member, &status),
        }
    }

    /// Returns why the plan offers the member no berth; `None` while the image is not resolved.
    fn wait(&self, member: &Member<'_>) -> Option<BlockReason> {
        let waits = self.plan.waiting.get(&NodeName::from(member.name.as_str())).copied();
        waits.filter(|_| self.target.is_some())
    }

    fn blocks(&self, member: &Member<'_>, status: &BootcNodeStatus) -> Vec<String> {
        let conflicts = &self.roster.world.membership.conflicts;
        let conflict = conflicts.get(&NodeName::from(member.name.as_str()));
        let mut blocks: Vec<_> = conflict.map(|conflict| conflict.message()).into_iter().collect();
        let Some(bootc) = member.bootc else {
            blocks.push("the node has no BootcNode yet".to_owned());
            return blocks;
        };
        if let Some(found) = unreadable(bootc) {
            blocks.push(format!("{}: {}", found.reason, clean(&found.message)));
        } else if bootc.status.is_none() {
            blocks.push("no agent has reported yet".to_owned());
        }
        blocks.extend(silence(status, self.now).map(|age| format!("the node's agent has not reported for {age}")));
        let wait = self.wait(member);
        blocks.extend(wait.and_then(|wait| self.wait_words(wait, member)));
        let degraded = condition::find_true(&status.conditions, condition::node::NODE_DEGRADED);
        let failed = [CommonReason::DigestFailed, CommonReason::FellBack].map(CommonReason::as_str);
        let is_failed_digest = degraded.is_some_and(|c| failed.contains(&c.reason.as_str()));
        if let Some(c) = degraded.filter(|_| !is_failed_digest || wait != Some(BlockReason::FailedBefore)) {
            blocks.push(format!("{}: {}", clean(&c.reason), clean(&c.message)));
        }
        let digest = member.wanted(self.target);
        let turn = status
            .last_turn
            .as_ref()
            .filter(|t| Some(&t.digest) == digest && t.next_try_time.0 > self.now);
        // `NodeDegraded` already shows the last turn's outcome, unless another problem is worse.
        let said = degraded.map(|c| c.reason.as_str());
        if let Some(turn) = turn.filter(|turn| said != Some(turn.outcome.as_str())) {
            blocks.push(format!(
                "last turn: {}, next {}",
                turn.outcome,
                until(turn.next_try_time.0, self.now)
            ));
        }
        blocks
    }

    /// Returns why the target has no image for a member.
    fn without_image(&self, member: &Member<'_>) -> String {
        let machine = member.machine();
        let platform = machine.platform(member.reported_variant());
        match self.target.map(|target| target.choose(platform)) {
            Some(Choice::VariantUnknown) if platform.variant == Variant::NotReported => {
                "waits until the agent reports the node's CPU".to_owned()
            }
            Some(Choice::VariantUnknown) => {
                "it is not known which image of the index the node's CPU can run".to_owned()
            }
            _ => format!("the image has no manifest for {platform}"),
        }
    }

    /// Returns the name of the wave that is being updated or is soaking; empty if there is no such wave.
    fn active_wave(&self) -> String {
        let mut waves = self.plan.waves.iter();
        let active = waves.find(|w| matches!(w.state, WaveState::Active | WaveState::Soaking));
        active.map_or_else(String::new, |wave| clean(&wave.name))
    }

    /// Returns the text for a reason to wait. `None` if the preview shows the reason elsewhere: in another column of
    /// the row, or in a line about the pool.
    fn wait_words(&self, wait: BlockReason, member: &Member<'_>) -> Option<String> {
        Some(match wait {
            BlockReason::Wave => format!("waits for wave {}", self.active_wave()),
            BlockReason::Soaking => format!("waits until the soak time of wave {} is over", self.active_wave()),
            BlockReason::NoImage => self.without_image(member),
            BlockReason::FailedBefore => "this digest failed on this node and is not retried".to_owned(),
            BlockReason::HeldBack => format!("held back; to release the node: kubectl berth unhold {}", member.name),
            BlockReason::OtherNode => "the node's BootcNode belongs to a former Node with this name".to_owned(),
            BlockReason::NotPublished
            | BlockReason::Leaving
            | BlockReason::NotObserved
            | BlockReason::NotPrepared
            | BlockReason::ControlPlane(_)
            | BlockReason::NoClock
            | BlockReason::TooLate => wait.words().to_owned(),
            BlockReason::UpToDate
            | BlockReason::Order
            | BlockReason::FleetCapacity
            | BlockReason::NotStaged
            | BlockReason::Silent
            | BlockReason::HasBerth
            | BlockReason::Gate
            | BlockReason::Halted
            | BlockReason::Unresolved
            | BlockReason::Outdated
            | BlockReason::Fencing
            | BlockReason::Capacity
            | BlockReason::NoBerth => return None,
        })
    }

    /// Returns reasons that block the whole pool, or use up its capacity.
    fn pool_blocks(&self, room: &Room) -> Vec<String> {
        let mut blocks = Vec::new();
        let image = clean(self.pool.spec.image_ref().as_str());
        let conditions = self.pool.status.as_ref().map(|s| &*s.conditions).unwrap_or_default();
        let skew = condition::find(conditions, condition::pool::BOOT_IMAGE_SKEW).filter(|c| c.status == "True");
        let refused = skew.filter(|c| c.reason == CommonReason::NextImageRefused.as_str());
        blocks.extend(refused.map(|c| format!("the next image is refused (BootImageSkew): {}", clean(&c.message))));
        let unresolved = condition::find(conditions, condition::pool::IMAGE_RESOLVED).filter(|c| c.status == "False");
        // The line about BootImageSkew already gives this reason.
        let is_repeated =
            refused.is_some() && unresolved.is_some_and(|c| c.reason == CommonReason::BootImageSkew.as_str());
        if self.target.is_none() && !is_repeated {
            let why = unresolved.map_or_else(String::new, |c| {
                format!(": {}: {}", clean(&c.reason), clean(&c.message))
            });
            blocks.push(format!("{image} is not resolved to a digest yet{why}"));
        }
        blocks.extend(self.facts.gate.as_ref().map(|gate| match gate.reason {
            GateReason::Paused => {
                "paused: images are staged, but no node reboots until rollout.paused is false".to_owned()
            }
            GateReason::FleetPaused | GateReason::FleetUnreadable => format!("paused: {}", gate.message),
            reason => format!("no window is open: {}: {}", reason.as_str(), clean(&gate.message)),
        }));
        let halt = self.plan.halt.as_ref().filter(|_| self.target.is_some());
        blocks.extend(halt.map(|halt| format!("halted: {}", clean(&halt.message))));
        blocks.extend(self.facts.order.as_ref().map(|order| clean(&order.message)));
        let used_up = room.fleet.as_ref().filter(|fleet| !fleet.room_for(false));
        blocks.extend(used_up.map(|fleet| clean(&fleet.words())));
        let users = room.users.values().take(NAMED);
        blocks.extend(users.map(|why| format!("capacity in use: {why}")));
        blocks.extend(match room.users.len().saturating_sub(NAMED) {
            0 => None,
            1 => Some("capacity in use by 1 more node".to_owned()),
            rest => Some(format!("capacity in use by {rest} more nodes")),
        });
        blocks.extend(self.stuck());
        blocks
    }

    /// Returns the wave that stays unproven until an admin acts, and its nodes: `wave canary is not proven: n3 (…) and
    /// 4 more`. `None` if every wave can be proven.
    fn stuck(&self) -> Option<String> {
        let stuck = &self.forecast.stuck;
        let first = self.facts.members.iter().find(|m| stuck.first() == Some(&m.name))?;
        let named = stuck
            .iter()
            .take(NAMED)
            .filter_map(|name| self.roster.node(name.as_str()));
        let named = named.map(|member| {
            let wait = self.wait(member).filter(|wait| {
                matches!(
                    wait,
                    BlockReason::NoImage | BlockReason::FailedBefore | BlockReason::HeldBack
                )
            });
            let why = wait.and_then(|wait| self.wait_words(wait, member));
            let why = why.unwrap_or_else(|| {
                if member.is_ready() {
                    "the node does not run the image".to_owned()
                } else {
                    "not Ready".to_owned()
                }
            });
            format!("{} ({why})", member.name)
        });
        let named = names(named, stuck.len());
        Some(format!("wave {} is not proven: {named}", self.wave(first.place.wave)))
    }

    /// Returns notes on assumptions, unknown facts, and API servers that will be down.
    fn notes(&self, control_plane: &[&str]) -> Vec<String> {
        let mut notes = vec![];
        let coming: Vec<&Turn> = self.forecast.turns.iter().filter(|turn| turn.comes).collect();
        if coming.len() > 1 {
            notes.push("assumes all images staged, gates open, and soaks finished".to_owned());
            if !self.pool.spec.after().is_empty() {
                notes.push("assumes that the pools before this one are updated".to_owned());
            }
            notes.push("the order may differ, because only the last turn of each berth is known".to_owned());
        }
        let mut servers: Vec<&str> = coming.iter().map(|turn| turn.node.as_str()).collect();
        servers.retain(|node| control_plane.contains(node));
        if servers.is_empty() {
            return notes;
        }
        notes.push(match Meanwhile::of(control_plane.len()) {
            Some(meanwhile) => format!("{} is {}", servers.join(" or "), meanwhile.words()),
            None => "assumes that all API servers answer; only the controller knows which do".to_owned(),
        });
        notes
    }
}

/// Returns the preview of a pool; `None` if `roster` is from a snapshot without this pool.
pub(crate) fn preview(
    snapshot: &Snapshot,
    pool: &BootcNodePool,
    roster: &Roster<'_>,
    now: Timestamp,
) -> Option<PoolPreview> {
    let name = pool.name_any();
    let outlook = Outlook::of(roster, pool, now)?;
    let room = Room::of(outlook.facts);
    let members = roster.members(&name).len();
    let mut nodes = outlook.rows();
    let going = nodes.len();
    nodes.extend(outsiders(roster, &name));
    let control_plane: Vec<_> = snapshot
        .nodes
        .iter()
        .filter(|node| is_control_plane(&node.view.labels))
        .map(KnownNode::name)
        .collect();
    Some(PoolPreview {
        image: clean(pool.spec.image_ref().as_str()),
        target: outlook.target.map(words),
        members,
        up_to_date: members.saturating_sub(going),
        capacity: room.capacity,
        free: room.free(),
        fleet_limit: room.fleet.as_ref().map(|fleet| fleet.limit),
        after: pool.spec.after().iter().map(|name| clean(name)).collect(),
        blocks: outlook.pool_blocks(&room),
        notes: outlook.notes(&control_plane),
        nodes,
        name,
    })
}

/// Returns rows for the nodes that the selector matches but that are excluded or in conflict with another pool.
fn outsiders(roster: &Roster<'_>, pool: &str) -> Vec<PreviewRow> {
    let name = PoolName::from(pool);
    let membership = &roster.world.membership;
    let mut rows = vec![];
    let strays = membership
        .conflicts_of(&name)
        .filter(|conflict| membership.pool_of(&conflict.node) != Some(&name));
    for conflict in strays {
        if let Some(member) = roster.node(conflict.node.as_str()) {
            rows.push(outsider(member, "conflict", conflict.message()));
        }
    }
    for member in roster.excluded(pool) {
        let key = keys::LABEL_EXCLUDE;
        let how = format!(
            "has label {key}; to remove the label: kubectl berth include {}",
            member.name
        );
        rows.push(outsider(member, "excluded", how));
    }
    rows
}

/// Returns the pool's target; `None` while the status is about an older reference.
fn target(pool: &BootcNodePool) -> Option<&Target> {
    let target = pool.status.as_ref()?.target.as_ref()?;
    target.is_of(pool.spec.image_ref()).then_some(target)
}

fn words(target: &Target) -> String {
    match &target.version {
        Some(version) => format!("{} ({})", clean(version), short(&target.digest)),
        None => short(&target.digest),
    }
}

fn outsider(member: &Member<'_>, state: &str, why: String) -> PreviewRow {
    PreviewRow {
        name: member.name.clone(),
        turn: None,
        wave: None,
        from: versions(member.status().booted.as_ref(), None).0,
        to: String::new(),
        state: state.to_owned(),
        blocks: vec![why],
    }
}

/// Returns the tag or digest of a reference that is not resolved.
fn unresolved(pool: &BootcNodePool) -> String {
    match pool.spec.image_ref().get() {
        Ok(reference) => match (reference.digest(), reference.tag()) {
            (Some(digest), _) => short(digest),
            (None, tag) => format!(":{}", tag.unwrap_or_default()),
        },
        Err(_) => String::new(),
    }
}

fn state(status: &BootcNodeStatus, wanted: Option<&Digest>, policy: RebootPolicy) -> String {
    let staged = status
        .staged
        .as_ref()
        .filter(|s| s.digest.is_some() && s.digest.as_ref() == wanted);
    match (staged, status.phase) {
        (_, Some(phase @ (Phase::Draining | Phase::Rebooting | Phase::Proving | Phase::Releasing))) => {
            phase.as_str().to_lowercase()
        }
        (Some(staged), _) if staged.locked => {
            let is_soft = policy == RebootPolicy::AllowSoftReboot && staged.soft_reboot_capable;
            if is_soft { "staged, soft reboot" } else { "staged" }.to_owned()
        }
        (Some(_), _) => "staged, not locked".to_owned(),
        (None, Some(Phase::Staging)) => match status.progress.filter(|p| p.bytes_total > 0) {
            Some(p) => format!("staging {}%", p.bytes.min(p.bytes_total) * 100 / p.bytes_total),
            None => "staging".to_owned(),
        },
        _ => "not staged yet".to_owned(),
    }
}
