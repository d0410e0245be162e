//! The cluster's objects, kept up to date by watches. All other code reads snapshots of them.
//!
//! No pass starts before every watch has listed its objects once: until then, a missing object may exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use berth_api::decode::Decoded;
use berth_api::fleet::{self, BootcFleet};
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_core::Moment;
use berth_core::controller::snapshot::{Entry, Objects, Snapshot};
use berth_core::controller::view::{BootcNodeView, FleetView, LeaseView, NodeView, PoolView, Urgency, View};
use berth_shell::listen::with_watch_listener;
use berth_shell::locked;
use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::news::WakeQueue;
use crate::time;

/// Objects per page of a list. Small, because a page is in memory several times while it is decoded, and a Node is
/// about 20 KB of JSON.
pub const PAGE: u32 = 100;
/// Seconds until a watch is requested again; the new watch resumes where the last one ended. Bookmarks alone do not
/// show that a quiet watch is alive: an API server may send them only every ten minutes.
const WATCH_SECONDS: u32 = 60;
/// A watch counts as silent if nothing arrived on it for this long.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);
/// When a watch resumes after it was cut off or silent, the missed events may take this long to arrive.
const CATCH_UP_TIME: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Table<V> {
    /// Objects, shared with the snapshots. If a snapshot still uses the objects, a change first makes a copy.
    current: Arc<Objects<V>>,
    /// Objects of a list in progress, which replace `current` when it is complete. `None`: no list is in progress.
    listed: Option<Objects<V>>,
    ready: bool,
    /// True if no event was missed since the last complete list. False after a watch error, until the watch resumes.
    synced: bool,
    /// Time when the API server last sent anything on the watch.
    heard: Moment,
    /// Time when the watch last resumed after it was cut off or silent.
    resumed: Option<Moment>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            current: Arc::default(),
            listed: None,
            ready: false,
            synced: false,
            heard: Moment::default(),
            resumed: None,
        }
    }
}

impl<V: View> Table<V> {
    fn entry(&self, name: &str, version: String, view: V, now: Moment) -> Entry<V> {
        let old = self.current.get(name);
        let heard = match old {
            Some(old) if !view.has_spoken(&old.view) => old.heard,
            _ => now,
        };
        // Most objects of a new list are unchanged: share their views.
        let view = match old {
            Some(old) if *old.view == view => old.view.clone(),
            _ => Arc::new(view),
        };
        Entry { view, version, heard }
    }

    /// Records that the API server sent something, even if only a bookmark. `starts`: the server accepted a new watch
    /// that resumes where the previous watch ended. Returns true if the watch has now resumed after it was cut off or
    /// silent.
    fn hear(&mut self, starts: bool, now: Moment) -> bool {
        let was_lost = self.ready && self.is_lost(now);
        self.heard = now;
        self.synced |= starts && self.ready && self.listed.is_none();
        let resumes = was_lost && !self.is_lost(now);
        if resumes {
            self.resumed = Some(now);
        }
        resumes
    }

    /// True if the watch has been cut off and not resumed, or is silent.
    fn is_lost(&self, now: Moment) -> bool {
        !self.synced || now.since(self.heard) >= SILENCE_TIMEOUT
    }

    /// True if the table may lack recent changes.
    fn is_stale(&self, now: Moment) -> bool {
        self.is_lost(now) || self.resumed.is_some_and(|at| now.since(at) < CATCH_UP_TIME)
    }

    /// Applies an event. Returns how urgent a pass is, if the event may change a plan.
    fn take(&mut self, event: Event<(String, String, V)>, now: Moment) -> Option<Urgency> {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                self.synced = false;
                None
            }
            Event::InitApply((name, version, view)) => {
                let entry = self.entry(&name, version, view, now);
                self.listed.get_or_insert_default().insert(name, entry);
                None
            }
            Event::InitDone => {
                self.current = Arc::new(self.listed.take().unwrap_or_default());
                (self.ready, self.synced, self.heard, self.resumed) = (true, true, now, None);
                Some(Urgency::Soon)
            }
            Event::Apply((name, version, view)) => {
                let entry = self.entry(&name, version, view, now);
                let view = entry.view.clone();
                let old = Arc::make_mut(&mut self.current).insert(name, entry);
                old.map_or(Some(Urgency::Soon), |old| view.urgency(&old.view))
            }
            Event::Delete((name, _, _)) => Arc::make_mut(&mut self.current).remove(&name).map(|_| Urgency::Soon),
        }
    }
}

