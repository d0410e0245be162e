//! The Berth agent: brings the bootc host it runs on to the image that its BootcNode names, under a berth.
//!
//! What it decides is in [`berth_core::agent`]. Here, [`run`] loops, [`gather`] reads, [`act`] does. [`host`] talks to
//! systemd, logind and bootc over D-Bus, [`node`] to the Node and its pods under the kubelet's identity, [`watches`] and
//! [`status`] to Berth's own objects, and `guard` asks whether the API server guards them.

mod act;
pub mod cli;
pub mod clients;
pub mod gather;
mod guard;
pub mod host;
mod ledger;
pub mod node;
pub mod ready;
pub mod run;
pub mod status;
pub mod watches;
