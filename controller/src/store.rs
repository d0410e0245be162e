//! The objects that the controller knows, kept up to date by watches. All other code reads snapshots of it.
//!
//! A pass starts only when every watch has listed its objects once; before that, absence means nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};

use berth_api::fleet::{self, BootcFleet};
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_core::Moment;
use berth_core::controller::snapshot::{Entry, Objects, Snapshot};
use berth_core::controller::view::{BootcNodeView, FleetView, LeaseView, News, NodeView, PoolView, View};
use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::news::WakeQueue;
use crate::time;

#[derive(Debug)]
struct Table<V> {
    /// Objects, shared with the snapshots: copied on a change while a snapshot is looked at.
    current: Arc<Objects<V>>,
    /// Objects of a list that is under way; they then take the place of `current`.
    listed: Option<Objects<V>>,
    ready: bool,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            current: Arc::default(),
            listed: None,
            ready: false,
        }
    }
}

impl<V: View> Table<V> {
    fn entry(&self, name: &str, version: String, view: V, now: Moment) -> Entry<V> {
        let old = self.current.get(name);
        let view = view.after(old.map(|old| old.view.as_ref()));
        let heard = match old {
            Some(old) if !view.spoken(&old.view) => old.heard,
            _ => now,
        };
        Entry {
            view: Arc::new(view),
            version,
            heard,
        }
    }

    /// Takes one event in. If a plan could now look different, returns how soon that has to be looked at.
    fn take(&mut self, event: Event<(String, String, V)>, now: Moment) -> Option<News> {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                None
            }
            Event::InitApply((name, version, view)) => {
                let entry = self.entry(&name, version, view, now);
                self.listed.get_or_insert_default().insert(name, entry);
                None
            }
            Event::InitDone => {
                self.current = Arc::new(self.listed.take().unwrap_or_default());
                self.ready = true;
                Some(News::Soon)
            }
            Event::Apply((name, version, view)) => {
                let entry = self.entry(&name, version, view, now);
                let view = entry.view.clone();
                let old = Arc::make_mut(&mut self.current).insert(name, entry);
                old.map_or(Some(News::Soon), |old| view.news(&old.view))
            }
            Event::Delete((name, _, _)) => Arc::make_mut(&mut self.current).remove(&name).map(|_| News::Soon),
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

/// The watched objects. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Store {
    tables: Arc<Mutex<Tables>>,
    news: Arc<WakeQueue>,
}

impl Store {
    /// Starts the watches. They run until the runtime ends, and list again by themselves after errors.
    pub fn watch(client: &Client, namespace: &str) -> Self {
        let store = Self::default();
        let config = || watcher::Config::default().page_size(50);
        let berths = config().labels(keys::LABEL_POOL);
        store.follow(
            Api::<DeserializeGuard<BootcNodePool>>::all(client.clone()),
            config(),
            |tables| &mut tables.pools,
            PoolView::of,
        );
        store.follow(
            Api::<DeserializeGuard<BootcNode>>::all(client.clone()),
            config(),
            |tables| &mut tables.hosts,
            BootcNodeView::of,
        );
        store.follow(
            Api::<Node>::all(client.clone()),
            config(),
            |tables| &mut tables.nodes,
            |node| NodeView::of(&node),
        );
        store.follow(
            Api::<Lease>::namespaced(client.clone(), namespace),
            berths,
            |tables| &mut tables.leases,
            LeaseView::of,
        );
        store.follow(
            Api::<DeserializeGuard<BootcFleet>>::all(client.clone()),
            config(),
            |tables| &mut tables.fleets,
            FleetView::of,
        );
        store
    }

    fn follow<K, V>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        table: fn(&mut Tables) -> &mut Table<V>,
        project: fn(K) -> V,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        V: View + Send + Sync + 'static,
    {
        let stream = watch(api, config).default_backoff();
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
                    tracing::warn!(kind = %kind, error = %error, "watch failed; it starts again");
                    continue;
                }
            };
            let news = table(&mut self.lock()).take(event, time::now());
            if let Some(news) = news {
                self.news.tell(news);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Nothing panics between taking and leaving this lock with a table half changed.
        self.tables.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Asks for another pass.
    pub fn wake(&self) {
        self.news.tell(News::Soon);
    }

    /// Changes since the last snapshot.
    pub fn news(&self) -> &WakeQueue {
        &self.news
    }

    /// The kinds whose first list has not arrived yet.
    pub fn missing(&self) -> Vec<&'static str> {
        let tables = self.lock();
        [
            ("BootcNodePools", tables.pools.ready),
            ("BootcNodes", tables.hosts.ready),
            ("Nodes", tables.nodes.ready),
            ("Leases", tables.leases.ready),
            ("BootcFleets", tables.fleets.ready),
        ]
        .into_iter()
        .filter_map(|(kind, ready)| (!ready).then_some(kind))
        .collect()
    }

    /// Takes a snapshot, once every watch has listed its objects. All changes then count as looked at.
    pub fn snapshot(&self) -> Option<Snapshot> {
        // First, so that what changes meanwhile is looked at again.
        self.news.clear();
        if !self.missing().is_empty() {
            return None;
        }
        let tables = self.lock();
        Some(Snapshot {
            pools: tables.pools.current.clone(),
            hosts: tables.hosts.current.clone(),
            nodes: tables.nodes.current.clone(),
            leases: tables.leases.current.clone(),
            fleet: tables.fleets.current.get(fleet::NAME).cloned(),
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

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Text(&'static str, u32);

    impl View for Text {
        fn differs(&self, other: &Self) -> bool {
            self.0 != other.0
        }

        fn spoken(&self, other: &Self) -> bool {
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
    fn what_was_looked_at_is_no_news_even_if_it_was_too_early() {
        let store = Store::default();
        store.wake();
        assert!(store.news().latest().is_some());
        assert!(store.snapshot().is_none());
        assert!(store.news().latest().is_none());
    }

    #[test]
    fn a_heartbeat_is_heard_and_wakes_nobody() {
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
        assert_eq!(table.current["a"].heard, later, "our own write is no sign of life");
        table.take(Event::Init, later);
        table.take(Event::InitApply(event("y", 1)), later + Duration::from_secs(99));
        table.take(Event::InitDone, later);
        assert_eq!(table.current["a"].heard, later, "nor is a new list");
    }
}