#[derive(Debug, Default)]
struct Tables {
    pools: Table<PoolView>,
    hosts: Table<BootcNodeView>,
    nodes: Table<NodeView>,
    leases: Table<LeaseView>,
    fleets: Table<FleetView>,
}

impl Tables {
    /// Returns for each kind: true if its first list has arrived, and true if its table is stale.
    fn kinds(&self, now: Moment) -> [(&'static str, bool, bool); 5] {
        [
            ("BootcNodePools", self.pools.ready, self.pools.is_stale(now)),
            ("BootcNodes", self.hosts.ready, self.hosts.is_stale(now)),
            ("Nodes", self.nodes.ready, self.nodes.is_stale(now)),
            ("Leases", self.leases.ready, self.leases.is_stale(now)),
            ("BootcFleets", self.fleets.ready, self.fleets.is_stale(now)),
        ]
    }

    fn stale(&self, now: Moment) -> BTreeSet<&'static str> {
        let kinds = self.kinds(now).into_iter();
        kinds.filter_map(|(kind, _, stale)| stale.then_some(kind)).collect()
    }

    fn missing(&self) -> BTreeSet<&'static str> {
        let kinds = self.kinds(time::now()).into_iter();
        kinds.filter_map(|(kind, ready, _)| (!ready).then_some(kind)).collect()
    }
}

/// The watched objects. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Store {
    tables: Arc<Mutex<Tables>>,
    news: Arc<WakeQueue>,
}

