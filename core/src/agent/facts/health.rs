//! Health of the running boot, as the host reports it.

use serde::{Deserialize, Serialize};

/// Health of the running boot, as the host reports it. Read in each pass of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostHealth {
    /// True while systemd starts the host's units (`SystemState` is `initializing` or `starting`).
    pub starting: bool,
    /// State of `boot-complete.target`.
    pub boot_complete: BootComplete,
    /// Names of the units that have failed or wait for an automatic restart, sorted.
    pub failed_units: Vec<String>,
    /// State of the required health checks.
    pub checks: Checks,
}

/// Health of a host before its reboot. A fault that was there before does not count against the image that boots next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthBefore {
    /// True if systemd had not finished starting.
    pub starting: bool,
    /// True if a unit wanted `boot-complete.target`, which was not reached.
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
    /// No unit of the host wants the target, so the target is never reached.
    #[default]
    Unused,
    /// A unit wants the target, which is not reached yet.
    Pending,
    /// The target is reached.
    Reached,
}

/// State of the health checks that an image builder or an admin installed on the host. Only required ones count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Checks {
    /// The checks have not all ended once under this boot.
    Running,
    /// Each check has succeeded under this boot, or the host has none.
    #[default]
    Passed,
    /// These checks have not succeeded yet: one message per check, with its path.
    Failed(Vec<String>),
}
