//! Health findings about the fleet, its pools and its nodes: severity, impact on the update, start and remedy. They follow
//! the rules of `oc adm upgrade status` and Berth's own conditions.

use std::collections::BTreeMap;
use std::fmt;

use berth_api::condition::{self, Why, fleet as of_fleets, node as of_nodes, pool as of_pools};
use berth_api::insight::conditions::{DRAINING, REBOOTING, WORKING};
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_api::pool::BootcNodePool;
use berth_api::text::names;
use berth_core::controller::image::ResolveReason;
use berth_core::insight::Assessment;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::insights::NodeLine;
use crate::nodes::silence;
use crate::snapshot::Snapshot;
use crate::story::advice;
use crate::text::clean;
use crate::view::{PoolView, Warning};

/// Seconds that a Node may be NotReady before a finding reports it.
const NOT_READY_GRACE: i64 = 5 * 60;
/// Seconds that a Node may have another bad condition before a finding reports it.
const PRESSURE_GRACE: i64 = 60;
/// Seconds that a pod may block a drain before a finding reports it.
const DRAIN_GRACE: i64 = 10 * 60;
/// Number of nodes that a message names.
const NAMED: usize = 3;

/// Severity of a finding, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Slows the update down, or may pass without action.
    Warning,
    /// An admin has to act.
    Error,
}

impl Level {
    /// Returns the word that is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "Info",
            Self::Warning => "Warning",
            Self::Error => "Error",
        }
    }
}

/// Effect of a finding on the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Impact {
    /// Nothing is blocked.
    None,
    /// The update takes longer.
    #[serde(rename = "Update Speed")]
    UpdateSpeed,
    /// The update has stopped, entirely or on some nodes.
    #[serde(rename = "Update Stalled")]
    UpdateStalled,
    /// Nodes are missing, or cannot be added.
    #[serde(rename = "Cluster Capacity")]
    ClusterCapacity,
    /// Not known.
    Unknown,
}

impl fmt::Display for Impact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "None",
            Self::UpdateSpeed => "Update Speed",
            Self::UpdateStalled => "Update Stalled",
            Self::ClusterCapacity => "Cluster Capacity",
            Self::Unknown => "Unknown",
        })
    }
}

/// A health finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthInsight {
    /// Severity.
    pub level: Level,
    /// Effect on the update and the cluster.
    pub impact: Impact,
    /// Start, if known; for several nodes, the earliest.
    pub since: Option<Timestamp>,
    /// Summary in one line.
    pub message: String,
    /// Pool concerned; absent for a finding about the fleet.
    pub pool: Option<String>,
    /// Objects concerned, such as `nodes/n1`.
    pub resources: Vec<String>,
    /// Reason and message of the condition behind the finding.
    pub description: String,
    /// Steps for the admin.
    pub remedy: Vec<String>,
}

/// Sorts findings: the most severe first, then the newest.
pub(crate) fn sort(health: &mut [HealthInsight]) {
    health.sort_by(|a, b| (b.level, b.since, &a.message).cmp(&(a.level, a.since, &b.message)));
}

/// Returns findings about the whole fleet.
pub(crate) fn of_fleet(snapshot: &Snapshot) -> Vec<HealthInsight> {
    let conditions = snapshot.fleet.iter().flat_map(|fleet| fleet.status.iter());
    let conditions = conditions.flat_map(|status| &status.conditions);
    let bad = conditions.filter(|c| {
        // The pools' own conditions report these.
        let is_reported_elsewhere = [of_fleets::UPDATING, of_fleets::PAUSED, of_fleets::FEEDS_HEALTHY];
        !is_reported_elsewhere.contains(&c.type_.as_str()) && c.status == "False"
    });
    bad.map(|condition| {
        let (message, impact, remedy) = of_fleet_condition(condition);
        let warning = Warning::from(condition);
        HealthInsight {
            level: Level::Error,
            impact,
            since: warning.since,
            message: message.to_owned(),
            pool: None,
            resources: vec!["bootcfleets/cluster".to_owned()],
            description: described(&warning),
            remedy: vec![remedy.to_owned()],
        }
    })
    .collect()
}

