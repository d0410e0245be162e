//! `--what-if`: a pool with other settings, checked against the types and bounds in its CRD.

use std::collections::BTreeMap;
use std::str::FromStr;

use berth_api::pool::{BootcNodePool, BootcNodePoolSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::{CustomResourceExt, ResourceExt};
use serde_json::{Map, Value};

use crate::snapshot::Snapshot;

/// Maximum number of similar paths in an error message.
const NEAR: usize = 5;
/// Maximum edit distance of a path that counts as similar.
const DISTANCE: usize = 4;

/// A field of a pool's spec and a value for it, written like `rollout.maxUnavailable=3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhatIf {
    path: Vec<String>,
    value: String,
}

impl FromStr for WhatIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, value) = text
            .split_once('=')
            .ok_or("write a field of the pool's spec and a value, such as rollout.maxUnavailable=3")?;
        let path = path.strip_prefix("spec.").unwrap_or(path);
        Ok(Self {
            path: path.split('.').map(str::to_owned).collect(),
            value: value.to_owned(),
        })
    }
}

impl WhatIf {
    fn name(&self) -> String {
        self.path.join(".")
    }
}

/// Returns the snapshot with these settings applied to one pool.
pub fn what_if(snapshot: &Snapshot, pool: &str, settings: &[WhatIf]) -> Result<Snapshot, String> {
    let mut snapshot = snapshot.clone();
    let found = snapshot.pools.iter_mut().find(|found| found.name_any() == pool);
    let found = found.ok_or_else(|| format!("there is no pool {pool:?}"))?;
    // The status is not changed, just as right after an admin changes the spec.
    found.spec = spec_with(found, settings)?;
    Ok(snapshot)
}

/// Returns the spec of a pool with these settings.
pub(crate) fn spec_with(pool: &BootcNodePool, settings: &[WhatIf]) -> Result<BootcNodePoolSpec, String> {
    let name = pool.name_any();
    let mut spec = serde_json::to_value(&pool.spec)
        .map_err(|error| format!("the spec of pool {name} cannot be serialized: {error}"))?;
    merge(&mut spec, &patch(settings)?);
    serde_json::from_value(spec).map_err(|error| format!("pool {name} cannot have these settings: {error}"))
}

/// Returns the settings as a merge patch of a pool's spec. An empty value removes the field.
pub fn patch(settings: &[WhatIf]) -> Result<Value, String> {
    let schema = schema().ok_or("the schema of BootcNodePool has no spec")?;
    let mut patch = Value::Object(Map::new());
    for setting in settings {
        let leaf = field(&schema, setting)?;
        let mut one = value(leaf, setting)?;
        for segment in setting.path.iter().rev() {
            one = Value::Object([(segment.clone(), one)].into_iter().collect());
        }
        merge(&mut patch, &one);
    }
    Ok(patch)
}

/// Returns the paths of the leaf fields of a pool's spec: fields that have no fields of their own.
pub fn fields() -> Vec<String> {
    let schema = schema();
    let fields = schema.iter().flat_map(paths);
    let leaves = fields.filter(|(_, schema)| schema.properties.is_none());
    leaves.map(|(path, _)| path).collect()
}

/// Merges a patch into a value. A removed field becomes `null`.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Value::Object(into) = into else { return };
    for (key, value) in patch {
        merge(into.entry(key.clone()).or_insert(Value::Null), value);
    }
}

fn schema() -> Option<JSONSchemaProps> {
    let version = BootcNodePool::crd().spec.versions.into_iter().next()?;
    let root = version.schema?.open_api_v3_schema?;
    root.properties?.remove("spec")
}

fn field<'a>(spec: &'a JSONSchemaProps, setting: &WhatIf) -> Result<&'a JSONSchemaProps, String> {
    let mut at = spec;
    for (depth, segment) in setting.path.iter().enumerate() {
        let Some(next) = at.properties.as_ref().and_then(|properties| properties.get(segment)) else {
            return Err(unknown(spec, setting, depth));
        };
        at = next;
    }
    Ok(at)
}

