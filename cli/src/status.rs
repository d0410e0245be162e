//! State of each pool and node, and what needs a look.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{BerthState, Closed, ClosedReason, lease};
use berth_api::condition::{self, Why, pool as types};
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus, DigestFailures, ImageMetadata, WaveState, WaveStatus};
use berth_api::quantity::Quantity;
use berth_api::{duration, keys};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::Snapshot;
use crate::health::{self, HealthInsight};
use crate::insights::{Counts, NodeLine, OfPool, PoolAssessment, counts, line, sort};
use crate::members::{Roster, is_excluded};
use crate::text::clean;
use crate::unread::unread;

/// Everything that `status` shows.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Switches and limits for all pools.
    pub fleet: FleetView,
    /// The pools, the worst first.
    pub pools: Vec<PoolView>,
    /// Nodes that left their pool, or whose pool is gone, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes_of_no_pool: Vec<NodeLine>,
    /// Findings that a person should know of, the gravest first.
    pub health: Vec<HealthInsight>,
    /// Notes on objects that could not be read.
    pub notes: Vec<String>,
    /// The only pool that was asked for is not there any more.
    #[serde(skip)]
    pub is_gone: bool,
}

/// Switches and limits for all pools, for people.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetView {
    /// All pools are paused.
    pub paused: bool,
    /// Number of nodes of all pools that may be unavailable at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<Quantity>,
}

/// A pool, for people.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Name of the pool.
    pub name: String,
    /// Assessment in one word.
    pub assessment: PoolAssessment,
    /// Number of nodes by what is true of them.
    #[serde(flatten)]
    pub counts: Counts,
    /// The reference that its admin wrote.
    pub image: String,
    /// Version label of the target.
    pub version: Option<String>,
    /// Digest that the reference was resolved to.
    pub digest: Option<berth_api::Digest>,
    /// What the target's builder says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ImageMetadata>,
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
    #[serde(rename = "excludedNodes", skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// Number of excluded nodes that the controller counts.
    pub excluded_count: usize,
    /// Number of failures of a digest that halts the rollout.
    pub max_failures: usize,
    /// Conditions that need a look.
    pub warnings: Vec<Warning>,
    /// Nodes of the pool, the worst first.
    pub nodes: Vec<NodeLine>,
}

/// A pool's berths.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Berths {
    /// The pool's capacity.
    pub total: usize,
    /// Nodes that hold one.
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

impl Warning {
    /// Type of the warning about a spec that no controller has read yet.
    pub(crate) const UNREAD: &'static str = "Unread";

    /// A finding of this program's own.
    pub(crate) fn told(reason: &str, message: &str) -> Self {
        Self {
            type_: String::new(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            message: clean(message),
            since: None,
        }
    }
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

/// Report on the pools that are to be shown.
pub fn report(snapshot: &Snapshot, now: Timestamp) -> Report {
    let fleet = snapshot.fleet.as_ref();
    let paused = fleet.is_some_and(|fleet| fleet.spec.paused);
    let nodes: BTreeMap<&str, &Node> = snapshot
        .nodes
        .iter()
        .filter_map(|node| Some((node.metadata.name.as_deref()?, node)))
        .collect();
    let mut lines = lines(snapshot, &nodes, paused, now);
    // It takes a copy of everything, and most clusters exclude nobody.
    let roster = snapshot
        .nodes
        .iter()
        .any(is_excluded)
        .then(|| Roster::of(snapshot, now));
    let mut pools: Vec<PoolView> = Vec::new();
    let mut health = health::of_fleet(snapshot);
    for pool in snapshot.shown() {
        let nodes_of = lines.remove(pool.name_any().as_str()).unwrap_or_default();
        let view = pool_view(snapshot, pool, nodes_of, roster.as_ref(), now);
        health.extend(health::of_pool(snapshot, pool, &view, &nodes, now));
        pools.push(view);
    }
    health::sort(&mut health);
    let worst = |view: &PoolView| {
        let of_pool = health.iter().filter(|h| h.pool.as_deref() == Some(&view.name));
        std::cmp::Reverse(of_pool.map(|h| h.level).max())
    };
    pools.sort_by_cached_key(|view| (worst(view), view.assessment, view.name.clone()));
    let known: BTreeSet<String> = snapshot.pools.iter().map(|pool| pool.name_any()).collect();
    let leaving = lines.into_iter().filter(|(pool, _)| !known.contains(*pool));
    let leaving = leaving.filter(|_| snapshot.only.is_none());
    let gone = snapshot.only.as_ref().filter(|only| !known.contains(*only));
    let gone_note = gone.map(|only| format!("there is no pool {only:?} any more"));
    Report {
        is_gone: gone.is_some(),
        fleet: FleetView {
            paused,
            max_unavailable: fleet.and_then(|fleet| fleet.spec.max_unavailable),
        },
        pools,
        nodes_of_no_pool: leaving.flat_map(|(_, nodes)| nodes).collect(),
        health,
        notes: snapshot
            .notes
            .iter()
            .chain(&gone_note)
            .map(|note| clean(note))
            .collect(),
    }
}

/// The nodes' lines, by the name of their pool.
fn lines<'a>(
    snapshot: &'a Snapshot,
    nodes: &BTreeMap<&str, &Node>,
    paused: bool,
    now: Timestamp,
) -> BTreeMap<&'a str, Vec<NodeLine>> {
    let of_pool = |pool: &BootcNodePool| {
        let status = pool.status.as_ref();
        OfPool {
            paused: paused || pool.spec.is_paused() || told_paused(pool),
            medians: status.map(|s| s.phase_durations).unwrap_or_default(),
        }
    };
    let pools: BTreeMap<String, OfPool> = snapshot.pools.iter().map(|p| (p.name_any(), of_pool(p))).collect();
    let mut lines: BTreeMap<&str, Vec<NodeLine>> = BTreeMap::new();
    for host in &snapshot.bootc_nodes {
        let pool = host.spec.pool_name.as_str();
        let node = host.metadata.name.as_deref().and_then(|name| nodes.get(name).copied());
        let of_pool = pools.get(pool).copied().unwrap_or_default();
        lines.entry(pool).or_default().push(line(of_pool, host, node, now));
    }
    lines.values_mut().for_each(|lines| sort(lines));
    lines
}

