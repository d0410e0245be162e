//! The Berth agent: brings the bootc host it runs on to the image that its BootcNode names, under a berth.
//!
//! [`facts`] is what it knows, [`step`] what it does next and [`report`] what it says of it: plain data and pure
//! functions. [`run`] loops, [`gather`] reads, [`act`] does. [`host`] talks to systemd, logind and bootc over D-Bus,
//! [`node`] to the Node and its pods under the kubelet's identity, [`watches`] and [`status`] to Berth's own objects.

mod act;
pub mod cli;
pub mod clients;
pub mod facts;
pub mod gather;
pub mod host;
pub mod jitter;
pub mod node;
pub mod past;
pub mod report;
pub mod run;
pub mod status;
pub mod step;
pub mod watches;