/// Returns message, impact and remedy for a condition of the fleet.
fn of_fleet_condition(condition: &Condition) -> (&str, Impact, &'static str) {
    match condition.type_.as_str() {
        of_fleets::CONTROLLER_HEALTHY => (
            "The controller cannot read some objects",
            Impact::UpdateStalled,
            "fix the named objects; details: kubectl logs -n berth-system deployment/berth-controller",
        ),
        of_fleets::AGENTS_HEALTHY => (
            "Agents have been silent for a long time",
            Impact::UpdateStalled,
            "check the agents of the named nodes: kubectl get pods -n berth-system -o wide",
        ),
        of_fleets::REGISTRY_REACHABLE => (
            "A registry does not answer",
            Impact::UpdateStalled,
            "fix the registry or the network path to it; pools keep their images and Berth retries",
        ),
        of_fleets::GUARDED => (
            "Agents can write objects of other nodes, so they take no berths",
            Impact::UpdateStalled,
            "apply the admission policies in manifests/ again",
        ),
        of_fleets::BOOTSTRAP_HEALTHY if condition.reason == Why::MachinesHeld.as_str() => (
            "Machines are held back on their first boot and have not joined",
            Impact::ClusterCapacity,
            "install them from a newer boot image (docs/boot-images.md); if a machine is gone: kubectl berth dismiss MACHINE",
        ),
        of_fleets::BOOTSTRAP_HEALTHY if condition.reason == Why::EventsUnreadable.as_str() => (
            "It is not known whether machines are held back on their first boot",
            Impact::Unknown,
            "if the description says that access is forbidden, apply the controller's role of this version again",
        ),
        of_fleets::BOOTSTRAP_HEALTHY => (
            "Some machines had problems on their first boot",
            Impact::ClusterCapacity,
            "see status.firstboot of the named nodes; docs/boot-images.md explains what to do",
        ),
        other => (other, Impact::Unknown, "follow the description"),
    }
}

/// Returns findings about a pool and its nodes.
pub(crate) fn of_pool(
    snapshot: &Snapshot,
    pool: &BootcNodePool,
    view: &PoolView,
    nodes: &BTreeMap<&str, &Node>,
    now: Timestamp,
) -> Vec<HealthInsight> {
    let mut found = of_nodes(snapshot, view, nodes, now);
    let has_node_errors = found.iter().any(|f| f.level == Level::Error);
    let name = &view.name;
    for warning in &view.warnings {
        // Findings about the nodes already report why.
        if warning.type_ == of_pools::DEGRADED && has_node_errors {
            continue;
        }
        found.push(insight(name, of_condition(pool, view, warning), warning));
    }
    // The controller may not have seen the pause yet.
    let paused_here = view.warnings.iter().any(|w| w.type_ == of_pools::PAUSED);
    if view.counts.excluded > 0 && !paused_here {
        let by = Warning::finding("Paused", "the pool or the fleet is paused");
        found.push(insight(name, paused(pool, name), &by));
    }
    if let Some(first) = view.berths.unreadable.first() {
        let message = match view.berths.unreadable.len() {
            1 => format!("A berth of pool {name} cannot be read"),
            more => format!("{more} berths of pool {name} cannot be read"),
        };
        let remedy = "restore the Lease, or delete it if no node holds it".to_owned();
        let broken = (Level::Error, Impact::UpdateStalled, message, remedy);
        found.push(insight(name, broken, &Warning::finding("Unreadable", first)));
    }
    found
}

fn insight(
    pool: &str,
    (level, impact, message, remedy): (Level, Impact, String, String),
    warning: &Warning,
) -> HealthInsight {
    HealthInsight {
        level,
        impact,
        since: warning.since,
        message,
        pool: Some(pool.to_owned()),
        resources: vec![format!("bootcnodepools/{pool}")],
        description: described(warning),
        remedy: vec![remedy],
    }
}

