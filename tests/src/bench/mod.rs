//! Measurements, printed as one JSON line per figure. Nothing here fails because of a time.

mod cpu;
mod dashboard;
mod figure;
mod firstboot;
mod fleet;
mod groups;
mod handover;
mod handovers;
mod hundred;
mod idle;
mod leader;
mod many;
mod memory;
mod planner;
mod polls;
mod progress;
mod publish;
pub mod record;
mod rollout;
mod settings;
mod staging;
mod status;
mod thousand;
mod turns;
mod waiting;

pub use dashboard::{Watched, watch};
pub use groups::{measure, names};
pub use memory::Memory;
pub use progress::Progress;
pub use settings::{Run, Selection};
