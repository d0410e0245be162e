//! Files that say how registries are reached: read from bytes, asked about one image. No input makes them panic.

pub mod credentials;
