//! The soak: rollout after rollout on simulated hosts with a real API server, while everything around them fails.
//!
//! What goes wrong is drawn from a seed ([`plan`]), made to happen ([`inject`]), and what Berth made of it is judged by
//! the ground truth ([`judge`]). A rollout must also come to its end once the faults are over (I10).

pub mod draw;
mod draw_scene;
pub mod fault;
pub mod inject;
pub mod judge;
pub mod known;
pub mod plan;
pub mod random;
pub mod run;
pub mod scene;
pub mod state;
