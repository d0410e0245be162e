//! Reading the cluster's objects.

use std::sync::Arc;

use anyhow::{Context, Result};
use berth_api::decode::Decoded;
use berth_api::fleet::{self, BootcFleet};
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_core::controller::snapshot;
use http::HeaderValue;
use http::header::{ACCEPT, CONTENT_TYPE};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, ObjectList, Request};
use kube::client::Body;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use crate::known_node::KnownNode;
use crate::mark::Mark;
use crate::proto;

/// The cluster's objects at one moment.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Snapshot {
    /// All pools, even if only one is shown: a conflict with another pool is visible only if both are read.
    pub pools: Vec<BootcNodePool>,
    /// The BootcNodes: desired and actual state of each node.
    pub bootc_nodes: Vec<Decoded<BootcNode>>,
    /// The Nodes.
    pub nodes: Vec<KnownNode>,
    /// The berths.
    pub leases: Vec<Decoded<Lease>>,
    /// The BootcFleet; `None` if there is none or it could not be read.
    pub fleet: Option<BootcFleet>,
    /// Why the BootcFleet could not be read.
    pub fleet_unread: Option<String>,
    /// Why the Nodes could not be read.
    pub nodes_unread: Option<String>,
    /// Notes on objects that could not be read.
    pub notes: Vec<String>,
    /// The only pool to show; `None` for all.
    pub only: Option<String>,
}

/// Maximum number of objects in the notes on objects that cannot be decoded.
const NAMED: usize = 5;

/// Objects to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything except the Nodes; enough for commands about one node or about the past.
    WithoutNodes,
    /// Everything; the Nodes only if they can be read.
    Status,
    /// As for `Status`, but the Nodes must be readable.
    Preview,
    /// As for `Preview`, and the berths must be readable.
    Admin,
}

impl Snapshot {
    /// Reads the current objects, each kind in one list request without paging. For such a request, the API server
    /// brings its cache up to date and serves the list from the cache. With paging, it would read later pages from
    /// etcd. Fails if objects that the scope needs cannot be read. For other objects that cannot be read, adds a note.
    pub async fn read(client: &Client, namespace: &str, scope: Scope) -> Result<Self> {
        let nodes = async {
            match scope {
                Scope::WithoutNodes => Ok(vec![]),
                _ => list_nodes(client).await,
            }
        };
        // The namespace also has the controller's own Lease. Only berths have this label.
        let berths = Some(keys::LABEL_POOL);
        let leases = Lease::url_path(&(), Some(namespace));
        let fleets = Api::<BootcFleet>::all(client.clone());
        let (pools, bootcs) = (BootcNodePool::url_path(&(), None), BootcNode::url_path(&(), None));
        // In parallel: in a large cluster each list takes a while.
        let (pools, bootc_nodes, nodes, leases, fleet) = futures::join!(
            list(client, &pools, None),
            list(client, &bootcs, None),
            nodes,
            list(client, &leases, berths),
            fleets.get_opt(fleet::NAME)
        );
        let mut this = Self {
            pools: pools.map_err(explained)?,
            bootc_nodes: bootc_nodes.map_err(explained)?,
            ..Self::default()
        };
        let mut leases_unread = None;
        match leases {
            Ok(leases) => this.leases = leases,
            Err(error) if scope == Scope::Admin => return Err(error).context("cannot read the berths"),
            Err(error) => leases_unread = Some(words(&error)),
        }
        match fleet {
            Ok(fleet) => this.fleet = fleet,
            Err(error) => this.fleet_unread = Some(words(&error)),
        }
        match nodes {
            Ok(nodes) => this.nodes = nodes,
            Err(error) if scope == Scope::Status => this.nodes_unread = Some(words(&error)),
            Err(error) => return Err(error).context("cannot read the Nodes"),
        }
        this.notes = this.unread(leases_unread.as_deref());
        Ok(this)
    }

    /// Returns notes on objects that could not be read or cannot be decoded. `leases`: why the berths could not be
    /// read.
    pub(crate) fn unread(&self, leases: Option<&str>) -> Vec<String> {
        let mut notes = vec![];
        if let Some(why) = leases {
            notes.push(format!(
                "cannot read the berths, so the numbers are the controller's last report: {why}"
            ));
        }
        if let Some(why) = &self.fleet_unread {
            notes.push(format!(
                "cannot read BootcFleet cluster, so the fleet may be paused or have a limit: {why}"
            ));
        }
        if let Some(why) = &self.nodes_unread {
            notes.push(format!(
                "cannot read the Nodes, so some may be NotReady, cordoned or excluded: {why}"
            ));
        }
        notes.extend(self.undecoded());
        notes
    }

