//! Lock that lets only one agent at a time change a host (invariant I7).
//!
//! Two agents can run on one node: while a DaemonSet replaces a pod, or if a pod runs beside a systemd service. Their
//! API writes are compare-and-swap, but their changes to the host are not. So the second agent waits for this lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::Context;

use super::root::HostRoot;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The host-wide lock. When the process ends for any reason, the kernel releases the lock.
#[derive(Debug)]
pub struct HostLock {
    _file: File,
}

impl HostLock {
    /// Takes the lock. If another agent holds it, waits until that agent releases it.
    pub async fn acquire(root: &HostRoot) -> anyhow::Result<Self> {
        let mut waiting = false;
        loop {
            if let Some(lock) = Self::try_acquire(root)? {
                return Ok(lock);
            }
            if !waiting {
                tracing::info!("another agent holds this host's lock, /run/berth/lock; waiting until that agent ends");
                waiting = true;
            }
            // Without this notification, systemd's watchdog would kill an agent that waits for the lock.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Takes the lock if it is free.
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
