//! The charts have the same objects as the manifests.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use berth_tests::manifests::{chart, is_hook, overlay, overlays, with_components};
use serde_json::{Map, Value, json};

use crate::overlays::kustomization;

/// Annotation of the objects that Helm leaves in the cluster.
const POLICY: &str = "helm.sh/resource-policy";

/// Kind and name of each object, with the object.
type Objects = BTreeMap<String, Value>;

/// Objects in a form that can be compared: without Helm's own annotation, with one form for each number, and with volumes,
/// mounts and variables sorted, whose order means nothing.
fn comparable(objects: Vec<Value>) -> Result<Objects> {
    let mut all = Objects::new();
    for mut object in objects {
        if is_hook(&object) {
            continue;
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            let notes = metadata.get_mut("annotations").and_then(Value::as_object_mut);
            if notes.is_some_and(|notes| notes.remove(POLICY).is_some() && notes.is_empty()) {
                metadata.remove("annotations");
            }
        }
        sort(&mut object);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = format!("{} {namespace}/{name}", object["kind"].as_str().unwrap_or_default());
        ensure!(all.insert(key.clone(), object).is_none(), "{key} is there twice");
    }
    Ok(all)
}

fn sort(value: &mut Value) {
    match value {
        Value::Object(fields) => sort_fields(fields),
        Value::Array(items) => items.iter_mut().for_each(sort),
        // kustomize turns 0.0 of the generated CRDs into 0.
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|float| float.fract() == 0.0) {
                *value = json!(whole);
            }
        }
        _ => {}
    }
}

fn sort_fields(fields: &mut Map<String, Value>) {
    for (name, field) in fields.iter_mut() {
        sort(field);
        let key = match name.as_str() {
            "volumes" | "env" => "name",
            "volumeMounts" => "mountPath",
            _ => continue,
        };
        if let Some(items) = field.as_array_mut() {
            items.sort_by_key(|item| item[key].as_str().unwrap_or_default().to_owned());
        }
    }
}

/// Values of a comment of an overlay: `# Helm: --set a=b,c=d`.
fn values(text: &str, prefix: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(prefix));
    line.into_iter()
        .flat_map(|line| line.split(','))
        .map(str::to_owned)
        .collect()
}

fn charts(of_crds: &[String], of_berth: &[String]) -> Result<Objects> {
    let of_crds: Vec<&str> = of_crds.iter().map(String::as_str).collect();
    let of_berth: Vec<&str> = of_berth.iter().map(String::as_str).collect();
    comparable([chart("berth-crds", &of_crds)?, chart("berth", &of_berth)?].concat())
}

/// The first difference of the chart's object, with its path.
fn difference(expected: &Value, found: &Value) -> Option<String> {
    let parts: Vec<(String, &Value, &Value)> = match (expected, found) {
        (Value::Object(fields), Value::Object(others)) if fields.keys().eq(others.keys()) => fields
            .iter()
            .map(|(name, field)| (name.clone(), field, &others[name]))
            .collect(),
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => items
            .iter()
            .zip(others)
            .enumerate()
            .map(|(n, (item, other))| (n.to_string(), item, other))
            .collect(),
        _ if expected == found => return None,
        _ => return Some(format!("{expected}, and the chart has {found}")),
    };
    for (name, expected, found) in parts {
        if let Some(inner) = difference(expected, found) {
            return Some(format!("{name}/{inner}"));
        }
    }
    None
}

/// Fails at the first object that differs.
fn ensure_same(what: &str, expected: &Objects, found: &Objects) -> Result<()> {
    let names: Vec<_> = expected.keys().collect();
    ensure!(
        names == found.keys().collect::<Vec<_>>(),
        "{what}: {names:?}, {:?}",
        found.keys()
    );
    for (key, object) in expected {
        if let Some(difference) = difference(object, &found[key]) {
            bail!("{what}, {key}: {difference}");
        }
    }
    Ok(())
}

/// Object by object, the charts are the base, and with the values of its comment each overlay.
#[test]
fn the_charts_are_the_manifests() -> Result<()> {
    let base = comparable(with_components(&[])?)?;
    ensure_same("base", &base, &charts(&[], &[])?)?;
    for name in overlays()? {
        let text = kustomization(&name)?;
        let found = charts(
            &values(&text, "# Helm, berth-crds: --set "),
            &values(&text, "# Helm: --set "),
        )?;
        ensure_same(&name, &comparable(overlay(&name)?)?, &found)?;
    }
    let impersonating = comparable(with_components(&["impersonation"])?)?;
    let found = charts(&[], &["impersonation=true".to_owned()])?;
    ensure_same("impersonation", &impersonating, &found)
}
