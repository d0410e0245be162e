//! The cluster's objects at one moment.

use anyhow::{Context, Result};
use berth_api::fleet::{self, BootcFleet};
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
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

use crate::admin::Mark;
use crate::lean::{Lean, LeanHost};
use crate::proto;

/// The cluster's objects at one moment.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Snapshot {
    /// All pools: a node's conflict shows only beside the others.
    pub pools: Vec<BootcNodePool>,
    /// The BootcNodes: desired and actual state of each node.
    pub bootc_nodes: Vec<BootcNode>,
    /// The Nodes themselves, without what no command reads.
    pub nodes: Vec<Node>,
    /// The berths.
    pub leases: Vec<Lease>,
    /// Switches and limits for all pools at once; `None` too when they could not be read.
    pub fleet: Option<BootcFleet>,
    /// Error for which the BootcFleet could not be read.
    pub fleet_unread: Option<String>,
    /// Notes for people on objects that could not be read.
    pub notes: Vec<String>,
    /// The only pool to show.
    pub only: Option<String>,
}

/// Amount to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Objects that tell of one node or of the past: no Nodes.
    Hosts,
    /// Objects that a status needs: all Nodes as well, if they can be read.
    Status,
    /// Objects that a preview needs: the Nodes must be readable.
    Preview,
    /// Objects that a command of an admin needs: as for a preview, and the berths must be readable.
    Admin,
}

impl Snapshot {
    /// Reads the current objects, each kind in one list without pages. The API server answers such a list from its cache, which it first
    /// brings up to date. It reads the second and later pages of a paged list from etcd.
    ///
    /// # Errors
    /// When the pools, their nodes or other objects that the scope needs cannot be read. Berths that cannot be read are a
    /// note, unless a command of an admin needs them; so are the BootcFleet and, for a status, the Nodes.
    pub async fn read(client: &Client, namespace: &str, scope: Scope) -> Result<Self> {
        let nodes = async {
            match scope {
                Scope::Hosts => Ok(vec![]),
                _ => list_nodes(client).await,
            }
        };
        // Only berths have it; the controller's own lease lies beside them.
        let berths = Some(keys::LABEL_POOL);
        let leases = Lease::url_path(&(), Some(namespace));
        let fleets = Api::<BootcFleet>::all(client.clone());
        let (pools, hosts) = (BootcNodePool::url_path(&(), None), BootcNode::url_path(&(), None));
        // At the same time: in a large cluster each of them takes a while.
        let (pools, bootc_nodes, nodes, leases, fleet) = futures::join!(
            list(client, &pools, None),
            list::<LeanHost>(client, &hosts, None),
            nodes,
            list(client, &leases, berths),
            fleets.get_opt(fleet::NAME)
        );
        let mut this = Self {
            pools: pools.map_err(explained)?,
            bootc_nodes: bootc_nodes
                .map_err(explained)?
                .into_iter()
                .map(|LeanHost(host)| host)
                .collect(),
            ..Self::default()
        };
        match leases {
            Ok(leases) => this.leases = leases,
            Err(error) if scope == Scope::Admin => return Err(error).context("reading the berths"),
            Err(error) => this.notes.push(format!("the berths are as last reported: {error}")),
        }
        match fleet {
            Ok(fleet) => this.fleet = fleet,
            Err(error) => {
                this.notes.push(format!(
                    "whether the fleet is paused or has a limit is not known: {error}"
                ));
                this.fleet_unread = Some(error.to_string());
            }
        }
        match nodes {
            Ok(nodes) => this.nodes = nodes,
            Err(error) if scope == Scope::Status => this.notes.push(format!(
                "whether nodes are Ready, cordoned or excluded is not known: {error}"
            )),
            Err(error) => return Err(error).context("reading the Nodes"),
        }
        Ok(this)
    }

    /// The same with an admin's label put on a node, or taken off.
    pub(crate) fn labelled(&self, node: &str, mark: Mark, on: bool) -> Self {
        let mut this = self.clone();
        for node in this.nodes.iter_mut().filter(|n| n.name_any() == node) {
            match on {
                true => drop(node.labels_mut().insert(mark.key().to_owned(), String::new())),
                false => drop(node.labels_mut().remove(mark.key())),
            }
        }
        this
    }

    /// Names of all pools, in order.
    pub fn pool_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.pools.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    }

    /// The pool of that name.
    pub(crate) fn pool(&self, name: &str) -> Option<&BootcNodePool> {
        self.pools.iter().find(|pool| pool.name_any() == name)
    }

    /// The name, if a pool has it.
    ///
    /// # Errors
    /// When none has; the error names those that there are.
    pub fn known(&self, pool: &str) -> Result<String> {
        known(pool, &self.pool_names())
    }

    /// The pools to show, by name.
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

/// The name, if it is one of these.
///
/// # Errors
/// When it is none of them; the error names all.
pub(crate) fn known(pool: &str, pools: &[String]) -> Result<String> {
    let is_there = pools.iter().any(|name| name == pool);
    anyhow::ensure!(is_there, "there is no pool {pool:?}; there are: {}", pools.join(", "));
    Ok(pool.to_owned())
}

/// All objects of a kind. `url`: that of the kind.
async fn list<K>(client: &Client, url: &str, labels: Option<&str>) -> kube::Result<Vec<K>>
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

/// All Nodes, in the encoding that costs an API server the least.
async fn list_nodes(client: &Client) -> kube::Result<Vec<Node>> {
    if let Some(nodes) = packed_nodes(client).await? {
        return Ok(nodes);
    }
    // What the server has against the request stands in its answer to the ordinary one.
    let nodes: Vec<Lean> = list(client, &Node::url_path(&(), None), None).await?;
    Ok(nodes.into_iter().map(|Lean(node)| node).collect())
}

/// All Nodes, in the encoding that the server has chosen. `None`: it has sent no list that can be read.
async fn packed_nodes(client: &Client) -> kube::Result<Option<Vec<Node>>> {
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
        return Ok(decoded(move || proto::nodes(&body)).await?.ok());
    }
    let list = decoded(move || serde_json::from_slice::<ObjectList<Lean>>(&body)).await?;
    Ok(list
        .ok()
        .map(|list| list.items.into_iter().map(|Lean(node)| node).collect()))
}

/// Decodes on a thread of its own: an answer of a large cluster takes a while, and the other answers come in meanwhile.
async fn decoded<T: Send + 'static>(decode: impl FnOnce() -> T + Send + 'static) -> kube::Result<T> {
    spawn_blocking(decode)
        .await
        .map_err(|error| kube::Error::Service(error.into()))
}

/// Explains an error. A missing kind means a missing installation, which the server's "page not found" does not say.
pub(crate) fn explained(error: kube::Error) -> anyhow::Error {
    let missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
    let error = anyhow::Error::from(error);
    if missing {
        error.context(
            "Berth is not installed in this cluster: it does not serve berth.dev/v1alpha1; apply its manifests first",
        )
    } else {
        error
    }
}