fn unknown(spec: &JSONSchemaProps, setting: &WhatIf, depth: usize) -> String {
    let name = setting.name();
    let before = setting.path.iter().take(depth).cloned().collect::<Vec<_>>().join(".");
    let paths = paths(spec);
    let is_list = paths.get(&before).is_some_and(|schema| is(schema, "array"));
    if is_list {
        return format!("{before} is a list; write the whole list as JSON: {before}='[...]'");
    }
    let last = setting.path.last().map(String::as_str).unwrap_or_default();
    let mut near: Vec<(usize, &String)> = vec![];
    for path in paths.keys() {
        let of_last = path
            .rsplit('.')
            .next()
            .map_or(usize::MAX, |end| edit_distance(end, last));
        let distance = edit_distance(path, &name).min(of_last);
        if distance <= DISTANCE {
            near.push((distance, path));
        }
    }
    near.sort();
    let near: Vec<&str> = near.into_iter().take(NEAR).map(|(_, path)| path.as_str()).collect();
    if !near.is_empty() {
        return format!(
            "the spec of a pool has no field {name}; similar fields: {}",
            near.join(", ")
        );
    }
    let level: Vec<&str> = paths
        .keys()
        .filter(|path| path.rsplit_once('.').map_or("", |(parent, _)| parent) == before)
        .map(String::as_str)
        .collect();
    format!(
        "the spec of a pool has no field {name}; existing fields: {}",
        level.join(", ")
    )
}

/// Returns the schemas of all fields, by path.
fn paths(spec: &JSONSchemaProps) -> BTreeMap<String, &JSONSchemaProps> {
    let mut paths = BTreeMap::new();
    let mut open: Vec<(String, &JSONSchemaProps)> = vec![(String::new(), spec)];
    while let Some((path, schema)) = open.pop() {
        for (name, next) in schema.properties.iter().flatten() {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            paths.insert(path.clone(), next);
            open.push((path, next));
        }
    }
    paths
}

/// Returns the edit distance of two words, ignoring case.
fn edit_distance(one: &str, other: &str) -> usize {
    strsim::levenshtein(&one.to_lowercase(), &other.to_lowercase())
}

fn is(schema: &JSONSchemaProps, type_: &str) -> bool {
    schema.type_.as_deref() == Some(type_)
}

fn is_in_bounds(schema: &JSONSchemaProps, number: i64) -> bool {
    let (low, high) = (schema.minimum, schema.maximum);
    low.is_none_or(|low| number as f64 >= low) && high.is_none_or(|high| number as f64 <= high)
}

/// Returns the error for a value that the field does not take. `what` describes the permitted values.
fn wrong(setting: &WhatIf, what: &str) -> String {
    format!("{} takes {what}, not {:?}", setting.name(), setting.value)
}

