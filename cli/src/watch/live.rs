//! The objects as watches tell of them, and whether that is still true. No I/O: events go in, a report comes out.

use std::mem;

use berth_api::fleet::{self, BootcFleet};
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};

use crate::Snapshot;
use crate::snapshot::explained;
use crate::status::{Report, report};
use crate::text::{age, clean};

/// Seconds after which a watch on which nothing came hangs. Each is asked for anew sooner than that.
const SILENCE: i64 = 90;

/// Kind of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pools,
    Hosts,
    Nodes,
    Leases,
    Fleets,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Pools, Self::Hosts, Self::Nodes, Self::Leases, Self::Fleets];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Pools => "BootcNodePools",
            Self::Hosts => "BootcNodes",
            Self::Nodes => "Nodes",
            Self::Leases => "Leases",
            Self::Fleets => "BootcFleets",
        }
    }
}

/// Event of a watch, in a box: the kinds differ much in size.
pub(crate) type Told<K> = Box<watcher::Result<Event<K>>>;

/// Something that happened on a watch.
#[derive(Debug)]
pub(crate) enum News {
    Pool(Told<BootcNodePool>),
    Host(Told<BootcNode>),
    Node(Told<Node>),
    Lease(Told<Lease>),
    Fleet(Told<BootcFleet>),
    /// The API server has answered a new watch.
    Answered(Kind),
}

/// Freshness of what is known of a kind.
#[derive(Debug, Clone, Default)]
struct Trust {
    /// All objects were listed once.
    ready: bool,
    /// Time when the API server last sent something.
    heard: Option<Timestamp>,
    /// Time when the watch broke, and how.
    broken: Option<(Timestamp, String)>,
    /// The API server's word that there is nothing to list, or nothing for this user.
    refused: Option<String>,
}

impl Trust {
    fn hear(&mut self, now: Timestamp) {
        self.heard = Some(now);
        (self.broken, self.refused) = (None, None);
    }

    fn old(&self, now: Timestamp) -> Option<(Timestamp, String)> {
        let silent = self.heard.filter(|at| now.as_second() - at.as_second() > SILENCE);
        let silent = silent.map(|at| (at, "the API server sends nothing".to_owned()));
        self.broken.clone().or(silent)
    }
}

/// Objects of one kind, by name.
#[derive(Debug)]
struct Table<K> {
    objects: Vec<K>,
    /// Objects of a list that is under way; they then take the place of the others.
    listed: Option<Vec<K>>,
    trust: Trust,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            objects: vec![],
            listed: None,
            trust: Trust::default(),
        }
    }
}

impl<K: ResourceExt> Table<K> {
    /// Takes an event in, and says whether there may be something new to show.
    fn take(&mut self, event: watcher::Result<Event<K>>, now: Timestamp) -> bool {
        let place = |objects: &[K], name: &str| {
            let of = |k: &K| k.meta().name.clone().unwrap_or_default();
            objects.binary_search_by(|k| of(k).as_str().cmp(name))
        };
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
                self.objects.sort_by_cached_key(ResourceExt::name_any);
                self.trust.ready = true;
                self.trust.hear(now);
            }
            Ok(Event::Apply(object)) => {
                self.trust.hear(now);
                let name = object.name_any();
                match place(&self.objects, &name) {
                    Ok(at) => {
                        if let Some(old) = self.objects.get_mut(at) {
                            *old = object;
                        }
                    }
                    Err(at) => self.objects.insert(at, object),
                }
            }
            Ok(Event::Delete(object)) => {
                self.trust.hear(now);
                if let Ok(at) = place(&self.objects, &object.name_any()) {
                    self.objects.remove(at);
                }
            }
            Err(error) => {
                let since = self.trust.broken.as_ref().map_or(now, |(since, _)| *since);
                self.trust.broken = Some((since, clean(&error.to_string())));
                self.trust.refused = refused(error);
            }
        }
        true
    }
}

/// Words for an answer that stays the same however often one asks.
fn refused(error: watcher::Error) -> Option<String> {
    let watcher::Error::InitialListFailed(error) = error else {
        return None;
    };
    let is_final = matches!(&error, kube::Error::Api(status) if matches!(status.code, 403 | 404));
    is_final.then(|| clean(&format!("{:#}", explained(error))))
}

/// Kinds of which what is shown may have been overtaken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Old {
    /// Their names.
    pub(crate) kinds: String,
    /// Time since when the first of them is.
    pub(crate) since: Timestamp,
    /// The error.
    pub(crate) why: String,
}

