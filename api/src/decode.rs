//! Decodes each object of a list or watch part by part. An object that this program cannot decode then fails neither
//! the list nor the watch nor a write to the object.
//!
//! The API server accepts values that these types reject. For example, the latest time of [`jiff::Timestamp`] is
//! earlier than the latest time that Go accepts. A compromised node could write such a value into its own objects, and
//! so keep all programs from reading the objects of the other nodes. A decoded object therefore has errors instead of
//! the parts that cannot be decoded. Managed fields are skipped: a client that may write more than an object's status,
//! such as a kubelet for its Node, can set their times.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::berth::Berth;
use crate::berth::lease::{self, LeaseError};
use crate::fleet::{BootcFleet, BootcFleetSpec, BootcFleetStatus};
use crate::node::{BootcNode, BootcNodeSpec, BootcNodeStatus};
use crate::pool::{BootcNodePool, BootcNodePoolSpec, BootcNodePoolStatus};

mod metadata;
mod part;
mod stored;

pub use metadata::DELETED_LATE;
use metadata::Metadata;
pub use part::Part;
pub use stored::StoredBootcNode;

/// An object. A part that cannot be decoded has its default value. The decoded metadata has no managed fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded<K> {
    /// The object.
    pub object: K,
    /// Why the spec, or a field of it, cannot be decoded.
    pub spec_error: Option<String>,
    /// Why the status, or a field of it, cannot be decoded.
    pub status_error: Option<String>,
}

impl<K> Decoded<K> {
    /// Returns why the object cannot be decoded completely.
    pub fn error(&self) -> Option<&str> {
        self.spec_error.as_deref().or(self.status_error.as_deref())
    }

    /// Returns the object, or why it cannot be decoded completely.
    pub fn whole(self) -> Result<K, String> {
        match self.spec_error.or(self.status_error) {
            None => Ok(self.object),
            Some(error) => Err(error),
        }
    }
}

impl Decoded<Lease> {
    /// Reads the berth. Also fails if a field of the Lease cannot be decoded, even one that is not part of the berth:
    /// only another writer than Berth can have written it.
    pub fn berth(&self) -> Result<Berth, LeaseError> {
        match &self.spec_error {
            None => lease::read(&self.object),
            Some(what) => Err(LeaseError {
                lease: self.object.metadata.name.clone().unwrap_or_default(),
                what: what.clone(),
            }),
        }
    }
}

impl<K> From<K> for Decoded<K> {
    fn from(object: K) -> Self {
        Self {
            object,
            spec_error: None,
            status_error: None,
        }
    }
}

impl<K> Deref for Decoded<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.object
    }
}

impl<K> DerefMut for Decoded<K> {
    fn deref_mut(&mut self) -> &mut K {
        &mut self.object
    }
}

impl<K: Serialize> Serialize for Decoded<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.object.serialize(serializer)
    }
}

impl<'de, K: Decode> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::<K::Spec, K::Status>::deserialize(deserializer)?;
        let metadata = raw.metadata.unwrap_or_default();
        Ok(K::of(
            metadata.into(),
            raw.spec.unwrap_or_default(),
            raw.status.unwrap_or_default(),
        ))
    }
}

impl<K: Resource> Resource for Decoded<K> {
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
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

/// A kind whose objects can be decoded part by part.
pub trait Decode: Sized {
    /// The spec, before it is known whether its fields can be decoded.
    type Spec: DeserializeOwned + Default;
    /// The status, before it is known whether its fields can be decoded.
    type Status: DeserializeOwned + Default;

    /// Returns the object.
    fn of(metadata: ObjectMeta, spec: Self::Spec, status: Self::Status) -> Decoded<Self>;
}

#[derive(Deserialize)]
struct Raw<S, T> {
    metadata: Option<Metadata>,
    spec: Option<S>,
    status: Option<T>,
}

/// Decodes a kind of Berth's own API. The controller or an admin writes its spec, which is required.
macro_rules! own_kind {
    ($kind:ident, $spec:ident, $status:ident) => {
        impl Decode for $kind {
            type Spec = Part<$spec>;
            type Status = Part<$status>;

            fn of(metadata: ObjectMeta, spec: Part<$spec>, status: Part<$status>) -> Decoded<Self> {
                let (mut spec_error, mut status_error) = (None, None);
                let object = Self {
                    metadata,
                    spec: spec.required("spec", &mut spec_error).unwrap_or_default(),
                    status: status.take("status", &mut status_error),
                };
                Decoded {
                    object,
                    spec_error,
                    status_error,
                }
            }
        }
    };
}

own_kind!(BootcNode, BootcNodeSpec, BootcNodeStatus);
own_kind!(BootcNodePool, BootcNodePoolSpec, BootcNodePoolStatus);
own_kind!(BootcFleet, BootcFleetSpec, BootcFleetStatus);

/// Fields of a Node's spec that Berth reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpecParts {
    unschedulable: Part<bool>,
}

/// Fields of a Node's status that Berth reads. The parser skips most of a Node's bytes, such as its container images.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatusParts {
    conditions: Part<Vec<NodeCondition>>,
    addresses: Part<Vec<NodeAddress>>,
    node_info: Part<NodeSystemInfo>,
}

impl Decode for Node {
    type Spec = NodeSpecParts;
    type Status = NodeStatusParts;

    fn of(metadata: ObjectMeta, spec: NodeSpecParts, status: NodeStatusParts) -> Decoded<Self> {
        let (mut spec_error, mut status_error) = (None, None);
        let unschedulable = spec.unschedulable.take("spec.unschedulable", &mut spec_error);
        let object = Self {
            metadata,
            spec: Some(NodeSpec {
                unschedulable,
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                conditions: status.conditions.take("status.conditions", &mut status_error),
                addresses: status.addresses.take("status.addresses", &mut status_error),
                node_info: status.node_info.take("status.nodeInfo", &mut status_error),
                ..NodeStatus::default()
            }),
        };
        Decoded {
            object,
            spec_error,
            status_error,
        }
    }
}

/// The fields of a Lease's spec. Each is decoded separately, so that the holder is known even if a time is invalid.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaseSpecParts {
    holder_identity: Part<String>,
    lease_duration_seconds: Part<i32>,
    acquire_time: Part<MicroTime>,
    renew_time: Part<MicroTime>,
    lease_transitions: Part<i32>,
    strategy: Part<String>,
    preferred_holder: Part<String>,
}

impl Decode for Lease {
    type Spec = LeaseSpecParts;
    type Status = ();

    fn of(metadata: ObjectMeta, spec: LeaseSpecParts, _: ()) -> Decoded<Self> {
        let mut error = None;
        let spec = LeaseSpec {
            holder_identity: spec.holder_identity.take("spec.holderIdentity", &mut error),
            lease_duration_seconds: spec
                .lease_duration_seconds
                .take("spec.leaseDurationSeconds", &mut error),
            acquire_time: spec.acquire_time.take("spec.acquireTime", &mut error),
            renew_time: spec.renew_time.take("spec.renewTime", &mut error),
            lease_transitions: spec.lease_transitions.take("spec.leaseTransitions", &mut error),
            strategy: spec.strategy.take("spec.strategy", &mut error),
            preferred_holder: spec.preferred_holder.take("spec.preferredHolder", &mut error),
        };
        let spec = Some(spec);
        Decoded {
            object: Self { metadata, spec },
            spec_error: error,
            status_error: None,
        }
    }
}

#[cfg(test)]
mod tests;
