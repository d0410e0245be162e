//! Content digests of images. An invalid digest is an error when an object is read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, de};

/// A SHA-256 content digest in OCI form: `sha256:` and 64 lower-case hex digits.
///
/// SHA-256 is the only algorithm that `bootc` and rpm-ostree report for manifests.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Error for a text that is not a [`Digest`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a digest; write sha256: followed by 64 lower-case hex digits")]
pub struct DigestError(String);

impl Digest {
    /// Returns the first 16 hex digits, for names of units and files.
    pub fn short(&self) -> String {
        hex(self.0.get(..8).unwrap_or_default())
    }
}

impl From<[u8; 32]> for Digest {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn invalid(text: &str) -> DigestError {
    // Keep the error short, because the text may come from an untrusted source.
    DigestError(text.chars().take(100).collect())
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digits = text.strip_prefix("sha256:").unwrap_or_default();
        if digits.len() != 64 || !digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(invalid(text));
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let pair = digits.get(2 * at..2 * at + 2).unwrap_or_default();
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid(text))?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl schemars::JsonSchema for Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "maxLength": 71,
            "pattern": "^sha256:[0-9a-f]{64}$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn printing_and_parsing_are_inverse(bytes: [u8; 32]) {
            let digest = Digest(bytes);
            prop_assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
        }

        #[test]
        fn never_panics_and_never_guesses(text in ".{0,90}") {
            if let Ok(digest) = text.parse::<Digest>() {
                prop_assert_eq!(digest.to_string(), text);
            }
        }
    }

    #[test]
    fn refuses_near_misses() {
        let good = format!("sha256:{}", "a".repeat(64));
        assert!(good.parse::<Digest>().is_ok());
        for bad in [
            &good[..70],
            &good.to_uppercase(),
            &good.replace("256", "512"),
            "",
            "sha256:",
            &format!("{good} "),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn short_names_the_first_sixteen_digits() {
        let digest: Digest = format!("sha256:0123456789abcdef{}", "0".repeat(48)).parse().unwrap();
        assert_eq!(digest.short(), "0123456789abcdef");
    }
}
