//! This process's monotonic clock.

use std::sync::LazyLock;
use std::time::Instant;

use berth_core::Moment;

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The moment that it is now.
pub fn now() -> Moment {
    Moment::after(BEGAN.elapsed())
}
