//! What the controller knows of the cluster at one moment: projections of the watched objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Moment;
use crate::controller::view::{FleetView, HostView, LeaseView, NodeView, PoolView};

/// One object as it is known.
#[derive(Debug)]
pub struct Entry<V> {
    /// Its projection.
    pub view: Arc<V>,
    /// Its resourceVersion.
    pub version: String,
    /// When it was last seen to say something new of its own. Measured here: never another machine's clock.
    pub heard: Moment,
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Self {
        Self {
            view: self.view.clone(),
            version: self.version.clone(),
            heard: self.heard,
        }
    }
}

/// All objects of one kind, by name.
pub type Objects<V> = BTreeMap<String, Entry<V>>;

/// What the watches know at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// BootcNodePools.
    pub pools: Arc<Objects<PoolView>>,
    /// BootcNodes.
    pub hosts: Arc<Objects<HostView>>,
    /// Nodes.
    pub nodes: Arc<Objects<NodeView>>,
    /// Berths.
    pub leases: Arc<Objects<LeaseView>>,
    /// The BootcFleet that counts, when there is one.
    pub fleet: Option<Entry<FleetView>>,
}

impl Snapshot {
    /// Whether all pools are paused at once.
    pub fn fleet_paused(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.view.paused)
    }
}
