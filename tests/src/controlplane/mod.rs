//! A real control plane of one's own: etcd, API server, controller manager and, if asked for, scheduler.
//!
//! Authorization is `Node,RBAC` with NodeRestriction, and every request is audited: without these, tests of
//! what an identity may do, and counts of writes, would prove nothing.

mod apply;
mod identities;
mod kubeconfig;
mod options;
pub mod pki;
mod plane;
mod seed;
mod servers;

pub use identities::Bound;
pub use kubeconfig::Kubeconfig;
pub use options::Options;
pub use plane::ControlPlane;
