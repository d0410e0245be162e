//! Kinds may only gain: each object that the last release could write must stay valid and keep its meaning.

use std::collections::BTreeMap;

use super::*;

/// Limits that may only rise, and limits that may only fall.
const UPPER: [&str; 4] = ["maxLength", "maxItems", "maxProperties", "maximum"];
const LOWER: [&str; 4] = ["minLength", "minItems", "minProperties", "minimum"];
/// Keys that must stay, since another value would refuse or change objects.
const FIXED: [&str; 9] = [
    "type",
    "format",
    "pattern",
    "default",
    "nullable",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
];

/// Formats of unsigned numbers, which releases up to 0.1 had, and the largest values that they allow.
const UNSIGNED: [(&str, Option<u64>); 4] = [
    ("uint8", Some(255)),
    ("uint16", Some(65_535)),
    ("uint32", Some(4_294_967_295)),
    ("uint64", None),
];

/// Returns the schema with a maximum in place of a format of unsigned numbers.
fn without_unsigned(schema: &Value) -> Value {
    let mut schema = schema.clone();
    let Some((_, largest)) = UNSIGNED.iter().find(|(format, _)| schema["format"] == *format) else {
        return schema;
    };
    schema["format"] = Value::Null;
    if schema["maximum"].is_null() {
        schema["maximum"] = json!(largest);
    }
    schema
}

/// Finds changes that are not additions.
#[derive(Default)]
struct Comparison {
    found: Vec<String>,
}

impl Comparison {
    fn schema(&mut self, at: &str, old: &Value, new: &Value) {
        let old = &without_unsigned(old);
        for key in FIXED {
            if old[key] != new[key] {
                self.say(at, &format!("{key} was {}, and is {}", old[key], new[key]));
            }
        }
        for (keys, is_upper) in [(UPPER, true), (LOWER, false)] {
            for key in keys {
                self.limit(at, key, is_upper, (&old[key], &new[key]));
            }
        }
        self.only_fewer(at, "required", &old["required"], &new["required"]);
        self.only_fewer(at, "x-kubernetes-validations", &rules(old), &rules(new));
        if !new["enum"].is_null() {
            self.only_fewer(at, "values that were allowed", &new["enum"], &old["enum"]);
        }
        for (name, property) in old["properties"].as_object().into_iter().flatten() {
            match new["properties"].get(name) {
                Some(now) => self.schema(&format!("{at}.{name}"), property, now),
                None => self.say(at, &format!("the field {name} is gone")),
            }
        }
        for inner in ["items", "additionalProperties"] {
            if old[inner].is_object() {
                self.schema(&format!("{at}[]"), &old[inner], &new[inner]);
            }
        }
    }

    /// Compares a limit. An absent one does not limit.
    fn limit(&mut self, at: &str, key: &str, is_upper: bool, (old, new): (&Value, &Value)) {
        let Some(now) = new.as_f64() else { return };
        let is_wider = old
            .as_f64()
            .is_some_and(|was| if is_upper { now >= was } else { now <= was });
        if !is_wider {
            self.say(at, &format!("{key} was {old}, and is {new}"));
        }
    }

    /// Reports the items of the new list that the old one lacks.
    fn only_fewer(&mut self, at: &str, what: &str, old: &Value, new: &Value) {
        let old = old.as_array().map(Vec::as_slice).unwrap_or_default();
        for item in new.as_array().into_iter().flatten() {
            if !old.contains(item) {
                self.say(at, &format!("{what}: {item}"));
            }
        }
    }

    fn say(&mut self, at: &str, what: &str) {
        self.found.push(format!("{at}: {what}"));
    }
}

/// The CEL rules of a schema, without their messages.
fn rules(schema: &Value) -> Value {
    let rules = schema["x-kubernetes-validations"].as_array();
    rules.into_iter().flatten().map(|rule| rule["rule"].clone()).collect()
}

/// The served versions of all kinds, by kind and version.
fn versions(crds: &str) -> Result<BTreeMap<String, Value>> {
    let crds: Vec<Value> = serde_saphyr::from_multiple(crds)?;
    let mut found = BTreeMap::new();
    for crd in crds {
        let kind = crd["spec"]["names"]["kind"].as_str().context("a CRD without a kind")?;
        for version in crd["spec"]["versions"].as_array().into_iter().flatten() {
            let name = version["name"].as_str().context("a version without a name")?;
            found.insert(format!("{kind} {name}"), version["schema"]["openAPIV3Schema"].clone());
        }
    }
    Ok(found)
}

fn changes(old: &str, new: &str) -> Result<Vec<String>> {
    let (old, new) = (versions(old)?, versions(new)?);
    ensure!(!old.is_empty(), "the last release has no kinds");
    let mut comparison = Comparison::default();
    for (name, schema) in &old {
        match new.get(name) {
            Some(now) => comparison.schema(name, schema, now),
            None => comparison.say(name, "is gone"),
        }
    }
    Ok(comparison.found)
}

#[test]
fn kinds_only_gain() -> Result<()> {
    let Some(last) = last_release()? else {
        no_history();
        return Ok(());
    };
    let old = std::fs::read_to_string(last.manifests.join("crds.yaml"))?;
    let changes = changes(&old, &programs::read("manifests/base/crds.yaml")?)?;
    ensure!(changes.is_empty(), "since {}:\n{}", last.version, changes.join("\n"));
    Ok(())
}

#[test]
fn every_other_change_is_found() -> Result<()> {
    let crd = |schema: Value| {
        let versions = json!([{ "name": "v1", "schema": { "openAPIV3Schema": schema } }]);
        json!({ "spec": { "names": { "kind": "Thing" }, "versions": versions } }).to_string()
    };
    let field = |field: Value| json!({ "type": "object", "properties": { "a": field } });
    let text = json!({ "type": "string", "maxLength": 5, "enum": ["x", "y"] });
    let old = field(text.clone());
    let with = |key: &str, value: Value| {
        let mut changed = text.clone();
        changed[key] = value;
        field(changed)
    };
    let mut required = old.clone();
    required["required"] = json!(["a"]);
    for (new, expected) in [
        (old.clone(), None),
        (with("maxLength", json!(9)), None),
        (with("enum", json!(["x", "y", "z"])), None),
        (with("maxLength", json!(4)), Some("maxLength was 5, and is 4")),
        (with("minLength", json!(1)), Some("minLength was null, and is 1")),
        (with("enum", json!(["x"])), Some("values that were allowed: \"y\"")),
        (with("type", json!("integer")), Some("type was \"string\"")),
        (
            with("x-kubernetes-validations", json!([{ "rule": "false" }])),
            Some("x-kubernetes-validations: \"false\""),
        ),
        (required, Some("required: \"a\"")),
        (json!({ "type": "object" }), Some("the field a is gone")),
    ] {
        let found = changes(&crd(old.clone()), &crd(new))?;
        match expected {
            None => ensure!(found.is_empty(), "{found:?}"),
            Some(words) => ensure!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}"),
        }
    }
    Ok(())
}
