//! The records of a [`Truth`], indexed for all rules: writes by object, events by host, and the gaps of the log.

use std::collections::BTreeMap;
use std::ops::Deref;

use jiff::Timestamp;

use crate::audit::Record;
use crate::history::{History, RecordedState};
use crate::hosts::{HostChange, HostEvent};
use crate::truth::Truth;
use crate::write::{Write, is_doubtful, text, written};

/// The records of a [`Truth`], indexed for the rules.
pub(crate) struct Judge<'a> {
    truth: &'a Truth<'a>,
    /// Writes by resource and subresource, in the order of resourceVersions.
    writes: BTreeMap<(&'a str, &'a str), Vec<Write<'a>>>,
    /// Writes that may or may not have been stored, because the API server failed or did not respond.
    doubtful: Vec<&'a Record>,
    names: BTreeMap<&'a str, &'a str>,
    /// Time of the first request to delete each Node, by name.
    deleted: BTreeMap<&'a str, Timestamp>,
    events: BTreeMap<&'a str, Vec<&'a HostEvent>>,
    gaps: Vec<Gap>,
}

/// Span between two recorded states of a berth where writes of the berth are missing. Writes of other objects may be
/// missing there too.
struct Gap {
    versions: (u64, u64),
    times: (Timestamp, Timestamp),
}

impl<'a> Deref for Judge<'a> {
    type Target = Truth<'a>;

    fn deref(&self) -> &Truth<'a> {
        self.truth
    }
}

impl<'a> Judge<'a> {
    pub(crate) fn new(truth: &'a Truth<'a>, history: &History) -> Self {
        let writes = written(truth.audit);
        let mut names = BTreeMap::new();
        for (_, _, node) in writes.get(&("nodes", "")).into_iter().flatten() {
            if let (Some(uid), Some(name)) = (text(node, "/metadata/uid"), text(node, "/metadata/name")) {
                names.entry(uid).or_insert(name);
            }
        }
        let mut deleted = BTreeMap::new();
        for record in truth.audit.iter().filter(|r| r.verb == "delete" && r.is_of("nodes")) {
            let first = deleted.entry(record.name.as_str()).or_insert(record.received);
            *first = record.received.min(*first);
        }
        let mut events: BTreeMap<&str, Vec<&HostEvent>> = BTreeMap::new();
        for event in truth.hosts {
            events.entry(&event.host).or_default().push(event);
        }
        let pairs = history.values().flat_map(|states| states.windows(2));
        let gaps = pairs.filter_map(|pair| match pair {
            [before, after] if after.after_gap && !truth.evidence.whole => Some(Gap {
                versions: (before.version, after.version),
                times: (before.at, after.at),
            }),
            _ => None,
        });
        Self {
            doubtful: truth.audit.iter().filter(|r| is_doubtful(r)).collect(),
            gaps: gaps.collect(),
            truth,
            writes,
            names,
            deleted,
            events,
        }
    }

    /// Returns the writes of this kind of object, in order.
    pub(crate) fn writes(&self, target: &'static str) -> &[Write<'a>] {
        let key = target.split_once('/').unwrap_or((target, ""));
        self.writes.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Returns the writes of this kind of object that may or may not have been stored.
    pub(crate) fn doubtful<'s>(&'s self, target: &'s str) -> impl Iterator<Item = &'a Record> + 's {
        self.doubtful.iter().copied().filter(move |r| r.is_of(target))
    }

    pub(crate) fn of_host(&self, host: &str) -> &[&'a HostEvent] {
        self.events.get(host).map_or(&[], Vec::as_slice)
    }

    /// True if the deletion of the Node of this name was requested at the time `by` or earlier.
    pub(crate) fn was_deleted(&self, name: &str, by: Timestamp) -> bool {
        self.deleted.get(name).is_some_and(|at| *at <= by)
    }

    pub(crate) fn name_of_uid(&self, uid: &str) -> Option<&'a str> {
        self.names.get(uid).copied()
    }

    /// True if the state lasted until the next recorded state, because no writes are missing between them. A complete
    /// log has no gaps.
    pub(crate) fn lasts(&self, state: &RecordedState) -> bool {
        self.evidence.whole || !state.before_gap
    }

    /// True if writes may be missing between two resourceVersions.
    pub(crate) fn misses(&self, from: u64, until: u64) -> bool {
        let mut gaps = self.gaps.iter().map(|gap| gap.versions);
        gaps.any(|(begin, end)| begin.max(from) < end.min(until))
    }

    pub(crate) fn misses_time(&self, from: Timestamp, until: Timestamp) -> bool {
        let mut gaps = self.gaps.iter().map(|gap| gap.times);
        gaps.any(|(begin, end)| begin.max(from) <= end.min(until))
    }

    /// Returns the time and the digest of a boot of the host: of the last boot before `at` or, if `after` is true, of
    /// the first boot after `at`.
    pub(crate) fn booted(&self, host: &str, at: Timestamp, after: bool) -> Option<(Timestamp, &'a str)> {
        let mut ups = self.of_host(host).iter().filter_map(|e| match &e.change {
            HostChange::Up { digest, .. } => Some((e.at, digest.as_str())),
            _ => None,
        });
        if after {
            ups.find(|(when, _)| *when > at)
        } else {
            ups.rfind(|(when, _)| *when < at)
        }
    }
}
