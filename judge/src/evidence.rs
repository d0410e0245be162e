//! The kinds of evidence that a set of records contains. A rule whose evidence is missing reports no violation, but
//! does not pass either: the verdict lists it as not judged.

use std::collections::BTreeMap;

/// The kinds of evidence that a set of records contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// True if the log has all writes from the first on, with their bodies.
    pub whole: bool,
    /// True if all reboots that Berth did not cause are listed in [`crate::Truth::excused`].
    pub all_reboots: bool,
    /// True if the test harness recorded each boot of a host when it happened.
    pub boots: bool,
    /// True if it is known when each Node was Ready in each boot.
    pub ready: bool,
    /// True if the records of Nodes have their bodies.
    pub nodes: bool,
    /// True if the records of BootcNodes, the published state of each node, have their bodies.
    pub published: bool,
    /// True if the records of pools' statuses, with capacities and failures, have their bodies.
    pub pool_statuses: bool,
    /// True if it is known where each pod ran, and until when.
    pub pods: bool,
    /// Audit ID of the line that showed the end of a boot, by host and boot ID.
    pub lines: BTreeMap<(String, String), String>,
}

impl Evidence {
    /// Returns the evidence of a test. The test harness records every change of its hosts, and its log is complete.
    pub fn of_harness() -> Self {
        Self {
            whole: true,
            all_reboots: true,
            boots: true,
            ready: true,
            nodes: true,
            published: true,
            pool_statuses: true,
            pods: true,
            lines: BTreeMap::new(),
        }
    }
}
