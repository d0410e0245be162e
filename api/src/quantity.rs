//! A number of nodes, written as a whole number or as a percentage of the pool's members.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, de};

/// A number of nodes of at least 1, or 1% to 100% of the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A number of nodes.
    Nodes(u32),
    /// A percentage of the members.
    Percent(u8),
}

/// Error for a value that is not a [`Quantity`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a number of nodes; write a whole number of at least 1, or a percentage from 1% to 100%")]
pub struct QuantityError(String);

impl Quantity {
    /// Number of nodes out of `members`, rounded down, but never below 1.
    pub fn rounded_down(self, members: usize) -> usize {
        match self {
            Self::Nodes(n) => n as usize,
            Self::Percent(p) => (members * usize::from(p) / 100).max(1),
        }
    }

    /// Number of nodes out of `members`, rounded up, but never below 1.
    pub fn rounded_up(self, members: usize) -> usize {
        match self {
            Self::Nodes(n) => n as usize,
            Self::Percent(p) => (members * usize::from(p)).div_ceil(100).max(1),
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let percent = text.strip_suffix('%').ok_or_else(|| invalid(text))?;
        if percent.is_empty() || !percent.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid(text));
        }
        match percent.parse() {
            Ok(p @ 1..=100) => Ok(Self::Percent(p)),
            _ => Err(invalid(text)),
        }
    }
}

fn invalid(text: &str) -> QuantityError {
    QuantityError(text.chars().take(40).collect())
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(n) => write!(f, "{n}"),
            Self::Percent(p) => write!(f, "{p}%"),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nodes(n) => serializer.serialize_u32(*n),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw<'a> {
            Int(i64),
            Text(Cow<'a, str>),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Int(n) => match u32::try_from(n) {
                Ok(n) if n >= 1 => Ok(Self::Nodes(n)),
                _ => Err(de::Error::custom(QuantityError(n.to_string()))),
            },
            Raw::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl schemars::JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Quantity, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn reads_numbers_and_percentages() {
        assert_eq!(read("3"), Ok(Quantity::Nodes(3)));
        assert_eq!(read("\"25%\""), Ok(Quantity::Percent(25)));
        for bad in [
            "0",
            "-1",
            "\"0%\"",
            "\"150%\"",
            "\"two\"",
            "\"3\"",
            "\"\"",
            "\"+5%\"",
            "1.5",
            "99999999999",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rounds_down_and_up() {
        assert_eq!(Quantity::Percent(25).rounded_down(10), 2);
        assert_eq!(Quantity::Percent(25).rounded_up(10), 3);
        assert_eq!(Quantity::Percent(1).rounded_down(10), 1);
        assert_eq!(Quantity::Percent(100).rounded_up(0), 1);
        assert_eq!(Quantity::Nodes(7).rounded_down(3), 7);
    }
}