impl Old {
    /// One line that says so.
    pub(crate) fn text(&self, now: Timestamp) -> String {
        let (kinds, age, why) = (&self.kinds, age(self.since, now), &self.why);
        format!("what is shown is old, for {age} ({kinds}): {why}")
    }
}

/// The objects of the cluster as watches tell of them.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pools: Table<BootcNodePool>,
    hosts: Table<BootcNode>,
    nodes: Table<Node>,
    leases: Table<Lease>,
    fleets: Table<BootcFleet>,
    /// The only pool to show.
    only: Option<String>,
}

impl Live {
    /// Nothing yet of this pool, or of all.
    pub(crate) fn of(only: Option<String>) -> Self {
        Self {
            only,
            ..Self::default()
        }
    }

    /// Takes the news in, and says whether there may be something new to show.
    pub(crate) fn take(&mut self, news: News, now: Timestamp) -> bool {
        match news {
            News::Pool(event) => self.pools.take(*event, now),
            News::Host(event) => self.hosts.take(*event, now),
            News::Node(event) => self.nodes.take(*event, now),
            News::Lease(event) => self.leases.take(*event, now),
            News::Fleet(event) => self.fleets.take(*event, now),
            News::Answered(kind) => {
                // While a list is under way, what is shown is what was there before.
                let lists = match kind {
                    Kind::Pools => self.pools.listed.is_some(),
                    Kind::Hosts => self.hosts.listed.is_some(),
                    Kind::Nodes => self.nodes.listed.is_some(),
                    Kind::Leases => self.leases.listed.is_some(),
                    Kind::Fleets => self.fleets.listed.is_some(),
                };
                let trust = self.trust_mut(kind);
                if trust.ready && !lists {
                    trust.hear(now);
                }
                true
            }
        }
    }

    fn trust_mut(&mut self, kind: Kind) -> &mut Trust {
        match kind {
            Kind::Pools => &mut self.pools.trust,
            Kind::Hosts => &mut self.hosts.trust,
            Kind::Nodes => &mut self.nodes.trust,
            Kind::Leases => &mut self.leases.trust,
            Kind::Fleets => &mut self.fleets.trust,
        }
    }

    fn trust(&self, kind: Kind) -> &Trust {
        match kind {
            Kind::Pools => &self.pools.trust,
            Kind::Hosts => &self.hosts.trust,
            Kind::Nodes => &self.nodes.trust,
            Kind::Leases => &self.leases.trust,
            Kind::Fleets => &self.fleets.trust,
        }
    }

    /// Says whether there is enough to show: the pools and their nodes are needed, what else cannot be read is told.
    pub(crate) fn is_complete(&self) -> bool {
        let ready = |kind| self.trust(kind).ready;
        let tried = |kind| ready(kind) || self.trust(kind).broken.is_some();
        ready(Kind::Pools) && ready(Kind::Hosts) && Kind::ALL.into_iter().all(tried)
    }

    /// The API server's word that the pools or their nodes cannot be shown.
    pub(crate) fn refused(&self) -> Option<&str> {
        let needed = [Kind::Pools, Kind::Hosts].into_iter();
        needed.filter_map(|kind| self.trust(kind).refused.as_deref()).next()
    }

    /// Kinds of which what is shown may have been overtaken, or was never there.
    pub(crate) fn old(&self, now: Timestamp) -> Option<Old> {
        let old = Kind::ALL
            .into_iter()
            .filter_map(|kind| Some((kind, self.trust(kind).old(now)?)));
        let old: Vec<_> = old.collect();
        let (_, (since, why)) = old.iter().min_by_key(|(_, (since, _))| *since)?.clone();
        let kinds: Vec<&str> = old.iter().map(|(kind, _)| kind.as_str()).collect();
        Some(Old {
            kinds: kinds.join(", "),
            since,
            why,
        })
    }

    /// The pools' names.
    pub(crate) fn pools(&self) -> Vec<String> {
        self.pools.objects.iter().map(ResourceExt::name_any).collect()
    }

