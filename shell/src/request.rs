//! Deadlines of requests.

use std::time::Duration;

/// The API server did not answer in time. The request may have been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the API server did not answer within {} s", .0.as_secs())]
pub struct NoAnswer(pub Duration);

/// Waits for a request, but no longer than this.
///
/// # Errors
/// When the request failed, or the time is over. The caller's error type says both in its own words.
pub async fn within<T, E, F>(deadline: Duration, request: impl Future<Output = Result<T, E>>) -> Result<T, F>
where
    F: From<E> + From<NoAnswer>,
{
    match tokio::time::timeout(deadline, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(NoAnswer(deadline).into()),
    }
}
