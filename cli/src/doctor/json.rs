//! Comparison of JSON values.

use serde_json::{Map, Value};

/// Returns the value with numbers in one form, so that `1` and `1.0` are equal.
pub(crate) fn normal(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Array(items) => Value::Array(items.iter().map(normal).collect()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), normal(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// Returns the paths of the values that differ, such as `spec.failurePolicy`. A list that differs is one path.
pub(crate) fn differences(one: &Value, other: &Value) -> Vec<String> {
    let mut found = vec![];
    collect(&normal(one), &normal(other), "", &mut found);
    found
}

fn collect(one: &Value, other: &Value, path: &str, found: &mut Vec<String>) {
    let (Value::Object(fields), Value::Object(others)) = (one, other) else {
        if one != other {
            found.push(path.to_owned());
        }
        return;
    };
    for name in fields
        .keys()
        .chain(others.keys().filter(|name| !fields.contains_key(*name)))
    {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let (one, other) = (fields.get(name), others.get(name));
        collect(one.unwrap_or(&Value::Null), other.unwrap_or(&Value::Null), &path, found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_paths_of_differences_are_listed() {
        let one = json!({"a": {"b": 1, "c": [1, 2]}, "d": "x"});
        assert_eq!(differences(&one, &one), Vec::<String>::new());
        assert_eq!(differences(&json!({"a": 1}), &json!({"a": 1.0})), Vec::<String>::new());
        let other = json!({"a": {"b": 1, "c": [1]}, "e": 7});
        assert_eq!(differences(&one, &other), ["a.c", "d", "e"]);
    }
}
