//! Directories that are created once and reused by later runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::tools::cache_dir;

/// An entry younger than this may be in use by another process.
const MIN_UNUSED_AGE: Duration = Duration::from_secs(3600);

/// Returns a directory of the cache; creates it if it is missing. `make` fills a temporary directory that is then renamed, so a
/// partial one is never found.
///
/// A lock prevents two processes from creating the directory at the same time.
pub(super) fn directory(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = cache_dir()?;
    let path = cache.join(name);
    if path.is_dir() {
        record_use(&path);
        return Ok(path);
    }
    let lock = File::create(cache.join(format!(".{name}.lock")))?;
    lock.lock().with_context(|| format!("waiting for {name}"))?;
    if path.is_dir() {
        return Ok(path);
    }
    let began = std::time::Instant::now();
    eprintln!("berth-hosts: creating {name}");
    let temporary = cache.join(format!(".{name}.new"));
    remove(&temporary)?;
    fs::create_dir(&temporary)?;
    make(&temporary).with_context(|| format!("making {name}"))?;
    fs::rename(&temporary, &path).with_context(|| format!("renaming to {}", path.display()))?;
    eprintln!("berth-hosts: {name}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(path)
}

/// Records the use of a directory, for [`prune`].
fn record_use(path: &Path) {
    // A cache that cannot be written needs no pruning either.
    let _ = File::open(path).and_then(|directory| directory.set_modified(SystemTime::now()));
}

/// Removes directories with this prefix that were not used for an hour, but keeps the `keep` latest ones.
pub(super) fn prune(prefix: &str, keep: usize) -> Result<()> {
    let mut all = Vec::new();
    for entry in fs::read_dir(cache_dir()?)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            all.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    all.sort();
    let surplus = all.len().saturating_sub(keep);
    for (time, path) in all.into_iter().take(surplus) {
        if time.elapsed().is_ok_and(|age| age > MIN_UNUSED_AGE) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a directory. It may contain ostree deployments, which are immutable.
pub(super) fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    for deployment in deployments(path) {
        // Only some file systems (ext4, btrfs and others) know the immutable bit; on the others it is not set.
        let _ = super::shell::tool("chattr", &["-i".as_ref(), deployment.as_os_str()]);
    }
    fs::remove_dir_all(path).with_context(|| format!("removing {}", path.display()))
}

/// Paths of a directory's entries; empty if the directory does not exist.
fn list(path: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Deployments of all stateroots of all sysroots in and directly below a directory.
fn deployments(path: &Path) -> Vec<PathBuf> {
    let mut sysroots = vec![path.to_owned(), path.join("sysroot")];
    for entry in list(path.to_owned()) {
        sysroots.push(entry.join("sysroot"));
    }
    let stateroots = sysroots.into_iter().flat_map(|s| list(s.join("ostree/deploy")));
    let all = stateroots.flat_map(|s| list(s.join("deploy")));
    all.filter(|d| d.is_dir()).collect()
}