impl Store {
    /// Starts the watches. They run until the runtime ends, and list again after errors.
    pub fn watch(client: &Client, namespace: &str) -> Self {
        let store = Self::default();
        let config = watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS);
        let berths = config.clone().labels(keys::LABEL_POOL);
        store.follow(
            client,
            Api::<Decoded<BootcNodePool>>::all,
            config.clone(),
            |tables| &mut tables.pools,
            PoolView::of,
        );
        store.follow(
            client,
            Api::<Decoded<BootcNode>>::all,
            config.clone(),
            |tables| &mut tables.hosts,
            BootcNodeView::of,
        );
        store.follow(
            client,
            Api::<Decoded<Node>>::all,
            config.clone(),
            |tables| &mut tables.nodes,
            |node| NodeView::of(&node),
        );
        store.follow(
            client,
            |client| Api::<Decoded<Lease>>::namespaced(client, namespace),
            berths,
            |tables| &mut tables.leases,
            LeaseView::of,
        );
        store.follow(
            client,
            Api::<Decoded<BootcFleet>>::all,
            config,
            |tables| &mut tables.fleets,
            FleetView::of,
        );
        store
    }

    fn follow<K, V>(
        &self,
        client: &Client,
        api: impl FnOnce(Client) -> Api<K>,
        config: watcher::Config,
        table: fn(&mut Tables) -> &mut Table<V>,
        project: fn(K) -> V,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        V: View + Send + Sync + 'static,
    {
        let stream = watch(api(self.listening(client, table)), config).default_backoff();
        tokio::spawn(self.clone().pump(stream, table, project));
    }

    async fn pump<K, V>(
        self,
        stream: impl Stream<Item = watcher::Result<Event<K>>>,
        table: fn(&mut Tables) -> &mut Table<V>,
        project: fn(K) -> V,
    ) where
        K: Resource<DynamicType = ()>,
        V: View,
    {
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            let event = match event {
                Ok(event) => map(event, |object| {
                    let name = object.name_any();
                    let version = object.resource_version().unwrap_or_default();
                    (name, version, project(object))
                }),
                Err(error) => {
                    let kind = K::kind(&());
                    tracing::warn!(kind = %kind, error = %error, "watch failed; restarting it");
                    table(&mut self.lock()).synced = false;
                    continue;
                }
            };
            let news = table(&mut self.lock()).take(event, time::now());
            if let Some(news) = news {
                self.news.add(news);
            }
        }
    }

    /// Returns a client that records when the API server sends something on a watch. The events from kube's watcher
    /// would not be enough, because they include no bookmarks.
    fn listening<V>(&self, client: &Client, table: fn(&mut Tables) -> &mut Table<V>) -> Client
    where
        V: View + Send + Sync + 'static,
    {
        let store = self.clone();
        with_watch_listener(client, move |starts| store.hear(table, starts))
    }

    fn hear<V: View>(&self, table: fn(&mut Tables) -> &mut Table<V>, starts: bool) {
        let resumes = table(&mut self.lock()).hear(starts, time::now());
        if resumes {
            // No berth is offered until the missed events have had time to arrive. Start a pass after that time.
            let store = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(CATCH_UP_TIME).await;
                store.wake();
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        locked(&self.tables)
    }

    /// Requests another pass.
    pub fn wake(&self) {
        self.news.add(Urgency::Soon);
    }

    /// Changes since the last snapshot.
    pub fn news(&self) -> &WakeQueue {
        &self.news
    }

    /// Returns the kinds whose first list has not arrived yet.
    pub fn missing(&self) -> BTreeSet<&'static str> {
        self.lock().missing()
    }

    /// Returns the kinds with a stale table: their watch is being set up again, is silent, or resumed a moment ago.
    pub fn stale(&self) -> BTreeSet<&'static str> {
        self.lock().stale(time::now())
    }

    /// Takes a snapshot and marks all changes as handled. `None` until every watch has listed its objects.
    pub fn snapshot(&self) -> Option<Snapshot> {
        // Clear first, so that a change during the snapshot causes another pass.
        self.news.clear();
        let tables = self.lock();
        if !tables.missing().is_empty() {
            return None;
        }
        Some(Snapshot {
            pools: tables.pools.current.clone(),
            bootc_nodes: tables.hosts.current.clone(),
            nodes: tables.nodes.current.clone(),
            leases: tables.leases.current.clone(),
            fleet: tables.fleets.current.get(fleet::NAME).cloned(),
            stale: tables.stale(time::now()),
        })
    }
}

