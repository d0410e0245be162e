//! Keeps the cluster's objects up to date from watch events, and detects kinds that are stale. Does no I/O.

use std::error::Error;
use std::mem;

use berth_api::decode::Decoded;
use berth_api::fleet::{self, BootcFleet};
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::known_node::KnownNode;
use crate::snapshot::Snapshot;
use crate::snapshot::explained;
use crate::status::{Report, report};
use crate::text::{age, clean};

/// A watch counts as hung after this many seconds without an event. A healthy watch is renewed sooner than that.
const WATCH_SILENCE: i64 = 90;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pools,
    BootcNodes,
    Nodes,
    Leases,
    Fleets,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Pools, Self::BootcNodes, Self::Nodes, Self::Leases, Self::Fleets];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Pools => "BootcNodePools",
            Self::BootcNodes => "BootcNodes",
            Self::Nodes => "Nodes",
            Self::Leases => "Leases",
            Self::Fleets => "BootcFleets",
        }
    }
}

/// Event of a watch. Boxed, because the objects of some kinds are much larger than the objects of others.
pub(crate) type Received<K> = Box<watcher::Result<Event<K>>>;

#[derive(Debug)]
pub(crate) enum WatchEvent {
    Pool(Received<BootcNodePool>),
    BootcNode(Received<Decoded<BootcNode>>),
    Node(Received<KnownNode>),
    Lease(Received<Decoded<Lease>>),
    Fleet(Received<BootcFleet>),
    /// The API server has answered a new watch.
    Answered(Kind),
}

#[derive(Debug, Clone, Default)]
struct Freshness {
    /// True after the first complete list.
    ready: bool,
    /// Time of the last event from the API server.
    heard: Option<Timestamp>,
    /// Time when the watch broke, and the last error.
    broken: Option<(Timestamp, String)>,
    /// Error if the kind does not exist or this user may not list it.
    refused: Option<String>,
}

impl Freshness {
    fn hear(&mut self, now: Timestamp) {
        self.heard = Some(now);
        (self.broken, self.refused) = (None, None);
    }

    /// True if the objects were listed, or listing them failed.
    fn is_tried(&self) -> bool {
        self.ready || self.broken.is_some()
    }

    /// Returns since when the objects may be outdated, and why. Objects that this user may not list, and that were never
    /// read, are not outdated: a note says that they are missing.
    fn stale(&self, now: Timestamp) -> Option<(Timestamp, String)> {
        if self.refused.is_some() && !self.ready {
            return None;
        }
        let silent = self.heard.filter(|at| now.as_second() - at.as_second() > WATCH_SILENCE);
        let silent = silent.map(|at| (at, "no answer from the API server".to_owned()));
        self.broken.clone().or(silent)
    }
}

/// Objects of one kind, sorted by name.
#[derive(Debug)]
struct Table<K> {
    objects: Vec<K>,
    /// Objects of an incomplete list; they replace `objects` when the list is complete.
    listed: Option<Vec<K>>,
    freshness: Freshness,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            objects: vec![],
            listed: None,
            freshness: Freshness::default(),
        }
    }
}

/// An object with a name.
trait Named {
    fn name(&self) -> &str;
}

impl<K: Resource> Named for K {
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }
}

impl Named for KnownNode {
    fn name(&self) -> &str {
        KnownNode::name(self)
    }
}

impl<K: Named> Table<K> {
    /// Returns the index of the object with this name; if there is none, `Err` with the index to insert it at.
    fn place(&self, name: &str) -> Result<usize, usize> {
        self.objects.binary_search_by(|object| object.name().cmp(name))
    }

