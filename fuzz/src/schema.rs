//! Checks an object against the schema of its CustomResourceDefinition, as the API server does. Rules in CEL are not
//! checked.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::CustomResourceExt;
use serde_json::{Map, Value};

/// A schema, as JSON.
#[derive(Debug)]
pub struct Schema(Value);

impl Schema {
    /// Returns the schema of a kind.
    pub fn of<K: CustomResourceExt>() -> Self {
        let crd = serde_json::to_value(K::crd()).unwrap_or_default();
        Self(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
    }

    /// Returns why the API server would refuse the object; `None` if it would not.
    pub fn refuses(&self, object: &Value) -> Option<String> {
        refuses(&self.0, object, "").err()
    }
}

fn refuses(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let allowed = schema["enum"].as_array();
    if allowed.is_some_and(|allowed| !allowed.contains(value)) {
        return Err(format!("{at} has a value that is not in the list"));
    }
    let is_either = schema["x-kubernetes-int-or-string"] == true;
    match (value, schema["type"].as_str()) {
        (Value::String(_) | Value::Number(_), None) if is_either => Ok(()),
        (Value::Object(fields), Some("object")) => object(schema, fields, at),
        (Value::Array(items), Some("array")) => array(schema, items, at),
        (Value::String(text), Some("string")) => string(schema, text, at),
        (Value::Bool(_), Some("boolean")) => Ok(()),
        (Value::Number(_), Some("number")) => Ok(()),
        (Value::Number(number), Some("integer")) if number.is_i64() || number.is_u64() => integer(schema, value, at),
        (value, kind) => Err(format!("{at} is {value} instead of {kind:?}")),
    }
}

fn limit(schema: &Value, key: &str) -> Option<usize> {
    usize::try_from(schema[key].as_u64()?).ok()
}

fn object(schema: &Value, fields: &Map<String, Value>, at: &str) -> Result<(), String> {
    for name in schema["required"].as_array().into_iter().flatten() {
        if name.as_str().is_some_and(|name| !fields.contains_key(name)) {
            return Err(format!("{at} lacks {name}"));
        }
    }
    if limit(schema, "maxProperties").is_some_and(|most| fields.len() > most) {
        return Err(format!("{at} has {} fields", fields.len()));
    }
    let (known, others) = (&schema["properties"], &schema["additionalProperties"]);
    for (name, value) in fields {
        let at = format!("{at}.{name}");
        match (&known[name], others) {
            (Value::Null, Value::Object(_)) => refuses(others, value, &at)?,
            // The API server removes unknown fields.
            (Value::Null, _) => {}
            (schema, _) => refuses(schema, value, &at)?,
        }
    }
    Ok(())
}

fn array(schema: &Value, items: &[Value], at: &str) -> Result<(), String> {
    if limit(schema, "maxItems").is_some_and(|most| items.len() > most) {
        return Err(format!("{at} has {} items", items.len()));
    }
    for (index, item) in items.iter().enumerate() {
        refuses(&schema["items"], item, &format!("{at}[{index}]"))?;
    }
    let keys: Vec<&str> = match schema["x-kubernetes-list-map-keys"].as_array() {
        Some(keys) => keys.iter().filter_map(Value::as_str).collect(),
        None => return Ok(()),
    };
    let mut seen = BTreeSet::new();
    for item in items {
        let key: Vec<String> = keys.iter().map(|key| item[*key].to_string()).collect();
        if !seen.insert(key) {
            return Err(format!("{at} has two items of the same key"));
        }
    }
    Ok(())
}

fn string(schema: &Value, text: &str, at: &str) -> Result<(), String> {
    let length = text.chars().count();
    if limit(schema, "maxLength").is_some_and(|most| length > most) {
        return Err(format!("{at} has {length} characters"));
    }
    if limit(schema, "minLength").is_some_and(|least| length < least) {
        return Err(format!("{at} is too short"));
    }
    if schema["format"] == "date-time" && text.parse::<Timestamp>().is_err() {
        return Err(format!("{at} is not a time"));
    }
    // The two patterns of the schemas: of a condition's reason, and of its type.
    let mut bytes = text.bytes();
    let is_word = schema["pattern"].is_null()
        || bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_,:-./".contains(&byte));
    if is_word {
        Ok(())
    } else {
        Err(format!("{at} does not match its pattern"))
    }
}

fn integer(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let number = value.as_f64().unwrap_or_default();
    let is_small = schema["minimum"].as_f64().is_some_and(|least| number < least);
    let is_large = schema["maximum"].as_f64().is_some_and(|most| number > most);
    let is_unsigned_only = value.as_i64().is_none();
    let fits = schema["format"] != "int32" || value.as_i64().is_some_and(|n| i32::try_from(n).is_ok());
    if is_small || is_large || is_unsigned_only || !fits {
        return Err(format!("{at} is {number}"));
    }
    Ok(())
}
