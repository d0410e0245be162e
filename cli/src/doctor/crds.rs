//! Checks that the CRDs of this version are installed.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::keys;
use berth_api::text::names;
use serde_json::{Map, Value};

use super::check::{Check, Topic};
use super::commands::VERSION;
use super::facts::Facts;
use super::json::normal;
use super::seen::unknown;
use super::shipped::{Kind, Shipped};
use super::versions::Skew;

/// Maximum number of fields that a message names.
const NAMED: usize = 3;

/// Keywords of a schema that hold other schemas, or only describe.
const NOT_COMPARED: [&str; 5] = ["properties", "items", "additionalProperties", "description", "title"];

/// Difference of an installed CRD from the shipped one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Current,
    Missing,
    /// The API server does not serve it, for this reason.
    NotServed(String),
    /// The installed CRD lacks these fields, and has no others.
    Older(Vec<String>),
    /// The installed CRD has these fields in addition.
    Newer(Vec<String>),
    /// These fields have other types or rules, or fields are missing on both sides.
    Different(Vec<String>),
}

/// Checks the CRDs. CRDs with the same problem are one check.
pub(crate) fn check(facts: &Facts, skew: Skew) -> Vec<Check> {
    let mut unseens = vec![];
    let mut states: BTreeMap<State, Vec<&str>> = BTreeMap::new();
    for shipped in facts.shipped(Kind::Crd) {
        match facts.installed(shipped) {
            Err(unseen) => unseens.push(unseen),
            Ok(None) => states.entry(State::Missing).or_default().push(&shipped.name),
            Ok(Some(found)) => states.entry(state(found, shipped)).or_default().push(&shipped.name),
        }
    }
    let known = states.iter().map(|(state, crds)| words(facts, state, crds, skew));
    known.chain(unknown(Topic::Crds, &unseens)).collect()
}

/// True if all CRDs are served, or it is not known.
pub(crate) fn are_served(facts: &Facts) -> bool {
    facts.shipped(Kind::Crd).all(|shipped| match facts.installed(shipped) {
        Ok(None) => false,
        Ok(Some(found)) => !matches!(state(found, shipped), State::NotServed(_)),
        Err(_) => true,
    })
}

fn words(facts: &Facts, state: &State, crds: &[&str], skew: Skew) -> Check {
    let all = crds.join(", ");
    let commands = facts.commands.crds(facts.crd_release().as_ref());
    let cause =
        "the API server refuses writes with fields that it does not know, so agents cannot report and take no berth";
    let apply = format!("apply the CRDs of version {VERSION}");
    match state {
        State::Current => Check::ok(Topic::Crds, &format!("CRDs have version {VERSION}: {all}")),
        State::Missing => Check::broken(Topic::Crds, &format!("CRDs are not installed: {all}"))
            .remedy(&apply)
            .commands(commands),
        State::NotServed(why) => Check::broken(Topic::Crds, &format!("the API server does not serve {all}"))
            .because(why)
            .remedy(&format!(
                "{apply}; if that does not help, see: kubectl describe crd {}",
                crds.join(" ")
            ))
            .commands(commands),
        State::Older(fields) => {
            let message = format!("CRDs are older than version {VERSION}: {all} lacks {}", few(fields));
            Check::broken(Topic::Crds, &message)
                .because(cause)
                .remedy(&apply)
                .commands(commands)
        }
        State::Newer(fields) => {
            let message = format!(
                "CRDs are newer than this plugin ({VERSION}): {all} also has {}",
                few(fields)
            );
            Check::warning(Topic::Crds, &message).remedy("install the plugin of the controller's version")
        }
        State::Different(fields) => {
            let message = format!("CRDs differ from version {VERSION}: {all} in {}", few(fields));
            if skew.is_other_version() {
                let remedy = "install the plugin of the controller's version, and run this again";
                return Check::warning(Topic::Crds, &message).remedy(remedy);
            }
            Check::broken(Topic::Crds, &message)
                .because(cause)
                .remedy(&apply)
                .commands(commands)
        }
    }
}

fn few(fields: &[String]) -> String {
    names(fields.iter().take(NAMED), fields.len())
}

fn state(found: &Value, shipped: &Shipped) -> State {
    if let Some(why) = unserved(found) {
        return State::NotServed(why);
    }
    let (found, shipped) = (fields(found), fields(&shipped.object));
    let missing: Vec<String> = shipped
        .keys()
        .filter(|path| !found.contains_key(*path))
        .cloned()
        .collect();
    let extra: Vec<String> = found
        .keys()
        .filter(|path| !shipped.contains_key(*path))
        .cloned()
        .collect();
    let changed = shipped
        .iter()
        .filter(|(path, rules)| found.get(*path).is_some_and(|other| other != *rules));
    let changed: BTreeSet<String> = changed.map(|(path, _)| path.clone()).collect();
    match (missing.is_empty(), extra.is_empty(), changed.is_empty()) {
        (true, true, true) => State::Current,
        (false, true, _) => State::Older(missing),
        (true, false, _) => State::Newer(extra),
        _ => State::Different(missing.into_iter().chain(extra).chain(changed).collect()),
    }
}

