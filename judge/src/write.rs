//! Recorded writes, and fields of the objects that they stored.

use std::collections::BTreeMap;

use berth_api::keys;
use serde_json::Value;

use crate::audit::Record;

/// A successful write whose response was recorded: resourceVersion, audit record and stored object.
pub(crate) type Write<'a> = (u64, &'a Record, &'a Value);

/// True if it is unknown whether the write was stored, because the API server failed or did not respond.
pub(crate) fn is_doubtful(record: &Record) -> bool {
    record.is_write()
        && !record.succeeded()
        && record.stage != "ResponseStarted"
        && (record.code == 0 || record.code >= 500)
}

pub(crate) fn has_pool(object: &Value) -> bool {
    let labels = object.pointer("/metadata/labels").and_then(|l| l.as_object());
    labels.is_some_and(|l| l.contains_key(keys::LABEL_POOL))
}

/// Returns an object's resourceVersion as a number, which orders all writes; 0 if it is missing.
pub(crate) fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion")
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str)
}

/// Returns the successful writes with a recorded response, by resource and subresource, in the order of
/// resourceVersions.
pub(crate) fn written(audit: &[Record]) -> BTreeMap<(&str, &str), Vec<Write<'_>>> {
    let mut found: BTreeMap<(&str, &str), Vec<Write<'_>>> = BTreeMap::new();
    for record in audit.iter().filter(|r| r.is_write() && r.succeeded()) {
        let Some(object) = &record.response else { continue };
        let version = version(object);
        if version > 0 {
            let key = (record.resource.as_str(), record.subresource.as_str());
            found.entry(key).or_default().push((version, record, object));
        }
    }
    for writes in found.values_mut() {
        writes.sort_by_key(|(version, ..)| *version);
    }
    found
}

/// True if the Node has the annotation that records Berth's cordon.
pub(crate) fn our_cordon(node: &Value) -> bool {
    let annotations = node.pointer("/metadata/annotations").and_then(|a| a.as_object());
    annotations.is_some_and(|a| a.contains_key(keys::ANNOTATION_CORDON))
}
