//! The answer of a program that issues a credential: an `ExecCredential` in JSON, or words on standard error.

use std::fmt;
use std::time::Duration;

use berth_api::condition::one_line;
use jiff::Timestamp;
use serde::Deserialize;

/// Longest answer that is accepted, in bytes. A token of EKS has about 2 KiB, a certificate with its key 10 KiB.
pub const MAX_LENGTH: usize = 128 << 10;
/// Longest token that is accepted, in bytes. The API server accepts 1 MiB of headers.
const MAX_TOKEN: usize = 32 << 10;
/// Longest report of a program's words, in characters.
const MAX_WORDS: usize = 300;
/// Longest word that a report shows, in bytes. Tokens and presigned URLs are longer.
const MAX_SHOWN_WORD: usize = 80;
/// A line with one of these is not reported.
const SECRET_SIGNS: [&str; 6] = [
    "token\"",
    "clientkeydata",
    "private key",
    "bearer ",
    "x-amz-signature",
    "secret",
];

/// A secret text. Its `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A credential for the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Bearer token.
    pub token: Option<Secret>,
    /// Client certificate and its key, in PEM.
    pub certificate: Option<(String, Secret)>,
    /// Time from the answer until the credential expires; `None` if the answer does not contain the expiry.
    pub lifetime: Option<Duration>,
}

/// Reason why an answer cannot be used. The text shows nothing of the answer, which may contain a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The answer is too long.
    #[error("its output is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// The output is not JSON, or a field has another type.
    #[error("its output is not an ExecCredential in JSON (line {line}, column {column})")]
    NotJson {
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error.
        column: usize,
    },
    /// The output is JSON of another kind.
    #[error("its output is not of kind ExecCredential")]
    Kind,
    /// The output has another protocol version than the kubeconfig.
    #[error("its output does not have the apiVersion of the kubeconfig, {0}")]
    ApiVersion(String),
    /// The answer has no credential.
    #[error("its output has neither a token nor a client certificate with a key")]
    NoCredential,
    /// The token cannot be sent in a header.
    #[error("its token is empty, has spaces or control characters, or more than {MAX_TOKEN} bytes")]
    Token,
    /// The certificate or its key is missing, or not in PEM.
    #[error("its client certificate and key must both be present, and in PEM")]
    Certificate,
    /// The expiry is not a time.
    #[error("its expirationTimestamp is not a time")]
    Expiry,
    /// The credential has expired before it was received.
    #[error("its credential expired at {0}; check the host's clock")]
    Expired(Timestamp),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// Parses the standard output of the program. `api_version`: the version in the kubeconfig. `now`: the host's wall
/// clock when the program ended; program and clock are of the same machine.
///
/// # Errors
/// When the output has no credential that can be used now.
pub fn parse(output: &[u8], api_version: &str, now: Timestamp) -> Result<Credential, AnswerError> {
    if output.len() > MAX_LENGTH {
        return Err(AnswerError::TooLong);
    }
    let answer: ExecCredential = serde_json::from_slice(output).map_err(|error| AnswerError::NotJson {
        line: error.line(),
        column: error.column(),
    })?;
    if answer.kind != "ExecCredential" {
        return Err(AnswerError::Kind);
    }
    if answer.api_version != api_version {
        return Err(AnswerError::ApiVersion(api_version.to_owned()));
    }
    let status = answer.status.ok_or(AnswerError::NoCredential)?;
    let lifetime = lifetime(status.expiration_timestamp.as_deref(), now)?;
    let certificate = certificate(status.client_certificate_data, status.client_key_data)?;
    let token = status.token.map(token).transpose()?;
    if token.is_none() && certificate.is_none() {
        return Err(AnswerError::NoCredential);
    }
    Ok(Credential {
        token,
        certificate,
        lifetime,
    })
}

fn token(text: String) -> Result<Secret, AnswerError> {
    let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.is_empty() || text.len() > MAX_TOKEN || !is_printable {
        return Err(AnswerError::Token);
    }
    Ok(Secret(text))
}

fn certificate(certificate: Option<String>, key: Option<String>) -> Result<Option<(String, Secret)>, AnswerError> {
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) if is_pem(&certificate) && is_pem(&key) => Ok(Some((certificate, Secret(key)))),
        _ => Err(AnswerError::Certificate),
    }
}

fn is_pem(text: &str) -> bool {
    text.contains("-----BEGIN ") && text.contains("-----END ")
}

fn lifetime(expiry: Option<&str>, now: Timestamp) -> Result<Option<Duration>, AnswerError> {
    let Some(expiry) = expiry else {
        return Ok(None);
    };
    let expiry: Timestamp = expiry.parse().map_err(|_| AnswerError::Expiry)?;
    match Duration::try_from(expiry.duration_since(now)) {
        Ok(left) if !left.is_zero() => Ok(Some(left)),
        _ => Err(AnswerError::Expired(expiry)),
    }
}

