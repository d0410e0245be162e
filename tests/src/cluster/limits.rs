//! Longest times.

use std::time::Duration;

/// Longest time for one thing to happen by itself, on two slow cores that run other scenarios too. Whoever waits goes on as
/// soon as it has happened, so that a long one costs nothing.
pub const SOON: Duration = Duration::from_secs(60);
/// Longest time for a small rollout.
pub const LONG: Duration = Duration::from_secs(180);