fn map<K, T>(event: Event<K>, f: impl FnOnce(K) -> T) -> Event<T> {
    match event {
        Event::Apply(k) => Event::Apply(f(k)),
        Event::Delete(k) => Event::Delete(f(k)),
        Event::Init => Event::Init,
        Event::InitApply(k) => Event::InitApply(f(k)),
        Event::InitDone => Event::InitDone,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;
    use kube::client::Body;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Text(&'static str, u32);

    impl View for Text {
        fn differs(&self, other: &Self) -> bool {
            self.0 != other.0
        }

        fn has_spoken(&self, other: &Self) -> bool {
            self.1 != other.1
        }
    }

    fn event(text: &'static str, beat: u32) -> (String, String, Text) {
        ("a".into(), "1".into(), Text(text, beat))
    }

    #[test]
    fn a_list_replaces_all_at_once() {
        let now = time::now();
        let mut table = Table::default();
        assert!(table.take(Event::Apply(event("x", 0)), now).is_some());
        assert!(table.take(Event::Init, now).is_none());
        assert!(!table.ready && table.current.len() == 1);
        assert!(table.take(Event::InitDone, now).is_some());
        assert!(table.ready && table.current.is_empty());
    }

    #[test]
    fn unchanged_objects_of_a_list_are_shared() {
        let now = time::now();
        let mut table = Table::default();
        fn list(table: &mut Table<Text>, now: Moment, text: &'static str) -> bool {
            table.take(Event::Init, now);
            table.take(Event::InitApply(event(text, 0)), now);
            let listed = table.listed.as_ref().unwrap()["a"].view.clone();
            let is_shared = table
                .current
                .get("a")
                .is_some_and(|old| Arc::ptr_eq(&old.view, &listed));
            table.take(Event::InitDone, now);
            is_shared
        }
        assert!(!list(&mut table, now, "x"));
        assert!(list(&mut table, now, "x") && !list(&mut table, now, "y"));
    }

    /// Returns the time this many seconds after the first list.
    fn at(seconds: u64) -> Moment {
        Moment::after(Duration::from_secs(1000 + seconds))
    }

    #[test]
    fn a_watch_that_fails_or_is_silent_is_stale() {
        let t0 = at(0);
        let mut table = Table::<Text>::default();
        table.hear(true, t0);
        assert!(table.is_stale(t0), "nothing is listed");
        table.take(Event::Init, t0);
        table.hear(true, t0);
        assert!(table.is_stale(t0), "the list is under way");
        table.take(Event::InitDone, t0);
        assert!(!table.is_stale(at(89)) && table.is_stale(at(90)));
        table.hear(false, at(60));
        assert!(!table.is_stale(at(149)), "a bookmark");
        table.synced = false;
        table.hear(false, at(61));
        assert!(table.is_stale(at(61)), "the end of a watch that failed");
        assert!(table.hear(true, at(62)), "it resumed");
        assert!(!table.hear(false, at(64)), "missed events arrive");
        assert!(table.is_stale(at(64)) && !table.is_stale(at(65)));
        assert!(table.hear(false, at(200)), "it was silent");
        assert!(table.is_stale(at(202)) && !table.is_stale(at(203)));
        assert!(
            !table.hear(true, at(210)) && !table.is_stale(at(210)),
            "requested again in time"
        );
        table.take(Event::Init, at(211));
        assert!(table.is_stale(at(211)));
    }

    #[tokio::test]
    async fn bookmarks_are_heard() {
        let frames = futures::stream::iter(["a", "b"])
            .map(|text| Ok::<_, std::io::Error>(hyper::body::Frame::data(hyper::body::Bytes::from(text))));
        let frames = Mutex::new(Some(frames));
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let body = http_body_util::StreamBody::new(frames.lock().unwrap().take().unwrap());
            async { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        let store = Store::default();
        (store.lock().nodes.ready, store.lock().nodes.heard) = (true, Moment::default());
        let client = store.listening(&Client::new(service, "ns"), |tables| &mut tables.nodes);
        let request = http::Request::get("/api/v1/nodes?&watch=true")
            .body(Body::empty())
            .unwrap();
        let answer = client.send(request).await.unwrap();
        let begun = store.lock().nodes.heard;
        assert!(store.lock().nodes.synced && begun > Moment::default());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ab");
        assert!(store.lock().nodes.heard > begun);
    }

    #[test]
    fn a_failed_snapshot_still_clears_the_news() {
        let store = Store::default();
        store.wake();
        assert!(store.news().latest().is_some());
        assert!(store.snapshot().is_none());
        assert!(store.news().latest().is_none());
    }

    #[test]
    fn a_heartbeat_wakes_no_pass() {
        let t0 = time::now();
        let later = t0 + Duration::from_secs(60);
        let mut table = Table::default();
        table.take(Event::Apply(event("x", 0)), t0);
        assert!(table.take(Event::Apply(event("x", 1)), later).is_none());
        assert_eq!(table.current["a"].heard, later);
        assert!(
            table
                .take(Event::Apply(event("y", 1)), later + Duration::from_secs(9))
                .is_some()
        );
        assert_eq!(table.current["a"].heard, later, "our own write is not a sign of life");
        table.take(Event::Init, later);
        table.take(Event::InitApply(event("y", 1)), later + Duration::from_secs(99));
        table.take(Event::InitDone, later);
        assert_eq!(table.current["a"].heard, later, "nor is a new list");
    }
}
