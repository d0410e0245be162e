//! State of each pool and node.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::berth::{BerthState, Closed, ClosedReason, lease};
use berth_api::condition::{self, pool as types};
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus, DigestFailures, ImageMetadata, WaveState, WaveStatus};
use berth_api::{duration, keys};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::Snapshot;
use crate::members::Roster;
use crate::nodes::{NodeRow, rows};
use crate::text::clean;

/// A pool, for people.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Name of the pool; empty for nodes that left theirs, or whose pool is gone.
    pub name: String,
    /// The reference that its admin wrote.
    pub image: String,
    /// Version label of the target.
    pub version: Option<String>,
    /// Digest that the reference was resolved to.
    pub digest: Option<berth_api::Digest>,
    /// What the target's builder says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ImageMetadata>,
    /// Members.
    pub total: usize,
    /// Members that run the target and are not being worked on.
    pub updated: usize,
    /// Berths of the pool.
    pub berths: Berths,
    /// Work that is going on, or waited for.
    pub progressing: Option<Warning>,
    /// State of the window, for a pool with windows or exclusions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Warning>,
    /// Names of the pools that go before this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Progress of each wave, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<WaveView>,
    /// The nodes on which each digest that the pool asks for has failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<DigestFailures>,
    /// Nodes that would be members and are excluded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// Number of excluded nodes that the controller counts.
    pub excluded_count: usize,
    /// Number of failures of a digest that halts the rollout.
    pub max_failures: usize,
    /// Conditions that need a look.
    pub warnings: Vec<Warning>,
    /// Nodes of the pool, by name.
    pub nodes: Vec<NodeRow>,
}

/// A pool's berths.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Berths {
    /// The pool's capacity.
    pub total: usize,
    /// Nodes that hold one, with the phase.
    pub held: Vec<String>,
    /// Nodes that are offered one.
    pub offered: Vec<String>,
    /// Closed ones whose last turn did not end in the ordinary way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<ClosedBerth>,
    /// Leases that should be berths and are not.
    pub unreadable: Vec<String>,
}

/// A berth whose last turn did not end in the ordinary way.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClosedBerth {
    /// Name of the berth.
    pub berth: String,
    /// Reason for which it is closed: `failed`, `gone`, `excluded` or `admin`.
    pub reason: String,
    /// Name of the node that held it.
    pub last_node: Option<String>,
}

/// Progress of a wave.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveView {
    /// Name of the wave.
    pub name: String,
    /// Number of members in the wave.
    pub total: u32,
    /// Number of members that run the target, proven and available.
    pub updated: u32,
    /// State of the wave.
    pub state: WaveState,
    /// Seconds for which it has soaked.
    pub soaked_seconds: u64,
    /// Seconds for which it must soak.
    pub soak_seconds: u64,
}

/// A condition that is worth a line.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition.
    pub status: String,
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// Time of its last transition, where that is known.
    pub since: Option<Timestamp>,
}

impl From<&Condition> for Warning {
    fn from(condition: &Condition) -> Self {
        Self {
            type_: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: clean(&condition.message),
            since: Some(condition.last_transition_time.0),
        }
    }
}

/// Views of all pools in the snapshot, by name, and behind them the nodes that left theirs, or whose pool is gone.
pub fn views(snapshot: &Snapshot, now: Timestamp) -> Vec<PoolView> {
    let roster = Roster::of(snapshot, now);
    let mut views: Vec<_> = snapshot
        .shown()
        .into_iter()
        .map(|pool| pool_view(snapshot, pool, &roster, now))
        .collect();
    let pools: BTreeSet<String> = snapshot.pools.iter().map(|pool| pool.name_any()).collect();
    let leaving = rows(snapshot, now, |pool| !pools.contains(pool));
    if snapshot.only.is_none() && !leaving.is_empty() {
        views.push(PoolView {
            total: leaving.len(),
            nodes: leaving,
            ..PoolView::default()
        });
    }
    views
}

fn pool_view(snapshot: &Snapshot, pool: &BootcNodePool, roster: &Roster<'_>, now: Timestamp) -> PoolView {
    let name = pool.name_any();
    let status = pool.status.clone().unwrap_or_default();
    let target = status.target.as_ref();
    let excluded = roster.excluded(&name);
    PoolView {
        image: clean(pool.spec.image_ref()),
        version: target.and_then(|t| t.version.as_deref()).map(clean),
        digest: target.map(|t| t.digest.clone()),
        metadata: target
            .and_then(|t| t.metadata.clone())
            .filter(|said| *said != ImageMetadata::default()),
        total: status.nodes.total as usize,
        updated: status.nodes.updated as usize,
        berths: berths(snapshot, pool),
        progressing: condition::find(&status.conditions, types::PROGRESSING).map(Warning::from),
        window: condition::find(&status.conditions, types::WINDOW_OPEN).map(Warning::from),
        after: pool.spec.after().iter().map(|name| clean(name)).collect(),
        waves: status.waves.iter().map(|wave| wave_view(pool, wave)).collect(),
        failures: failures(&status),
        excluded: excluded.into_iter().map(|m| m.name.clone()).collect(),
        excluded_count: status.nodes.excluded as usize,
        max_failures: pool.spec.max_failures(),
        warnings: warnings(pool, &status.conditions),
        nodes: rows(snapshot, now, |pool| pool == name),
        name,
    }
}

