//! Authentication at a registry: a username and password, or a token from the registry's token service.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_core::registries::credentials::Credentials;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, Response, Url};
use serde::Deserialize;

use super::fetch::fetch;
use super::reason::{ResolveError, ResolveReason};

/// Largest answer of a token service that is read.
const MAX_TOKEN: usize = 64 << 10;

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// The registry accepts a username and password.
    Basic,
    /// The registry accepts a token from the token service at the URL `realm`, issued for `service`.
    Bearer { realm: String, service: Option<String> },
}

impl Challenge {
    /// Returns the supported challenge of an answer, if any. Prefers a token to a password.
    pub(super) fn of(response: &Response) -> Option<Self> {
        let headers = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let mut found: Vec<Self> = headers.filter_map(|h| h.to_str().ok()).flat_map(parse).collect();
        found.sort_by_key(|challenge| *challenge == Self::Basic);
        found.into_iter().next()
    }

    /// Returns the `Authorization` header for reading the repository; `None` if the required credentials are missing.
    /// `client` makes an HTTP client for requests to the token service; this client must not follow redirects.
    /// `secure`: the registry uses TLS, so the token service must use TLS too.
    pub(super) async fn answer(
        &self,
        client: impl FnOnce(&Url) -> Result<Client, ResolveError>,
        secure: bool,
        repository: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Option<HeaderValue>, ResolveError> {
        match (self, credentials) {
            (_, Some(Credentials::RegistryToken(token))) => bearer(token).map(Some),
            (Self::Basic, Some(Credentials::Basic { username, password })) => basic(username, password).map(Some),
            (Self::Basic, _) => Ok(None),
            (Self::Bearer { realm, service }, credentials) => {
                let realm = Url::parse(realm).map_err(|e| invalid(&format!("token service URL is invalid: {e}")))?;
                if realm.scheme() != "https" && secure {
                    return Err(invalid("token service URL does not use HTTPS"));
                }
                let client = client(&realm)?;
                let token = token(&client, realm, service.as_deref(), repository, credentials).await?;
                bearer(&token).map(Some)
            }
        }
    }
}

fn invalid(what: &str) -> ResolveError {
    ResolveError::new(ResolveReason::InvalidAnswer, format!("the registry's {what}"))
}

/// Gets a token for reading the repository. A refresh token is sent by POST, so that it is not in a URL.
async fn token(
    client: &Client,
    realm: Url,
    service: Option<&str>,
    repository: &str,
    credentials: Option<&Credentials>,
) -> Result<String, ResolveError> {
    let mut query = realm.clone();
    query
        .query_pairs_mut()
        .append_pair("scope", &format!("repository:{repository}:pull"))
        .extend_pairs(service.iter().map(|service| ("service", service)));
    let request = match credentials {
        Some(Credentials::IdentityToken(refresh)) => {
            let mut form = query;
            form.query_pairs_mut()
                .append_pair("grant_type", "refresh_token")
                .append_pair("client_id", "berth-controller")
                .append_pair("refresh_token", refresh);
            let body = form.query().unwrap_or_default().to_owned();
            let request = client.post(realm).body(body);
            request.header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        }
        Some(Credentials::Basic { username, password }) => {
            client.get(query).header(AUTHORIZATION, basic(username, password)?)
        }
        _ => client.get(query),
    };
    let answer = fetch(request, MAX_TOKEN).await?;
    let answer: Answer =
        serde_json::from_slice(&answer.bytes).map_err(|_| invalid("token service did not answer with JSON"))?;
    let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token);
    let token = token.filter(|token| !token.is_empty());
    token.ok_or_else(|| invalid("token service answered without a token"))
}

fn basic(username: &str, password: &str) -> Result<HeaderValue, ResolveError> {
    secret(&format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
}

fn bearer(token: &str) -> Result<HeaderValue, ResolveError> {
    if token.bytes().all(|b| b.is_ascii_graphic()) {
        secret(&format!("Bearer {token}"))
    } else {
        Err(invalid("token has characters that are invalid in a header"))
    }
}

fn secret(value: &str) -> Result<HeaderValue, ResolveError> {
    let mut header = HeaderValue::from_str(value).map_err(|_| invalid("token is not a valid header value"))?;
    header.set_sensitive(true);
    Ok(header)
}

fn parse(header: &str) -> Vec<Challenge> {
    let challenges = http_auth::parse_challenges(header).unwrap_or_default();
    let known = challenges
        .iter()
        .filter_map(|challenge| match challenge.scheme.to_ascii_lowercase().as_str() {
            "basic" => Some(Challenge::Basic),
            "bearer" => Some(Challenge::Bearer {
                realm: parameter(challenge, "realm")?,
                service: parameter(challenge, "service"),
            }),
            _ => None,
        });
    known.collect()
}

fn parameter(challenge: &http_auth::ChallengeRef<'_>, name: &str) -> Option<String> {
    let mut all = challenge.params.iter();
    let (_, value) = all.find(|(n, _)| n.eq_ignore_ascii_case(name))?;
    Some(value.to_unescaped())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_preferred_to_a_password() {
        let answer = http::Response::builder()
            .header(WWW_AUTHENTICATE, r#"Basic realm="r""#)
            .header(WWW_AUTHENTICATE, r#"Bearer realm="https://a/t""#)
            .body("")
            .unwrap();
        let challenge = Challenge::of(&Response::from(answer)).unwrap();
        assert!(matches!(challenge, Challenge::Bearer { .. }), "{challenge:?}");
    }

    #[test]
    fn challenges_are_read_in_every_form() {
        fn token(service: Option<&str>) -> Challenge {
            Challenge::Bearer {
                realm: "https://a/t".into(),
                service: service.map(str::to_owned),
            }
        }
        assert_eq!(
            parse(r#"Bearer realm="https://a/t",service="r.io",scope="x""#),
            [token(Some("r.io"))]
        );
        assert_eq!(parse(r#"bearer REALM="https://a/t""#), [token(None)]);
        assert_eq!(
            parse(r#"Basic realm="Registry", Bearer realm="https://a/t""#),
            [Challenge::Basic, token(None)]
        );
        for other in [
            "",
            "Negotiate",
            "Bearer",
            "Bearer realm",
            "\u{fffd}",
            "Digest realm=\"x\"",
        ] {
            assert_eq!(parse(other), [], "{other}");
        }
    }
}
