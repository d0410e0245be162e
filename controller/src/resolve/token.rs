//! Tokens for registries that want one from everybody.

use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, Url};
use serde::Deserialize;

use super::fetch::{fetch, unavailable};
use super::{ResolveError, ResolveReason};

/// Largest answer with a token that is read.
const MAX_TOKEN: usize = 64 << 10;

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

fn invalid(what: &str) -> ResolveError {
    ResolveError::new(ResolveReason::InvalidAnswer, format!("the registry's {what}"))
}

/// Gets a token for reading that repository, when the registry at `base` says that it wants one. Answers the value of the
/// header that carries it.
pub(super) async fn token(client: &Client, base: &str, repository: &str) -> Result<Option<HeaderValue>, ResolveError> {
    let response = client.get(base).send().await.map_err(|e| unavailable(&e))?;
    let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|h| h.to_str().ok());
    let Some((realm, service)) = challenge.and_then(bearer) else {
        return Ok(None);
    };
    let mut realm = Url::parse(&realm).map_err(|e| invalid(&format!("address for tokens: {e}")))?;
    if realm.scheme() != "https" && base.starts_with("https:") {
        return Err(invalid("address for tokens has no TLS"));
    }
    realm
        .query_pairs_mut()
        .append_pair("scope", &format!("repository:{repository}:pull"))
        .extend_pairs(service.iter().map(|service| ("service", service)));
    let answer = fetch(client.get(realm), MAX_TOKEN).await?;
    let answer: Answer = serde_json::from_slice(&answer.bytes).map_err(|e| invalid(&format!("token: {e}")))?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| invalid("answer has no token"))?;
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(invalid("token has characters that no header may have"));
    }
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|e| invalid(&format!("token: {e}")))?;
    header.set_sensitive(true);
    Ok(Some(header))
}

/// Realm and service of the challenge that asks for a token.
fn bearer(header: &str) -> Option<(String, Option<String>)> {
    let challenges = http_auth::parse_challenges(header).ok()?;
    let bearer = challenges.iter().find(|c| c.scheme.eq_ignore_ascii_case("bearer"))?;
    let parameter = |name: &str| {
        let mut all = bearer.params.iter();
        all.find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_unescaped())
    };
    Some((parameter("realm")?, parameter("service")))
}