fn described(warning: &Warning) -> String {
    let parts = [&warning.reason, &warning.message];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.map(String::as_str).collect::<Vec<_>>().join(": ")
}

fn paused(pool: &BootcNodePool, name: &str) -> (Level, Impact, String, String) {
    let remedy = if pool.spec.is_paused() {
        format!("to resume: kubectl berth resume {name}")
    } else {
        "to resume: kubectl berth resume --all; if BootcFleet cluster cannot be read, repair it".to_owned()
    };
    let message = format!("Outdated nodes in a paused pool '{name}' will not be updated");
    (Level::Warning, Impact::UpdateStalled, message, remedy)
}

/// True if the tag was resolved, but its image is refused for this reason.
fn is_refusal(reason: &str) -> bool {
    [Why::NoSuchPlatform, Why::BootImageSkew]
        .iter()
        .any(|refusal| refusal.as_str() == reason)
}

/// True if the failure usually passes without action.
fn is_passing(reason: &str) -> bool {
    ResolveReason::from_word(reason).is_some_and(ResolveReason::is_passing)
}

/// Returns level, impact, message and remedy for a pool's condition.
fn of_condition(pool: &BootcNodePool, view: &PoolView, warning: &Warning) -> (Level, Impact, String, String) {
    use Impact::{None, Unknown, UpdateStalled};
    let name = &view.name;
    match (warning.type_.as_str(), warning.reason.as_str()) {
        (of_pools::PAUSED, _) if view.counts.excluded > 0 => paused(pool, name),
        (of_pools::PAUSED, _) => (
            Level::Info,
            None,
            format!("Pool {name} is paused, but no node needs an update"),
            "nothing to do".to_owned(),
        ),
        (of_pools::IMAGE_RESOLVED, reason) => of_image(name, reason, warning.status == "True"),
        (of_pools::FEED_FAILING, reason) => of_feed(name, reason),
        (of_pools::BOOT_IMAGE_SKEW, reason) => of_boot_image(name, reason, warning.status == "True"),
        (of_pools::ROLLOUT_HALTED, _) => (
            Level::Error,
            UpdateStalled,
            format!("The rollout of pool {name} is halted: its image failed on too many nodes"),
            format!("publish a better image; or fix the cause, then: kubectl berth retry {name}"),
        ),
        (of_pools::NODE_CONFLICT, "AddressShared") => (
            Level::Warning,
            UpdateStalled,
            format!("Control plane nodes of pool {name} may wait for a Node whose machine is gone"),
            "delete the Nodes whose machines are gone, or correct their addresses".to_owned(),
        ),
        (of_pools::NODE_CONFLICT, _) => (
            Level::Error,
            UpdateStalled,
            format!("Nodes of pool {name} are also selected by another pool, so no pool updates them"),
            "change nodeSelector so that only one pool selects each node".to_owned(),
        ),
        (of_pools::DEGRADED, reason) => (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} is degraded ({reason})"),
            "follow the description".to_owned(),
        ),
        (Warning::UNREAD, _) => (
            Level::Warning,
            UpdateStalled,
            format!("The controller has not read the last change of pool {name} yet"),
            "if this does not pass, check the controller: kubectl get pods,leases -n berth-system".to_owned(),
        ),
        (other, reason) => (
            Level::Warning,
            Unknown,
            format!("Pool {name}: {other} ({reason})"),
            "follow the description".to_owned(),
        ),
    }
}

