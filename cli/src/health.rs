//! Things a person should know of the fleet, its pools and its nodes: how grave, what it means for the update, since when,
//! and what to do. By the rules of `oc adm upgrade status`, and Berth's own conditions.

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

use crate::Snapshot;
use crate::insights::NodeLine;
use crate::nodes::silence;
use crate::status::{PoolView, Warning};
use crate::story::advice;
use crate::text::clean;

/// Seconds for which a Node may be NotReady before it is told.
const NOT_READY: i64 = 5 * 60;
/// Seconds for which a Node may have another trouble before it is told.
const PRESSED: i64 = 60;
/// Seconds for which a pod may keep a drain from ending before it is told.
const BLOCKED: i64 = 10 * 60;
/// Names in a message.
const NAMED: usize = 3;

/// Gravity of a finding, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Slows the update down, or may pass by itself.
    Warning,
    /// A person has to act.
    Error,
}

impl Level {
    /// The word, as it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "Info",
            Self::Warning => "Warning",
            Self::Error => "Error",
        }
    }
}

/// Meaning of a finding for the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Impact {
    /// Nothing is kept from going on.
    None,
    /// The update takes longer.
    #[serde(rename = "Update Speed")]
    UpdateSpeed,
    /// The update does not go on, as a whole or on some nodes.
    #[serde(rename = "Update Stalled")]
    UpdateStalled,
    /// Nodes are missing, or cannot be added.
    #[serde(rename = "Cluster Capacity")]
    ClusterCapacity,
    /// Nobody can tell.
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

/// A finding that a person should know of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthInsight {
    /// Gravity.
    pub level: Level,
    /// Meaning for the update and the cluster.
    pub impact: Impact,
    /// Time since when it is so, where that is known; of several nodes, the earliest.
    pub since: Option<Timestamp>,
    /// One line.
    pub message: String,
    /// Pool that it belongs to; absent for one of the whole fleet.
    pub pool: Option<String>,
    /// Objects that have it, as `nodes/n1`.
    pub resources: Vec<String>,
    /// The reason, and the words of whoever saw it.
    pub description: String,
    /// Steps that help.
    pub remedy: Vec<String>,
}

/// The gravest first, and of these the newest.
pub(crate) fn sort(health: &mut [HealthInsight]) {
    health.sort_by(|a, b| (b.level, b.since, &a.message).cmp(&(a.level, a.since, &b.message)));
}

