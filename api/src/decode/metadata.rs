//! Decodes the metadata of an object without its managed fields.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;

use super::part::Part;

/// Metadata of an object, for a list that asks the API server for nothing else.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "RawMeta")]
pub struct MetaOnly {
    /// The metadata, without the managed fields.
    pub metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct RawMeta {
    metadata: Option<Metadata>,
}

impl From<RawMeta> for MetaOnly {
    fn from(raw: RawMeta) -> Self {
        let metadata = raw.metadata.unwrap_or_default().into();
        Self { metadata }
    }
}

/// Metadata of an object. The API server sets the times, so an invalid one is only a missing detail.
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
        let mut error = None;
        let deleted = read.deletion_timestamp.take("deletionTimestamp", &mut error);
        // An object with an invalid time of its deletion is being deleted too.
        let deleted = deleted.or_else(|| error.take().map(|_| Time(jiff::Timestamp::MAX)));
        Self {
            name: read.name,
            generate_name: read.generate_name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            generation: read.generation,
            creation_timestamp: read.creation_timestamp.take("creationTimestamp", &mut error),
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
