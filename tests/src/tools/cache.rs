//! The cache of the harness.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Directory of the harness's cache: `$XDG_CACHE_HOME/berth` or `~/.cache/berth`. Created if it is missing.
pub fn cache_dir() -> Result<PathBuf> {
    let [base, home] = ["XDG_CACHE_HOME", "HOME"].map(|name| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    });
    let base = base
        .or_else(|| Some(home?.join(".cache")))
        .context("no directory for the cache: neither XDG_CACHE_HOME nor HOME is set to an absolute path")?;
    let directory = base.join("berth");
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory)
}

/// Waits until no other process fills the cache, and removes leftovers of killed ones. Others wait until the result is dropped.
pub(crate) fn exclusive() -> Result<File> {
    let directory = cache_dir()?;
    let lock = File::create(directory.join(".tools.lock"))?;
    if lock.try_lock().is_err() {
        eprintln!("berth-tools: waiting for another process that downloads or builds programs");
        lock.lock().context("waiting for the lock of the tools")?;
    }
    sweep(&directory);
    Ok(lock)
}

/// Prefix of temporary files and directories in the cache.
pub(crate) const SCRATCH: &str = ".build-";

/// Removes leftovers of killed downloads and builds. The caller holds the tools' lock, so none of them is in use.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            // Errors are ignored: this is only cleanup.
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
}
