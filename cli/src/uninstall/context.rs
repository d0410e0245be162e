//! Connection and options of all steps.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::requests::Server;
use crate::text::seconds;

/// Time between two looks at the cluster.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// How to remove Berth.
#[derive(Debug, Clone)]
pub struct Options {
    /// Namespace that Berth is installed in.
    pub namespace: String,
    /// Nodes that no step waits for.
    pub leave: BTreeSet<String>,
    /// Longest wait of each step.
    pub timeout: Duration,
    /// Time limit of one request.
    pub request_timeout: Duration,
}

/// Connection and options of all steps.
pub(super) struct Context {
    pub(super) server: Server,
    pub(super) options: Options,
}

impl Context {
    /// Returns when a step gives up.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.options.timeout
    }

    /// Returns the time limit of a step, as text.
    pub(super) fn limit(&self) -> String {
        seconds(self.options.timeout.as_secs())
    }
}