/// Returns why the API server does not serve the CRD; `None` if it does.
fn unserved(found: &Value) -> Option<String> {
    let conditions = found["status"]["conditions"].as_array();
    for condition in conditions.into_iter().flatten() {
        let is_needed = ["Established", "NamesAccepted"]
            .iter()
            .any(|type_| condition["type"] == *type_);
        if is_needed && condition["status"] != "True" {
            let [reason, message] = ["reason", "message"].map(|field| condition[field].as_str().unwrap_or_default());
            return Some(format!("{reason}: {message}"));
        }
    }
    let is_served = version(found).is_some_and(|version| version["served"] == true);
    (!is_served).then(|| format!("it does not serve {}/{}", keys::GROUP, keys::VERSION))
}

fn version(crd: &Value) -> Option<&Value> {
    let mut versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    versions.find(|version| version["name"] == keys::VERSION)
}

/// Returns the fields of a CRD, each with its types and rules. Descriptions do not count.
fn fields(crd: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    if let Some(version) = version(crd) {
        collect(&normal(&version["schema"]["openAPIV3Schema"]), "", &mut found);
    }
    found
}

fn collect(schema: &Value, path: &str, found: &mut BTreeMap<String, Value>) {
    let Value::Object(keywords) = schema else { return };
    let rules = keywords
        .iter()
        .filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str()));
    let rules = rules.map(|(name, value)| (name.clone(), value.clone()));
    found.insert(path.to_owned(), Value::Object(rules.collect::<Map<_, _>>()));
    for (name, child) in keywords
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        collect(child, &path, found);
    }
    for (keyword, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let Some(child) = keywords.get(keyword) {
            collect(child, &format!("{path}{mark}"), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the state of a CRD with the property `a` and with these changes of the property's schema.
    fn state_of(change: &[(&str, Value)]) -> State {
        fn crd(properties: Value) -> Value {
            let schema =
                json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"properties": properties}}}});
            json!({
                "spec": {"versions": [{"name": "v1alpha1", "served": true, "schema": schema}]},
                "status": {"conditions": [{"type": "Established", "status": "True"}]},
            })
        }
        let field = json!({"a": {"type": "integer", "maximum": 5, "description": "old"}});
        let shipped = Shipped {
            kind: Kind::Crd,
            name: "x".to_owned(),
            object: crd(field.clone()),
        };
        let mut found = crd(field);
        for (pointer, value) in change {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let parent = found.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            if value.is_null() {
                parent.remove(name);
            } else {
                parent.insert(name.to_owned(), value.clone());
            }
        }
        state(&found, &shipped)
    }

    #[test]
    fn a_crd_is_compared_by_its_fields_and_rules() {
        const SPEC: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        let a = format!("{SPEC}/a");
        let [b, maximum, description] = ["b", "a/maximum", "a/description"].map(|name| format!("{SPEC}/{name}"));
        fn named(names: &[&str]) -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        }
        let field = json!({"type": "string"});
        for (change, expected) in [
            (vec![], State::Current),
            (
                vec![(description.as_str(), json!("new")), (maximum.as_str(), json!(5.0))],
                State::Current,
            ),
            (vec![(a.as_str(), Value::Null)], State::Older(named(&["spec.a"]))),
            (vec![(b.as_str(), field.clone())], State::Newer(named(&["spec.b"]))),
            (vec![(maximum.as_str(), json!(6))], State::Different(named(&["spec.a"]))),
            (
                vec![(a.as_str(), Value::Null), (b.as_str(), field)],
                State::Different(named(&["spec.a", "spec.b"])),
            ),
            (
                vec![("/spec/versions/0/served", json!(false))],
                State::NotServed("it does not serve berth.dev/v1alpha1".to_owned()),
            ),
            (vec![("/status/conditions", Value::Null)], State::Current),
        ] {
            assert_eq!(state_of(&change), expected, "{change:?}");
        }
        let refused =
            json!([{"type": "NamesAccepted", "status": "False", "reason": "Conflict", "message": "bn is taken"}]);
        let found = state_of(&[("/status/conditions", refused)]);
        assert_eq!(found, State::NotServed("Conflict: bn is taken".to_owned()));
    }
}
