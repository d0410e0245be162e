//! The interface of the daemon to a host's deployments.

use std::fmt::Debug;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use super::reference::Reference;

/// A deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Name of the stateroot.
    pub osname: String,
    /// Checked-out ostree commit.
    pub checksum: String,
    /// Distinguishes deployments of the same commit.
    pub serial: u32,
    /// True if booted.
    pub booted: bool,
    /// True if staged: a shutdown would finalize it, unless it is locked.
    pub staged: bool,
    /// True if an admin has pinned it.
    pub pinned: bool,
    /// True if `/run/ostree/staged-deployment-locked` exists. The daemon itself locks staged deployments without this
    /// file.
    pub lock_file: bool,
    /// Version label of the image.
    pub version: Option<String>,
    /// Time of the image, in seconds since 1970.
    pub timestamp: u64,
    /// Image reference, with a prefix that defines the verification.
    pub refspec: String,
    /// Manifest digest of the image.
    pub digest: String,
    /// Commit of the image itself, if packages are layered on it.
    pub base: Option<String>,
    /// Names of the layered packages.
    pub packages: Vec<String>,
}

/// Progress event of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgressEvent {
    /// A line of text.
    Message(String),
    /// Start of a task.
    TaskBegin(String),
    /// End of a task.
    TaskEnd(String),
    /// Text and percentage of a progress bar.
    Percent(String, u32),
    /// End of a progress bar.
    ProgressEnd,
}

/// Channel for progress events. Without a receiver they are lost.
pub type ProgressSender = UnboundedSender<ProgressEvent>;

/// An image to stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRequest {
    /// The image.
    pub reference: Reference,
    /// Names of the packages to layer on it.
    pub packages: Vec<String>,
    /// If true, sets the key `locked` in the state of the staged deployment.
    pub lock: bool,
    /// If true, rejects an image older than the booted one.
    pub newer_only: bool,
}

/// Deployments to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undeploy {
    /// All unpinned deployments before the booted one: the staged deployment, and a deployment queued for the next
    /// boot.
    Pending,
    /// The rollback deployment.
    Rollback,
}

/// ostree's lock on its sysroot; dropping it releases the lock.
pub struct SysrootLock(Box<dyn Send + Sync>);

impl SysrootLock {
    /// Wraps a value that holds the lock until it is dropped.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self(Box::new(held))
    }
}

impl Debug for SysrootLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let _held = &self.0;
        f.write_str("SysrootLock")
    }
}

/// Deployments of a host, and operations on them. Errors are messages for the client.
pub trait Backend: Debug + Send + Sync + 'static {
    /// All deployments in boot order, a staged one first.
    fn deployments(&self) -> BoxFuture<'_, Result<Vec<Deployment>, String>>;

    /// Takes the lock on the sysroot; `None` if it is held.
    fn try_lock(&self) -> Option<SysrootLock>;

    /// Fetches the missing parts of an image and stages it. Dropping the future cancels it.
    fn stage(&self, wanted: StageRequest, progress: ProgressSender) -> BoxFuture<'_, Result<(), String>>;

    /// Removes deployments; `false` if there are none.
    fn undeploy(&self, which: Undeploy) -> BoxFuture<'_, Result<bool, String>>;

    /// Puts the rollback deployment first in the boot order.
    fn roll_back(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Removes all locks of the staged deployment; `false` if it is not locked.
    fn unlock(&self) -> BoxFuture<'_, Result<bool, String>>;

    /// True if an inhibitor blocks shutdowns.
    fn is_inhibited(&self) -> BoxFuture<'_, bool>;

    /// Reboots like `systemctl reboot`.
    fn reboot(&self) -> BoxFuture<'_, Result<(), String>>;
}
