//! Lock by which one agent at a time acts on a host (invariant I7).
//!
//! Two agents can meet on one node: while a DaemonSet replaces a pod, or when a pod runs beside a service. Their writes
//! to the API are compare-and-swap; their acts on the host are not, so the second agent waits here.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::Context;

use super::root::HostRoot;

/// Time between two tries.
const POLL: Duration = Duration::from_secs(1);

/// The host-wide lock. The kernel releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct HostLock {
    _file: File,
}

impl HostLock {
    /// Takes the lock, waiting for as long as another agent has it.
    ///
    /// # Errors
    /// When the lock file cannot be made.
    pub async fn acquire(root: &HostRoot) -> anyhow::Result<Self> {
        let mut waiting = false;
        loop {
            if let Some(lock) = Self::try_acquire(root)? {
                return Ok(lock);
            }
            if !waiting {
                tracing::info!("another agent works on this host: waiting until it ends");
                waiting = true;
            }
            // To wait is no fault that a service manager's watchdog should end.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            tokio::time::sleep(POLL).await;
        }
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// When the lock file cannot be made.
    pub fn try_acquire(root: &HostRoot) -> anyhow::Result<Option<Self>> {
        let directory = root.make_run_dir()?;
        let path = directory.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_has_it() {
        let scratch = std::env::temp_dir().join(format!("berth-lock-{}", std::process::id()));
        let root = HostRoot::new(&scratch);
        let first = HostLock::try_acquire(&root).unwrap();
        assert!(first.is_some());
        assert!(HostLock::try_acquire(&root).unwrap().is_none());
        drop(first);
        assert!(HostLock::try_acquire(&root).unwrap().is_some());
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
