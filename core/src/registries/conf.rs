//! Reads mirrors from `registries.conf` (version 2 of the format, see containers-registries.conf(5)).
//!
//! Uses the `[[registry]]` tables with `prefix`, `location`, `insecure`, `blocked`, `mirror-by-digest-only` and their
//! mirrors with `location`, `insecure` and `pull-from-mirror`. Ignores all other keys: they concern only the tools on a
//! host.

use std::collections::BTreeMap;

use berth_api::ImageRef;
use serde::Deserialize;

/// The content of a `registries.conf`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistriesConf {
    registries: BTreeMap<String, Registry>,
}

/// A registry or mirror that serves an image, with the image's reference there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Reference of the image at this registry or mirror.
    pub reference: ImageRef,
    /// True if this registry or mirror may be reached without TLS or with an unverified certificate.
    pub insecure: bool,
}

/// Why a `registries.conf` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// The file is not TOML, or a known key has a value of the wrong type; has the parser's error.
    #[error("{0}")]
    Malformed(String),
    /// The file has version 1 of the format.
    #[error("the file has the old format with [registries.…]; use [[registry]] tables")]
    OldFormat,
    /// A `[[registry]]` table has neither a prefix nor a location.
    #[error("a [[registry]] has neither a prefix nor a location; add one")]
    Nameless,
    /// This location or prefix is not the name of a registry.
    #[error("{0:?} is not a registry; write HOST[:PORT][/PATH] without a scheme")]
    BadLocation(String),
    /// This value of `pull-from-mirror` is unknown.
    #[error("{0:?} is not a valid value of pull-from-mirror; write all, digest-only or tag-only")]
    BadUse(String),
    /// The table with this prefix sets `mirror-by-digest-only`, and one of its mirrors sets `pull-from-mirror`.
    #[error("{0:?} has mirror-by-digest-only, but one of its mirrors has pull-from-mirror; keep only one of the two")]
    TwoUses(String),
    /// Two tables with this prefix differ.
    #[error("{0:?} has two different [[registry]] tables; keep one")]
    Twice(String),
}

