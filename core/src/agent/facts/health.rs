//! Health of the running boot, as the host reports it.

use serde::{Deserialize, Serialize};

/// Health of the running boot, as the host reports it. During a turn, the agent reads it in each pass of its loop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostHealth {
    /// True while systemd still starts the host's units: its `SystemState` is `initializing` or `starting`.
    pub starting: bool,
    /// State of `boot-complete.target`.
    pub boot_complete: BootComplete,
    /// Names of the units that have failed or wait for an automatic restart, sorted.
    pub failed_units: Vec<String>,
    /// State of the required health checks.
    pub checks: Checks,
}

/// Health of a host before the reboot of its turn. A fault that existed before the reboot does not count against the
/// new image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthBefore {
    /// True if systemd had not finished starting.
    pub starting: bool,
    /// True if some unit wanted `boot-complete.target`, but the target had not been reached.
    pub boot_incomplete: bool,
    /// Names of the failed units, sorted.
    pub failed_units: Vec<String>,
}

impl From<&HostHealth> for HealthBefore {
    fn from(health: &HostHealth) -> Self {
        Self {
            starting: health.starting,
            boot_incomplete: health.boot_complete == BootComplete::Pending,
            failed_units: health.failed_units.clone(),
        }
    }
}

/// State of `boot-complete.target`, which systemd reaches when the units that judge a boot have succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BootComplete {
    /// No unit of the host wants the target, so systemd never starts it.
    #[default]
    Unused,
    /// A unit wants the target, but systemd has not reached it yet.
    Pending,
    /// The target is reached.
    Reached,
}

/// Results of the health checks that an image builder or an admin installed on the host. Only required checks count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Checks {
    /// At least one check has not finished in this boot.
    Running,
    /// Every check has succeeded in this boot, or the host has no checks.
    #[default]
    Passed,
    /// At least one required check failed at its last run: one message per failed check, with its path.
    Failed(Vec<String>),
}
