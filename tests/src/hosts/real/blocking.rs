//! Runs blocking work.

use anyhow::{Context, Result};

/// Runs work that waits for processes and files on a blocking thread of the runtime.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("a blocking thread panicked")?
}
