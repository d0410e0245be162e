//! The agent's watches. The watch of its own BootcNode is always open. The watch of the Leases with its node's label is
//! open only while the node waits for a berth or holds one, so an idle agent has one watch.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::berth::{Berth, lease};
use berth_api::decode::Decoded;
use berth_api::keys;
use berth_api::names::NodeName;
use berth_api::node::BootcNode;
use berth_api::seeded::Bug;
use berth_shell::retry;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher::{self, Event, ExponentialBackoff};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clients::with_deadline;

/// State of this node's BootcNode in the watch.
#[derive(Debug, Clone, Default)]
pub enum Seen {
    /// The watch has not answered yet.
    #[default]
    NotYet,
    /// The object does not exist.
    Absent,
    /// The object exists, but its spec cannot be parsed for this reason.
    Unreadable(String),
    /// The object as it was last received. If its status cannot be parsed, the object has the error instead.
    Is(Box<Decoded<BootcNode>>),
}

impl Seen {
    fn of(object: Decoded<BootcNode>) -> Self {
        match object.spec_error {
            Some(error) => Self::Unreadable(error),
            None => Self::Is(Box::new(object)),
        }
    }
}

/// Returns the delays before a broken watch is opened again. The longest delay is short enough to reconnect to a
/// returning API server before an offer lapses. The jitter is large, because all agents lose their watches at the same
/// time.
fn reconnect() -> ExponentialBackoff {
    retry::delays(Duration::from_millis(250), Duration::from_secs(6)).into()
}

/// Watches this node's BootcNode until the receiver is dropped.
pub fn bootc_node(client: Client, node: &NodeName) -> watch::Receiver<Seen> {
    let (sender, receiver) = watch::channel(Seen::NotYet);
    let api: Api<Decoded<BootcNode>> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(api, config).backoff(reconnect()));
        let mut listed = false;
        while let Some(event) = events.next().await {
            let seen = match event {
                Ok(Event::Init) => {
                    listed = false;
                    continue;
                }
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    listed = true;
                    Seen::of(object)
                }
                Ok(Event::InitDone) if listed => continue,
                Ok(Event::InitDone | Event::Delete(_)) => Seen::Absent,
                Err(error) => {
                    tracing::warn!(%error, "the watch of the BootcNode broke; retrying");
                    continue;
                }
            };
            if sender.send(seen).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Leases with this node's label, kept current by a watch or filled by one list.
#[derive(Debug)]
pub struct Berths {
    api: Api<Decoded<Lease>>,
    selector: String,
    known: Option<BTreeMap<String, Decoded<Lease>>>,
    feed: Option<Feed>,
}

