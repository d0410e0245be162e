//! Health of the running boot, as the host reports it.

/// Health of the running boot, as the host reports it. Read in each pass of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostHealth {
    /// State of `boot-complete.target`.
    pub boot_complete: BootComplete,
    /// Names of the units that have failed, sorted.
    pub failed_units: Vec<String>,
    /// State of the required health checks.
    pub checks: Checks,
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
