use std::time::Duration;

use berth_shell::retry;
use tokio::time::{Instant, timeout_at};

use crate::host::HostError;

/// First delay before a retry of a query to the registry or the host, or of the switch to the target. Doubled with each
/// retry, up to [`RETRY_MAX`].
pub(super) const RETRY_MIN: Duration = Duration::from_millis(500);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(20);
/// Maximum number of attempts per read. Right after a machine starts, some services do not answer yet.
const READS: u32 = 5;

/// Reads from the host, up to [`READS`] times and not past the deadline. Returns the last error.
pub(super) async fn read_with_retries<T>(
    give_up: Instant,
    mut read: impl AsyncFnMut() -> Result<T, HostError>,
) -> Result<T, String> {
    let mut failures = 0;
    loop {
        let why = match timeout_at(give_up, read()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => error.to_string(),
            Err(_) => return Err("the host did not answer".to_owned()),
        };
        failures += 1;
        let next = Instant::now() + retry::delay(failures, RETRY_MIN, RETRY_MAX);
        if failures >= READS || next >= give_up {
            return Err(why);
        }
        tracing::warn!(why, failures, "cannot read from the host; retrying");
        tokio::time::sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_failed_read_is_retried_until_the_deadline() {
        let late = Instant::now() + Duration::from_secs(30);
        let tries = Cell::new(0);
        let read = async || {
            tries.set(tries.get() + 1);
            match tries.get() {
                2 => Ok(7),
                _ => Err(HostError::Timeout("not yet".to_owned())),
            }
        };
        assert_eq!(read_with_retries(late, read).await, Ok(7));
        assert_eq!(tries.get(), 2);
        assert_eq!(read_with_retries(Instant::now(), read).await, Err("not yet".to_owned()));
    }
}
