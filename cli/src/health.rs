//! Health findings about the fleet, its pools and its nodes: severity, impact on the update, start and remedy. They follow
//! the rules of `oc adm upgrade status` and Berth's own conditions.

use std::collections::BTreeMap;
use std::fmt;

use berth_api::condition::{self, Why, fleet as of_fleets, node as of_nodes, pool as of_pools};
use berth_api::insight::conditions::{DRAINING, REBOOTING, WORKING};
use berth_api::node::BootcNode;
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
        let (message, impact, remedy) = match condition.type_.as_str() {
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
        };
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
    let insight = |(level, impact, message, remedy): (Level, Impact, String, String), c: &Warning| HealthInsight {
        level,
        impact,
        since: c.since,
        message,
        pool: Some(name.clone()),
        resources: vec![format!("bootcnodepools/{name}")],
        description: described(c),
        remedy: vec![remedy],
    };
    for warning in &view.warnings {
        // Findings about the nodes already report why.
        if warning.type_ == of_pools::DEGRADED && has_node_errors {
            continue;
        }
        found.push(insight(of_condition(pool, view, warning), warning));
    }
    // The controller may not have seen the pause yet.
    let paused_here = view.warnings.iter().any(|w| w.type_ == of_pools::PAUSED);
    if view.counts.excluded > 0 && !paused_here {
        let by = Warning::finding("Paused", "the pool or the fleet is paused");
        found.push(insight(paused(pool, name), &by));
    }
    if let Some(first) = view.berths.unreadable.first() {
        let message = match view.berths.unreadable.len() {
            1 => format!("A berth of pool {name} cannot be read"),
            more => format!("{more} berths of pool {name} cannot be read"),
        };
        let remedy = "restore the Lease, or delete it if no node holds it".to_owned();
        let broken = (Level::Error, Impact::UpdateStalled, message, remedy);
        found.push(insight(broken, &Warning::finding("Unreadable", first)));
    }
    found
}

fn described(warning: &Warning) -> String {
    let parts = [&warning.reason, &warning.message];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.map(String::as_str).collect::<Vec<_>>().join(": ")
}

