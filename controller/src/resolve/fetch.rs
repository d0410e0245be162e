//! Requests to a registry, whose answers are read no further than to a limit.

use std::error::Error;
use std::time::Duration;

use berth_api::condition::one_line;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;

use super::{ResolveError, ResolveReason};

/// Largest manifest or configuration that is read; registries themselves stop at 4 MiB.
pub(super) const MAX_DOCUMENT: usize = 4 << 20;
/// Largest error that is read. Of a larger one only its status is told.
const MAX_ERROR: usize = 64 << 10;

/// An answer that was a success.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its body.
    pub(super) bytes: Vec<u8>,
    /// The digest that the registry names.
    pub(super) digest: Option<String>,
}

/// Errors as registries send them.
#[derive(Deserialize)]
struct Envelope {
    errors: Vec<RegistryError>,
}

#[derive(Deserialize)]
struct RegistryError {
    code: String,
    #[serde(default)]
    message: String,
}

/// Sends a request, and reads no more of the answer than so many bytes.
pub(super) async fn fetch(request: RequestBuilder, most: usize) -> Result<Answer, ResolveError> {
    read(request.send().await.map_err(|e| unavailable(&e))?, most).await
}

/// Reads no more of an answer than so many bytes.
pub(super) async fn read(response: Response, most: usize) -> Result<Answer, ResolveError> {
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let digest = response.headers().get("docker-content-digest");
    Ok(Answer {
        digest: digest.and_then(|d| d.to_str().ok()).map(str::to_owned),
        bytes: body(response, most).await?,
    })
}

async fn body(mut response: Response, most: usize) -> Result<Vec<u8>, ResolveError> {
    let mut bytes = vec![];
    while let Some(chunk) = response.chunk().await.map_err(|e| unavailable(&e))? {
        if bytes.len() + chunk.len() > most {
            return Err(too_large(most));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Describes an answer that is no success, in the registry's own words where it has any.
pub(super) async fn refusal(response: Response) -> ResolveError {
    let (status, mut url) = (response.status(), response.url().clone());
    // The address of a blob's store may be signed.
    url.set_query(None);
    let retry_after = retry_after(response.headers(), Timestamp::now());
    let body = body(response, MAX_ERROR).await.unwrap_or_default();
    let errors = serde_json::from_slice::<Envelope>(&body).map_or(vec![], |envelope| envelope.errors);
    let reason = match errors.first().map(|e| e.code.as_str()) {
        Some("MANIFEST_UNKNOWN" | "NAME_UNKNOWN" | "NOT_FOUND" | "BLOB_UNKNOWN" | "MANIFEST_BLOB_UNKNOWN") => {
            ResolveReason::ImageNotFound
        }
        Some("UNAUTHORIZED" | "DENIED") => ResolveReason::Unauthorized,
        Some("TOOMANYREQUESTS") => ResolveReason::RateLimited,
        _ => by_status(status),
    };
    let words: Vec<_> = errors.iter().map(|e| format!("{}: {}", e.code, e.message)).collect();
    let message = match (words.is_empty(), status) {
        (false, _) => words.join("; "),
        (true, StatusCode::UNAUTHORIZED) => "the registry asks for credentials".to_owned(),
        (true, status) => format!("the registry answers {status}"),
    };
    ResolveError {
        retry_after,
        ..ResolveError::new(reason, one_line(&format!("{url}: {message}")))
    }
}

/// Time for which the registry wants to be left alone: seconds, or a date, which counts from the registry's own if it tells
/// that.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let date = |text: &str| rfc2822::parse(text.trim()).ok().map(|date| date.timestamp());
    let wanted = text(RETRY_AFTER)?;
    if let Ok(seconds) = wanted.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let from = text(DATE).and_then(date).unwrap_or(now);
    Duration::try_from(date(wanted)?.duration_since(from)).ok()
}

fn by_status(status: StatusCode) -> ResolveReason {
    match status.as_u16() {
        401 | 403 => ResolveReason::Unauthorized,
        404 => ResolveReason::ImageNotFound,
        429 => ResolveReason::RateLimited,
        500.. => ResolveReason::RegistryUnavailable,
        _ => ResolveReason::RegistryRefused,
    }
}

/// The registry, or the way to it, failed.
pub(super) fn unavailable(error: &reqwest::Error) -> ResolveError {
    ResolveError::new(ResolveReason::RegistryUnavailable, words(error))
}

/// The answer is larger than anything of use is.
pub(super) fn too_large(most: usize) -> ResolveError {
    ResolveError::new(
        ResolveReason::InvalidAnswer,
        format!("the registry's answer is larger than {most} bytes"),
    )
}

/// The answer is not what its digest says.
pub(super) fn mismatch() -> ResolveError {
    ResolveError::new(
        ResolveReason::DigestMismatch,
        "what the registry sends does not have the digest that it was asked for or that it names",
    )
}

/// Describes an error with its causes in one line, without repetition.
pub(super) fn words(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    one_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Response {
        let answer = http::Response::builder().status(status).body(body.to_owned()).unwrap();
        Response::from(answer)
    }

    #[tokio::test]
    async fn an_answer_may_be_as_long_as_its_limit() {
        assert_eq!(read(answer(200, "12345"), 5).await.unwrap().bytes, b"12345");
        let error = read(answer(200, "123456"), 5).await.unwrap_err();
        assert_eq!(error.reason, ResolveReason::InvalidAnswer, "{error}");
    }

    #[tokio::test]
    async fn the_registrys_code_counts_before_the_status() {
        for (code, reason) in [
            ("MANIFEST_UNKNOWN", ResolveReason::ImageNotFound),
            ("NAME_UNKNOWN", ResolveReason::ImageNotFound),
            ("DENIED", ResolveReason::Unauthorized),
            ("UNAUTHORIZED", ResolveReason::Unauthorized),
            ("TOOMANYREQUESTS", ResolveReason::RateLimited),
            ("UNSUPPORTED", ResolveReason::RegistryRefused),
        ] {
            let body = serde_json::json!({"errors": [{"code": code}]}).to_string();
            assert_eq!(refusal(answer(400, &body)).await.reason, reason, "{code}");
        }
    }
}
