//! Work that blocks.

use anyhow::{Context, Result};

/// Runs what waits for processes and files away from the runtime's threads.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("a helper thread ended")?
}
