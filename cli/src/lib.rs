//! State of the pools, as a table for people, and the commands with which an admin acts on it.
//!
//! Everything here but [`Snapshot::read`] and [`admin::apply`] is pure: a [`Snapshot`] and a time go in, text comes
//! out. The examples in `tests/examples` show all of it, and anyone can add one.

pub mod admin;
pub mod arguments;
mod history;
mod insights;
mod members;
mod nodes;
mod preview;
mod render;
mod snapshot;
mod status;
mod story;
mod text;
mod timeline;
mod world;

pub use history::{node_history, pool_history};
pub use insights::{Counts, NodeLine, PoolInsight, insights, render_insights};
pub use nodes::{NodeRow, ProgressView};
pub use preview::{PoolPreview, PreviewRow, previews, render_preview};
pub use render::render;
pub use snapshot::{Scope, Snapshot};
pub use status::{Berths, ClosedBerth, PoolView, Warning, WaveView, views};
pub use story::{BerthLine, Story, render_story, story};
pub use timeline::{Picture, Row, Span, picture};
