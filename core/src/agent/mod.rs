//! What the agent of one node decides.
//!
//! [`knowledge`] is what it knows between two passes, and the [`facts`] that follow from it. [`step`] is what it does
//! next, [`past`] what it remembers of earlier tries, and [`report`] what it says in the BootcNode's status.

pub mod facts;
pub mod knowledge;
pub mod node;
pub mod past;
pub mod reason;
pub mod report;
pub mod step;
