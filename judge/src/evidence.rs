//! Evidence that a set of records has. A rule that lacks its evidence accuses nobody, and does not pass either: whoever judges
//! says that it was not judged.

use std::collections::BTreeMap;

/// Evidence that a set of records has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The log has every write from the first one on, and all of them with their bodies.
    pub whole: bool,
    /// Every reboot that somebody else caused is known ([`crate::Truth::excused`]).
    pub all_reboots: bool,
    /// The hosts' boots are known from somebody who saw each of them at once.
    pub boots: bool,
    /// True if it is known when each Node was Ready under which boot.
    pub ready: bool,
    /// Writes of Nodes have their bodies.
    pub nodes: bool,
    /// True if the records of what was published for each node have their bodies.
    pub published: bool,
    /// Statuses of pools have their bodies: capacities and failures.
    pub pool_statuses: bool,
    /// The pods are known: where each ran, and until when.
    pub pods: bool,
    /// Lines that showed that a boot had ended, by host and the boot that ended.
    pub lines: BTreeMap<(String, String), String>,
}

impl Evidence {
    /// The evidence of a test: the harness saw the hosts, and its log is whole.
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
