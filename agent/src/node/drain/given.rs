//! Input of the drain.

use std::time::Duration;

use berth_core::Moment;
use jiff::Timestamp;

use crate::node::settings::Settings;

/// Input of one pass.
#[derive(Debug, Clone)]
pub struct Given<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Drain rules of the pool.
    pub settings: &'a Settings,
    /// True if the kubelet is ready and so can end pods.
    pub node_ready: bool,
    /// Time that the drain has left; zero if it has timed out or has no timeout.
    pub left: Duration,
    /// Time by this node's clock, for display.
    pub now: Timestamp,
    /// The current time on a monotonic clock, which measures all waits.
    pub clock: Moment,
}
