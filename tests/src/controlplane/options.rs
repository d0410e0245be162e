//! Options of a control plane.

use std::net::IpAddr;
use std::time::Duration;

/// Options of a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of this machine, in addition to loopback, where nodes reach the API server. For example, the address of
    /// a bridge.
    pub advertise: Option<IpAddr>,
    /// If true, runs the controller manager.
    pub controller_manager: bool,
    /// Names of controllers that the controller manager does not run.
    pub disabled_controllers: Vec<String>,
    /// If true, runs the scheduler.
    pub scheduler: bool,
    /// Additional arguments of the API server.
    pub apiserver_arguments: Vec<String>,
    /// Additional arguments of the controller manager.
    pub controller_manager_arguments: Vec<String>,
    /// Timeout until a server is ready.
    pub ready_deadline: Duration,
}

impl Default for Options {
    /// Options with loopback only, all controllers and no scheduler.
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
    /// Options for simulated nodes. Without kubelets, no node lease is renewed, so the controller that taints such
    /// nodes is off.
    pub fn simulated_nodes() -> Self {
        Self {
            disabled_controllers: vec!["node-lifecycle-controller".to_owned()],
            // This plugin would taint each new Node as not ready, and no controller would remove the taint.
            apiserver_arguments: vec!["--disable-admission-plugins=TaintNodesByCondition".to_owned()],
            ..Self::default()
        }
    }

    /// Options for real hosts, which reach the API server at this address: everything runs.
    pub fn real_hosts(advertise: IpAddr) -> Self {
        Self {
            advertise: Some(advertise),
            scheduler: true,
            ..Self::default()
        }
    }
}
