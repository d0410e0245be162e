//! Files that say how registries are reached: read from bytes, asked about one image. No input makes them panic.

#[cfg(feature = "controller")]
pub mod conf;
pub mod credentials;
