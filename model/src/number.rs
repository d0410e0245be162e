//! Numbers for nodes, berths, pools and images.

/// Number of a node or a berth.
pub type Number = u16;
/// Stands for no node or berth.
pub const NO_NUMBER: Number = Number::MAX;
/// Stands for no pool. Also stands for an unknown UID or boot.
pub const NONE: u8 = 9;

/// Number of an image. 0 stands for no image. Image 1 runs at the start.
pub type Image = u8;
