//! BootcFleet: switches and limits for all pools. There is only one, named `cluster`.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool::image::{POLL_INTERVAL_MESSAGE, POLL_INTERVAL_RULE, PULL_SECRET_MESSAGE, PULL_SECRET_RULE};
use crate::pool::{BootcNodePoolSpec, DEFAULT_POLL_INTERVAL};
use crate::quantity::Quantity;
use crate::{Written, duration};

/// Name of the only BootcFleet that takes effect.
pub const NAME: &str = "cluster";

/// Schema rule for prefixes of image references: a registry, which may be followed by whole path segments.
const PREFIX_RULE: &str = r"self.all(p, p.matches('^([A-Za-z0-9-]+([.][A-Za-z0-9-]+)+(:[0-9]+)?|[A-Za-z0-9-]+:[0-9]+|localhost)(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*/?$'))";

/// Switches and limits for all pools.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "BootcFleet",
    plural = "bootcfleets",
    shortname = "bf",
    status = "BootcFleetStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Switches and limits for all pools. There is only one, named cluster.",
    printcolumn(name = "Updating", type_ = "string", json_path = ".status.conditions[?(@.type=='Updating')].status"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.total"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.nodes.updated"),
    printcolumn(name = "Degraded", type_ = "integer", json_path = ".status.nodes.degraded"),
    printcolumn(name = "Paused", type_ = "string", json_path = ".status.conditions[?(@.type=='Paused')].status"),
    printcolumn(name = "Agents", type_ = "string", json_path = ".status.conditions[?(@.type=='AgentsHealthy')].status"),
    printcolumn(name = "Registry", type_ = "string", json_path = ".status.conditions[?(@.type=='RegistryReachable')].status"),
    printcolumn(name = "Guarded", type_ = "string", json_path = ".status.conditions[?(@.type=='Guarded')].status"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Updating')].message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'cluster'")
        .message("the only BootcFleet must be named cluster; write metadata.name: cluster"),
)]
#[serde(rename_all = "camelCase")]
pub struct BootcFleetSpec {
    /// If true, every pool is paused, and no node begins to pull an image. A node that has not committed to its reboot
    /// gives its berth back; a node that has committed finishes its update.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Maximum number of nodes of all pools that may be unavailable at once: a number of at least 1, or a percentage
    /// from 1% to 100% of the members of all pools. A percentage is rounded down, but to at least 1 node. The limit of
    /// each pool applies too. Nodes that are unavailable for other reasons also count. Default: no limit beyond each
    /// pool's `maxUnavailable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 1000000 : string(self).matches('^([1-9][0-9]?|100)%$')")
        .message("maxUnavailable must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%"))]
    pub max_unavailable: Option<Quantity>,
    /// Image settings for pools that do not set their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<FleetImage>,
    /// Allowed prefixes of image references, compared by whole path segments: `quay.io/example` allows
    /// `quay.io/example/os` but not `quay.io/example2/os`. A pool whose reference has none of these prefixes keeps its
    /// current image. Default: all registries are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    #[x_kube(merge_strategy = ListMerge::Set, validation = Rule::new(PREFIX_RULE)
        .message("each entry of allowedRegistries must be the beginning of an image reference, without scheme, tag, digest or wildcard, such as quay.io/example or registry.example.com:5000"))]
    pub allowed_registries: Vec<String>,
}

/// Image settings for pools that do not set their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetImage {
    /// Time between two polls of a tag, for pools that do not set `image.pollInterval`: at least `1m`, or `0` to turn
    /// polling off. Default 12h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(POLL_INTERVAL_RULE).message(POLL_INTERVAL_MESSAGE))]
    pub poll_interval: Option<Written<Duration>>,
    /// Name of a Secret of type `kubernetes.io/dockerconfigjson` in the controller's namespace, for pools that do not
    /// set `image.pullSecret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(PULL_SECRET_RULE).message(PULL_SECRET_MESSAGE))]
    pub pull_secret: Option<String>,
}

impl BootcFleetSpec {
    /// `image.pollInterval`, or its default.
    pub fn poll_interval(&self) -> Duration {
        let written = self.image.as_ref().and_then(|i| i.poll_interval.as_ref());
        duration::or(written, DEFAULT_POLL_INTERVAL)
    }

    /// Name of the Secret with the credentials for a pool's image: set in the pool, otherwise in the fleet.
    pub fn pull_secret<'a>(&'a self, pool: &'a BootcNodePoolSpec) -> Option<&'a str> {
        let own = pool.image.as_ref().and_then(|image| image.pull_secret.as_deref());
        own.or_else(|| self.image.as_ref()?.pull_secret.as_deref())
    }

    /// Maximum number of nodes that may be unavailable at once, given the number of members of all pools. `None`: the
    /// fleet sets no limit.
    pub fn limit(&self, members: usize) -> Option<usize> {
        self.max_unavailable.map(|most| most.rounded_down(members))
    }
}

/// Maximum number of pools listed in the status.
pub const MAX_POOLS: usize = 64;

/// Node counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FleetNodes {
    /// Number of members.
    pub total: u32,
    /// Members that run the target of their pool.
    pub updated: u32,
    /// Members that are degraded.
    pub degraded: u32,
    /// Members that are not Ready or not schedulable.
    pub unavailable: u32,
}

impl std::iter::Sum for FleetNodes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            total: sum.total.saturating_add(one.total),
            updated: sum.updated.saturating_add(one.updated),
            degraded: sum.degraded.saturating_add(one.degraded),
            unavailable: sum.unavailable.saturating_add(one.unavailable),
        })
    }
}

/// Maximum number of held machines listed in the status.
pub const MAX_HELD: usize = 64;

/// Summary of one pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSummary {
    /// Name of the pool.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Member counts of the pool.
    #[serde(default)]
    pub nodes: FleetNodes,
    /// Reason of the pool's condition `Ready`.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub state: String,
}

/// A machine that is held back on its first boot and has not become a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldMachine {
    /// Name of the Node that the machine would become.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The machine's report: the image that it was installed from, and the limit that it exceeds.
    #[serde(default)]
    #[schemars(length(max = 1100))]
    pub message: String,
    /// Time of the machine's last report, by the API server's clock.
    pub last_time: Time,
}

/// A machine that was held back on its first boot and became a node later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinedMachine {
    /// Name of the Node.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Time of the last report that the machine was held back, by the API server's clock. If the Node no longer exists,
    /// a later report makes the machine count as held back again.
    pub last_time: Time,
}

/// State of the fleet, as the controller sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootcFleetStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Member counts over all pools.
    #[serde(default)]
    pub nodes: FleetNodes,
    /// The pools, sorted by name; the first 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pools: Vec<PoolSummary>,
    /// Machines that are held back on their first boot, sorted by name; the first 64. Each machine is listed until it
    /// becomes a node or an admin dismisses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub held_machines: Vec<HeldMachine>,
    /// Machines that were held back and became nodes, sorted by name; the first 64. Each machine is listed until the
    /// API server deletes the machine's event. If the Node is deleted earlier, this entry keeps the old event from
    /// counting as a new report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub joined_machines: Vec<JoinedMachine>,
    /// Conditions of the fleet: `Updating`, `Paused`, `ControllerHealthy`, `AgentsHealthy`, `RegistryReachable`,
    /// `FeedsHealthy`, `Guarded`, `BootstrapHealthy`.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