/// Says whether the controller holds the pool to be paused, as it does also when the BootcFleet cannot be read.
fn told_paused(pool: &BootcNodePool) -> bool {
    let status = pool.status.as_ref();
    status.is_some_and(|status| condition::is_true(&status.conditions, types::PAUSED))
}

fn pool_view(
    snapshot: &Snapshot,
    pool: &BootcNodePool,
    nodes: Vec<NodeLine>,
    roster: Option<&Roster<'_>>,
    now: Timestamp,
) -> PoolView {
    let name = pool.name_any();
    let unknown = BootcNodePoolStatus::default();
    let status = pool.status.as_ref().unwrap_or(&unknown);
    let target = status.target.as_ref();
    let excluded = roster.map(|roster| roster.excluded(&name)).unwrap_or_default();
    let counts = counts(&nodes);
    let is_true = |type_| condition::is_true(&status.conditions, type_);
    // An older controller has no Stalled.
    let is_stalled = is_true(types::STALLED) || is_true(types::ROLLOUT_HALTED);
    PoolView {
        assessment: PoolAssessment::of(&counts, is_stalled),
        counts,
        image: clean(pool.spec.image_ref()),
        version: target.and_then(|t| t.version.as_deref()).map(clean),
        digest: target.map(|t| t.digest.clone()),
        metadata: target
            .and_then(|t| t.metadata.clone())
            .filter(|said| *said != ImageMetadata::default()),
        berths: berths(snapshot, pool),
        progressing: condition::find(&status.conditions, types::PROGRESSING).map(Warning::from),
        window: condition::find(&status.conditions, types::WINDOW_OPEN).map(Warning::from),
        after: pool.spec.after().iter().map(|name| clean(name)).collect(),
        waves: status.waves.iter().map(|wave| wave_view(pool, wave)).collect(),
        failures: failures(status),
        excluded: excluded.into_iter().map(|m| m.name.clone()).collect(),
        excluded_count: status.nodes.excluded as usize,
        max_failures: pool.spec.max_failures(),
        warnings: warnings(pool, &status.conditions, now),
        nodes,
        name: clean(&name),
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

/// Conditions that keep a pool from its target. A spec that no controller has read for long counts as one as well.
fn warnings(pool: &BootcNodePool, conditions: &[Condition], now: Timestamp) -> Vec<Warning> {
    let failing = condition::find_true(conditions, types::FEED_FAILING);
    let skew = condition::find_true(conditions, types::BOOT_IMAGE_SKEW);
    let is_refused = skew.is_some_and(|skew| skew.reason == Why::NextImageRefused.as_str());
    let matters = |c: &&Condition| match c.type_.as_str() {
        // BootImageSkew says the same.
        types::FEED_FAILING if is_refused && c.reason == Why::BootImageSkew.as_str() => false,
        types::IMAGE_RESOLVED if is_refused && c.status == "True" && c.reason == Why::BootImageSkew.as_str() => false,
        // FeedFailing says the same, and since when.
        types::IMAGE_RESOLVED if c.status == "True" && failing.is_some_and(|f| f.reason == c.reason) => false,
        // Nobody knows whether new machines could join.
        types::BOOT_IMAGE_SKEW => c.status == "True" || c.reason == Why::CannotCompare.as_str(),
        // An image in force of which there is more to say: a registry that is away, another image that waits.
        types::IMAGE_RESOLVED => c.status != "True" || c.reason != "Resolved",
        types::PROGRESSING | types::UPDATED | types::WINDOW_OPEN => false,
        type_ if types::SUMMARY.contains(&type_) => false,
        _ => c.status == "True",
    };
    let told = conditions.iter().filter(matters).map(Warning::from);
    told.chain(unread(pool, now)).collect()
}
