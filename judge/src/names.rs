use serde_json::Value;

use crate::audit::Record;
use crate::write::text;

/// Returns the name of the written object. A record of a creation may lack the name; the name is then read from the
/// object.
pub(crate) fn name_of<'a>(record: &'a Record, object: &'a Value) -> &'a str {
    match record.name.as_str() {
        "" => text(object, "/metadata/name").unwrap_or_default(),
        name => name,
    }
}

pub(crate) fn name(record: &Record) -> &str {
    match (record.name.as_str(), record.response.as_ref()) {
        ("", Some(object)) => text(object, "/metadata/name").unwrap_or_default(),
        (name, _) => name,
    }
}
