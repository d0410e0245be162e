//! The Berth agent: brings the bootc host it runs on to the image that its BootcNode names, under a berth.
//!
//! What it decides is in [`berth_core::agent`]. Here, [`run`] loops, [`gather`] reads, [`act`] does. [`host`] talks to
//! systemd, logind and bootc over D-Bus, [`node`] to the Node and its pods under the kubelet's identity, [`watches`] and
//! [`status`] to Berth's own objects, `guard` asks whether the API server guards them, and [`metrics`] tells Prometheus.
//! [`firstboot`] is another program in the same file: it runs before the machine is a node.

mod act;
pub mod cli;
pub mod clients;
#[cfg(test)]
mod fake_api_server;
pub mod firstboot;
pub mod gather;
mod guard;
pub mod host;
mod ledger;
pub mod metrics;
pub mod node;
pub mod ready;
pub mod run;
mod signs;
pub mod status;
mod timers;
pub mod watches;
