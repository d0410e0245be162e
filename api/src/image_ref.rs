//! References to images in registries, as an admin writes them and as `bootc switch` takes them.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;
use crate::written::{Parse, Written};

/// A fully qualified reference with a tag, a digest, or both: `registry/repository[:tag][@sha256:…]`.
///
/// Short names are refused because their meaning depends on each host's configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageRef {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Error for a text that is not an [`ImageRef`]. Each message says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefError {
    /// The text is too long, or its repository or tag is invalid.
    #[error("{0:?} is not an image reference; write one such as quay.io/example/os:stable")]
    Malformed(String),
    /// The reference does not begin with a registry host.
    #[error("{0:?} names no registry; write the whole reference, such as quay.io/example/os:stable")]
    NoRegistry(String),
    /// The reference has neither a tag nor a digest.
    #[error("{0:?} has neither a tag nor a digest; add one, such as :stable or @sha256:…")]
    NoTagOrDigest(String),
    /// The part after `@` is not a digest.
    #[error("in {0:?}, the part after @ is not a digest; write @sha256: and 64 lower-case hex digits")]
    BadDigest(String),
}

/// Longest reference that is accepted, in bytes; the schema has the same bound.
pub const MAX_LENGTH: usize = 512;

impl ImageRef {
    /// Host and port of the registry.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Path of the repository inside the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag, if there is one.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if the reference is pinned.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns a reference to the image with this digest in the same repository, without a tag. The pulled image then
    /// stays the same even if a tag moves, and `bootc` does not query the registry if the host already has the image.
    pub fn at(&self, digest: &Digest) -> ImageRef {
        ImageRef {
            registry: self.registry.clone(),
            repository: self.repository.clone(),
            tag: None,
            digest: Some(digest.clone()),
        }
    }

    /// Returns the reference without its digest; `None` if it has no tag.
    pub fn without_digest(&self) -> Option<ImageRef> {
        self.tag.is_some().then(|| ImageRef {
            digest: None,
            ..self.clone()
        })
    }
}

/// True if the reference begins with one of the prefixes. The comparison is by whole path segments: `quay.io/example`
/// allows `quay.io/example/os` but not `quay.io/example2/os`. Host and port must match exactly. The reference's tag and
/// digest are ignored, and so is a prefix's final slash. An empty list allows every reference. An empty or malformed
/// prefix, such as `quay.io/os:1`, allows no reference.
pub fn allowed(prefixes: &[impl AsRef<str>], reference: &ImageRef) -> bool {
    let name = format!("{}/{}", reference.registry(), reference.repository());
    prefixes.is_empty() || prefixes.iter().any(|prefix| has_prefix(&name, prefix.as_ref()))
}

