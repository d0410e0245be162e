//! The labels of an image. They are untrusted, so each label is parsed separately: an invalid label does not affect the
//! others. A pool's status keeps only as many labels as fit.

use std::collections::BTreeMap;

use berth_api::foreign::is_printable;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Maximum number of labels in a pool's status. The next two constants are the maximum lengths of a name and of a
/// value, in characters.
pub const MAX_LABELS: usize = 64;
const MAX_NAME: usize = 128;
const MAX_VALUE: usize = 512;
/// Maximum size of all labels in a pool's status together, names and values, in bytes.
const MAX_BYTES: usize = 8 << 10;
/// Replaces invalid UTF-8 bytes in a text.
const NO_TEXT: char = char::REPLACEMENT_CHARACTER;

/// The labels of an image configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Labels whose values are strings, of any length.
    pub texts: BTreeMap<String, String>,
    /// Number of labels whose values are not strings.
    pub others: usize,
}

impl Labels {
    /// Returns the labels that a pool's status keeps, sorted by name, and the number of labels left out. A label is
    /// left out if it is too long, is not a text, has control or invisible characters, or if no more labels fit.
    pub fn kept(&self) -> (BTreeMap<String, String>, u32) {
        let mut kept = BTreeMap::new();
        let mut bytes = 0;
        for (name, value) in &self.texts {
            let after = bytes + name.len() + value.len();
            if kept.len() < MAX_LABELS && after <= MAX_BYTES && fits(name, MAX_NAME) && fits(value, MAX_VALUE) {
                bytes = after;
                kept.insert(name.clone(), value.clone());
            }
        }
        let left_out = (self.texts.len() - kept.len()).saturating_add(self.others);
        (kept, u32::try_from(left_out).unwrap_or(u32::MAX))
    }
}

fn fits(text: &str, most: usize) -> bool {
    text.chars().nth(most).is_none() && is_printable(text) && !text.contains(NO_TEXT)
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Labels;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = Labels::default();
                while let Some((name, Text(value))) = map.next_entry::<String, Text>()? {
                    match value {
                        Some(value) => drop(labels.texts.insert(name, value)),
                        None => labels.others += 1,
                    }
                }
                Ok(labels)
            }

            fn visit_unit<E>(self) -> Result<Labels, E> {
                Ok(Labels::default())
            }
        }

        from.deserialize_any(All)
    }
}

/// Value of a label; `None` if the JSON value is not a string.
struct Text(Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("anything")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(Some(text.to_owned())))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }
        }

        from.deserialize_any(Any)
    }
}

/// Returns a JSON document as text that serde can parse. Bytes that are not UTF-8, and escapes of unpaired surrogates,
/// become the replacement character. [`Labels::kept`] leaves out labels that contain this character.
pub fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut rest: &str = &text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let length = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                out.push(NO_TEXT);
                rest = escape.get(6..).unwrap_or_default();
                continue;
            }
            // Copy the next character as well: after a backslash, a second backslash does not start an escape.
            _ => 1 + escape.chars().nth(1).map_or(0, char::len_utf8),
        };
        out.push_str(escape.get(..length).unwrap_or(escape));
        rest = escape.get(length..).unwrap_or_default();
    }
    out + rest
}

