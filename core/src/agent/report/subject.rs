use berth_api::boot_image::NodeBootImage;
use berth_api::firstboot::NodeFirstboot;
use berth_api::node::BootSafeguard;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::agent::step::Step;

/// Facts about the machine that only the report shows.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Version of bootc on the host, if known.
    pub bootc_version: Option<String>,
    /// Highest variant of its architecture that the host's CPU supports, if known.
    pub platform_variant: Option<&'static str>,
    /// Guards of the host's boots; `None` until they are read.
    pub boot_safeguards: Option<Vec<BootSafeguard>>,
    /// Image that the machine was installed from, which never changes. The outer `None` means not read yet.
    pub boot_image: Option<Option<NodeBootImage>>,
    /// Record of the machine's first boot, if there is one. Read when the agent starts: to acknowledge a failure, an
    /// admin removes the file and restarts the agent.
    pub firstboot: Option<NodeFirstboot>,
}

/// Input of a report, in addition to the facts.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// Generation of the spec in the facts.
    pub generation: Option<i64>,
    /// The next step.
    pub step: &'a Step,
    /// The machine.
    pub machine: &'a Machine,
    /// Time of the agent's last heartbeat.
    pub heartbeat: Time,
    /// Conditions of the BootcNode, including the controller's.
    pub conditions: &'a [Condition],
}
