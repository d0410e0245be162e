//! Delays between retries.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

pub use backon::Retryable;

/// Returns an endless series of delays, which double from `first` to `most`. Adds to each delay a random time of up to
/// the same length, so that requests that failed together are retried at different times.
pub const fn delays(first: Duration, most: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(most)
        .without_max_times()
        .with_jitter()
}

/// Returns the delay after `failures` consecutive failures, from the same series as [`delays`].
pub fn delay(failures: u32, first: Duration, most: Duration) -> Duration {
    // After 32 doublings, any limit is reached.
    let drawn = usize::try_from(failures.saturating_sub(1).min(32)).unwrap_or_default();
    delays(first, most).build().nth(drawn).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_a_limit_and_differ() {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(8));
        for (failures, seconds) in [(0, 1.0), (1, 1.0), (2, 2.0), (4, 8.0), (5, 8.0), (u32::MAX, 8.0)] {
            let delay = delay(failures, first, most).as_secs_f64();
            assert!((seconds..=seconds * 2.0).contains(&delay), "{failures}: {delay}");
        }
        assert!((0..20).any(|_| delay(1, first, most) != delay(1, first, most)));
    }
}
