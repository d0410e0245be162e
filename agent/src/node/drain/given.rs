//! Input of the drain.

use std::time::Duration;

use berth_core::Moment;
use jiff::Timestamp;

use crate::node::settings::Settings;

/// Input of one pass of the drain.
#[derive(Debug, Clone)]
pub struct Given<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Drain rules of the pool.
    pub settings: &'a Settings,
    /// True if the kubelet is ready: only a ready kubelet can end pods.
    pub node_ready: bool,
    /// Time left until the drain's timeout; zero after the timeout, or if the drain has no timeout.
    pub left: Duration,
    /// Time by this node's clock. For display.
    pub now: Timestamp,
    /// Time by a monotonic clock, for measuring all waits.
    pub clock: Moment,
}