fn has_prefix(name: &str, prefix: &str) -> bool {
    let rest = name.strip_prefix(prefix.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_registry(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let port_ok = port.is_none_or(|p| !p.is_empty() && p.len() <= 5 && p.bytes().all(|b| b.is_ascii_digit()));
    let name_ok = name.split('.').all(|l| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    });
    port_ok && name_ok && (port.is_some() || name.contains('.') || name == "localhost")
}

fn is_repository(path: &str) -> bool {
    !path.is_empty()
        && path.split('/').all(|part| {
            part.starts_with(is_alphanumeric)
                && part.ends_with(is_alphanumeric)
                && part.chars().all(|c| is_alphanumeric(c) || matches!(c, '.' | '_' | '-'))
        })
}

fn is_alphanumeric(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_tag(tag: &str) -> bool {
    !tag.is_empty()
        && tag.len() <= 128
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}

impl FromStr for ImageRef {
    type Err = ImageRefError;

    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        if text.len() > MAX_LENGTH {
            return Err(ImageRefError::Malformed(shown(text)));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (
                name,
                Some(digest.parse().map_err(|_| ImageRefError::BadDigest(shown(text)))?),
            ),
            None => (text, None),
        };
        let (registry, rest) = name
            .split_once('/')
            .ok_or_else(|| ImageRefError::NoRegistry(shown(text)))?;
        let (repository, tag) = match rest.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        if !is_repository(repository) || !tag.is_none_or(is_tag) {
            return Err(ImageRefError::Malformed(shown(text)));
        }
        if !is_registry(registry) {
            return Err(ImageRefError::NoRegistry(shown(text)));
        }
        if tag.is_none() && digest.is_none() {
            return Err(ImageRefError::NoTagOrDigest(shown(text)));
        }
        Ok(Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl Parse for ImageRef {
    type Raw = String;
    type Error = ImageRefError;

    fn parse(text: &String) -> Result<Self, ImageRefError> {
        text.parse()
    }
}

impl From<ImageRef> for Written<ImageRef> {
    fn from(reference: ImageRef) -> Self {
        Self::valid(reference.to_string(), reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_tags_digests_and_both() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        for text in [
            "quay.io/example/os:stable".to_owned(),
            format!("quay.io/example/os@{digest}"),
            format!("127.0.0.1:5000/os:v1@{digest}"),
            "localhost/os:1".to_owned(),
            "registry:5000/a/b/c_d.e-f:v1.2".to_owned(),
        ] {
            assert_eq!(text.parse::<ImageRef>().map(|r| r.to_string()), Ok(text));
        }
    }

    #[test]
    fn says_what_is_wrong() {
        use ImageRefError as E;
        for text in ["os:stable", "example/os:stable"] {
            assert!(matches!(text.parse::<ImageRef>(), Err(E::NoRegistry(_))), "{text}");
        }
        let neither = "quay.io/example/os".parse::<ImageRef>();
        assert!(matches!(neither, Err(E::NoTagOrDigest(_))));
        let short = "quay.io/example/os@sha256:12".parse::<ImageRef>();
        assert!(matches!(short, Err(E::BadDigest(_))));
        for bad in [
            "quay.io/os:a b",
            "--apply/os:1",
            "quay.io/--apply:x",
            "quay.io/Os:1",
            "quay.io//os:1",
            "quay.io/os:",
            "quay.io/os:v1\n",
        ] {
            assert!(bad.parse::<ImageRef>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn allows_whole_path_segments() {
        let reference: ImageRef = format!("quay.io/example/os:1@sha256:{}", "0".repeat(64))
            .parse()
            .unwrap();
        for prefix in [
            "quay.io",
            "quay.io/",
            "quay.io/example",
            "quay.io/example/",
            "quay.io/example/os",
        ] {
            assert!(allowed(&["a.b", prefix], &reference), "{prefix}");
        }
        for prefix in [
            "",
            "/",
            "quay",
            "quay.io:443",
            "quay.io/ex",
            "quay.io/example/os:1",
            "quay.io/example/os/x",
            "evil.quay.io",
            "https://quay.io",
            "*",
            "QUAY.IO",
        ] {
            assert!(!allowed(&[prefix], &reference), "{prefix}");
        }
        assert!(allowed(&[] as &[&str], &reference));
    }

    proptest! {
        #[test]
        fn allows_only_references_with_a_prefix(
            prefixes in proptest::collection::vec("[ab]{1,2}[.:/][ab1]{1,2}(/[ab]{1,2}){0,2}/?", 1..4),
            text in "[ab]{1,2}[.:][1]{1,2}(/[ab]{1,2}){1,3}:x",
        ) {
            if let Ok(reference) = text.parse::<ImageRef>() {
                let name = format!("{}/{}", reference.registry(), reference.repository());
                let segments: Vec<_> = name.split('/').collect();
                let expected = prefixes.iter().any(|prefix| {
                    let prefix: Vec<_> = prefix.trim_end_matches('/').split('/').collect();
                    segments.starts_with(&prefix)
                });
                prop_assert_eq!(allowed(&prefixes, &reference), expected);
            }
        }

        #[test]
        fn printing_restores_the_parsed_text(text in "[a-z0-9.:/@_ -]{0,60}") {
            if let Ok(reference) = text.parse::<ImageRef>() {
                prop_assert_eq!(reference.to_string(), text.clone());
                prop_assert!(!text.starts_with('-') && !text.contains(char::is_whitespace));
            }
        }
    }
}
