//! Registries: the files that say how they are reached, and the documents that they send. No input makes the readers panic.

#[cfg(feature = "controller")]
pub mod conf;
pub mod credentials;
pub mod document;
pub mod labels;
