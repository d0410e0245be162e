//! BootcFleet: switches for all pools at once. There is one, named `cluster`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Name of the one BootcFleet that counts.
pub const NAME: &str = "cluster";

/// Switches for all pools at once.
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
    doc = "Switches for all pools at once. There is one, named cluster.",
    printcolumn(name = "Paused", type_ = "string", json_path = ".status.conditions[?(@.type=='Paused')].status"),
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