    /// Reads the Nodes alone, of a cluster without Berth.
    pub(crate) async fn of_nodes(client: &Client) -> kube::Result<Self> {
        Ok(Self {
            nodes: list_nodes(client).await?,
            ..Self::default()
        })
    }

    /// Returns notes on objects that cannot be decoded completely. Names at most [`NAMED`] of them, Leases first: an
    /// unreadable Lease counts as held, so it stops other nodes of its pool.
    pub(crate) fn undecoded(&self) -> Vec<String> {
        let leases = self
            .leases
            .iter()
            .filter_map(|lease| undecoded("Lease", &lease.name_any(), lease.error()));
        let nodes = self
            .nodes
            .iter()
            .filter_map(|node| undecoded("Node", node.name(), node.view.error.as_deref()));
        let hosts = self
            .bootc_nodes
            .iter()
            .filter_map(|host| undecoded("BootcNode", &host.name_any(), host.error()));
        let mut found = leases.chain(nodes).chain(hosts);
        let mut notes: Vec<String> = found.by_ref().take(NAMED).collect();
        match found.count() {
            0 => {}
            1 => notes.push("1 more object cannot be read completely".to_owned()),
            more => notes.push(format!("{more} more objects cannot be read completely")),
        }
        notes
    }

    /// Returns notes on the Node and the BootcNode with this name that cannot be decoded completely.
    pub(crate) fn undecoded_of(&self, name: &str) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|node| node.name() == name);
        let hosts = self.bootc_nodes.iter().filter(|host| host.name_any() == name);
        let nodes = nodes.filter_map(|node| undecoded("Node", node.name(), node.view.error.as_deref()));
        nodes
            .chain(hosts.filter_map(|host| undecoded("BootcNode", &host.name_any(), host.error())))
            .collect()
    }

    /// Returns a copy with the mark's label added to a node (`on` is true) or removed from the node.
    pub(crate) fn labelled(&self, node: &str, mark: Mark, on: bool) -> Self {
        let mut this = self.clone();
        for node in this.nodes.iter_mut().filter(|found| found.name() == node) {
            let labels = &mut Arc::make_mut(&mut node.view).labels;
            if on {
                labels.insert(mark.key().to_owned(), String::new());
            } else {
                labels.remove(mark.key());
            }
        }
        this
    }

    pub(crate) fn seen(&self) -> snapshot::Snapshot {
        let leases = self.leases.iter();
        let berths = leases.filter(|lease| lease.labels().contains_key(keys::LABEL_POOL));
        let nodes = self.nodes.iter().map(|node| node.view.clone());
        snapshot::Snapshot::of(&self.pools, &self.bootc_nodes, nodes, berths, self.fleet.as_ref())
    }

    /// Returns the names of all pools, sorted.
    pub fn pool_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.pools.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    }

    pub(crate) fn pool(&self, name: &str) -> Option<&BootcNodePool> {
        self.pools.iter().find(|pool| pool.name_any() == name)
    }

    /// Returns the name if there is a pool with this name, otherwise an error that lists the pools.
    pub fn known(&self, pool: &str) -> Result<String> {
        known(pool, &self.pool_names())
    }

    /// Returns the pools to show, sorted by name.
    pub(crate) fn shown(&self) -> Vec<&BootcNodePool> {
        let only = self.only.as_deref();
        let mut shown: Vec<_> = self
            .pools
            .iter()
            .filter(|pool| only.is_none_or(|name| pool.name_any() == name))
            .collect();
        shown.sort_by_key(|pool| pool.name_any());
        shown
    }
}

/// Returns a note if the object cannot be decoded completely.
fn undecoded(kind: &str, name: &str, error: Option<&str>) -> Option<String> {
    error.map(|error| format!("cannot read all of {kind} {name}: {error}"))
}

/// Returns the name if it is in `pools`, otherwise an error that lists the pools.
pub(crate) fn known(pool: &str, pools: &[String]) -> Result<String> {
    let is_there = pools.iter().any(|name| name == pool);
    anyhow::ensure!(
        is_there,
        "there is no pool {pool:?}; existing pools: {}",
        pools.join(", ")
    );
    Ok(pool.to_owned())
}