fn wave_view(pool: &BootcNodePool, wave: &WaveStatus) -> WaveView {
    let rollout = pool.spec.rollout();
    let own = rollout
        .waves
        .iter()
        .find(|w| w.name == wave.name)
        .and_then(|w| w.soak_time.as_deref());
    let soak = duration::parse_or(own.or(rollout.soak_time.as_deref()), Duration::ZERO);
    WaveView {
        name: clean(&wave.name),
        total: wave.total,
        updated: wave.updated,
        state: wave.state,
        soaked_seconds: wave.soaked_seconds,
        soak_seconds: soak.as_secs(),
    }
}

/// Failures of the digests that the pool asks for now.
fn failures(status: &BootcNodePoolStatus) -> Vec<DigestFailures> {
    let platforms = status.target.iter().flat_map(|t| &t.platforms);
    let asked: BTreeSet<_> = platforms.map(|p| &p.digest).collect();
    status
        .failures
        .iter()
        .filter(|f| asked.contains(&f.digest))
        .cloned()
        .collect()
}

/// A closed berth that a person may ask about.
fn remarkable(berth: String, closed: &Closed) -> Option<ClosedBerth> {
    use ClosedReason::{Admin, Excluded, Failed, Gone};
    let remarkable = matches!(closed.reason, Admin | Excluded | Failed | Gone);
    let last_node = closed.last_node.as_ref().map(ToString::to_string);
    remarkable.then(|| ClosedBerth {
        berth,
        reason: closed.reason.as_str().to_owned(),
        last_node,
    })
}

/// Counts the berths. The Leases are the truth; where they cannot be read, the controller's last count stands in.
fn berths(snapshot: &Snapshot, pool: &BootcNodePool) -> Berths {
    let counts = pool.status.as_ref().map(|s| s.berths.clone());
    let counts = counts.unwrap_or_default();
    let mut berths = Berths {
        total: counts.total as usize,
        ..Berths::default()
    };
    let name = pool.name_any();
    let of_pool = |lease: &&_| ResourceExt::labels(*lease).get(keys::LABEL_POOL) == Some(&name);
    for lease in snapshot.leases.iter().filter(of_pool) {
        match lease::read(lease).map(|berth| berth.state) {
            Ok(BerthState::Held(holding)) => berths.held.push(holding.node.to_string()),
            Ok(BerthState::Offered(offer)) => berths.offered.push(offer.node.to_string()),
            Ok(BerthState::Closed(closed)) => berths.closed.extend(remarkable(lease.name_any(), &closed)),
            Err(error) => berths.unreadable.push(clean(&error.to_string())),
        }
    }
    if snapshot.leases.is_empty() {
        berths.held = vec!["?".to_owned(); counts.held as usize];
        berths.offered = vec!["?".to_owned(); counts.offered as usize];
    }
    berths.held.sort();
    berths.offered.sort();
    berths
}

/// Conditions that keep a pool from its target. A spec that no controller has read yet counts as one as well.
fn warnings(pool: &BootcNodePool, conditions: &[Condition]) -> Vec<Warning> {
    let matters = |c: &&Condition| match c.type_.as_str() {
        // An image in force of which there is more to say: a registry that is away, another image that waits.
        types::IMAGE_RESOLVED => c.status != "True" || c.reason != "Resolved",
        types::PROGRESSING | types::UPDATED | types::WINDOW_OPEN => false,
        type_ if types::SUMMARY.contains(&type_) => false,
        _ => c.status == "True",
    };
    let mut warnings: Vec<_> = conditions.iter().filter(matters).map(Warning::from).collect();
    let observed = pool.status.as_ref().and_then(|s| s.observed_generation);
    if observed.is_none_or(|seen| Some(seen) < pool.metadata.generation) && pool.metadata.generation.is_some() {
        warnings.push(Warning {
            type_: "Unread".to_owned(),
            status: "True".to_owned(),
            reason: "ControllerBehind".to_owned(),
            message: "the controller has not read the last change of this pool yet".to_owned(),
            since: None,
        });
    }
    warnings
}