    /// Applies an event. Returns true if there may be something new to show.
    fn take(&mut self, event: watcher::Result<Event<K>>, now: Timestamp) -> bool {
        match event {
            Ok(Event::Init) => {
                self.listed = Some(vec![]);
                return false;
            }
            Ok(Event::InitApply(object)) => {
                self.listed.get_or_insert_default().push(object);
                return false;
            }
            Ok(Event::InitDone) => {
                self.objects = self.listed.take().unwrap_or_default();
                self.objects.sort_by(|a, b| a.name().cmp(b.name()));
                self.freshness.ready = true;
                self.freshness.hear(now);
            }
            Ok(Event::Apply(object)) => {
                self.freshness.hear(now);
                match self.place(object.name()) {
                    Ok(at) => {
                        if let Some(old) = self.objects.get_mut(at) {
                            *old = object;
                        }
                    }
                    Err(at) => self.objects.insert(at, object),
                }
            }
            Ok(Event::Delete(object)) => {
                self.freshness.hear(now);
                if let Ok(at) = self.place(object.name()) {
                    self.objects.remove(at);
                }
            }
            Err(error) => {
                let since = self.freshness.broken.as_ref().map_or(now, |(since, _)| *since);
                self.freshness.broken = Some((since, clean(&cause(&error))));
                self.freshness.refused = refused(error);
            }
        }
        true
    }
}

/// Returns the innermost error, such as `Connection refused`. The errors around it say only that a watch failed.
fn cause(error: &watcher::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(inner) = innermost.source() {
        innermost = inner;
    }
    innermost.to_string()
}

/// Returns the error if retrying does not help: the kind is missing (404) or forbidden (403).
fn refused(error: watcher::Error) -> Option<String> {
    let watcher::Error::InitialListFailed(error) = error else {
        return None;
    };
    let is_final = matches!(&error, kube::Error::Api(status) if matches!(status.code, 403 | 404));
    is_final.then(|| clean(&format!("{:#}", explained(error))))
}

/// Kinds whose displayed objects may be outdated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Stale {
    pub(crate) kinds: String,
    /// Time when the first of these kinds became stale.
    pub(crate) since: Timestamp,
    /// Error of the kind that became stale first.
    pub(crate) why: String,
}

impl Stale {
    pub(crate) fn text(&self, now: Timestamp) -> String {
        let (kinds, age, why) = (&self.kinds, age(self.since, now), &self.why);
        format!("the data is {age} old ({kinds}): {why}")
    }
}

/// The cluster's objects, kept up to date by watches.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pools: Table<BootcNodePool>,
    bootc_nodes: Table<Decoded<BootcNode>>,
    nodes: Table<KnownNode>,
    leases: Table<Decoded<Lease>>,
    fleets: Table<BootcFleet>,
    only: Option<String>,
}

impl Live {
    pub(crate) fn of(only: Option<String>) -> Self {
        Self {
            only,
            ..Self::default()
        }
    }

    /// Applies an event. Returns true if there may be something new to show.
    pub(crate) fn take(&mut self, event: WatchEvent, now: Timestamp) -> bool {
        match event {
            WatchEvent::Pool(event) => self.pools.take(*event, now),
            WatchEvent::BootcNode(event) => self.bootc_nodes.take(*event, now),
            WatchEvent::Node(event) => self.nodes.take(*event, now),
            WatchEvent::Lease(event) => self.leases.take(*event, now),
            WatchEvent::Fleet(event) => self.fleets.take(*event, now),
            WatchEvent::Answered(kind) => {
                // While a new list is incomplete, the previous objects are shown, so the kind stays stale.
                let lists = match kind {
                    Kind::Pools => self.pools.listed.is_some(),
                    Kind::BootcNodes => self.bootc_nodes.listed.is_some(),
                    Kind::Nodes => self.nodes.listed.is_some(),
                    Kind::Leases => self.leases.listed.is_some(),
                    Kind::Fleets => self.fleets.listed.is_some(),
                };
                let freshness = self.freshness_mut(kind);
                if freshness.ready && !lists {
                    freshness.hear(now);
                }
                true
            }
        }
    }

