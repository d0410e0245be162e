//! The pools of a soak.

/// Pool of every soak.
pub const POOL: &str = "workers";
/// Pool that admins move nodes to temporarily.
pub const SPARE: &str = "spare";
/// Label of the nodes in that pool.
pub const LABEL_SPARE: &str = "soak.berth.test/spare";
