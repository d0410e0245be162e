//! Delays between retries.

use std::time::Duration;

pub use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Delays without end that double from `first` to `most`. Each is made longer at random, up to twice, so that what
/// failed together is not tried again together.
pub const fn delays(first: Duration, most: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(most)
        .without_max_times()
        .with_jitter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_a_limit_and_differ() {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(8));
        let of = |drawn: usize| delays(first, most).build().nth(drawn).unwrap().as_secs_f64();
        for (drawn, seconds) in [(0, 1.0), (1, 2.0), (3, 8.0), (4, 8.0), (1000, 8.0)] {
            let delay = of(drawn);
            assert!((seconds..seconds * 2.0).contains(&delay), "{drawn}: {delay}");
        }
        assert!((0..20).any(|_| of(0) != of(0)));
    }
}