    fn freshness_mut(&mut self, kind: Kind) -> &mut Freshness {
        match kind {
            Kind::Pools => &mut self.pools.freshness,
            Kind::BootcNodes => &mut self.bootc_nodes.freshness,
            Kind::Nodes => &mut self.nodes.freshness,
            Kind::Leases => &mut self.leases.freshness,
            Kind::Fleets => &mut self.fleets.freshness,
        }
    }

    fn freshness(&self, kind: Kind) -> &Freshness {
        match kind {
            Kind::Pools => &self.pools.freshness,
            Kind::BootcNodes => &self.bootc_nodes.freshness,
            Kind::Nodes => &self.nodes.freshness,
            Kind::Leases => &self.leases.freshness,
            Kind::Fleets => &self.fleets.freshness,
        }
    }

    /// True if the pools and BootcNodes were listed, and a list of each other kind has succeeded or failed.
    pub(crate) fn is_complete(&self) -> bool {
        let needs = [Kind::Pools, Kind::BootcNodes];
        needs.into_iter().all(|kind| self.freshness(kind).ready)
            && Kind::ALL.into_iter().all(|kind| self.freshness(kind).is_tried())
    }

    /// Returns the error if the pools or BootcNodes are missing or forbidden.
    pub(crate) fn refused(&self) -> Option<&str> {
        let needed = [Kind::Pools, Kind::BootcNodes].into_iter();
        needed.filter_map(|kind| self.freshness(kind).refused.as_deref()).next()
    }

    /// Returns the kinds whose objects may be outdated or were never read.
    pub(crate) fn stale(&self, now: Timestamp) -> Option<Stale> {
        let stale = Kind::ALL
            .into_iter()
            .filter_map(|kind| Some((kind, self.freshness(kind).stale(now)?)));
        let stale: Vec<_> = stale.collect();
        let (_, (since, why)) = stale.iter().min_by_key(|(_, (since, _))| *since)?.clone();
        let kinds: Vec<&str> = stale.iter().map(|(kind, _)| kind.as_str()).collect();
        Some(Stale {
            kinds: kinds.join(", "),
            since,
            why,
        })
    }

    pub(crate) fn pools(&self) -> Vec<String> {
        self.pools.objects.iter().map(ResourceExt::name_any).collect()
    }

    pub(crate) fn report(&mut self, now: Timestamp) -> Report {
        self.with_snapshot(|snapshot| report(snapshot, now))
    }

