//! The deployments beneath the daemon, as it needs them.

use std::fmt::Debug;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use super::reference::Reference;

/// One deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Name of the stateroot.
    pub osname: String,
    /// The ostree commit that is checked out.
    pub checksum: String,
    /// Tells deployments of one commit apart.
    pub serial: u32,
    /// Runs now.
    pub booted: bool,
    /// Staged: a shutdown would finalize it.
    pub staged: bool,
    /// An admin asked to keep it.
    pub pinned: bool,
    /// `/run/ostree/staged-deployment-locked` is there. What the daemon stages is locked without that file.
    pub lock_file: bool,
    /// The version label of its image.
    pub version: Option<String>,
    /// Time of the image, in seconds since 1970.
    pub timestamp: u64,
    /// The image, with the prefix that says how it is verified.
    pub refspec: String,
    /// Manifest digest of the image.
    pub digest: String,
    /// The commit of the image itself, where packages are layered on it.
    pub base: Option<String>,
    /// Names of the packages that are layered on it.
    pub packages: Vec<String>,
}

/// Something that a transaction says while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tell {
    /// One line.
    Message(String),
    /// A part begins.
    TaskBegin(String),
    /// The part ends.
    TaskEnd(String),
    /// Text and percents of something that goes on.
    Percent(String, u32),
    /// End of what went on.
    ProgressEnd,
}

/// Where a transaction says it. What nobody hears is lost.
pub type Teller = UnboundedSender<Tell>;

/// An image to be staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The image.
    pub reference: Reference,
    /// Names of the packages to layer on it.
    pub packages: Vec<String>,
    /// Staged with the key `locked` in its state.
    pub lock: bool,
    /// An image that is older than the one that runs is refused.
    pub newer_only: bool,
}

/// A deployment to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undeploy {
    /// All deployments before the one that runs, but for pinned ones: what is staged, and what is queued for the next boot.
    Pending,
    /// The one to roll back to.
    Rollback,
}

/// The lock of ostree on its sysroot; dropping it gives it back.
pub struct SysrootLock(Box<dyn Send + Sync>);

impl SysrootLock {
    /// Keeps whatever holds the lock.
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

/// The deployments of a host and what can be done to them. Errors are the words that a client is told.
pub trait Beneath: Debug + Send + Sync + 'static {
    /// All deployments in boot order, a staged one first.
    fn deployments(&self) -> BoxFuture<'_, Result<Vec<Deployment>, String>>;

    /// Takes the lock on the sysroot; `None` while somebody else has it.
    fn try_lock(&self) -> Option<SysrootLock>;

    /// Fetches an image, as far as it is not there, and stages it. Dropping the future ends it.
    fn stage(&self, wanted: Wanted, teller: Teller) -> BoxFuture<'_, Result<(), String>>;

    /// Removes deployments; `false` when there are none.
    fn undeploy(&self, which: Undeploy) -> BoxFuture<'_, Result<bool, String>>;

    /// Puts the rollback deployment first in the boot order.
    fn roll_back(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Takes all locks off what is staged; `false` when it is not locked.
    fn unlock(&self) -> BoxFuture<'_, Result<bool, String>>;

    /// Says whether somebody blocks shutdowns.
    fn is_inhibited(&self) -> BoxFuture<'_, bool>;

    /// Reboots as `systemctl reboot` does.
    fn reboot(&self) -> BoxFuture<'_, Result<(), String>>;
}
