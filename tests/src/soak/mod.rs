//! The soak: rollout after rollout on simulated hosts with a real API server, under injected faults.
//!
//! A seed determines the faults ([`plan`]), [`inject`] executes them, and [`judge`] checks by the ground truth how
//! Berth reacted. A rollout must also end soon after its faults (I10).

mod admin;
pub mod attack;
mod block;
pub mod draw;
mod draw_scene;
pub mod fault;
pub mod inject;
pub mod judge;
pub mod known;
pub mod liar;
pub mod plan;
pub mod pools;
mod replaced;
pub mod run;
pub mod scene;
pub mod state;
mod untyped;