#[derive(Debug)]
struct Feed {
    receiver: watch::Receiver<Option<BTreeMap<String, Decoded<Lease>>>>,
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Berths {
    /// Creates an empty store.
    pub fn new(client: Client, namespace: &str, node: &NodeName) -> Self {
        let selector = format!("{}={}", keys::LABEL_NODE, node.label());
        Self {
            api: Api::namespaced(client, namespace),
            selector,
            known: None,
            feed: None,
        }
    }

    /// Reads the Leases from the API server's storage.
    pub async fn refresh(&mut self) -> anyhow::Result<()> {
        let params = ListParams::default().labels(&self.selector);
        let list = with_deadline(Duration::from_secs(10), self.api.list(&params)).await?;
        self.known = Some(list.items.into_iter().filter_map(named).collect());
        Ok(())
    }

    /// Opens the watch if `on`, otherwise closes it.
    pub fn watch(&mut self, on: bool) {
        match (on, self.feed.is_some()) {
            (true, false) => self.feed = Some(feed(self.api.clone(), &self.selector)),
            (false, true) => self.feed = None,
            _ => {}
        }
    }

    /// Merges the events that the watch has received since the last call. True if there was an event.
    pub fn catch_up(&mut self) -> bool {
        let Some(feed) = &mut self.feed else { return false };
        if !feed.receiver.has_changed().unwrap_or(false) {
            return false;
        }
        let seen = feed.receiver.borrow_and_update().clone();
        seen.map(|seen| self.merge(seen)).is_some()
    }

    /// Replaces the known Leases by the watch's Leases, but keeps a newer version of a Lease that the agent itself has
    /// written. The resourceVersions of one resource are ordered numbers.
    fn merge(&mut self, seen: BTreeMap<String, Decoded<Lease>>) {
        let known = self.known.take().unwrap_or_default();
        let merged = seen.into_iter().map(|(name, theirs)| match known.get(&name) {
            Some(ours) if version(ours) > version(&theirs) => (name, ours.clone()),
            _ => (name, theirs),
        });
        self.known = Some(merged.collect());
    }

    /// Resolves when the watch has received an event. Never resolves if the watch is closed.
    pub async fn changed(&mut self) {
        if let Some(feed) = &mut self.feed
            && feed.receiver.changed().await.is_ok()
        {
            // Mark the event as unseen again, so that [`Berths::catch_up`] still finds it.
            return feed.receiver.mark_changed();
        }
        std::future::pending().await
    }

    /// Returns the berths; `None` before the first read. An invalid Lease permits nothing, so it is only logged.
    pub fn berths(&self) -> Option<Vec<Berth>> {
        let known = self.known.as_ref()?;
        let read = known.values().filter_map(|l| {
            l.berth()
                .inspect_err(|error| tracing::warn!(%error, "cannot parse a Lease with this node's label"))
                .ok()
        });
        Some(read.collect())
    }

    /// Writes a berth: a full PUT with the UID and resourceVersion that the Lease had when it was read. Fails with
    /// [`kube::Error::Api`] 409 if the Lease has changed since it was read: the caller must then read it and decide
    /// again.
    pub async fn put(&mut self, berth: &Berth) -> anyhow::Result<()> {
        let name = berth.name();
        let known = self.known.get_or_insert_default();
        let Some(mut lease) = known.get(&name).cloned() else {
            anyhow::bail!("the Lease of berth {name} no longer has this node's label");
        };
        lease::write(berth, &mut lease, jiff::Timestamp::now());
        if Bug::NoCas.is_awake() {
            // Seeded bug: overwrite the current Lease. Without a resourceVersion, the API server would reject the
            // update.
            lease.metadata.resource_version = self.api.get(&name).await?.object.metadata.resource_version;
        }
        let params = PostParams::default();
        let stored = with_deadline(Duration::from_secs(10), self.api.replace(&name, &params, &lease)).await?;
        known.insert(name, stored);
        Ok(())
    }
}

fn named(lease: Decoded<Lease>) -> Option<(String, Decoded<Lease>)> {
    Some((lease.metadata.name.clone()?, lease))
}

pub(crate) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn feed(api: Api<Decoded<Lease>>, selector: &str) -> Feed {
    let (sender, receiver) = watch::channel(None);
    let config = watcher::Config::default().labels(selector);
    let task = tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(api, config).backoff(reconnect()));
        let mut store = BTreeMap::new();
        let mut listing = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => {
                    listing.clear();
                    continue;
                }
                Ok(Event::InitApply(lease)) => {
                    listing.extend(named(lease));
                    continue;
                }
                Ok(Event::InitDone) => store = std::mem::take(&mut listing),
                Ok(Event::Apply(lease)) => store.extend(named(lease)),
                Ok(Event::Delete(lease)) => {
                    store.remove(lease.metadata.name.as_deref().unwrap_or_default());
                }
                Err(error) => {
                    tracing::warn!(%error, "the watch of the berths broke; retrying");
                    continue;
                }
            }
            if sender.send(Some(store.clone())).is_err() {
                return;
            }
        }
    });
    Feed { receiver, task }
}

#[cfg(test)]
mod tests {
    use kube::runtime::utils::Backoff;

    use super::*;

    #[test]
    fn a_status_that_cannot_be_parsed_does_not_hide_the_spec() {
        let mut object = serde_json::json!({
            "metadata": { "name": "n1" }, "spec": { "poolName": "p" }, "status": { "heartbeatTime": "9999-12-31T23:59:59Z" },
        });
        let seen = Seen::of(serde_json::from_value(object.clone()).unwrap());
        assert!(
            matches!(&seen, Seen::Is(object) if object.spec.pool_name == "p" && object.status.is_none() && object.error().is_some())
        );
        object["spec"] = serde_json::json!({ "poolName": 7 });
        assert!(matches!(
            Seen::of(serde_json::from_value(object).unwrap()),
            Seen::Unreadable(_)
        ));
    }

    #[test]
    fn retries_of_a_watch_slow_down_but_stay_short() {
        let mut waits = reconnect();
        for most in [0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 12.0, 12.0] {
            let wait = waits.next().unwrap().as_secs_f64();
            assert!(wait >= most / 2.0 && wait <= most, "{wait} of {most}");
        }
        waits.reset();
        assert!(waits.next().unwrap() <= Duration::from_millis(500));
    }
}