fn paused(pool: &BootcNodePool, name: &str) -> (Level, Impact, String, String) {
    let remedy = match pool.spec.is_paused() {
        true => format!("to resume: kubectl berth resume {name}"),
        false => "to resume: kubectl berth resume --all; if BootcFleet cluster cannot be read, repair it".to_owned(),
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
    use Impact::{ClusterCapacity, None, Unknown, UpdateSpeed, UpdateStalled};
    let name = &view.name;
    let (level, impact, message, remedy) = match (warning.type_.as_str(), warning.reason.as_str()) {
        (of_pools::PAUSED, _) if view.counts.excluded > 0 => return paused(pool, name),
        (of_pools::PAUSED, _) => (
            Level::Info,
            None,
            format!("Pool {name} is paused, but no node needs an update"),
            "nothing to do".to_owned(),
        ),
        (of_pools::IMAGE_RESOLVED, "ImageAvailable") => (
            Level::Info,
            None,
            format!("Another image is available for pool {name}"),
            format!("to adopt it: kubectl berth approve {name}"),
        ),
        (of_pools::IMAGE_RESOLVED, "MinimumAge" | "Resolving") => (
            Level::Info,
            None,
            format!("The image of pool {name} is being checked ({})", warning.reason),
            "nothing to do".to_owned(),
        ),
        (of_pools::FEED_FAILING, reason) if is_refusal(reason) => (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} does not adopt the image that its tag points to ({reason})"),
            "follow the description, or publish another image; the pool keeps its current image".to_owned(),
        ),
        (of_pools::FEED_FAILING, reason) => (
            if is_passing(reason) {
                Level::Warning
            } else {
                Level::Error
            },
            UpdateStalled,
            format!("Pool {name} gets no new images: its tag cannot be checked ({reason})"),
            format!(
                "fix the cause in the description, then: kubectl berth poll {name}; the pool keeps its current image"
            ),
        ),
        (of_pools::IMAGE_RESOLVED, reason) if warning.status == "True" && is_refusal(reason) => (
            Level::Warning,
            UpdateStalled,
            format!("Pool {name} does not adopt the image that its tag points to ({reason})"),
            "follow the description, or publish another image; the pool keeps its current image".to_owned(),
        ),
        (of_pools::IMAGE_RESOLVED, reason) if warning.status == "True" => (
            Level::Warning,
            UpdateSpeed,
            format!("The tag of pool {name} cannot be checked ({reason}); the pool keeps its current image"),
            "fix the cause in the description; Berth asks the registry again".to_owned(),
        ),
        (of_pools::IMAGE_RESOLVED, reason) => (
            Level::Error,
            UpdateStalled,
            format!("The image of pool {name} is not resolved ({reason})"),
            format!("fix the cause in the description, then: kubectl berth poll {name}"),
        ),
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
        (of_pools::BOOT_IMAGE_SKEW, "NextImageRefused") => (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} will not adopt its next image: new machines' boot image is too old for it"),
            "install new machines from a newer boot image; if you already do, record it with bootImage.source: Manual"
                .to_owned(),
        ),
        (of_pools::BOOT_IMAGE_SKEW, _) if warning.status != "True" => (
            Level::Warning,
            ClusterCapacity,
            format!(
                "It is not known whether new machines could join pool {name} ({})",
                warning.reason
            ),
            "record the boot image of new machines with bootImage.source: Manual; or correct the minimum in the image"
                .to_owned(),
        ),
        (of_pools::BOOT_IMAGE_SKEW, _) => (
            Level::Error,
            ClusterCapacity,
            format!("New machines could not join pool {name}: their boot image is too old"),
            "install new machines from a newer boot image before you scale the pool".to_owned(),
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
    };
    (level, impact, message, remedy)
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
    let mut found = Vec::new();
    let mut report = |level, impact, predicate, reason: &str, since: Option<Timestamp>, description: &str| {
        found.push(NodeFinding {
            level,
            impact,
            predicate,
            reason: clean(reason),
            since,
            description: clean(description),
            remedy: None,
            bootc,
        });
    };
    let status = bootc.status.as_ref();
    let conditions = status.map(|s| s.conditions.as_slice()).unwrap_or_default();
    if line.is(Assessment::Degraded) {
        if let Some(c) = condition::find_true(conditions, of_nodes::NODE_DEGRADED) {
            let predicate = ("is degraded", "are degraded");
            let since = Some(c.last_transition_time.0);
            report(
                Level::Error,
                Impact::UpdateStalled,
                predicate,
                &c.reason,
                since,
                &line.row.message,
            );
        } else if let Some(c) = condition::find_true(conditions, of_nodes::REBOOT_TIMED_OUT) {
            let predicate = (
                "has not come back from its reboot",
                "have not come back from their reboots",
            );
            let since = Some(c.last_transition_time.0);
            report(Level::Error, Impact::ClusterCapacity, predicate, "", since, &c.message);
        } else if let Some(c) = unserved(conditions) {
            let predicate = (
                "has a platform that its pool's image does not support",
                "have platforms that its image does not support",
            );
            let since = Some(c.last_transition_time.0);
            report(Level::Error, Impact::UpdateStalled, predicate, "", since, &c.message);
        }
    }
    let silent = status.filter(|s| silence(s, now).is_some());
    let is_true = |type_| condition::is_true(conditions, type_);
    let off = is_true(of_nodes::NODE_DEGRADED) || is_true(of_nodes::REBOOT_TIMED_OUT);
    if let Some(status) = silent.filter(|_| !is_silence_reported && !off) {
        let since = status.heartbeat_time.as_ref().map(|time| time.0);
        let predicate = ("has a silent agent", "have silent agents");
        report(
            Level::Warning,
            Impact::UpdateStalled,
            predicate,
            "",
            since,
            &line.row.message,
        );
    }
    // During a drain or a reboot a node is expected to be unavailable.
    let works = matches!(line.phase(), DRAINING | WORKING | REBOOTING);
    for (predicate, c) in node.filter(|_| !works).iter().flat_map(|node| serious(node, now)) {
        let since = c.last_transition_time.as_ref().map(|time| time.0);
        let words = [c.reason.as_deref(), c.message.as_deref()].map(Option::unwrap_or_default);
        let [reason, message] = words;
        let description = format!(
            "the Node has {}={}, with reason \"{reason}\" and message \"{message}\"",
            c.type_, c.status
        );
        report(Level::Warning, Impact::UpdateSpeed, predicate, "", since, &description);
    }
    let blocker = status.and_then(|s| s.drain_blockers.first());
    let blocker = blocker.filter(|b| now.as_second() - b.since.0.as_second() >= DRAIN_GRACE);
    if let Some(blocker) = blocker.filter(|_| line.phase() == DRAINING && !off) {
        let predicate = ("cannot be drained", "cannot be drained");
        let since = Some(blocker.since.0);
        report(
            Level::Warning,
            Impact::UpdateSpeed,
            predicate,
            "",
            since,
            &line.row.message,
        );
    }
    let kubelet = "check the Node and its kubelet: kubectl describe node";
    for finding in found.iter_mut().filter(|t| t.impact == Impact::UpdateSpeed) {
        finding.remedy = (!works).then_some(kubelet);
    }
    found
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
