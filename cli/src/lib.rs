//! What the pools are doing, as a table for people.
//!
//! Everything here but [`Snapshot::read`] is pure: a [`Snapshot`] and a time go in, text comes out. The examples in
//! `tests/examples` show all of it, and anyone can add one.

pub mod arguments;
mod preview;
mod snapshot;
mod status;
mod text;

pub use preview::{PoolPreview, PreviewRow, previews, render_preview};
pub use snapshot::{Scope, Snapshot};
pub use status::{Berths, NodeRow, PoolView, ProgressView, Warning, render, views};
