//! Private temporary directories that are removed even after a kill.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Name of the lock file in a directory. The directory is in use while the file is locked.
pub(crate) const LOCK: &str = ".in-use";

/// A private directory, removed when dropped. If its process was killed, the next process that creates a directory with the same
/// prefix removes it.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
    // Held while the directory is in use; the kernel releases it when the process ends.
    _lock: File,
}

impl Scratch {
    /// Creates `/tmp/<prefix>…`, and removes directories with the same prefix of killed processes.
    pub fn new(prefix: &str) -> Result<Self> {
        let parent = std::env::temp_dir();
        sweep(&parent, prefix);
        let directory = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&parent)
            .with_context(|| format!("making a directory in {}", parent.display()))?;
        let lock = File::create(directory.path().join(LOCK))?;
        lock.lock()?;
        Ok(Self { directory, _lock: lock })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes unused directories. Errors are ignored: this is only cleanup.
fn sweep(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) && is_abandoned(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

pub(crate) fn is_abandoned(directory: &Path) -> bool {
    let Ok(lock) = File::open(directory.join(LOCK)) else {
        return false;
    };
    // A directory that was just created may not be locked yet.
    let is_old = lock
        .metadata()
        .and_then(|data| data.modified())
        .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > Duration::from_secs(5)));
    is_old && lock.try_lock().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_a_killed_process_are_removed() {
        let prefix = "berth-scratch-test-";
        let used = Scratch::new(prefix).unwrap();
        let left = Scratch::new(prefix).unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        for scratch in [&used, &left] {
            let lock = File::options().write(true).open(scratch.path().join(LOCK)).unwrap();
            lock.set_modified(old).unwrap();
        }
        // As after a kill: the lock is released, the directory stays.
        let Scratch { directory, _lock } = left;
        drop(_lock);
        let abandoned = directory.keep();
        drop(Scratch::new(prefix).unwrap());
        assert!(!abandoned.exists());
        assert!(used.path().exists());
    }
}
