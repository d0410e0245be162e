//! Timeouts of scenarios.

use std::time::Duration;

/// Timeout for a single change, on two slow cores that run other scenarios too. A wait ends as soon as the change is seen, so a
/// long timeout costs nothing.
pub const SOON: Duration = Duration::from_secs(60);
/// Timeout of a small rollout.
pub const LONG: Duration = Duration::from_secs(180);
