//! Registry credentials in the format of `docker login` and of Secrets of the type `kubernetes.io/dockerconfigjson`.
//!
//! Selects the entry for an image as the kubelet does: the host and port must match (`*` stands for characters within a
//! label of the host), and the entry with the longest path wins. Paths are compared by whole segments. Errors contain
//! no secrets.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value;

/// Credentials to log in to one registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A user name and a password.
    Basic {
        /// The user name.
        username: String,
        /// The password.
        password: String,
    },
    /// An OAuth 2 refresh token. The registry's token service exchanges it for an access token.
    IdentityToken(String),
    /// A token that the registry accepts directly.
    RegistryToken(String),
}

/// Shows only the kind of the credentials, so that no secret is logged.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic",
            Self::IdentityToken(_) => "IdentityToken",
            Self::RegistryToken(_) => "RegistryToken",
        })
    }
}

/// Why a credentials file cannot be used. Contains only names of registries and helpers, never secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// The file is not JSON.
    #[error(
        "the file is not JSON (line {line}, column {column}); create the file with kubectl create secret docker-registry"
    )]
    NotJson {
        /// Line of the error.
        line: usize,
        /// Column of the error.
        column: usize,
    },
    /// The JSON does not have the format of a credentials file, or has neither `auths` nor a helper.
    #[error("the file has no object \"auths\"; create the file with kubectl create secret docker-registry")]
    NoAuths,
    /// The entry for the requested registry cannot be used.
    #[error("the entry {key:?} {problem}; write \"auth\" as the base64 of NAME:PASSWORD")]
    Entry {
        /// Key of the entry in `auths`.
        key: String,
        /// Error in the entry, as the end of a sentence.
        problem: &'static str,
    },
    /// Only a credential helper has the credentials, and Berth does not run helpers.
    #[error(
        "the credentials for {registry} are in the helper {helper:?} (credHelpers or credsStore), but Berth does not run \
         helpers; write the credentials into \"auths\", as kubectl create secret docker-registry does"
    )]
    Helper {
        /// The registry whose credentials were requested.
        registry: String,
        /// Name of the helper.
        helper: String,
    },
}

/// A file with credentials for registries.
#[derive(Debug, Clone, Default)]
pub struct AuthFile {
    entries: Vec<Entry>,
    helpers: Vec<(Key, String)>,
    store: Option<String>,
}

#[derive(Debug, Clone)]
struct Entry {
    key: Key,
    shown: String,
    /// Credentials in the entry, or the entry's error. `None` if the entry is empty: `docker login` writes an empty
    /// entry if a helper has the credentials.
    content: Result<Option<Credentials>, &'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    host: String,
    path: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawFile {
    auths: Option<BTreeMap<String, Value>>,
    cred_helpers: Option<BTreeMap<String, String>>,
    creds_store: Option<String>,
}

#[derive(Deserialize)]
struct RawEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl AuthFile {
    /// Parses a credentials file.
    ///
    /// # Errors
    /// If the bytes are not a credentials file. A single unreadable entry causes an error only when the credentials of
    /// its registry are requested.
    pub fn parse(bytes: &[u8]) -> Result<Self, CredentialsError> {
        let json: Value = serde_json::from_slice(bytes).map_err(|error| CredentialsError::NotJson {
            line: error.line(),
            column: error.column(),
        })?;
        // Drop serde's error, which could contain a secret.
        let raw: RawFile = serde_json::from_value(json).map_err(|_| CredentialsError::NoAuths)?;
        let store = raw.creds_store.filter(|store| !store.is_empty());
        let helpers: Vec<_> = raw.cred_helpers.unwrap_or_default().into_iter().collect();
        if raw.auths.is_none() && store.is_none() && helpers.is_empty() {
            return Err(CredentialsError::NoAuths);
        }
        let auths = raw.auths.unwrap_or_default();
        Ok(Self {
            entries: auths
                .into_iter()
                .map(|(shown, value)| Entry {
                    key: Key::parse(&shown),
                    shown,
                    content: content(value),
                })
                .collect(),
            helpers: helpers
                .into_iter()
                .map(|(key, helper)| (Key::parse(&key), helper))
                .collect(),
            store,
        })
    }

