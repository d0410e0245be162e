//! Simulated hosts: everything that the agent uses on a host, without root, containers or real images.
//!
//! Each host has its own message bus with stand-ins for systemd and logind, a private directory as its root, a state machine
//! instead of bootc and ostree, and a stand-in for the kubelet. Its agent is the real program. Hosts are cheap (one `dbus-daemon`
//! and one agent process each), so a test can have a hundred, and every relevant fault can be injected: see [`Settings`].

pub mod agent;
pub mod bootc;
pub mod bus;
pub mod catalog;
pub mod credentials;
pub mod fleet;
pub mod kubelet;
pub mod settings;

mod guard;
mod host;
mod login;
mod machine;
mod policy;
mod process;
mod record;
mod rpm_ostree;
mod skopeo;
mod systemd;
mod timedate;
mod transient;
mod units;

pub use agent::AgentConfig;
pub use catalog::{Catalog, CatalogImage};
pub use credentials::CredentialProgram;
pub use fleet::SimFleet;
pub use host::{HostState, SimHost, SimHostConfig};
pub use kubelet::{KubeletConfig, NEVER_ENDS};
pub use settings::{Inhibitor, KubeletSettings, RebootFault, Settings, Unhealthy, Updaters};
