//! Measurements, printed as one JSON line per figure. Nothing here fails because of a time.

mod cpu;
mod figure;
pub mod firstboot;
pub mod fleet;
pub mod handover;
mod handovers;
pub mod hundred;
pub mod idle;
pub mod leader;
pub mod many;
pub mod memory;
pub mod names;
pub mod planner;
pub mod polls;
mod progress;
pub mod publish;
pub mod record;
pub mod rollout;
mod settings;
pub mod staging;
pub mod status;
mod thousand;
mod turns;
mod waiting;

pub use figure::{Figure, median, skip};
pub use progress::Progress;
pub use settings::Selection;
