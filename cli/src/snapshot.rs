//! The cluster's objects at one moment.

use std::fmt::Debug;

use anyhow::{Context, Result};
use berth_api::fleet::{self, BootcFleet};
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Objects per answer: a large cluster's Nodes come to many megabytes.
const PAGE: u32 = 500;

/// The cluster's objects at one moment.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Snapshot {
    /// All pools: a node's conflict shows only beside the others.
    pub pools: Vec<BootcNodePool>,
    /// The BootcNodes: desired and actual state of each node.
    pub bootc_nodes: Vec<BootcNode>,
    /// The Nodes themselves: all of them for a preview or a command of an admin, the excluded ones for a status.
    pub nodes: Vec<Node>,
    /// The berths.
    pub leases: Vec<Lease>,
    /// Switches and limits for all pools at once.
    pub fleet: Option<BootcFleet>,
    /// Notes for people on objects that could not be read.
    pub notes: Vec<String>,
    /// The only pool to show.
    pub only: Option<String>,
}

/// Amount to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Objects that a status needs.
    Status,
    /// Objects that a preview needs: all Nodes as well.
    Preview,
    /// Objects that a command of an admin needs: as for a preview, and the berths must be readable.
    Admin,
}

impl Snapshot {
    /// Reads the objects from the API server's storage, and not from a cache.
    ///
    /// # Errors
    /// When the pools, their nodes or other objects that the scope needs cannot be read. Berths that cannot be read are a
    /// note, unless a command of an admin needs them; so are the BootcFleet and, for a status, excluded Nodes.
    pub async fn read(client: &Client, namespace: &str, scope: Scope) -> Result<Self> {
        let mut this = Self {
            pools: list(&Api::all(client.clone()), None).await.map_err(explained)?,
            bootc_nodes: list(&Api::all(client.clone()), None).await.map_err(explained)?,
            ..Self::default()
        };
        match list(&Api::<Lease>::namespaced(client.clone(), namespace), None).await {
            Ok(leases) => this.leases = leases,
            Err(error) if scope == Scope::Admin => return Err(error).context("reading the berths"),
            Err(error) => this.notes.push(format!("the berths are as last reported: {error}")),
        }
        // The controller's own lease lies beside the berths.
        this.leases
            .retain(|lease| lease.labels().contains_key(keys::LABEL_POOL));
        match Api::all(client.clone()).get_opt(fleet::NAME).await {
            Ok(fleet) => this.fleet = fleet,
            Err(error) => this.notes.push(format!(
                "whether the fleet is paused or has a limit is not known: {error}"
            )),
        }
        let nodes = Api::all(client.clone());
        if scope != Scope::Status {
            this.nodes = list(&nodes, None).await.context("reading the Nodes")?;
            return Ok(this);
        }
        match list(&nodes, Some(keys::LABEL_EXCLUDE)).await {
            Ok(excluded) => this.nodes = excluded,
            Err(error) => this.notes.push(format!("excluded nodes are not named: {error}")),
        }
        Ok(this)
    }

    /// The same with the label that excludes a node put on it, or taken off.
    pub(crate) fn labelled(&self, node: &str, excluded: bool) -> Self {
        let mut this = self.clone();
        for node in this.nodes.iter_mut().filter(|n| n.name_any() == node) {
            match excluded {
                true => drop(node.labels_mut().insert(keys::LABEL_EXCLUDE.to_owned(), String::new())),
                false => drop(node.labels_mut().remove(keys::LABEL_EXCLUDE)),
            }
        }
        this
    }

    /// The pool of that name.
    pub(crate) fn pool(&self, name: &str) -> Option<&BootcNodePool> {
        self.pools.iter().find(|pool| pool.name_any() == name)
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

async fn list<K>(api: &Api<K>, labels: Option<&str>) -> kube::Result<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector = labels.map(str::to_owned);
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Explains an error. A missing kind means a missing installation, which the server's "page not found" does not say.
fn explained(error: kube::Error) -> anyhow::Error {
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