/// Returns the last words of a program's standard error in one line, without what may be a secret; empty if there are
/// none.
pub fn complaint(errors: &str) -> String {
    let mut lines = vec![];
    for line in errors.lines().filter(|line| !line.trim().is_empty()) {
        let lower = line.to_lowercase();
        if SECRET_SIGNS.iter().any(|sign| lower.contains(sign)) {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().map(shown).collect();
        lines.push(words.join(" "));
    }
    let text = one_line(&lines.join(" / "));
    let extra = text.chars().count().saturating_sub(MAX_WORDS);
    text.chars().skip(extra).collect()
}

fn shown(word: &str) -> &str {
    if word.len() > MAX_SHOWN_WORD { "(…)" } else { word }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const VERSION: &str = "client.authentication.k8s.io/v1beta1";
    const PEM: &str = "-----BEGIN X-----\nAA==\n-----END X-----\n";

    fn now() -> Timestamp {
        "2026-05-01T12:00:00Z".parse().unwrap()
    }

    fn read(status: &Value) -> Result<Credential, AnswerError> {
        let answer = json!({"kind": "ExecCredential", "apiVersion": VERSION, "spec": {}, "status": status});
        parse(answer.to_string().as_bytes(), VERSION, now())
    }

    #[test]
    fn a_token_of_eks_is_read() {
        let expiry = "2026-05-01T12:14:00Z";
        let found = read(&json!({"token": "k8s-aws-v1.aHR0", "expirationTimestamp": expiry})).unwrap();
        assert_eq!(found.token.as_ref().unwrap().expose(), "k8s-aws-v1.aHR0");
        assert_eq!(found.lifetime, Some(Duration::from_secs(14 * 60)));
        assert!(!format!("{found:?}").contains("k8s-aws"), "{found:?}");
        let endless = read(&json!({"token": "t"})).unwrap();
        assert_eq!(endless.lifetime, None);
    }

    #[test]
    fn a_certificate_is_read_with_its_key() {
        let found = read(&json!({"clientCertificateData": PEM, "clientKeyData": PEM})).unwrap();
        assert_eq!(found.certificate.as_ref().unwrap().0, PEM);
        assert!(found.token.is_none());
        for status in [
            json!({"clientCertificateData": PEM}),
            json!({"clientKeyData": PEM}),
            json!({"token": "t", "clientKeyData": PEM}),
            json!({"clientCertificateData": "AA==", "clientKeyData": PEM}),
        ] {
            assert_eq!(read(&status), Err(AnswerError::Certificate), "{status}");
        }
    }

    #[test]
    fn a_hostile_answer_is_refused() {
        for (status, error) in [
            (json!(null), AnswerError::NoCredential),
            (json!({}), AnswerError::NoCredential),
            (json!({"token": null}), AnswerError::NoCredential),
            (json!({"token": ""}), AnswerError::Token),
            (json!({"token": "a\nHost: b"}), AnswerError::Token),
            (json!({"token": "a\r\n"}), AnswerError::Token),
            (json!({"token": "ä"}), AnswerError::Token),
            (json!({"token": "x".repeat(MAX_TOKEN + 1)}), AnswerError::Token),
            (
                json!({"token": "t", "expirationTimestamp": "soon"}),
                AnswerError::Expiry,
            ),
            (json!({"token": "t", "expirationTimestamp": ""}), AnswerError::Expiry),
            (
                json!({"token": "t", "expirationTimestamp": "2026-05-01T12:00:00Z"}),
                AnswerError::Expired(now()),
            ),
        ] {
            assert_eq!(read(&status), Err(error), "{status}");
        }
        let far = read(&json!({"token": "t", "expirationTimestamp": "9999-12-30T00:00:00Z"}));
        assert!(far.unwrap().lifetime.unwrap() > Duration::from_secs(1 << 30));
    }

    #[test]
    fn another_document_is_refused_without_showing_it() {
        let long = vec![b' '; MAX_LENGTH + 1];
        assert_eq!(parse(&long, VERSION, now()), Err(AnswerError::TooLong));
        let good = json!({"kind": "ExecCredential", "apiVersion": VERSION, "status": {"token": "hidden"}}).to_string();
        let mut replies = vec![
            String::new(),
            "hidden".to_owned(),
            format!("{good}\n{good}"),
            format!("warning: hidden\n{good}"),
            good.replace("{\"token\":\"hidden\"}", "\"hidden\""),
            good.replace("\"hidden\"", "[\"hidden\"]"),
            good.replace("ExecCredential", "hidden"),
            good.replace("v1beta1", "v1"),
            "[".repeat(100_000),
        ];
        replies.push(good.replace("\"status\"", "\"other\""));
        for reply in replies {
            let words = parse(reply.as_bytes(), VERSION, now()).unwrap_err().to_string();
            assert!(!words.contains("hidden"), "{words}");
        }
        assert!(parse(good.as_bytes(), VERSION, now()).is_ok());
    }

    #[test]
    fn a_complaint_shows_no_secret() {
        let token = "x".repeat(MAX_SHOWN_WORD + 1);
        let errors = format!(
            "\nUnable to locate credentials.\n\x1b[1mfound {token} here\n{{\"token\": \"abc\"}}\n-----BEGIN PRIVATE KEY-----\n"
        );
        let words = complaint(&errors);
        assert!(words.starts_with("Unable to locate credentials. / "), "{words}");
        assert!(words.contains("found (…) here"), "{words}");
        assert!(!words.contains("abc") && !words.contains("PRIVATE"), "{words}");
        assert_eq!(complaint("\n \n"), "");
        assert_eq!(complaint(&"word ".repeat(1000)).chars().count(), MAX_WORDS);
    }
}