/// Returns the UTF-16 code unit of a `\u` escape at the start of the text; `None` if the text does not start with one.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(json: &[u8]) -> Labels {
        serde_json::from_str(&readable(json)).unwrap()
    }

    fn labels(texts: impl IntoIterator<Item = (String, String)>) -> Labels {
        Labels {
            texts: texts.into_iter().collect(),
            others: 0,
        }
    }

    #[test]
    fn an_invalid_label_affects_no_other() {
        for hostile in [
            b"7".to_vec(),
            b"-1.5e3".to_vec(),
            b"null".to_vec(),
            b"[[], {}, 1]".to_vec(),
            br#"{"a": {"b": [null]}}"#.to_vec(),
            [b"[".repeat(100_000), b"]".repeat(100_000)].concat(),
            b"\"\xff\xfe\"".to_vec(),
            br#""\ud800""#.to_vec(),
            br#""a \udc00\ud800\ud800 b""#.to_vec(),
            br#""\u001b[2J""#.to_vec(),
            br#""two\nlines""#.to_vec(),
            [b"\"".to_vec(), b"x".repeat(513), b"\"".to_vec()].concat(),
        ] {
            let json = [br#"{"a": "1", "hostile": "#.as_slice(), &hostile, br#", "z": "2"}"#].concat();
            let (kept, left_out) = read(&json).kept();
            let shown = String::from_utf8_lossy(&hostile).chars().take(40).collect::<String>();
            let kept: Vec<_> = kept
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            assert_eq!((kept, left_out), (vec![("a", "1"), ("z", "2")], 1), "{shown}");
        }
        let names = br#"{"a\ud800": "1", "\u0007": "1", "b": "1"}"#;
        let (kept, left_out) = read(names).kept();
        assert_eq!((kept.len(), left_out), (1, 2));
        assert_eq!(read(b"null"), Labels::default());
        let error = serde_json::from_str::<Labels>("7").unwrap_err().to_string();
        assert!(error.contains("expected labels"), "{error}");
        let whole = read(br#"{"a": "\ud83d\ude00 \\ud800 \" \u00e9"}"#);
        assert_eq!(
            whole.texts["a"], "\u{1f600} \\ud800 \" \u{e9}",
            "what makes sense is read as it is"
        );
    }

    #[test]
    fn labels_are_kept_up_to_the_limits() {
        let many = labels((0..100).map(|n| (format!("label-{n:03}"), String::new())));
        let (kept, left_out) = many.kept();
        assert_eq!((kept.len(), left_out), (MAX_LABELS, 36));
        let large = labels((0..40).map(|n| (format!("label-{n:03}"), "x".repeat(MAX_VALUE))));
        let (kept, left_out) = large.kept();
        assert_eq!((kept.len(), left_out), (15, 25));
        let others = Labels {
            others: 3,
            ..labels([])
        };
        assert_eq!(others.kept(), (BTreeMap::new(), 3));
    }

    /// Generates a short text, or sometimes a text of about `most` characters.
    fn any_text(most: usize) -> impl Strategy<Value = String> {
        let long = (most - 1..most + 2).prop_map(|length| "x".repeat(length));
        prop_oneof![9 => ".{0,12}", 2 => long]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

        /// Kept labels are unchanged and within the limits. All other labels are counted.
        #[test]
        fn kept_labels_are_bounded_and_the_rest_counted(
            texts in prop::collection::btree_map(any_text(MAX_NAME), any_text(MAX_VALUE), 0..90),
            others in 0..5_usize,
        ) {
            let labels = Labels { texts, others };
            let (kept, left_out) = labels.kept();
            prop_assert_eq!(kept.len() + left_out as usize, labels.texts.len() + others);
            prop_assert!(kept.len() <= MAX_LABELS);
            prop_assert!(kept.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() <= MAX_BYTES);
            for (name, value) in &kept {
                prop_assert_eq!(labels.texts.get(name), Some(value));
                prop_assert!(name.chars().count() <= MAX_NAME && value.chars().count() <= MAX_VALUE);
                prop_assert!(!name.chars().chain(value.chars()).any(char::is_control));
            }
        }

        /// The bytes in one label's value do not affect the other labels. Quotes, backslashes and control characters
        /// are not tried.
        #[test]
        fn any_bytes_in_a_label_spare_the_others(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let inside: Vec<u8> = bytes.into_iter().filter(|b| *b >= 0x20 && !b"\"\\".contains(b)).collect();
            let json = [br#"{"a": "1", "b": ""#.as_slice(), &inside, br#"", "z": "2"}"#].concat();
            let labels = read(&json);
            prop_assert_eq!((labels.texts["a"].as_str(), labels.texts["z"].as_str()), ("1", "2"));
        }

        /// `readable` does not change valid JSON.
        #[test]
        fn a_readable_document_is_not_changed(text in ".{0,60}") {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(readable(json.as_bytes()), json);
        }
    }
}