    /// Returns the credentials for a repository. `None` if the file has no entry for the repository: requests are then
    /// sent without a login. `registry` is the first part of an image reference (host and port), `repository` its path.
    ///
    /// # Errors
    /// If the file has an entry or a helper for the registry, but no usable credentials.
    pub fn credentials(&self, registry: &str, repository: &str) -> Result<Option<Credentials>, CredentialsError> {
        let image = Key::parse(&format!("{registry}/{repository}"));
        let matching = self.entries.iter().filter(|entry| entry.key.matches(&image));
        // Prefer the longest path, then a host without wildcards.
        let best = matching.min_by_key(|e| (Reverse(e.key.path.len()), e.key.host.contains('*')));
        let found = match best.map(|entry| (&entry.content, entry)) {
            Some((Err(problem), entry)) => {
                return Err(CredentialsError::Entry {
                    key: entry.shown.clone(),
                    problem,
                });
            }
            Some((Ok(Some(found)), _)) => return Ok(Some(found.clone())),
            found => found,
        };
        let named = self.helpers.iter().find(|(key, _)| key.matches(&image));
        match (named.map(|(_, helper)| helper).or(self.store.as_ref()), found) {
            (Some(helper), _) => Err(CredentialsError::Helper {
                registry: registry.to_owned(),
                helper: helper.clone(),
            }),
            (None, Some((_, entry))) => Err(CredentialsError::Entry {
                key: entry.shown.clone(),
                problem: "is empty",
            }),
            (None, None) => Ok(None),
        }
    }
}

impl Key {
    /// Parses the key of an entry: `host`, `host:port` or `host/path`. Ignores a scheme, and an API version (`v1`,
    /// `v2`) at the start of the path.
    fn parse(text: &str) -> Self {
        let text = text.trim();
        let text = ["https://", "http://"]
            .iter()
            .find_map(|s| text.strip_prefix(s))
            .unwrap_or(text);
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        let mut path: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        if path.first().is_some_and(|first| first == "v1" || first == "v2") {
            path.remove(0);
        }
        let host = match host.to_ascii_lowercase().as_str() {
            "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
            host => host.to_owned(),
        };
        Self { host, path }
    }

    /// True if the entry with this key applies to the image.
    fn matches(&self, image: &Self) -> bool {
        let (labels, port) = labels_and_port(&self.host);
        let (found, found_port) = labels_and_port(&image.host);
        let mut pairs = labels.iter().zip(&found);
        port == found_port
            && labels.len() == found.len()
            && pairs.all(|(pattern, label)| is_like(pattern, label))
            && image.path.starts_with(&self.path)
    }
}

/// Splits a host at its dots, and returns the port separately. The port is empty if the host has none.
fn labels_and_port(host: &str) -> (Vec<&str>, &str) {
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    (name.split('.').collect(), port)
}

/// True if a label of a host matches a pattern, where `*` stands for any characters.
fn is_like(pattern: &str, label: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = label.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    // The pattern has no `*`, so all of it has been compared.
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn content(value: Value) -> Result<Option<Credentials>, &'static str> {
    let raw: RawEntry = serde_json::from_value(value).map_err(|_| "is not an object of strings")?;
    if let Some(token) = non_empty(raw.registrytoken) {
        return Ok(Some(Credentials::RegistryToken(token)));
    }
    if let Some(token) = non_empty(raw.identitytoken) {
        return Ok(Some(Credentials::IdentityToken(token)));
    }
    if let Some(auth) = non_empty(raw.auth) {
        let text = decode(&auth).ok_or("has an \"auth\" that is not base64-encoded text")?;
        let (username, password) = text.split_once(':').ok_or("has an \"auth\" without a colon")?;
        return Ok(Some(Credentials::Basic {
            username: username.to_owned(),
            // Some tools pad the password with NUL.
            password: password.trim_end_matches('\0').to_owned(),
        }));
    }
    Ok(match (non_empty(raw.username), non_empty(raw.password)) {
        (None, None) => None,
        (None, Some(_)) => return Err("has a password without a username"),
        (Some(_), None) => return Err("has a username without a password"),
        (Some(username), Some(password)) => Some(Credentials::Basic { username, password }),
    })
}

fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn decode(text: &str) -> Option<String> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes = GeneralPurpose::new(&STANDARD, config).decode(text.trim()).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
