//! Decisions of the agent of one node.
//!
//! [`knowledge`] is what it knows between two passes, and the [`facts`] that follow from it. [`step`] is its next
//! action, [`maintenance`] what others see of a turn on the Node, [`past`] its memory of earlier tries, [`timeline`] the record of its updates, [`report`] its report in the
//! BootcNode's status, [`pace`] when that is written, and [`gauges`] what of it Prometheus reads.

pub mod backend;
pub mod deployments;
pub mod facts;
pub mod gauges;
pub mod host_policy;
pub mod knowledge;
pub mod lifecycle;
pub mod maintenance;
pub mod node;
pub mod pace;
pub mod past;
pub mod reason;
pub mod report;
pub mod rivals;
pub mod staged;
pub mod step;
pub mod storage;
pub mod timeline;
