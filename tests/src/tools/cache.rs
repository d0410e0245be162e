//! The cache of the harness.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The harness's cache: `$XDG_CACHE_HOME/berth`, else `~/.cache/berth`. Made if it is not there.
pub fn cache_dir() -> Result<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME names a directory for the cache")?;
    let directory = base.join("berth");
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory)
}

/// Beginning of the names of what fetches and builds work with in the cache.
pub(super) const SCRATCH: &str = ".build-";

/// Removes what fetches and builds that were killed left. The caller holds the lock of the tools, so none of it is in use.
pub(super) fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            // It is only tidiness: what cannot be removed may stay.
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
}