/// Parses the value as the field's type and checks its bounds.
fn value(schema: &JSONSchemaProps, setting: &WhatIf) -> Result<Value, String> {
    let (name, text) = (setting.name(), setting.value.as_str());
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let number = text.parse::<i64>().ok();
    if schema.x_kubernetes_int_or_string == Some(true) {
        return Ok(number.map_or_else(|| text.into(), Value::from));
    }
    match (schema.type_.as_deref(), number) {
        (Some("integer"), Some(number)) if is_in_bounds(schema, number) => Ok(number.into()),
        (Some("integer"), _) => {
            let low = schema.minimum.map_or_else(String::new, |low| format!(" from {low}"));
            let high = schema.maximum.map_or_else(String::new, |high| format!(" to {high}"));
            Err(wrong(setting, &format!("a whole number{low}{high}")))
        }
        (Some("boolean"), _) => match text.parse::<bool>() {
            Ok(value) => Ok(value.into()),
            Err(_) => Err(wrong(setting, "true or false")),
        },
        (Some("string"), _) => {
            let one_of = schema
                .enum_
                .iter()
                .flatten()
                .filter_map(|value| value.0.as_str().map(str::to_owned));
            let one_of: Vec<String> = one_of.collect();
            if !one_of.is_empty() && !one_of.iter().any(|one| one == text) {
                return Err(wrong(setting, &one_of.join(" or ")));
            }
            let most = schema.max_length.unwrap_or(i64::MAX);
            if i64::try_from(text.chars().count()).unwrap_or(i64::MAX) > most {
                return Err(wrong(setting, &format!("at most {most} characters")));
            }
            Ok(text.into())
        }
        (type_, _) => serde_json::from_str(text).map_err(|error| {
            let form = if type_ == Some("array") { "a list" } else { "an object" };
            format!("{name} takes {form} as JSON: {error}")
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(settings: &[&str]) -> Result<Value, String> {
        let settings: Result<Vec<WhatIf>, String> = settings.iter().map(|text| text.parse()).collect();
        patch(&settings?)
    }

    #[test]
    fn a_setting_has_the_type_of_its_field() {
        let table = [
            ("rollout.maxUnavailable=3", json!({"rollout": {"maxUnavailable": 3}})),
            (
                "rollout.maxUnavailable=25%",
                json!({"rollout": {"maxUnavailable": "25%"}}),
            ),
            ("spec.rollout.paused=true", json!({"rollout": {"paused": true}})),
            ("rollout.soakTime=30m", json!({"rollout": {"soakTime": "30m"}})),
            ("rollout.maxFailures=2", json!({"rollout": {"maxFailures": 2}})),
            ("rollout.windows=[]", json!({"rollout": {"windows": []}})),
            ("rollout.maxUnavailable=", json!({"rollout": {"maxUnavailable": null}})),
        ];
        for (text, expected) in table {
            assert_eq!(patched(&[text]), Ok(expected), "{text}");
        }
        let both = patched(&["rollout.paused=false", "rollout.maxFailures=2"]);
        assert_eq!(both, Ok(json!({"rollout": {"paused": false, "maxFailures": 2}})));
    }

    #[test]
    fn an_invalid_setting_is_explained() {
        let table = [
            ("rollout", "write a field of the pool's spec and a value"),
            ("rollout.maxUnavailabel=3", "similar fields: rollout.maxUnavailable"),
            ("maxUnavailable=3", "similar fields: rollout.maxUnavailable"),
            (
                "rollout.something=3",
                "existing fields: rollout.after, rollout.exclusions",
            ),
            ("rollout.windows.schedule=x", "rollout.windows is a list"),
            ("rollout.paused=yes", "rollout.paused takes true or false, not \"yes\""),
            (
                "rollout.maxFailures=65",
                "rollout.maxFailures takes a whole number from 1 to 64, not \"65\"",
            ),
            ("rollout.maxFailures=x", "a whole number from 1 to 64"),
            ("rollout.windows=x", "rollout.windows takes a list as JSON"),
            ("rivalUpdaters=x", "rivalUpdaters takes "),
        ];
        for (text, expected) in table {
            let error = patched(&[text]).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn only_the_named_pool_changes() {
        fn pool(name: &str) -> BootcNodePool {
            BootcNodePool::new(name, BootcNodePoolSpec::default())
        }
        let snapshot = Snapshot {
            pools: ["a", "b"].map(pool).into(),
            ..Snapshot::default()
        };
        let settings = ["rollout.maxUnavailable=3".parse().unwrap()];
        let then = what_if(&snapshot, "b", &settings).unwrap();
        let capacities: Vec<usize> = then.pools.iter().map(|pool| pool.spec.capacity(9)).collect();
        assert_eq!(capacities, [1, 3]);
        let nowhere = what_if(&snapshot, "c", &settings).unwrap_err();
        assert!(nowhere.contains("no pool \"c\""), "{nowhere}");
        let wrong = ["rollout.maxUnavailable=many".parse().unwrap()];
        assert!(what_if(&snapshot, "a", &wrong).unwrap_err().contains("many"));
    }
}
