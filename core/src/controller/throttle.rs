//! Rate limit for reports that the controller writes to BootcNodes: 50 nodes per second. Pure.

use std::time::Duration;

use crate::Moment;

pub(super) const BATCH: usize = 10;
pub(super) const BATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Time of the next batch.
#[derive(Debug, Default)]
pub(super) struct Throttle(Option<Moment>);

impl Throttle {
    /// Takes the next batch from the nodes that need a write. Empty if the next batch is not due yet.
    pub(super) fn take<T>(&mut self, nodes: impl Iterator<Item = T>, now: Moment) -> Vec<T> {
        if self.0.is_some_and(|next| now < next) {
            return vec![];
        }
        let batch: Vec<T> = nodes.take(BATCH).collect();
        if !batch.is_empty() {
            self.0 = Some(now + BATCH_INTERVAL);
        }
        batch
    }

    /// Returns the earliest time of the next batch; `None` before the first batch.
    pub(super) fn next(&self) -> Option<Moment> {
        self.0
    }
}
