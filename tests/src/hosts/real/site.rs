//! The network and the directory of the hosts of one test.

use std::sync::atomic::AtomicU8;

use super::network::Bridge;
use super::run_dir::RunDirectory;

/// Things that the hosts of a test share.
#[derive(Debug)]
pub(super) struct Site {
    // In this order: the bridge goes last, its name reserves the directory's.
    pub(super) directory: RunDirectory,
    pub(super) bridge: Bridge,
    pub(super) next: AtomicU8,
}
