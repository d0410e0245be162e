//! The agent's knowledge: what it has read and done, as one value.
//!
//! The shell reads and does, and tells here what came of it ([`Event`]). [`Knowledge::facts`] is what the next decision is
//! made from; [`freshness`] says for how long each thing counts.

mod event;
mod freshness;
mod guard_probe;
mod memory;
mod state;

pub use self::event::{Ending, Event, HostFailure, Look, PullReading, Services};
pub use self::guard_probe::Guarded;
pub use self::state::{Knowledge, LockTrouble, Rest, Since, Turn};

#[cfg(test)]
mod tests;
