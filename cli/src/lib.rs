//! The state of the pools as text, and the admin commands.
//!
//! Apart from reading the cluster or a log and writing changes, everything here is pure: a [`Snapshot`] and a time go
//! in, text comes out. The examples in `tests/examples` show the text; `tests/examples.rs` explains how to add an
//! example.

pub mod admin;
pub mod arguments;
pub mod completion;
pub mod dashboard;
pub mod doctor;
mod explain;
mod export;
mod health;
mod history;
mod insights;
mod known_node;
mod labels;
mod mark;
mod members;
mod nodes;
mod preview;
mod proto;
mod render;
mod snapshot;
mod status;
mod story;
mod supposed;
mod table;
mod text;
mod timeline;
pub mod uninstall;
mod unreadable;
mod verify;
mod view;
pub mod watch;
mod what_if;
mod world;

pub use explain::{ChangeLine, NodeExplanation, explanation, render_explanation};
pub use export::export;
pub use health::HealthInsight;
pub use history::{node_history, pool_history};
pub use insights::{Counts, NodeLine, PoolAssessment};
pub use known_node::KnownNode;
pub use labels::render_labels;
pub use nodes::{NodeRow, ProgressView};
pub use preview::{PoolPreview, PreviewRow, previews, render_preview};
pub use render::{Detail, render};
pub use snapshot::{Scope, Snapshot};
pub use status::{FleetView, Report, report};
pub use story::{BerthLine, Story, render_story, story};
pub use supposed::supposed;
pub use table::{Look, Tint, has_colours};
pub use timeline::{Picture, Row, Span, picture};
pub use verify::{read_logs, render_report};
pub use view::{Berths, ClosedBerth, PoolView, Warning, WaveView};
pub use what_if::{WhatIf, fields, patch, what_if};
