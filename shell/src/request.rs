//! Timeouts of requests.

use std::time::Duration;

/// The API server did not answer within this time. It may still have executed the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the API server did not answer within {} s", .0.as_secs())]
pub struct NoAnswer(pub Duration);

/// Waits for a request, at most for the duration `deadline`. The error `F` is made from the request's own error, or
/// from [`NoAnswer`].
pub async fn within<T, E, F>(deadline: Duration, request: impl Future<Output = Result<T, E>>) -> Result<T, F>
where
    F: From<E> + From<NoAnswer>,
{
    match tokio::time::timeout(deadline, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(NoAnswer(deadline).into()),
    }
}
