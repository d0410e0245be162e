//! A field that is decoded separately from its object.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::condition::one_line;
use crate::text::truncated;

/// Maximum length of an error, in characters. The text of an invalid value is part of the error.
pub(super) const MAX_ERROR: usize = 200;

/// A field that is decoded separately, so that an invalid value does not fail the object.
#[derive(Debug, Clone)]
pub struct Part<T>(Result<Option<T>, String>);

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self(Ok(None))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Part<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let read: Result<Option<T>, serde_json::Error> = serde_json::from_value(value);
        Ok(Self(
            read.map_err(|error| truncated(&one_line(&error.to_string()), MAX_ERROR)),
        ))
    }
}

impl<T> Part<T> {
    /// Returns the value, if there is one and it can be decoded. Otherwise adds the error to `error`, unless it has an
    /// earlier one. `field` names the field in the error.
    pub(super) fn take(self, field: &str, error: &mut Option<String>) -> Option<T> {
        match self.0 {
            Ok(value) => value,
            Err(why) => {
                error.get_or_insert_with(|| format!("{field}: {why}"));
                None
            }
        }
    }

    /// Returns the value, if there is one and it can be decoded.
    pub(super) fn valid(self) -> Option<T> {
        self.0.ok().flatten()
    }

    /// True if there is a value, but it cannot be decoded.
    pub(super) fn is_invalid(&self) -> bool {
        self.0.is_err()
    }

    /// As [`Self::take`]. A missing value is an error too.
    pub(super) fn required(self, field: &str, error: &mut Option<String>) -> Option<T> {
        let value = self.take(field, error);
        if value.is_none() {
            error.get_or_insert_with(|| format!("{field} is missing"));
        }
        value
    }
}