/// Returns level, impact, message and remedy for a pool's condition `ImageResolved`; `is_used`: the condition is True.
fn of_image(name: &str, reason: &str, is_used: bool) -> (Level, Impact, String, String) {
    use Impact::{None, UpdateSpeed, UpdateStalled};
    match reason {
        "ImageAvailable" => (
            Level::Info,
            None,
            format!("Another image is available for pool {name}"),
            format!("to adopt it: kubectl berth approve {name}"),
        ),
        "MinimumAge" | "Resolving" => (
            Level::Info,
            None,
            format!("The image of pool {name} is being checked ({reason})"),
            "nothing to do".to_owned(),
        ),
        reason if is_used && is_refusal(reason) => (
            Level::Warning,
            UpdateStalled,
            format!("Pool {name} does not adopt the image that its tag points to ({reason})"),
            "follow the description, or publish another image; the pool keeps its current image".to_owned(),
        ),
        reason if is_used => (
            Level::Warning,
            UpdateSpeed,
            format!("The tag of pool {name} cannot be checked ({reason}); the pool keeps its current image"),
            "fix the cause in the description; Berth asks the registry again".to_owned(),
        ),
        reason => (
            Level::Error,
            UpdateStalled,
            format!("The image of pool {name} is not resolved ({reason})"),
            format!("fix the cause in the description, then: kubectl berth poll {name}"),
        ),
    }
}

/// Returns level, impact, message and remedy for a pool's condition `FeedFailing`.
fn of_feed(name: &str, reason: &str) -> (Level, Impact, String, String) {
    use Impact::UpdateStalled;
    if is_refusal(reason) {
        return (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} does not adopt the image that its tag points to ({reason})"),
            "follow the description, or publish another image; the pool keeps its current image".to_owned(),
        );
    }
    let level = if is_passing(reason) {
        Level::Warning
    } else {
        Level::Error
    };
    (
        level,
        UpdateStalled,
        format!("Pool {name} gets no new images: its tag cannot be checked ({reason})"),
        format!("fix the cause in the description, then: kubectl berth poll {name}; the pool keeps its current image"),
    )
}

/// Returns level, impact, message and remedy for a pool's condition `BootImageSkew`.
fn of_boot_image(name: &str, reason: &str, is_true: bool) -> (Level, Impact, String, String) {
    use Impact::{ClusterCapacity, UpdateStalled};
    match reason {
        "NextImageRefused" => (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} will not adopt its next image: new machines' boot image is too old for it"),
            "install new machines from a newer boot image; if you already do, record it with bootImage.source: Manual"
                .to_owned(),
        ),
        reason if !is_true => (
            Level::Warning,
            ClusterCapacity,
            format!("It is not known whether new machines could join pool {name} ({reason})"),
            "record the boot image of new machines with bootImage.source: Manual; or correct the minimum in the image"
                .to_owned(),
        ),
        _ => (
            Level::Error,
            ClusterCapacity,
            format!("New machines could not join pool {name}: their boot image is too old"),
            "install new machines from a newer boot image before you scale the pool".to_owned(),
        ),
    }
}

/// A finding about one node, before nodes with the same finding are grouped.
struct NodeFinding<'a> {
    level: Level,
    impact: Impact,
    /// Predicate after `Node n1`, and after `7 nodes of pool workers`.
    predicate: (&'static str, &'static str),
    reason: String,
    since: Option<Timestamp>,
    description: String,
    /// Remedy that ends with a command for one node; `None` for the advice of `kubectl berth node`.
    remedy: Option<&'static str>,
    bootc: &'a BootcNode,
}

