//! This process's monotonic clock.

use std::sync::LazyLock;
use std::time::Instant;

use berth_core::Moment;

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the current time.
pub fn now() -> Moment {
    Moment::after(BEGAN.elapsed())
}