/// Findings about the whole fleet.
pub(crate) fn of_fleet(snapshot: &Snapshot) -> Vec<HealthInsight> {
    let conditions = snapshot.fleet.iter().flat_map(|fleet| fleet.status.iter());
    let conditions = conditions.flat_map(|status| &status.conditions);
    let told = conditions.filter(|c| {
        // Each pool's own condition says what keeps its images away.
        let told_elsewhere = [of_fleets::UPDATING, of_fleets::PAUSED, of_fleets::FEEDS_HEALTHY];
        !told_elsewhere.contains(&c.type_.as_str()) && c.status == "False"
    });
    told.map(|condition| {
        let (message, impact, remedy) = match condition.type_.as_str() {
            of_fleets::CONTROLLER_HEALTHY => (
                "The controller cannot read all that it works with",
                Impact::UpdateStalled,
                "mend the objects that are named; kubectl logs -n berth-system deployment/berth-controller says more",
            ),
            of_fleets::AGENTS_HEALTHY => (
                "Agents were not heard of for long",
                Impact::UpdateStalled,
                "look at the nodes that are named: kubectl get pods -n berth-system -o wide",
            ),
            of_fleets::REGISTRY_REACHABLE => (
                "A registry does not answer",
                Impact::UpdateStalled,
                "repair it, or the way to it; the images in force stay, and it is asked again",
            ),
            of_fleets::GUARDED => (
                "Agents may write what belongs to other nodes, so they take no berth",
                Impact::UpdateStalled,
                "apply the admission policies of manifests/ again",
            ),
            of_fleets::BOOTSTRAP_HEALTHY if condition.reason == Why::MachinesHeld.as_str() => (
                "Machines are held back on their first boot, and have not joined",
                Impact::ClusterCapacity,
                "install them from a newer boot image (docs/boot-images.md); or, if one is gone: kubectl berth dismiss MACHINE",
            ),
            of_fleets::BOOTSTRAP_HEALTHY if condition.reason == Why::EventsUnreadable.as_str() => (
                "Nobody knows whether machines are held back on their first boot",
                Impact::Unknown,
                "apply the controller's role of this version again, if the description says that it is forbidden",
            ),
            of_fleets::BOOTSTRAP_HEALTHY => (
                "Machines went wrong on their first boot",
                Impact::ClusterCapacity,
                "status.firstboot of the named nodes says how; docs/boot-images.md has what to do",
            ),
            other => (other, Impact::Unknown, "do what the description says"),
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

/// Findings about a pool and its nodes.
pub(crate) fn of_pool(
    snapshot: &Snapshot,
    pool: &BootcNodePool,
    view: &PoolView,
    nodes: &BTreeMap<&str, &Node>,
    now: Timestamp,
) -> Vec<HealthInsight> {
    let mut found = of_nodes(snapshot, view, nodes, now);
    let told = found.iter().any(|f| f.level == Level::Error);
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
        // What is wrong with the nodes is told of them.
        if warning.type_ == of_pools::DEGRADED && told {
            continue;
        }
        found.push(insight(of_condition(pool, view, warning), warning));
    }
    // The controller may not have seen the pause yet.
    let paused_here = view.warnings.iter().any(|w| w.type_ == of_pools::PAUSED);
    if view.counts.excluded > 0 && !paused_here {
        let by = Warning::told("Paused", "the pool or the fleet is paused");
        found.push(insight(paused(pool, name), &by));
    }
    if let Some(first) = view.berths.unreadable.first() {
        let message = match view.berths.unreadable.len() {
            1 => format!("A berth of pool {name} cannot be read"),
            more => format!("{more} berths of pool {name} cannot be read"),
        };
        let remedy = "restore the Lease, or delete it when no node holds it".to_owned();
        let broken = (Level::Error, Impact::UpdateStalled, message, remedy);
        found.push(insight(broken, &Warning::told("Unreadable", first)));
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
        true => format!("when it should go on: kubectl berth resume {name}"),
        false => "when it should go on: kubectl berth resume --all; or repair BootcFleet cluster, if it cannot be read"
            .to_owned(),
    };
    let message = format!("Outdated nodes in a paused pool '{name}' will not be updated");
    (Level::Warning, Impact::UpdateStalled, message, remedy)
}

/// True if the tag can be looked at, and the image that it points to is refused for this reason.
fn is_refusal(reason: &str) -> bool {
    [Why::NoSuchPlatform, Why::BootImageSkew]
        .iter()
        .any(|refusal| refusal.as_str() == reason)
}

/// True if the failure mostly passes without a person.
fn is_passing(reason: &str) -> bool {
    ResolveReason::from_word(reason).is_some_and(ResolveReason::is_passing)
}

/// Level, impact, message and remedy of a pool's condition.
fn of_condition(pool: &BootcNodePool, view: &PoolView, warning: &Warning) -> (Level, Impact, String, String) {
    use Impact::{ClusterCapacity, None, Unknown, UpdateSpeed, UpdateStalled};
    let name = &view.name;
    let (level, impact, message, remedy) = match (warning.type_.as_str(), warning.reason.as_str()) {
        (of_pools::PAUSED, _) if view.counts.excluded > 0 => return paused(pool, name),
        (of_pools::PAUSED, _) => (
            Level::Info,
            None,
            format!("Pool {name} is paused, and has nothing to do"),
            "nothing".to_owned(),
        ),
        (of_pools::IMAGE_RESOLVED, "ImageAvailable") => (
            Level::Info,
            None,
            format!("Another image is available for pool {name}"),
            format!("if it should be adopted: kubectl berth approve {name}"),
        ),
        (of_pools::IMAGE_RESOLVED, "MinimumAge" | "Resolving") => (
            Level::Info,
            None,
            format!("The image of pool {name} is looked at ({})", warning.reason),
            "nothing".to_owned(),
        ),
        (of_pools::FEED_FAILING, reason) if is_refusal(reason) => (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} does not adopt the image that its tag points to ({reason})"),
            "do what the description says, or publish another image; the image in force stays".to_owned(),
        ),
        (of_pools::FEED_FAILING, reason) => (
            if is_passing(reason) {
                Level::Warning
            } else {
                Level::Error
            },
            UpdateStalled,
            format!("No new image reaches pool {name}: its tag cannot be looked at ({reason})"),
            format!("fix what the description names, then: kubectl berth poll {name}; the image in force stays"),
        ),
        (of_pools::IMAGE_RESOLVED, reason) if warning.status == "True" && is_refusal(reason) => (
            Level::Warning,
            UpdateStalled,
            format!("Pool {name} does not adopt the image that its tag points to ({reason})"),
            "do what the description says, or publish another image; the image in force stays".to_owned(),
        ),
        (of_pools::IMAGE_RESOLVED, reason) if warning.status == "True" => (
            Level::Warning,
            UpdateSpeed,
            format!("The tag of pool {name} cannot be looked at ({reason}); its image in force stays"),
            "fix what the description names; the registry is asked again".to_owned(),
        ),
        (of_pools::IMAGE_RESOLVED, reason) => (
            Level::Error,
            UpdateStalled,
            format!("The image of pool {name} is not resolved ({reason})"),
            format!("mend what the description names, then: kubectl berth poll {name}"),
        ),
        (of_pools::ROLLOUT_HALTED, _) => (
            Level::Error,
            UpdateStalled,
            format!("The rollout of pool {name} is halted: its image failed on too many nodes"),
            format!("publish a better image; or mend the cause, and: kubectl berth retry {name}"),
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
            format!("Nodes of pool {name} are selected by another pool as well, so that no pool has them"),
            "change the nodeSelector of all pools but one".to_owned(),
        ),
        (of_pools::BOOT_IMAGE_SKEW, "NextImageRefused") => (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} is closed to its next image: new machines could not join with their boot image"),
            "install new machines from a newer boot image, or record it with bootImage.source: Manual".to_owned(),
        ),
        (of_pools::BOOT_IMAGE_SKEW, _) if warning.status != "True" => (
            Level::Warning,
            ClusterCapacity,
            format!(
                "It is not known whether new machines could join pool {name} ({})",
                warning.reason
            ),
            "record what new machines are installed from, with bootImage.source: Manual; or correct the image's limit"
                .to_owned(),
        ),
        (of_pools::BOOT_IMAGE_SKEW, _) => (
            Level::Error,
            ClusterCapacity,
            format!("New machines could not join pool {name}: their boot image is too old"),
            "install new machines from a newer boot image, before the pool is scaled".to_owned(),
        ),
        (of_pools::DEGRADED, reason) => (
            Level::Error,
            UpdateStalled,
            format!("Pool {name} is degraded ({reason})"),
            "do what the description says".to_owned(),
        ),
        (Warning::UNREAD, _) => (
            Level::Warning,
            UpdateStalled,
            format!("The controller has not read the last change of pool {name} yet"),
            "if it stays, look at the controller: kubectl get pods,leases -n berth-system".to_owned(),
        ),
        (other, reason) => (
            Level::Warning,
            Unknown,
            format!("Pool {name}: {other} ({reason})"),
            "do what the description says".to_owned(),
        ),
    };
    (level, impact, message, remedy)
}

/// One node's trouble, before those that have the same are told together.
struct Trouble<'a> {
    level: Level,
    impact: Impact,
    /// The message behind `Node n1` and behind `7 nodes of pool workers`.
    says: (&'static str, &'static str),
    reason: String,
    since: Option<Timestamp>,
    description: String,
    /// Remedy, where the node's own story does not say it.
    remedy: Option<&'static str>,
    host: &'a BootcNode,
}

