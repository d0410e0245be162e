//! Types, names and pure functions shared by every Berth program.
//!
//! Nothing here does I/O. The agent and the controller communicate only through these types: the two custom resources
//! ([`pool::BootcNodePool`], [`node::BootcNode`]) and the Lease that stores a [`berth::Berth`].

// Each `printcolumn` of the derive has a `type_`, which clippy reports as a duplicate.
#![allow(clippy::duplicated_attributes)]

pub mod backend;
pub mod berth;
pub mod boot_image;
pub mod condition;
pub mod decode;
pub mod digest;
pub mod duration;
pub mod firstboot;
pub mod fleet;
#[cfg(test)]
mod floors;
pub mod foreign;
pub mod image_ref;
pub mod insight;
pub mod keys;
pub mod membership;
pub mod names;
pub mod node;
pub mod platform;
pub mod pool;
pub mod quantity;
pub mod reason;
pub mod seeded;
mod selector;
pub mod text;
pub mod waves;
#[cfg(feature = "windows")]
pub mod windows;
pub mod written;

pub use digest::Digest;
pub use image_ref::ImageRef;
pub use names::{BootId, NodeName, NodeUid, PoolName};
pub use written::Written;

/// True if the field has its default value and is therefore not serialized.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