/// Why an image cannot be fetched under the rules of `registries.conf`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The registry of this image is blocked.
    #[error("{0} is blocked by registries.conf")]
    Blocked(String),
    /// `registries.conf` maps the image's reference to this text, which is not a valid reference.
    #[error("registries.conf maps the reference to {0:?}, which is not an image reference")]
    NoReference(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Registry {
    location: Option<String>,
    insecure: bool,
    blocked: bool,
    mirrors: Vec<Mirror>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mirror {
    location: String,
    insecure: bool,
    uses: Use,
}

/// Kinds of references that a mirror serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    All,
    DigestOnly,
    TagOnly,
}

#[derive(Deserialize)]
struct RawFile {
    #[serde(default)]
    registry: Vec<RawRegistry>,
    /// A table that only version 1 of the format has.
    registries: Option<toml::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[derive(Default)]
struct RawRegistry {
    prefix: String,
    location: String,
    insecure: bool,
    blocked: bool,
    mirror_by_digest_only: bool,
    mirror: Vec<RawMirror>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct RawMirror {
    location: String,
    insecure: bool,
    pull_from_mirror: String,
}

impl RegistriesConf {
    /// Parses the text of the file.
    ///
    /// # Errors
    /// See [`ConfError`].
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let raw: RawFile = toml::from_str(text).map_err(|error| ConfError::Malformed(error.to_string()))?;
        if raw.registries.is_some() {
            return Err(ConfError::OldFormat);
        }
        let mut registries = BTreeMap::new();
        for raw in raw.registry {
            let (prefix, registry) = Registry::of(raw)?;
            match registries.get(&prefix) {
                Some(other) if *other != registry => return Err(ConfError::Twice(prefix)),
                _ => registries.insert(prefix, registry),
            };
        }
        Ok(Self { registries })
    }

    /// Returns the places to fetch an image from, in the order to try them: first its mirrors, then the location of its
    /// own registry.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn sources(&self, reference: &ImageRef) -> Result<Vec<Source>, SourceError> {
        let text = reference.to_string();
        let matching = self.registries.iter().filter_map(|(prefix, registry)| {
            let length = matched(prefix, &text)?;
            Some((prefix.len(), length, registry))
        });
        let Some((_, length, registry)) = matching.max_by_key(|(prefix, ..)| *prefix) else {
            return Ok(vec![Source {
                reference: reference.clone(),
                insecure: false,
            }]);
        };
        if registry.blocked {
            return Err(SourceError::Blocked(text));
        }
        let rest = text.get(length..).unwrap_or_default();
        let pinned = reference.digest().is_some();
        let asked = registry.mirrors.iter().filter(|mirror| match mirror.uses {
            Use::All => true,
            Use::DigestOnly => pinned,
            Use::TagOnly => !pinned,
        });
        let mut sources = asked
            .map(|mirror| Source::at(&mirror.location, rest, mirror.insecure))
            .collect::<Result<Vec<_>, _>>()?;
        let own = text.get(..length).unwrap_or_default();
        let location = registry.location.as_deref().unwrap_or(own);
        sources.push(Source::at(location, rest, registry.insecure)?);
        Ok(sources)
    }
}

impl Source {
    /// Returns the image's reference at this location. `rest` is the part of the original reference after the matched
    /// prefix.
    fn at(location: &str, rest: &str, insecure: bool) -> Result<Self, SourceError> {
        let text = format!("{location}{rest}");
        match text.parse() {
            Ok(reference) => Ok(Self { reference, insecure }),
            Err(_) => Err(SourceError::NoReference(text)),
        }
    }
}

impl Registry {
    fn of(raw: RawRegistry) -> Result<(String, Self), ConfError> {
        let named = if raw.location.is_empty() {
            None
        } else {
            Some(location(&raw.location, false)?)
        };
        let prefix = match raw.prefix.as_str() {
            "" => named.clone().ok_or(ConfError::Nameless)?,
            prefix => location(prefix, true)?,
        };
        let mut mirrors = vec![];
        for mirror in &raw.mirror {
            mirrors.push(Mirror::of(mirror, raw.mirror_by_digest_only, &prefix)?);
        }
        let registry = Self {
            location: named,
            insecure: raw.insecure,
            blocked: raw.blocked,
            mirrors,
        };
        Ok((prefix, registry))
    }
}

impl Mirror {
    /// Reads a mirror. `prefix` and `by_digest_only` are settings of the `[[registry]]` table that the mirror belongs
    /// to.
    fn of(raw: &RawMirror, by_digest_only: bool, prefix: &str) -> Result<Self, ConfError> {
        let uses = match (raw.pull_from_mirror.as_str(), by_digest_only) {
            ("", true) => Use::DigestOnly,
            (_, true) => return Err(ConfError::TwoUses(prefix.to_owned())),
            ("" | "all", false) => Use::All,
            ("digest-only", false) => Use::DigestOnly,
            ("tag-only", false) => Use::TagOnly,
            (other, false) => return Err(ConfError::BadUse(other.to_owned())),
        };
        Ok(Self {
            location: location(&raw.location, false)?,
            insecure: raw.insecure,
            uses,
        })
    }
}

fn location(text: &str, wildcard: bool) -> Result<String, ConfError> {
    let trimmed = text.trim_end_matches('/');
    let host = trimmed.strip_prefix("*.").filter(|_| wildcard).unwrap_or(trimmed);
    let is_valid = host.starts_with(|c: char| c.is_ascii_alphanumeric())
        && host.chars().all(is_location_char)
        && !host.contains("//");
    if is_valid {
        Ok(trimmed.to_owned())
    } else {
        Err(ConfError::BadLocation(text.to_owned()))
    }
}

fn is_location_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '/' | '@' | '_' | '-')
}

/// Returns how many bytes at the start of `text`, an image reference, match the prefix; `None` if the prefix does not
/// match. A prefix matches only whole path segments. A `*.` at its start matches any subdomain.
fn matched(prefix: &str, text: &str) -> Option<usize> {
    let length = match prefix.strip_prefix('*') {
        None => text.strip_prefix(prefix).map(|_| prefix.len())?,
        Some(suffix) => {
            let (domain, path) = suffix.split_at(suffix.find('/').unwrap_or(suffix.len()));
            let (host, rest) = text.split_at(text.find('/')?);
            let covers = host.len() > domain.len() && host.ends_with(domain) && rest.starts_with(path);
            covers.then_some(host.len() + path.len())?
        }
    };
    let rest = text.get(length..)?;
    let of_tag = prefix.contains('/') && rest.starts_with([':', '@']);
    (rest.is_empty() || rest.starts_with('/') || of_tag).then_some(length)
}

#[cfg(test)]
mod tests;