    /// Calls `look` with all objects. The objects are moved into the snapshot and back: it would take too long to copy
    /// them four times a second. `look` may change objects only if it restores them.
    pub(crate) fn with_snapshot<T>(&mut self, look: impl FnOnce(&mut Snapshot) -> T) -> T {
        let leases = self.leases.freshness.refused.clone();
        let fleet = self.fleets.freshness.refused.clone();
        let nodes = self.nodes.freshness.refused.clone();
        let mut snapshot = Snapshot {
            pools: mem::take(&mut self.pools.objects),
            bootc_nodes: mem::take(&mut self.bootc_nodes.objects),
            nodes: mem::take(&mut self.nodes.objects),
            leases: mem::take(&mut self.leases.objects),
            fleet: self
                .fleets
                .objects
                .iter()
                .find(|f| f.name_any() == fleet::NAME)
                .cloned(),
            fleet_unread: fleet,
            nodes_unread: nodes,
            notes: vec![],
            only: self.only.clone(),
        };
        snapshot.notes = snapshot.unread(leases.as_deref());
        let answer = look(&mut snapshot);
        self.pools.objects = mem::take(&mut snapshot.pools);
        self.bootc_nodes.objects = mem::take(&mut snapshot.bootc_nodes);
        self.nodes.objects = mem::take(&mut snapshot.nodes);
        self.leases.objects = mem::take(&mut snapshot.leases);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(name: &str) -> KnownNode {
        serde_json::from_value(serde_json::json!({ "metadata": { "name": name } })).unwrap()
    }

    fn bootc(name: &str) -> Decoded<BootcNode> {
        let spec = serde_json::json!({ "metadata": { "name": name }, "spec": { "poolName": "gone", "nodeUID": "u" } });
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_cause_of_an_error_is_shown() {
        let refused = std::io::Error::other("connection refused");
        let error = watcher::Error::WatchStartFailed(kube::Error::Service(Box::new(refused)));
        assert_eq!(cause(&error), "connection refused");
        assert_eq!(
            cause(&watcher::Error::NoResourceVersion),
            watcher::Error::NoResourceVersion.to_string()
        );
    }

    fn broken<K>() -> watcher::Result<Event<K>> {
        Err(watcher::Error::NoResourceVersion)
    }

    fn listed(live: &mut Live, now: Timestamp) {
        for event in [
            WatchEvent::Pool(Box::new(Ok(Event::Init))),
            WatchEvent::Pool(Box::new(Ok(Event::InitDone))),
            WatchEvent::BootcNode(Box::new(Ok(Event::Init))),
            WatchEvent::BootcNode(Box::new(Ok(Event::InitApply(bootc("b"))))),
            WatchEvent::BootcNode(Box::new(Ok(Event::InitApply(bootc("a"))))),
            WatchEvent::BootcNode(Box::new(Ok(Event::InitDone))),
            WatchEvent::Lease(Box::new(Ok(Event::InitDone))),
            WatchEvent::Fleet(Box::new(Ok(Event::InitDone))),
        ] {
            assert!(!live.is_complete());
            live.take(event, now);
        }
    }

    fn names(live: &mut Live) -> Vec<String> {
        let report = live.report(at(0));
        report
            .nodes_of_no_pool
            .iter()
            .map(|line| line.row.name.clone())
            .collect()
    }

    #[test]
    fn objects_come_change_and_go() {
        let mut live = Live::default();
        listed(&mut live, at(0));
        assert!(!live.is_complete(), "nothing is known of Nodes");
        live.take(WatchEvent::Node(Box::new(broken())), at(0));
        assert!(live.is_complete(), "Nodes failed, which is shown");
        assert_eq!(
            live.stale(at(5)).map(|stale| (stale.kinds, stale.since)),
            Some(("Nodes".to_owned(), at(0)))
        );
        live.take(WatchEvent::Node(Box::new(Ok(Event::Init))), at(6));
        live.take(WatchEvent::Node(Box::new(Ok(Event::InitApply(node("a"))))), at(6));
        live.take(WatchEvent::Node(Box::new(Ok(Event::InitDone))), at(6));
        assert_eq!(live.stale(at(6)), None);
        assert_eq!(names(&mut live), ["a", "b"]);
        assert!(live.take(WatchEvent::BootcNode(Box::new(Ok(Event::Apply(bootc("aa"))))), at(7)));
        assert!(live.take(WatchEvent::BootcNode(Box::new(Ok(Event::Delete(bootc("a"))))), at(7)));
        live.take(WatchEvent::BootcNode(Box::new(Ok(Event::Apply(bootc("b"))))), at(7));
        assert_eq!(names(&mut live), ["aa", "b"]);
        assert_eq!(names(&mut live), ["aa", "b"], "a report moves the objects back");
        assert!(
            !live.take(WatchEvent::BootcNode(Box::new(Ok(Event::Init))), at(8)),
            "the start of a list changes nothing"
        );
        assert_eq!(names(&mut live), ["aa", "b"]);
        live.take(WatchEvent::BootcNode(Box::new(Ok(Event::InitDone))), at(8));
        assert!(names(&mut live).is_empty());
    }

    fn forbidden<K>() -> Received<K> {
        let status = serde_json::json!({ "status": "Failure", "code": 403, "message": "no", "reason": "Forbidden" });
        let status = serde_json::from_value(status).unwrap();
        Box::new(Err(watcher::Error::InitialListFailed(kube::Error::Api(status))))
    }

    #[test]
    fn a_kind_that_was_never_read_is_missing_and_not_outdated() {
        let mut live = Live::default();
        listed(&mut live, at(0));
        live.take(WatchEvent::Node(forbidden()), at(0));
        assert!(live.is_complete());
        assert_eq!(live.stale(at(60)), None);
        live.with_snapshot(|snapshot| assert_eq!(snapshot.notes.len(), 1, "{:?}", snapshot.notes));
        live.take(WatchEvent::Lease(forbidden()), at(61));
        let stale = live.stale(at(62)).unwrap();
        assert_eq!(stale.kinds, "Leases", "these were read before");
    }

    #[test]
    fn an_object_that_cannot_be_decoded_is_named() {
        let mut live = Live::default();
        listed(&mut live, at(0));
        let metadata = |name: &str| serde_json::json!({ "name": name });
        let late = "9999-12-31T23:59:59Z";
        let node = serde_json::json!({
            "metadata": metadata("a"), "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": late }] },
        });
        let host = serde_json::json!({
            "metadata": metadata("b"), "spec": { "poolName": "gone" }, "status": { "heartbeatTime": late },
        });
        let lease = serde_json::json!({ "metadata": metadata("p-0"), "spec": { "renewTime": late } });
        let [node, host] = [node, host].map(|object| object.to_string());
        let node = serde_json::from_str(&node).unwrap();
        live.take(WatchEvent::Node(Box::new(Ok(Event::Apply(node)))), at(1));
        let host = serde_json::from_str(&host).unwrap();
        live.take(WatchEvent::BootcNode(Box::new(Ok(Event::Apply(host)))), at(1));
        let lease = serde_json::from_value(lease).unwrap();
        live.take(WatchEvent::Lease(Box::new(Ok(Event::Apply(lease)))), at(1));
        assert_eq!(names(&mut live), ["b", "a"], "a degraded node comes first");
        let notes = live.report(at(2)).notes;
        let of = [
            "Lease p-0: spec.renewTime: ",
            "Node a: status.conditions: ",
            "BootcNode b: status: ",
        ];
        assert!(
            notes.len() == 3 && notes.iter().zip(of).all(|(note, of)| note.contains(of)),
            "{notes:?}"
        );
    }

    #[test]
    fn a_kind_is_stale_until_its_watch_recovers() {
        let mut live = Live::default();
        listed(&mut live, at(0));
        live.take(WatchEvent::Node(Box::new(Ok(Event::InitDone))), at(0));
        live.take(WatchEvent::Pool(Box::new(broken())), at(10));
        live.take(WatchEvent::Pool(Box::new(broken())), at(20));
        let stale = live.stale(at(30)).unwrap();
        assert_eq!((stale.kinds.as_str(), stale.since), ("BootcNodePools", at(10)));
        assert!(
            stale.text(at(30)).starts_with("the data is 20s old (BootcNodePools): "),
            "{stale:?}"
        );
        live.take(WatchEvent::Answered(Kind::Pools), at(31));
        assert_eq!(live.stale(at(31)), None, "the watch continues without a change");
        live.take(WatchEvent::Pool(Box::new(broken())), at(40));
        live.take(WatchEvent::Pool(Box::new(Ok(Event::Init))), at(41));
        live.take(WatchEvent::Answered(Kind::Pools), at(41));
        assert!(live.stale(at(41)).is_some(), "the new list is not complete");
        live.take(WatchEvent::Pool(Box::new(Ok(Event::InitDone))), at(42));
        assert_eq!(live.stale(at(42)), None);
        let silent = live.stale(at(91)).unwrap();
        assert!(
            !silent.kinds.contains("BootcNodePools") && silent.kinds.contains("Nodes"),
            "{silent:?}"
        );
    }
}
