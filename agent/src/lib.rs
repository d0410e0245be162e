//! The Berth agent updates the bootc host that it runs on to the image that its BootcNode names, under a berth.
//!
//! [`berth_core::agent`] makes the decisions. In this crate, [`run`] is the loop, [`gather`] reads facts, and [`act`]
//! performs steps. [`host`] uses systemd, logind and rpm-ostree over D-Bus, and runs host tools such as bootc as
//! systemd units. [`kubelet`] has the kubelet's identity, [`node`] accesses the Node and its pods with it, and
//! [`watches`] and [`status`] access Berth's own objects. [`own_token`] renews the agent's own token outside a pod.
//! `guard` checks that the API server protects Berth's objects, and [`metrics`] serves Prometheus. [`firstboot`] is a
//! second program in this binary, which runs before the machine is a node. [`removal`] is a third one, which removes Berth
//! from the host.

mod act;
pub mod cli;
pub mod clients;
#[cfg(test)]
mod fake_api_server;
pub mod firstboot;
pub mod gather;
mod guard;
pub mod host;
pub mod kubelet;
mod ledger;
pub mod metrics;
pub mod node;
pub mod own_token;
mod pool_checks;
pub mod ready;
pub mod removal;
pub mod run;
pub mod status;
mod telemetry;
mod timers;
pub mod watches;