fn of_nodes(snapshot: &Snapshot, view: &PoolView, nodes: &BTreeMap<&str, &Node>, now: Timestamp) -> Vec<HealthInsight> {
    let hosts = snapshot.bootc_nodes.iter().filter(|h| h.spec.pool_name == view.name);
    let hosts: BTreeMap<String, &BootcNode> = hosts.map(|host| (host.name_any(), host)).collect();
    // The fleet's own condition names them sooner.
    let fleet = snapshot.fleet.as_ref().and_then(|fleet| fleet.status.as_ref());
    let agents = fleet.and_then(|s| condition::find(&s.conditions, of_fleets::AGENTS_HEALTHY));
    let agents_told = agents.is_some_and(|c| c.status == "False");
    let mut groups: BTreeMap<(&str, String), Vec<Trouble<'_>>> = BTreeMap::new();
    for line in &view.nodes {
        let Some(host) = hosts.get(&line.row.name) else {
            continue;
        };
        let node = nodes.get(line.row.name.as_str()).copied();
        for trouble in troubles(line, host, node, agents_told, now) {
            let key = (trouble.says.0, trouble.reason.clone());
            groups.entry(key).or_default().push(trouble);
        }
    }
    let groups = groups.into_values();
    groups.filter_map(|group| together(&view.name, &group, now)).collect()
}