fn of_nodes(snapshot: &Snapshot, view: &PoolView, nodes: &BTreeMap<&str, &Node>, now: Timestamp) -> Vec<HealthInsight> {
    let bootcs = snapshot.bootc_nodes.iter().filter(|b| b.spec.pool_name == view.name);
    let bootcs: BTreeMap<String, &BootcNode> = bootcs.map(|bootc| (bootc.name_any(), bootc)).collect();
    // The fleet's condition AgentsHealthy reports silent agents earlier.
    let fleet = snapshot.fleet.as_ref().and_then(|fleet| fleet.status.as_ref());
    let agents = fleet.and_then(|s| condition::find(&s.conditions, of_fleets::AGENTS_HEALTHY));
    let is_silence_reported = agents.is_some_and(|c| c.status == "False");
    let mut groups: BTreeMap<(&str, String), Vec<NodeFinding<'_>>> = BTreeMap::new();
    for line in &view.nodes {
        let Some(bootc) = bootcs.get(&line.row.name) else {
            continue;
        };
        let node = nodes.get(line.row.name.as_str()).copied();
        for finding in findings_of_node(line, bootc, node, is_silence_reported, now) {
            let key = (finding.predicate.0, finding.reason.clone());
            groups.entry(key).or_default().push(finding);
        }
    }
    let groups = groups.into_values();
    groups.filter_map(|group| grouped(&view.name, &group, now)).collect()
}

/// Returns one finding for nodes with the same finding; `None` for no nodes.
fn grouped(pool: &str, group: &[NodeFinding<'_>], now: Timestamp) -> Option<HealthInsight> {
    let first = group.first()?;
    let reason = match first.reason.as_str() {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    let all: Vec<String> = group.iter().map(|t| clean(&t.bootc.name_any())).collect();
    let message = match all.as_slice() {
        [one] => format!("Node {one} {}{reason}", first.predicate.0),
        _ => format!(
            "{} nodes of pool {pool} {}{reason}: {}",
            all.len(),
            first.predicate.1,
            names(all.iter().take(NAMED), all.len())
        ),
    };
    let status = first.bootc.status.clone().unwrap_or_default();
    let mut remedy = match first.remedy {
        Some(remedy) => vec![format!("{remedy} {}", first.bootc.name_any())],
        None => advice(first.bootc, &status, now),
    };
    if all.len() > 1 {
        remedy.push("do the same for the others".to_owned());
    }
    remedy.push(format!("details: kubectl berth node {}", first.bootc.name_any()));
    Some(HealthInsight {
        level: first.level,
        impact: first.impact,
        since: group.iter().filter_map(|t| t.since).min(),
        message,
        pool: Some(pool.to_owned()),
        resources: all.iter().map(|name| format!("nodes/{name}")).collect(),
        description: first.description.clone(),
        remedy,
    })
}

/// Returns the controller's report that the pool's image lacks the node's platform.
fn unserved(conditions: &[Condition]) -> Option<&Condition> {
    let waiting = condition::find_true(conditions, of_nodes::WAITING);
    waiting.filter(|waiting| waiting.reason == Why::NoSuchPlatform.as_str())
}

fn findings_of_node<'a>(
    line: &NodeLine,
    bootc: &'a BootcNode,
    node: Option<&Node>,
    is_silence_reported: bool,
    now: Timestamp,
) -> Vec<NodeFinding<'a>> {
    let status = bootc.status.as_ref();
    let conditions = status.map(|s| s.conditions.as_slice()).unwrap_or_default();
    let mut found = Vec::new();
    if line.is(Assessment::Degraded) {
        found.extend(degraded(line, bootc, conditions));
    }
    let silent = status.filter(|s| silence(s, now).is_some());
    let off = condition::is_true(conditions, of_nodes::NODE_DEGRADED)
        || condition::is_true(conditions, of_nodes::REBOOT_TIMED_OUT);
    if let Some(status) = silent.filter(|_| !is_silence_reported && !off) {
        found.push(silent_agent(line, bootc, status));
    }
    // During a drain or a reboot a node is expected to be unavailable.
    let works = matches!(line.phase(), DRAINING | WORKING | REBOOTING);
    let remedy = (!works).then_some("check the Node and its kubelet: kubectl describe node");
    if let Some(node) = node.filter(|_| !works) {
        for (predicate, c) in serious(node, now) {
            found.push(NodeFinding {
                level: Level::Warning,
                impact: Impact::UpdateSpeed,
                predicate,
                reason: String::new(),
                since: c.last_transition_time.as_ref().map(|time| time.0),
                description: clean(&unavailable(c)),
                remedy,
                bootc,
            });
        }
    }
    let blocker = status.and_then(|s| s.drain_blockers.first());
    let blocker = blocker.filter(|b| now.as_second() - b.since.0.as_second() >= DRAIN_GRACE);
    if let Some(blocker) = blocker.filter(|_| line.phase() == DRAINING && !off) {
        found.push(NodeFinding {
            level: Level::Warning,
            impact: Impact::UpdateSpeed,
            predicate: ("cannot be drained", "cannot be drained"),
            reason: String::new(),
            since: Some(blocker.since.0),
            description: clean(&line.row.message),
            remedy,
            bootc,
        });
    }
    found
}

