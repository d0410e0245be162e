//! Numbers for nodes, berths, pools and images.

/// Number of a node or a berth.
pub type Number = u16;
/// No node or berth.
pub const NO_NUMBER: Number = Number::MAX;
/// No pool or image.
pub const NONE: u8 = 9;

/// Number of an image: 0 for none; 1 runs at the start.
pub type Image = u8;
