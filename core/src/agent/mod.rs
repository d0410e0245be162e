//! What the agent of one node decides.
//!
//! [`facts`] is what it knows, [`step`] what it does next, [`past`] what it remembers of earlier tries, and [`report`]
//! what it says of itself in the BootcNode's status.

pub mod facts;
pub mod node;
pub mod past;
pub mod reason;
pub mod report;
pub mod step;
