//! Input of a report beside the facts.

use berth_api::boot_image::NodeBootImage;
use berth_api::firstboot::NodeFirstboot;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::agent::step::Step;

/// Input of a report beside the facts.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// Generation of the spec that the facts were made from.
    pub generation: Option<i64>,
    /// The step that comes next.
    pub step: &'a Step,
    /// Version of bootc on the host, once known.
    pub bootc_version: Option<String>,
    /// Most demanding variant of its architecture that the host's CPU runs, if that is known.
    pub platform_variant: Option<&'a str>,
    /// Image that the machine was installed from; `None` if nobody has looked yet.
    pub boot_image: Option<&'a Option<NodeBootImage>>,
    /// Record of the machine's first boot, where there is one. The agent reads it at its start: who removes the file and restarts
    /// the agent has seen to what went wrong.
    pub firstboot: Option<&'a NodeFirstboot>,
    /// Changes when the agent shows that it lives.
    pub heartbeat: Time,
    /// Conditions of the BootcNode, with those that the controller writes.
    pub told: &'a [Condition],
}
