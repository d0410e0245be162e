//! Directory of a test's hosts, and the cleanup after killed tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;

use anyhow::{Context, Result};

use super::network::Bridge;
use super::{cache, cgroup, machine, network};
use crate::scratch::{LOCK, is_abandoned};
use crate::tools::cache_dir;

/// Resources shared by the hosts of a test.
#[derive(Debug)]
pub(super) struct Site {
    // Drop order: the bridge goes last, because its name also reserves the name of the directory.
    pub(super) directory: RunDirectory,
    pub(super) bridge: Bridge,
    pub(super) next: AtomicU8,
}

/// A directory for hosts, with the same name as their bridge. Removed when dropped. The directory is beside the cache,
/// so that files can be hard links.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    // Held while the directory is in use; the kernel releases it when the process ends.
    _lock: File,
}

impl RunDirectory {
    pub(super) fn new(name: &str) -> Result<Self> {
        let path = parent()?.join(name);
        cache::remove(&path)?;
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock()?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if std::env::var_os("BERTH_TEST_KEEP").is_some() {
            return;
        }
        if let Err(error) = cache::remove(&self.path) {
            eprintln!("berth-hosts: {error:#}");
        }
    }
}

fn parent() -> Result<PathBuf> {
    Ok(cache_dir()?.join("run"))
}

/// Removes hosts, bridges and directories of tests whose process has ended.
pub(super) fn sweep() -> Result<()> {
    for entry in fs::read_dir(parent()?).into_iter().flatten().flatten() {
        if !is_abandoned(&entry.path()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        cgroup::sweep(&format!("{name}-"));
        network::delete(&name);
        machine::sweep(&format!("{name}-"));
        cache::remove(&entry.path())?;
    }
    Ok(())
}
