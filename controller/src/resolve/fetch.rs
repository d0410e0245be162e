//! Requests to a registry. Their answers are read up to a size limit.

use std::error::Error;
use std::time::Duration;

use berth_api::condition::one_line;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;

use super::reason::{ResolveError, ResolveReason};

/// Largest manifest or image config that is read, in bytes. Registries usually accept no larger manifest.
pub(super) const MAX_DOCUMENT: usize = 4 << 20;
/// Largest error body that is read. For a larger body, only the HTTP status is reported.
const MAX_ERROR: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    /// Digest in the header `Docker-Content-Digest`.
    pub(super) digest: Option<String>,
}

/// Error body of a registry.
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

/// Sends a request and reads the answer. Fails if the answer is larger than `most` bytes.
pub(super) async fn fetch(request: RequestBuilder, most: usize) -> Result<Answer, ResolveError> {
    read(request.send().await.map_err(unavailable)?, most).await
}

/// Reads an answer. Fails if the answer is larger than `most` bytes.
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
    while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
        if bytes.len() + chunk.len() > most {
            return Err(too_large(most));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Describes an unsuccessful answer, with the registry's own message if it sent one.
pub(super) async fn refusal(response: Response) -> ResolveError {
    let (status, mut url) = (response.status(), response.url().clone());
    // The query of a blob's URL may contain a signature, which must not be logged.
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
    let message = match status {
        _ if !words.is_empty() => words.join("; "),
        StatusCode::UNAUTHORIZED => "the registry requires credentials".to_owned(),
        status => format!("the registry answers {status}"),
    };
    ResolveError {
        retry_after,
        ..ResolveError::new(reason, format!("{url}: {message}"))
    }
}

/// Returns the delay in the registry's `Retry-After` header. If the header has a date, the delay counts from the
/// registry's own `Date` header, or from `now` if that header is missing.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let wanted = headers.get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = wanted.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let sent = headers.get(DATE).and_then(|value| value.to_str().ok());
    let from = sent.and_then(date).unwrap_or(now);
    Duration::try_from(date(wanted)?.duration_since(from)).ok()
}

fn date(text: &str) -> Option<Timestamp> {
    rfc2822::parse(text.trim()).ok().map(|date| date.timestamp())
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

/// Error of a registry that cannot be reached.
pub(super) fn unavailable(mut error: reqwest::Error) -> ResolveError {
    // The query of a blob's URL may contain a signature, which must not be logged.
    if let Some(url) = error.url_mut() {
        url.set_query(None);
    }
    ResolveError::new(ResolveReason::RegistryUnavailable, words(&error))
}

pub(super) fn too_large(most: usize) -> ResolveError {
    ResolveError::new(
        ResolveReason::InvalidAnswer,
        format!("the registry's answer is larger than {most} bytes"),
    )
}

/// Error of an answer that does not match its digest.
pub(super) fn mismatch() -> ResolveError {
    ResolveError::new(
        ResolveReason::DigestMismatch,
        "the registry's answer does not match the requested digest, or the digest in its own header",
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
    use reqwest::ResponseBuilderExt;

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
    async fn an_error_contains_no_credentials() {
        berth_shell::install_crypto();
        let address = "http://me:hush@127.0.0.1:1/v2/?X-Amz-Signature=hush&verify=hush";
        let proxy = reqwest::Proxy::all("http://me:hush@127.0.0.1:1").unwrap();
        for client in [
            reqwest::Client::builder().no_proxy(),
            reqwest::Client::builder().proxy(proxy),
        ] {
            let request = client
                .build()
                .unwrap()
                .get(address)
                .header("Authorization", "Basic aHVzaA==");
            let error = fetch(request, 10).await.unwrap_err().to_string();
            assert!(error.contains("127.0.0.1"), "{error}");
            assert!(!error.contains("hush") && !error.contains("aHVzaA"), "{error}");
        }
        let refused = http::Response::builder().status(403).url(address.parse().unwrap());
        let refused = refusal(Response::from(refused.body("").unwrap())).await.to_string();
        assert!(
            refused.contains("127.0.0.1:1/v2/: ") && !refused.contains("hush"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn the_registrys_words_are_one_line() {
        let body = r#"{"errors": [{"code": "A\nB", "message": "\u001b[2Jhttps://me:hush@r.io \u202e\u2028"}]}"#;
        let error = refusal(answer(400, body)).await.message;
        assert!(error.contains("A B: [2Jhttps://***@r.io"), "{error}");
        assert!(
            berth_api::foreign::is_printable(&error) && !error.contains("hush"),
            "{error}"
        );
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
