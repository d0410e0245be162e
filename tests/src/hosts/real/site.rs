//! The network and the directory of the hosts of one test.

use std::sync::atomic::AtomicU8;

use super::network::Bridge;
use super::run_dir::RunDirectory;

/// Resources shared by the hosts of a test.
#[derive(Debug)]
pub(super) struct Site {
    // Drop order: the bridge goes last, because its name also reserves the directory's.
    pub(super) directory: RunDirectory,
    pub(super) bridge: Bridge,
    pub(super) next: AtomicU8,
}
