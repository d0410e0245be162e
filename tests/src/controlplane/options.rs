//! Options of a control plane.

use std::net::IpAddr;
use std::time::Duration;

/// Options of a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// An address of this machine that nodes reach the API server by (a bridge's, say), besides loopback.
    pub advertise: Option<IpAddr>,
    /// True runs the controller manager.
    pub controller_manager: bool,
    /// Controllers that the controller manager shall not run, by name.
    pub disabled_controllers: Vec<String>,
    /// True runs the scheduler.
    pub scheduler: bool,
    /// More arguments for the API server.
    pub apiserver_arguments: Vec<String>,
    /// More arguments for the controller manager.
    pub controller_manager_arguments: Vec<String>,
    /// Longest time until a server is ready.
    pub ready_deadline: Duration,
}

impl Default for Options {
    /// Loopback only, all controllers, no scheduler.
    fn default() -> Self {
        Self {
            advertise: None,
            controller_manager: true,
            disabled_controllers: Vec::new(),
            scheduler: false,
            apiserver_arguments: Vec::new(),
            controller_manager_arguments: Vec::new(),
            // Generous: the machine may be busy with other tests.
            ready_deadline: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// Options for simulated nodes: nobody renews the leases of kubelets, so nobody may taint nodes for it.
    pub fn simulated_nodes() -> Self {
        Self {
            disabled_controllers: vec!["node-lifecycle-controller".to_owned()],
            // It would taint each new Node as not ready, and nobody would take the taint away.
            apiserver_arguments: vec!["--disable-admission-plugins=TaintNodesByCondition".to_owned()],
            ..Self::default()
        }
    }

    /// Options for real hosts, which reach the API server by this address: everything runs.
    pub fn real_hosts(advertise: IpAddr) -> Self {
        Self {
            advertise: Some(advertise),
            scheduler: true,
            ..Self::default()
        }
    }
}
