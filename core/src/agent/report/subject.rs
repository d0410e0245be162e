use berth_api::boot_image::NodeBootImage;
use berth_api::firstboot::NodeFirstboot;
use berth_api::node::BootSafeguard;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::agent::step::Step;

/// Facts about the machine that appear in the status but do not affect the agent's decisions.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Version of bootc on the host, if known.
    pub bootc_version: Option<String>,
    /// Highest platform variant that the machine's CPUs support, such as `v3`, if known.
    pub platform_variant: Option<&'static str>,
    /// Boot safeguards of the host, such as greenboot; `None` until the agent has read them.
    pub boot_safeguards: Option<Vec<BootSafeguard>>,
    /// The rollback guard's unit on the host; `None` until the agent has looked.
    pub guard_unit: Option<GuardUnit>,
    /// Image that the machine was installed from, which never changes. The outer `None` means that the agent has not
    /// read it yet, the inner `None` that the host has no record of it.
    pub boot_image: Option<Option<NodeBootImage>>,
    /// Record of the machine's first-boot check, if there was one. The agent reads the record only when it starts.
    /// After fixing a failure, an admin removes the file of the record and restarts the agent.
    pub firstboot: Option<NodeFirstboot>,
}

/// The rollback guard's unit on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardUnit {
    /// The host's image has the unit.
    InImage,
    /// The agent has installed the unit in the host's `/etc`.
    Installed,
    /// The host lacks the unit. Holds why the agent could not install it.
    Missing(String),
}

/// Input of a status report, in addition to the facts.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// Generation of the BootcNode's spec that the facts are based on.
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