/// Returns the finding for a degraded node.
fn degraded<'a>(line: &NodeLine, bootc: &'a BootcNode, conditions: &[Condition]) -> Option<NodeFinding<'a>> {
    if let Some(c) = condition::find_true(conditions, of_nodes::NODE_DEGRADED) {
        let predicate = ("is degraded", "are degraded");
        return Some(NodeFinding {
            reason: clean(&c.reason),
            description: clean(&line.row.message),
            ..error(bootc, c, Impact::UpdateStalled, predicate)
        });
    }
    if let Some(c) = condition::find_true(conditions, of_nodes::REBOOT_TIMED_OUT) {
        let predicate = (
            "has not come back from its reboot",
            "have not come back from their reboots",
        );
        return Some(error(bootc, c, Impact::ClusterCapacity, predicate));
    }
    let predicate = (
        "has a platform that its pool's image does not support",
        "have platforms that its image does not support",
    );
    let c = unserved(conditions)?;
    Some(error(bootc, c, Impact::UpdateStalled, predicate))
}

/// Returns a finding with the start and the message of a condition.
fn error<'a>(
    bootc: &'a BootcNode,
    c: &Condition,
    impact: Impact,
    predicate: (&'static str, &'static str),
) -> NodeFinding<'a> {
    NodeFinding {
        level: Level::Error,
        impact,
        predicate,
        reason: String::new(),
        since: Some(c.last_transition_time.0),
        description: clean(&c.message),
        remedy: None,
        bootc,
    }
}

fn silent_agent<'a>(line: &NodeLine, bootc: &'a BootcNode, status: &BootcNodeStatus) -> NodeFinding<'a> {
    NodeFinding {
        level: Level::Warning,
        impact: Impact::UpdateStalled,
        predicate: ("has a silent agent", "have silent agents"),
        reason: String::new(),
        since: status.heartbeat_time.as_ref().map(|time| time.0),
        description: clean(&line.row.message),
        remedy: None,
        bootc,
    }
}

/// Describes a Node condition that makes the Node unavailable.
fn unavailable(c: &NodeCondition) -> String {
    let reason = c.reason.as_deref().unwrap_or_default();
    let message = c.message.as_deref().unwrap_or_default();
    format!(
        "the Node has {}={}, with reason \"{reason}\" and message \"{message}\"",
        c.type_, c.status
    )
}

/// Returns Node conditions that make it unavailable and have lasted for their grace time.
fn serious(node: &Node, now: Timestamp) -> Vec<((&'static str, &'static str), &NodeCondition)> {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let serious = conditions.filter_map(|c| {
        let (predicate, grace, well) = match c.type_.as_str() {
            "Ready" => (("is not ready", "are not ready"), NOT_READY_GRACE, "True"),
            "DiskPressure" => (("has disk pressure", "have disk pressure"), PRESSURE_GRACE, "False"),
            "NetworkUnavailable" => (("has no network", "have no network"), PRESSURE_GRACE, "False"),
            _ => return None,
        };
        let since = c.last_transition_time.as_ref().map(|time| time.0.as_second());
        let lasts = since.is_none_or(|since| now.as_second() - since >= grace);
        (c.status != well && lasts).then_some((predicate, c))
    });
    serious.collect()
}
