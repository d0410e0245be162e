//! The agent's knowledge: everything it has read and done. The `agent` crate, which does the I/O, reports each read and
//! each result of a step here, as an [`Event`]. [`Knowledge::facts`] returns the input of the next decision.
//! [`freshness`] has the rules for how long each reading is valid.

mod cluster;
mod event;
mod failures;
mod freshness;
mod guard_probe;
mod host;
mod pulls;
mod record;
mod state;
mod steps;
mod turn;

pub use self::event::{DrainProgress, Ending, Event, HostFailure, Look, PullReading, Services};
pub use self::failures::LockRetry;
pub use self::guard_probe::GuardProbe;
pub use self::state::Knowledge;
pub use self::turn::{Since, Turn};

#[cfg(test)]
mod tests;
