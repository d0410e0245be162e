//! A cluster, and changes to it that an input describes. Random bytes are seldom a valid object, but often a change.

use std::sync::LazyLock;

use serde_json::{Map, Value};

static BASE: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../base/cluster.json")).unwrap_or_default());

/// Most changes that an input makes, and the longest list that it makes.
const MAX_EDITS: usize = 64;
const MAX_ITEMS: usize = 64;

/// Returns the cluster of `base/cluster.json` after the changes in the input, one per line: the path of a field, a
/// space, and its new value as JSON. Text that is not JSON stands for itself, with `\n` for a line break. `None` if the
/// input is not UTF-8, or replaces the whole cluster by another value.
pub fn edited(data: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(data).ok()?;
    let mut cluster = BASE.clone();
    for line in text.lines().take(MAX_EDITS) {
        let (path, value) = line.split_once(' ').unwrap_or((line, ""));
        let value = match serde_json::from_str(value) {
            Ok(value) => value,
            Err(_) => Value::String(value.replace("\\n", "\n")),
        };
        let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        set(&mut cluster, &path, value);
    }
    cluster.is_object().then_some(cluster)
}

/// Sets a field, and creates the objects that lead to it. `~` stands for a slash in a name.
fn set(object: &mut Value, path: &[&str], value: Value) {
    let Some((part, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    match object {
        Value::Array(items) => {
            let index = part.parse().unwrap_or(0).min(items.len()).min(MAX_ITEMS);
            if index == items.len() {
                items.push(items.last().cloned().unwrap_or_default());
            }
            if let Some(item) = items.get_mut(index) {
                set(item, rest, value);
            }
        }
        Value::Object(fields) => set(fields.entry(part.replace('~', "/")).or_insert(Value::Null), rest, value),
        other => {
            *other = Value::Object(Map::new());
            set(other, path, value);
        }
    }
}
