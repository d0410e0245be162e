//! The records that the judge joins.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::audit::Record;
use crate::evidence::Evidence;
use crate::history::{history, licence};
use crate::hosts::{HostChange, HostEvent};
use crate::sender::sender;

/// The records to judge, of a test or of a cluster's log.
#[derive(Debug)]
pub struct Truth<'a> {
    /// Events of the hosts, in order.
    pub hosts: &'a [HostEvent],
    /// The API server's audit log.
    pub audit: &'a [Record],
    /// Reboots that the test itself caused: host and time.
    pub excused: &'a [(String, Timestamp)],
    /// Excused reboots that also changed the booted image.
    pub swapped: &'a [(String, Timestamp)],
    /// Nodes whose credentials an attacker uses. These nodes' own writes and reboots need not follow the protocol, but
    /// they must concern only these nodes (I6). The controller's writes about these nodes are judged.
    pub liars: &'a [String],
    /// Nodes whose credentials an attacker used until this time, before the test began. A berth may still have the state
    /// that such a node wrote.
    pub earlier_liars: &'a [(String, Timestamp)],
    /// Maximum number of berths that may be held at once in each pool, at any time in the records.
    pub capacity: BTreeMap<String, usize>,
    /// Maximum number of nodes, in all pools together, that may hold a berth, be offered one or be unavailable at once,
    /// at any time in the records. `None` if the fleet has no limit, or if the limit is unknown.
    pub fleet: Option<usize>,
    /// The kinds of evidence that these records contain.
    pub evidence: &'a Evidence,
    /// Longest time until Berth sees a change, or until a request of Berth reaches the API server. For a cluster's log,
    /// includes the clock differences between API servers.
    pub lag: jiff::SignedDuration,
}

/// Longest time from the start of a reboot by the test until the host goes down.
const EXCUSED_FOR: jiff::SignedDuration = jiff::SignedDuration::from_secs(20);

impl Truth<'_> {
    /// Returns the number of licensed reboots. A test without a licensed reboot has proven nothing.
    pub fn licensed_reboots(&self) -> usize {
        let history = history(self.audit);
        self.downs()
            .filter(|(host, at, boot)| licence(&history, host, *at, boot).is_some())
            .count()
    }

    /// Returns each time that a host went down: host, time, and ID of the boot that ended.
    pub(crate) fn downs(&self) -> impl Iterator<Item = (&str, Timestamp, String)> {
        let mut boots: BTreeMap<&str, String> = BTreeMap::new();
        self.hosts.iter().filter_map(move |event| match &event.change {
            HostChange::Up { boot_id, .. } => {
                boots.insert(&event.host, boot_id.clone());
                None
            }
            HostChange::Down => Some((
                event.host.as_str(),
                event.at,
                boots.get(event.host.as_str()).cloned().unwrap_or_default(),
            )),
            _ => None,
        })
    }

    /// Returns the largest capacity that the pool had; `None` if unknown. In a complete log, an unlisted pool has
    /// capacity 0.
    pub(crate) fn most(&self, pool: &str) -> Option<usize> {
        let known = self.capacity.get(pool).copied();
        known.or_else(|| self.evidence.whole.then_some(0))
    }

    pub(crate) fn is_liar(&self, node: &str) -> bool {
        self.liars.iter().any(|liar| liar == node)
    }

    /// True if an attacker used the node's credentials at this time.
    pub(crate) fn lied_at(&self, node: &str, at: Timestamp) -> bool {
        let mut earlier = self.earlier_liars.iter();
        self.is_liar(node) || earlier.any(|(liar, until)| liar == node && at <= *until)
    }

    /// True if a liar's identity sent the request: its agent's token or its kubelet's certificate.
    pub(crate) fn is_by_liar(&self, record: &Record) -> bool {
        sender(record).is_some_and(|sender| self.is_liar(sender.node()))
    }

    pub(crate) fn is_excused(&self, host: &str, at: Timestamp) -> bool {
        is_listed(self.excused, host, at)
    }

    pub(crate) fn may_swap(&self, host: &str, at: Timestamp) -> bool {
        is_listed(self.swapped, host, at)
    }
}

fn is_listed(list: &[(String, Timestamp)], host: &str, at: Timestamp) -> bool {
    list.iter()
        .any(|(h, from)| h == host && *from <= at && at <= *from + EXCUSED_FOR)
}