/// The finding for nodes that have the same trouble.
fn together(pool: &str, group: &[Trouble<'_>], now: Timestamp) -> Option<HealthInsight> {
    let first = group.first()?;
    let reason = match first.reason.as_str() {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    let all: Vec<String> = group.iter().map(|t| clean(&t.host.name_any())).collect();
    let message = match all.as_slice() {
        [one] => format!("Node {one} {}{reason}", first.says.0),
        _ => format!(
            "{} nodes of pool {pool} {}{reason}: {}",
            all.len(),
            first.says.1,
            names(all.iter().take(NAMED), all.len())
        ),
    };
    let status = first.host.status.clone().unwrap_or_default();
    let mut remedy = match first.remedy {
        Some(remedy) => vec![remedy.to_owned()],
        None => advice(first.host, &status, now),
    };
    if all.len() > 1 {
        remedy.push("the same for the others".to_owned());
    }
    remedy.push(format!("the whole story: kubectl berth node {}", first.host.name_any()));
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

/// The controller's word that the pool's image has nothing for the node's platform.
fn unserved(conditions: &[Condition]) -> Option<&Condition> {
    let waiting = condition::find_true(conditions, of_nodes::WAITING);
    waiting.filter(|waiting| waiting.reason == Why::NoSuchPlatform.as_str())
}

fn troubles<'a>(
    line: &NodeLine,
    host: &'a BootcNode,
    node: Option<&Node>,
    agents_told: bool,
    now: Timestamp,
) -> Vec<Trouble<'a>> {
    let mut found = Vec::new();
    let mut tell = |level, impact, says, reason: &str, since: Option<Timestamp>, description: &str| {
        found.push(Trouble {
            level,
            impact,
            says,
            reason: clean(reason),
            since,
            description: clean(description),
            remedy: None,
            host,
        });
    };
    let status = host.status.as_ref();
    let conditions = status.map(|s| s.conditions.as_slice()).unwrap_or_default();
    if line.is(Assessment::Degraded) {
        if let Some(c) = condition::find_true(conditions, of_nodes::NODE_DEGRADED) {
            let says = ("is degraded", "are degraded");
            let since = Some(c.last_transition_time.0);
            tell(
                Level::Error,
                Impact::UpdateStalled,
                says,
                &c.reason,
                since,
                &line.row.message,
            );
        } else if let Some(c) = condition::find_true(conditions, of_nodes::REBOOT_TIMED_OUT) {
            let says = (
                "does not come back from its reboot",
                "do not come back from their reboots",
            );
            let since = Some(c.last_transition_time.0);
            tell(Level::Error, Impact::ClusterCapacity, says, "", since, &c.message);
        } else if let Some(c) = unserved(conditions) {
            let says = (
                "is of a platform that the image of its pool lacks",
                "are of platforms that its image lacks",
            );
            let since = Some(c.last_transition_time.0);
            tell(Level::Error, Impact::UpdateStalled, says, "", since, &c.message);
        }
    }
    let silent = status.filter(|s| silence(s, now).is_some());
    let is_true = |type_| condition::is_true(conditions, type_);
    let off = is_true(of_nodes::NODE_DEGRADED) || is_true(of_nodes::REBOOT_TIMED_OUT);
    if let Some(status) = silent.filter(|_| !agents_told && !off) {
        let since = status.heartbeat_time.as_ref().map(|time| time.0);
        let says = ("has an agent that is silent", "have agents that are silent");
        tell(
            Level::Warning,
            Impact::UpdateStalled,
            says,
            "",
            since,
            &line.row.message,
        );
    }
    // A drain or a reboot makes a node unavailable, and is meant to.
    let works = matches!(line.phase(), DRAINING | WORKING | REBOOTING);
    for (says, c) in node.filter(|_| !works).iter().flat_map(|node| serious(node, now)) {
        let since = c.last_transition_time.as_ref().map(|time| time.0);
        let words = [c.reason.as_deref(), c.message.as_deref()].map(Option::unwrap_or_default);
        let [reason, message] = words;
        let description = format!(
            "the Node has {}={}, with reason \"{reason}\" and message \"{message}\"",
            c.type_, c.status
        );
        tell(Level::Warning, Impact::UpdateSpeed, says, "", since, &description);
    }
    let blocker = status.and_then(|s| s.drain_blockers.first());
    let blocker = blocker.filter(|b| now.as_second() - b.since.0.as_second() >= BLOCKED);
    if let Some(blocker) = blocker.filter(|_| line.phase() == DRAINING && !off) {
        let says = ("cannot be drained", "cannot be drained");
        let since = Some(blocker.since.0);
        tell(Level::Warning, Impact::UpdateSpeed, says, "", since, &line.row.message);
    }
    let kubelet = "look at the Node and its kubelet: kubectl describe node";
    for trouble in found.iter_mut().filter(|t| t.impact == Impact::UpdateSpeed) {
        trouble.remedy = (!works).then_some(kubelet);
    }
    found
}

/// Conditions that make a Node unavailable, once they have lasted.
fn serious(node: &Node, now: Timestamp) -> Vec<((&'static str, &'static str), &NodeCondition)> {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let serious = conditions.filter_map(|c| {
        let (says, after, well) = match c.type_.as_str() {
            "Ready" => (("is not ready", "are not ready"), NOT_READY, "True"),
            "DiskPressure" => (("has disk pressure", "have disk pressure"), PRESSED, "False"),
            "NetworkUnavailable" => (
                ("has unavailable network", "have unavailable network"),
                PRESSED,
                "False",
            ),
            _ => return None,
        };
        let since = c.last_transition_time.as_ref().map(|time| time.0.as_second());
        let lasts = since.is_none_or(|since| now.as_second() - since >= after);
        (c.status != well && lasts).then_some((says, c))
    });
    serious.collect()
}
