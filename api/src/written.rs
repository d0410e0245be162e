//! Fields that may be invalid, because a person or another version of Berth wrote them.

use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A type that is parsed from a field of an object.
pub trait Parse: Sized {
    /// Type of the field before it is parsed.
    type Raw: PartialEq + fmt::Debug;
    /// Error for a field that cannot be parsed.
    type Error: fmt::Display;

    /// Parses the field.
    fn parse(raw: &Self::Raw) -> Result<Self, Self::Error>;
}

/// A field as written, together with its value or parse error. The field is parsed when the object is read. An object
/// with an invalid field stays readable, and the field is written back unchanged.
pub struct Written<T: Parse>(Arc<Parsed<T>>);

struct Parsed<T: Parse> {
    raw: T::Raw,
    value: Result<T, T::Error>,
}

impl<T: Parse> Written<T> {
    /// Parses a field.
    pub fn new(raw: T::Raw) -> Self {
        let value = T::parse(&raw);
        Self(Arc::new(Parsed { raw, value }))
    }

    /// Combines a valid value with its stored form, a text or a number.
    pub(crate) fn valid(raw: T::Raw, value: T) -> Self {
        let value = Ok(value);
        Self(Arc::new(Parsed { raw, value }))
    }

    /// The field as written.
    pub fn raw(&self) -> &T::Raw {
        &self.0.raw
    }

    /// Returns the value, or the parse error of an invalid field.
    pub fn get(&self) -> Result<&T, &T::Error> {
        self.0.value.as_ref()
    }
}

impl<T: Parse<Raw = String>> Written<T> {
    /// The text as written.
    pub fn as_str(&self) -> &str {
        self.raw()
    }
}

impl<T: Parse> Clone for Written<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Parse> PartialEq for Written<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.raw() == other.raw()
    }
}

impl<T: Parse<Raw: Eq>> Eq for Written<T> {}

impl<T: Parse<Raw: Default>> Default for Written<T> {
    fn default() -> Self {
        Self::new(T::Raw::default())
    }
}

impl<T: Parse> fmt::Debug for Written<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw().fmt(f)
    }
}

impl<T: Parse<Raw = String>> fmt::Display for Written<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: Parse<Raw = String>> From<&str> for Written<T> {
    fn from(text: &str) -> Self {
        Self::new(text.to_owned())
    }
}

impl<T: Parse<Raw = String>> From<String> for Written<T> {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl<T: Parse<Raw: Serialize>> Serialize for Written<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw().serialize(serializer)
    }
}

impl<'de, T: Parse<Raw: Deserialize<'de>>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::Raw::deserialize(deserializer).map(Self::new)
    }
}

impl<T: Parse<Raw: JsonSchema>> JsonSchema for Written<T> {
    fn inline_schema() -> bool {
        T::Raw::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::Raw::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::Raw::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(json: &str) -> Written<Duration> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_invalid_text_is_kept_with_its_error() {
        for (json, seconds) in [
            (r#""90s""#, Some(90)),
            (r#""0m""#, Some(0)),
            (r#""soon""#, None),
            (r#""""#, None),
        ] {
            let written = read(json);
            assert_eq!(written.get().ok(), seconds.map(Duration::from_secs).as_ref(), "{json}");
            assert_eq!(serde_json::to_string(&written).unwrap(), json);
            assert_eq!(written, read(json));
        }
        assert_ne!(read(r#""60s""#), read(r#""1m""#), "fields are compared as written");
        let error = read(r#""soon""#).get().unwrap_err().to_string();
        assert!(error.starts_with(r#""soon" is not a duration"#), "{error}");
        assert!(serde_json::from_str::<Written<Duration>>("90").is_err(), "not a text");
    }
}
