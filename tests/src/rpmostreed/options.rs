//! Options of a call.

use std::collections::{BTreeMap, HashMap};

use zbus::{OwnedVariant, Variant};

use crate::named_error::NamedError;

/// Options that Berth or its tests may use, with their types. The real daemon knows more and ignores unknown ones and wrong
/// types; here both are errors, so that mistakes are noticed.
const KNOWN: &[(&str, &str)] = &[
    ("allow-downgrade", "b"),
    ("allow-inactive", "b"),
    ("allow-missing-checksum", "b"),
    ("allow-unlocked", "b"),
    ("checksum", "s"),
    ("custom-origin", "(ss)"),
    ("id", "s"),
    ("idempotent-layering", "b"),
    ("initiating-command-line", "s"),
    ("lock-finalization", "b"),
    ("output-to-self", "b"),
    ("reboot", "b"),
    ("register-driver", "s"),
    ("revision", "s"),
    ("skip-branch-check", "b"),
    ("skip-purge", "b"),
];

#[derive(Debug)]
pub(super) struct Options(HashMap<String, OwnedVariant>);

impl Options {
    pub(super) fn new(options: HashMap<String, OwnedVariant>) -> Result<Self, NamedError> {
        for (key, value) in &options {
            let has = value.value_signature().to_string();
            match KNOWN.iter().find(|(known, _)| known == key) {
                None => {
                    return Err(NamedError::invalid(format!(
                        "the stand-in does not know the option {key}"
                    )));
                }
                Some((_, signature)) if *signature != has => {
                    let text = format!("option {key} has the type {has}, but must be {signature}");
                    return Err(NamedError::invalid(text));
                }
                Some(_) => {}
            }
        }
        Ok(Self(options))
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        match &**self.0.get(key)? {
            Variant::Str(text) => Some(text.to_string()),
            _ => None,
        }
    }

    pub(super) fn flag(&self, key: &str, otherwise: bool) -> bool {
        match self.0.get(key).map(|value| &**value) {
            Some(Variant::Bool(flag)) => *flag,
            _ => otherwise,
        }
    }

    /// Returns all options as they were sent: type and value by name.
    pub(super) fn as_sent(&self) -> BTreeMap<String, String> {
        let mut sent = BTreeMap::new();
        for (key, value) in &self.0 {
            let value = match &**value {
                Variant::Bool(flag) => format!("b {flag}"),
                Variant::Str(text) => format!("s {text}"),
                other => format!("{} {other:?}", other.value_signature()),
            };
            sent.insert(key.clone(), value);
        }
        sent
    }

    /// Returns all options in one line, the same for equal options.
    pub(super) fn fingerprint(&self) -> String {
        let mut all: Vec<_> = self.0.iter().map(|(k, v)| format!("{k}={v:?}")).collect();
        all.sort();
        all.join(" ")
    }
}
