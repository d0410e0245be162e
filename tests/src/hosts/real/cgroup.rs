//! A control group for each host, so that hosts do not share one and can be killed as a whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Prefix of the names of all our groups.
const PREFIX: &str = "berth-";

/// A group of the unified hierarchy. Emptied and removed when dropped.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes an empty group.
    pub(super) fn new(machine: &str) -> Result<Self> {
        let path = unified().join(format!("{PREFIX}{machine}"));
        let group = Self { path };
        group.empty();
        fs::create_dir(&group.path).with_context(|| format!("making {}", group.path.display()))?;
        Ok(group)
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Kills everything in it and removes it.
    fn empty(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.path.exists() && Instant::now() < deadline {
            self.kill();
            remove_tree(&self.path);
            std::thread::sleep(Duration::from_millis(5));
        }
        // Where there are old hierarchies as well, nspawn makes groups of the same name in them.
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            if let Some(name) = self.path.file_name() {
                remove_tree(&hierarchy.path().join(name));
            }
        }
    }

    /// Kills everything in it, at once.
    pub(super) fn kill(&self) {
        // Gone, or a kernel before 5.14: the supervisor's death takes the host along there.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.empty();
    }
}

/// Kills what is left in the groups of machines whose names begin so.
pub(super) fn sweep(machines: &str) {
    let prefix = format!("{PREFIX}{machines}");
    for entry in fs::read_dir(unified()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            drop(Cgroup { path: entry.path() });
        }
    }
}

/// Path of the unified hierarchy: beside the old ones on machines that still have those.
fn unified() -> PathBuf {
    let hybrid = Path::new("/sys/fs/cgroup/unified");
    if hybrid.join("cgroup.procs").exists() {
        hybrid.to_owned()
    } else {
        PathBuf::from("/sys/fs/cgroup")
    }
}

/// Groups are removed from the leaves up; their files need no removing.
fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // It fails while something is still dying in there; the caller tries again.
    let _ = fs::remove_dir(path);
}
