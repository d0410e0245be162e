//! Reads a BootcNode's status as it is stored.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::metadata::Metadata;
use crate::node::BootcNode;

/// Metadata and status of a BootcNode, for a program that writes the status back with all its fields, including those
/// that it does not know. The metadata has no managed fields.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = BootcNode)]
pub struct StoredBootcNode {
    /// The metadata.
    #[serde(default, deserialize_with = "without_managed_fields")]
    pub metadata: ObjectMeta,
    /// The status; `null` if there is none.
    #[serde(default)]
    pub status: Value,
}

fn without_managed_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    Metadata::deserialize(deserializer).map(Into::into)
}