pub(crate) async fn list<K>(client: &Client, url: &str, labels: Option<&str>) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Send + 'static,
{
    let params = ListParams {
        label_selector: labels.map(str::to_owned),
        ..ListParams::default()
    };
    let request = Request::new(url).list(&params).map_err(kube::Error::BuildRequest)?;
    let answer = client.request_text(request).await?;
    let list = decoded(move || serde_json::from_str::<ObjectList<K>>(&answer)).await?;
    Ok(list.map_err(kube::Error::SerdeError)?.items)
}

/// Lists all Nodes, in protobuf if possible: protobuf costs an API server less than JSON.
async fn list_nodes(client: &Client) -> kube::Result<Vec<KnownNode>> {
    if let Some(nodes) = packed_nodes(client).await? {
        return Ok(nodes);
    }
    // If the server refused the protobuf request, the error of the JSON request shows why.
    list(client, &Node::url_path(&(), None), None).await
}

/// Lists all Nodes in the encoding that the server chooses. `None` if the response is an error or cannot be decoded.
async fn packed_nodes(client: &Client) -> kube::Result<Option<Vec<KnownNode>>> {
    let request = Request::new(Node::url_path(&(), None)).list(&ListParams::default());
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    let accepted = HeaderValue::from_static("application/vnd.kubernetes.protobuf, application/json");
    request.headers_mut().insert(ACCEPT, accepted);
    let response = client.send(request.map(Body::from)).await?;
    if !response.status().is_success() {
        return Ok(None);
    }
    let kind = response.headers().get(CONTENT_TYPE);
    let is_packed = kind.is_some_and(|kind| kind.as_bytes().starts_with(proto::MEDIA_TYPE.as_bytes()));
    let body = response.into_body().collect_bytes().await?;
    if is_packed {
        return Ok(decoded(move || proto::nodes(&body).map(known_nodes)).await?.ok());
    }
    let list = decoded(move || serde_json::from_slice::<ObjectList<KnownNode>>(&body)).await?;
    Ok(list.ok().map(|list| list.items))
}

fn known_nodes(nodes: Vec<Decoded<Node>>) -> Vec<KnownNode> {
    nodes.into_iter().map(KnownNode::from).collect()
}

/// Decodes a list on a separate thread, so that the other lists of a large cluster are received meanwhile.
async fn decoded<T: Send + 'static>(decode: impl FnOnce() -> T + Send + 'static) -> kube::Result<T> {
    spawn_blocking(decode)
        .await
        .map_err(|error| kube::Error::Service(error.into()))
}

/// Returns the error in words: the API server's own, if it refused the request.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Explains HTTP status 404: the API server does not have Berth's resources, so Berth is not installed.
pub(crate) fn explained(error: kube::Error) -> anyhow::Error {
    let missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
    let error = anyhow::Error::from(error);
    if missing {
        error.context(
            "Berth is not installed in this cluster: the API berth.dev/v1alpha1 is missing; apply Berth's manifests first",
        )
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LATE: &str = "9999-12-31T23:59:59Z";

    #[test]
    fn leases_are_named_before_nodes() {
        let mut snapshot = Snapshot::default();
        for i in 0..7 {
            let host =
                json!({ "metadata": { "name": format!("n{i}") }, "spec": {}, "status": { "heartbeatTime": LATE } });
            snapshot.bootc_nodes.push(serde_json::from_value(host).unwrap());
        }
        let lease = json!({ "metadata": { "name": "p-0" }, "spec": { "renewTime": LATE } });
        snapshot.leases.push(serde_json::from_value(lease).unwrap());
        let notes = snapshot.undecoded();
        assert!(
            notes[0].starts_with("cannot read all of Lease p-0: spec.renewTime: "),
            "{notes:?}"
        );
        assert_eq!(
            (notes.len(), &*notes[5]),
            (6, "3 more objects cannot be read completely")
        );
        let last = snapshot.undecoded_of("n6");
        assert!(
            last.len() == 1 && last[0].starts_with("cannot read all of BootcNode n6: status: "),
            "{last:?}"
        );
        snapshot.bootc_nodes.truncate(5);
        assert_eq!(snapshot.undecoded()[5], "1 more object cannot be read completely");
        snapshot.bootc_nodes.truncate(4);
        assert_eq!(snapshot.undecoded().len(), 5);
    }
}
