//! BootcFleet: switches and limits for all pools at once. There is one, named `cluster`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// Name of the one BootcFleet that counts.
pub const NAME: &str = "cluster";

/// Switches and limits for all pools at once.
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
    doc = "Switches and limits for all pools at once. There is one, named cluster.",
    printcolumn(name = "Paused", type_ = "string", json_path = ".status.conditions[?(@.type=='Paused')].status"),
    printcolumn(name = "MaxUnavailable", type_ = "string", json_path = ".spec.maxUnavailable"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Paused')].message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'cluster'")
        .message("there is one BootcFleet, and its name is cluster; write metadata.name: cluster"),
)]
#[serde(rename_all = "camelCase")]
pub struct BootcFleetSpec {
    /// While true, every pool is paused, and no node begins to pull an image. Nodes that have committed finish.
    #[serde(default)]
    pub paused: bool,
    /// Number of nodes of all pools that may be unavailable at once, beside what each pool allows: a number of at least
    /// 1, or 1% to 100% of the members of all pools, rounded down but never below 1. Nodes that are unavailable for
    /// another reason count as well. Default: each pool goes by its own `maxUnavailable` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 1000000 : string(self).matches('^([1-9][0-9]?|100)%$')")
        .message("maxUnavailable must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%"))]
    pub max_unavailable: Option<Quantity>,
}

impl BootcFleetSpec {
    /// Number of nodes that may be unavailable at once, when all pools together have so many members. `None`: the fleet has
    /// no limit of its own.
    pub fn limit(&self, members: usize) -> Option<usize> {
        self.max_unavailable.map(|most| most.rounded_down(members))
    }
}

/// State of the fleet, as the controller sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootcFleetStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Paused`.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
