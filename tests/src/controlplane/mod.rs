//! A real control plane for one test: etcd, API server, controller manager and optionally the scheduler.
//!
//! Authorization is `Node,RBAC` with NodeRestriction, and every request is audited. Otherwise tests of permissions and counts of
//! writes would prove nothing.

mod apply;
mod identities;
mod kubeconfig;
pub mod node_tokens;
mod options;
pub mod pki;
mod plane;
mod seed;
mod servers;

pub use identities::Bound;
pub use kubeconfig::Kubeconfig;
pub use node_tokens::NodeTokens;
pub use options::Options;
pub use plane::ControlPlane;
pub use servers::SERVICE_ADDRESS;
