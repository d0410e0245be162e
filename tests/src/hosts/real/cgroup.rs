//! A cgroup for each host, so that hosts are separate and can be killed as a whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const PREFIX: &str = "berth-";

/// A cgroup of the unified hierarchy. Emptied and removed when dropped.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(super) fn new(machine: &str) -> Result<Self> {
        let path = unified().join(format!("{PREFIX}{machine}"));
        let group = Self { path };
        group.empty();
        fs::create_dir(&group.path).with_context(|| format!("making {}", group.path.display()))?;
        Ok(group)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn empty(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.path.exists() && Instant::now() < deadline {
            self.kill();
            remove_tree(&self.path);
            std::thread::sleep(Duration::from_millis(5));
        }
        // On machines with the old hierarchies nspawn creates cgroups of the same name there.
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            if let Some(name) = self.path.file_name() {
                remove_tree(&hierarchy.path().join(name));
            }
        }
    }

    pub(super) fn kill(&self) {
        // Fails if the cgroup is gone, or on a kernel before 5.14: there the death of the supervisor ends the host.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.empty();
    }
}

pub(super) fn sweep(machines: &str) {
    let prefix = format!("{PREFIX}{machines}");
    for entry in fs::read_dir(unified()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            drop(Cgroup { path: entry.path() });
        }
    }
}

/// Path of the unified hierarchy, also on machines that have the old hierarchies too.
fn unified() -> PathBuf {
    let hybrid = Path::new("/sys/fs/cgroup/unified");
    if hybrid.join("cgroup.procs").exists() {
        hybrid.to_owned()
    } else {
        PathBuf::from("/sys/fs/cgroup")
    }
}

/// Removes a cgroup and all cgroups in it, the innermost first. The kernel removes their files.
fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // Fails while a process in the cgroup is still exiting; the caller retries.
    let _ = fs::remove_dir(path);
}
