//! Waits of tests that have no cluster.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Waits until a query returns true. A query that fails is repeated.
///
/// # Errors
/// If no query returns true within the limit. The error contains the last query's error, if that query failed.
pub async fn eventually(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    loop {
        match ask().await {
            Ok(true) => return Ok(()),
            last if begin.elapsed() > limit => bail!("not within {limit:?}: {what} {:?}", last.err()),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
