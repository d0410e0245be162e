//! `status --preview`: the nodes of a pool that would be updated, their order, and their blockers. Order and reasons
//! come from the controller's own plan of the pool, made from the same objects.

mod pool;
mod table;

pub(crate) use pool::preview;
pub use pool::{PoolPreview, PreviewRow, previews};
pub use table::render_preview;
