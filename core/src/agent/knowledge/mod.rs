//! The agent's knowledge: everything it has read and done, as one value.
//!
//! The shell reads and acts, and passes each result here as an [`Event`]. [`Knowledge::facts`] is the input of the
//! next decision; [`freshness`] has the rules for how long each reading is valid.

mod event;
mod freshness;
mod guard_probe;
mod memory;
mod state;

pub use self::event::{Ending, Event, HostFailure, Look, PullReading, Services};
pub use self::guard_probe::GuardProbe;
pub use self::state::{Knowledge, LockRetry, Rest, Since, Turn};

#[cfg(test)]
mod tests;