    /// The report on what is known now.
    pub(crate) fn report(&mut self, now: Timestamp) -> Report {
        // Lent for the time of the report: a copy of a large cluster, four times a second, would be most of the work.
        let mut snapshot = Snapshot {
            pools: mem::take(&mut self.pools.objects),
            bootc_nodes: mem::take(&mut self.hosts.objects),
            nodes: mem::take(&mut self.nodes.objects),
            leases: mem::take(&mut self.leases.objects),
            fleet: self
                .fleets
                .objects
                .iter()
                .find(|f| f.name_any() == fleet::NAME)
                .cloned(),
            fleet_unread: None,
            notes: vec![],
            only: self.only.clone(),
        };
        let report = report(&snapshot, now);
        self.pools.objects = mem::take(&mut snapshot.pools);
        self.hosts.objects = mem::take(&mut snapshot.bootc_nodes);
        self.nodes.objects = mem::take(&mut snapshot.nodes);
        self.leases.objects = mem::take(&mut snapshot.leases);
        report
    }
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectMeta;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(name: &str) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        }
    }

    fn host(name: &str) -> BootcNode {
        let spec = serde_json::json!({ "metadata": { "name": name }, "spec": { "poolName": "gone", "nodeUID": "u" } });
        serde_json::from_value(spec).unwrap()
    }

    fn broken<K>() -> watcher::Result<Event<K>> {
        Err(watcher::Error::NoResourceVersion)
    }

    fn listed(live: &mut Live, now: Timestamp) {
        for news in [
            News::Pool(Box::new(Ok(Event::Init))),
            News::Pool(Box::new(Ok(Event::InitDone))),
            News::Host(Box::new(Ok(Event::Init))),
            News::Host(Box::new(Ok(Event::InitApply(host("b"))))),
            News::Host(Box::new(Ok(Event::InitApply(host("a"))))),
            News::Host(Box::new(Ok(Event::InitDone))),
            News::Lease(Box::new(Ok(Event::InitDone))),
            News::Fleet(Box::new(Ok(Event::InitDone))),
        ] {
            assert!(!live.is_complete());
            live.take(news, now);
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
        live.take(News::Node(Box::new(broken())), at(0));
        assert!(live.is_complete(), "they cannot be read, which is told");
        assert_eq!(
            live.old(at(5)).map(|old| (old.kinds, old.since)),
            Some(("Nodes".to_owned(), at(0)))
        );
        live.take(News::Node(Box::new(Ok(Event::Init))), at(6));
        live.take(News::Node(Box::new(Ok(Event::InitApply(node("a"))))), at(6));
        live.take(News::Node(Box::new(Ok(Event::InitDone))), at(6));
        assert_eq!(live.old(at(6)), None);
        assert_eq!(names(&mut live), ["a", "b"]);
        assert!(live.take(News::Host(Box::new(Ok(Event::Apply(host("aa"))))), at(7)));
        assert!(live.take(News::Host(Box::new(Ok(Event::Delete(host("a"))))), at(7)));
        live.take(News::Host(Box::new(Ok(Event::Apply(host("b"))))), at(7));
        assert_eq!(names(&mut live), ["aa", "b"]);
        assert_eq!(names(&mut live), ["aa", "b"], "a report leaves all where it was");
        assert!(
            !live.take(News::Host(Box::new(Ok(Event::Init))), at(8)),
            "a list that begins changes nothing"
        );
        assert_eq!(names(&mut live), ["aa", "b"]);
        live.take(News::Host(Box::new(Ok(Event::InitDone))), at(8));
        assert!(names(&mut live).is_empty());
    }

    #[test]
    fn what_is_old_is_told_until_the_watch_goes_on() {
        let mut live = Live::default();
        listed(&mut live, at(0));
        live.take(News::Node(Box::new(Ok(Event::InitDone))), at(0));
        live.take(News::Pool(Box::new(broken())), at(10));
        live.take(News::Pool(Box::new(broken())), at(20));
        let old = live.old(at(30)).unwrap();
        assert_eq!((old.kinds.as_str(), old.since), ("BootcNodePools", at(10)));
        assert!(
            old.text(at(30))
                .starts_with("what is shown is old, for 20s (BootcNodePools): "),
            "{old:?}"
        );
        live.take(News::Answered(Kind::Pools), at(31));
        assert_eq!(live.old(at(31)), None, "it goes on where it was, without a change");
        live.take(News::Pool(Box::new(broken())), at(40));
        live.take(News::Pool(Box::new(Ok(Event::Init))), at(41));
        live.take(News::Answered(Kind::Pools), at(41));
        assert!(live.old(at(41)).is_some(), "what is listed is not shown yet");
        live.take(News::Pool(Box::new(Ok(Event::InitDone))), at(42));
        assert_eq!(live.old(at(42)), None);
        let silent = live.old(at(91)).unwrap();
        assert!(
            !silent.kinds.contains("BootcNodePools") && silent.kinds.contains("Nodes"),
            "{silent:?}"
        );
    }
}
