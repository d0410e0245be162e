//! Decisions of the agent, which serves one node.
//!
//! [`knowledge`] has everything that the agent knows between two passes of its loop; [`facts`] is the part that a
//! decision reads. [`step`] returns the next action, [`maintenance`] the Node's lifecycle conditions, and [`report`]
//! the BootcNode's status. [`rollback_guard`] prepares the rollback that the host makes without the agent. [`past`]
//! records failures, [`timeline`] records the node's updates. [`pace`] delays the write of a status that may change
//! within a second, and [`gauges`] exports the status to Prometheus. [`exec_credential`] reads the credentials that a
//! program of the host issues for the kubelet, and [`impersonation`] interprets why an agent may not act as its node
//! without them. [`own_token`] decides when an agent outside a pod renews its token. [`removal`] lists what Berth leaves
//! on a host.

pub mod backend;
pub mod deployments;
pub mod exec_credential;
pub mod facts;
pub mod gauges;
pub mod host_policy;
pub mod impersonation;
pub mod knowledge;
pub mod lifecycle;
pub mod maintenance;
pub mod node;
mod outside;
pub mod own_token;
pub mod pace;
pub mod past;
pub mod reason;
pub mod removal;
pub mod report;
pub mod rivals;
pub mod rollback_guard;
pub mod soft_reboot;
pub mod staged;
pub mod step;
pub mod storage;
pub mod timeline;
