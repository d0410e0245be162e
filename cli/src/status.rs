//! Report for `status`: the state of each pool and node, and health findings.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::{BerthState, Closed, ClosedReason};
use berth_api::condition::{self, CommonReason, pool as types};
use berth_api::keys;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus, DigestFailures, ImageMetadata, WaveStatus};
use berth_api::quantity::Quantity;
use berth_core::finding;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::health::{self, HealthInsight};
use crate::insights::{NodeLine, PoolAssessment, PoolContext, counts, line, sort};
use crate::known_node::KnownNode;
use crate::members::{Roster, is_excluded};
use crate::snapshot::Snapshot;
use crate::text::clean;
use crate::unreadable::pool_of;
use crate::view::{Berths, ClosedBerth, PoolView, Warning, WaveView};

/// Everything that `status` shows.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Settings for all pools.
    pub fleet: FleetView,
    /// Pools, the worst first.
    pub pools: Vec<PoolView>,
    /// Nodes that left their pool, and nodes whose pool was deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes_of_no_pool: Vec<NodeLine>,
    /// Health findings, the most severe first.
    pub health: Vec<HealthInsight>,
    /// Notes on objects that could not be read.
    pub notes: Vec<String>,
    /// True if the report is limited to one pool that no longer exists.
    #[serde(skip)]
    pub is_gone: bool,
}

/// Settings for all pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetView {
    /// True if all pools are paused.
    pub paused: bool,
    /// Limit on unavailable nodes across all pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<Quantity>,
}

/// Returns the report on the pools to show.
pub fn report(snapshot: &Snapshot, now: Timestamp) -> Report {
    let fleet = snapshot.fleet.as_ref();
    let paused = fleet.is_some_and(|fleet| fleet.spec.paused);
    let nodes: BTreeMap<&str, &KnownNode> = snapshot.nodes.iter().map(|node| (node.name(), node)).collect();
    let mut lines = lines(snapshot, &nodes, paused, now);
    // The roster copies pools, BootcNodes and berths, so it is built only if a node is excluded.
    let roster = snapshot
        .nodes
        .iter()
        .any(|node| is_excluded(&node.view))
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
    pools.sort_by_cached_key(|view| {
        let of_pool = health.iter().filter(|h| h.pool.as_deref() == Some(&view.name));
        let worst = of_pool.map(|h| h.level).max();
        (std::cmp::Reverse(worst), view.assessment, view.name.clone())
    });
    let known: BTreeSet<String> = snapshot.pools.iter().map(|pool| pool.name_any()).collect();
    let leaving = lines.into_iter().filter(|(pool, _)| !known.contains(*pool));
    let leaving = leaving.filter(|_| snapshot.only.is_none());
    let gone = snapshot.only.as_ref().filter(|only| !known.contains(*only));
    let gone_note = gone.map(|only| format!("pool {only:?} no longer exists"));
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

fn lines<'a>(
    snapshot: &'a Snapshot,
    nodes: &BTreeMap<&str, &KnownNode>,
    paused: bool,
    now: Timestamp,
) -> BTreeMap<&'a str, Vec<NodeLine>> {
    let mut pools: BTreeMap<String, PoolContext> = BTreeMap::new();
    for pool in &snapshot.pools {
        let status = pool.status.as_ref();
        let of_pool = PoolContext {
            paused: paused || pool.spec.is_paused() || is_reported_paused(pool),
            medians: status.map(|s| s.phase_durations).unwrap_or_default(),
        };
        pools.insert(pool.name_any(), of_pool);
    }
    let mut lines: BTreeMap<&str, Vec<NodeLine>> = BTreeMap::new();
    for bootc in &snapshot.bootc_nodes {
        let pool = pool_of(bootc);
        let node = bootc.metadata.name.as_deref().and_then(|name| nodes.get(name).copied());
        let of_pool = pools.get(pool).copied().unwrap_or_default();
        lines.entry(pool).or_default().push(line(of_pool, bootc, node, now));
    }
    lines.values_mut().for_each(|lines| sort(lines));
    lines
}

/// True if the controller reports the pool as paused. The controller also does this while it cannot read the
/// BootcFleet.
fn is_reported_paused(pool: &BootcNodePool) -> bool {
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
    // Older controllers set only RolloutHalted, not Stalled.
    let is_stalled = condition::is_true(&status.conditions, types::STALLED)
        || condition::is_true(&status.conditions, types::ROLLOUT_HALTED);
    PoolView {
        assessment: PoolAssessment::of(&counts, is_stalled),
        counts,
        image: clean(pool.spec.image_ref().as_str()),
        version: target.and_then(|t| t.version.as_deref()).map(clean),
        digest: target.map(|t| t.digest.clone()),
        metadata: target
            .and_then(|t| t.metadata.clone())
            .filter(|metadata| *metadata != ImageMetadata::default()),
        berths: berths(snapshot, pool),
        progressing: condition::find(&status.conditions, types::PROGRESSING).map(Warning::from),
        window: condition::find(&status.conditions, types::WINDOW_OPEN)
            .filter(|c| c.reason != CommonReason::AlwaysOpen.as_str())
            .map(Warning::from),
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
    let soak = rollout.soak_time_of(rollout.waves.iter().find(|w| w.name == wave.name));
    WaveView {
        name: clean(&wave.name),
        total: wave.total,
        updated: wave.updated,
        state: wave.state,
        soaked_seconds: wave.soaked_seconds,
        soak_seconds: soak.as_secs(),
    }
}

/// Returns the failures of the current target's digests.
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

/// Returns the closed berth if it needs attention: its last turn failed, or the controller or an admin ended the turn.
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

/// Returns the berths from the Leases. If there are no Leases, uses the numbers that the controller last reported.
fn berths(snapshot: &Snapshot, pool: &BootcNodePool) -> Berths {
    let counts = pool.status.as_ref().map(|s| s.berths.clone());
    let counts = counts.unwrap_or_default();
    let mut berths = Berths {
        total: counts.total as usize,
        ..Berths::default()
    };
    let name = pool.name_any();
    let of_pool = snapshot
        .leases
        .iter()
        .filter(|lease| lease.labels().get(keys::LABEL_POOL) == Some(&name));
    for lease in of_pool {
        match lease.berth().map(|berth| berth.state) {
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

/// Returns the conditions that need attention. Adds a warning if the controller has not read the newest spec in time.
fn warnings(pool: &BootcNodePool, conditions: &[Condition], now: Timestamp) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = finding::pool::notable(conditions).map(Warning::from).collect();
    if let Some(unread) = finding::unread::finding(pool, now) {
        warnings.push(Warning {
            type_: "Unread".to_owned(),
            status: "True".to_owned(),
            reason: unread.reason.to_string(),
            message: unread.message,
            since: unread.since,
        });
    }
    warnings
}
