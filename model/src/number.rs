//! Numbers for nodes, berths, pools and images.

/// Number of a node or a berth.
pub type Number = u16;
/// No node, no berth.
pub const NO_NUMBER: Number = Number::MAX;
/// No pool, no image.
pub const NONE: u8 = 9;

/// Number of an image: 0 means none, 1 is the image that runs at the start.
pub type Image = u8;
