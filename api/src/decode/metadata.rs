//! Decodes the metadata of an object without its managed fields.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;

use super::part::Part;

/// Deletion time of an object whose own deletion time cannot be decoded: the object is being deleted all the same.
pub const DELETED_LATE: Time = Time(jiff::Timestamp::MAX);

/// Metadata of an object. The API server sets the times. If one cannot be decoded, the object has no creation time, or
/// the deletion time [`DELETED_LATE`].
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    name: Option<String>,
    generate_name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Part<Time>,
    deletion_timestamp: Part<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Metadata> for ObjectMeta {
    fn from(read: Metadata) -> Self {
        let deleted = if read.deletion_timestamp.is_invalid() {
            Some(DELETED_LATE)
        } else {
            read.deletion_timestamp.valid()
        };
        Self {
            name: read.name,
            generate_name: read.generate_name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            generation: read.generation,
            creation_timestamp: read.creation_timestamp.valid(),
            deletion_timestamp: deleted,
            deletion_grace_period_seconds: read.deletion_grace_period_seconds,
            labels: read.labels,
            annotations: read.annotations,
            finalizers: read.finalizers,
            owner_references: read.owner_references,
            ..Self::default()
        }
    }
}
