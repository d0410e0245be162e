//! Reads an object's status as it is stored.

use std::borrow::Cow;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde_json::Value;

use super::metadata::Metadata;

/// Metadata and status of an object of kind `K`, for a program that writes the status back with all its fields, including
/// those that it does not know. The metadata has no managed fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "RawStored", bound = "")]
pub struct Stored<K> {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The status; `null` if there is none.
    pub status: Value,
    kind: PhantomData<K>,
}

#[derive(Deserialize)]
struct RawStored {
    metadata: Option<Metadata>,
    #[serde(default)]
    status: Value,
}

impl<K> From<RawStored> for Stored<K> {
    fn from(raw: RawStored) -> Self {
        Self {
            metadata: raw.metadata.unwrap_or_default().into(),
            status: raw.status,
            kind: PhantomData,
        }
    }
}

impl<K: Resource> Resource for Stored<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
