//! Status of the fleet: its health, and the machines that are held back on their first boot.

pub mod health;
pub mod held;
