//! Parsers for registry configuration, credentials and manifests. No input makes them panic.

#[cfg(feature = "controller")]
pub mod conf;
pub mod credentials;
pub mod document;
pub mod labels;
