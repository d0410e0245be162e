//! The directory where the agent sees the host's files: `/` for a service, `/host` in a pod, a private directory in
//! tests.

use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use berth_api::BootId;

use super::files;

/// Directory of the agent's runtime files, as the host sees it. A reboot clears it.
pub const RUN_DIR: &str = "/run/berth";
/// Directory of the agent's durable files, as the host sees it.
pub const STATE_DIR: &str = "/var/lib/berth";

/// File with the number of soft reboots since the kernel started, as the host sees it. Absent before the first soft
/// reboot.
pub(super) const SOFT_REBOOTS: &str = "/run/berth/soft-reboots";

const MAX_LINKS: usize = 40;

/// The directory where the agent sees the host's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    /// Creates a `HostRoot` for this directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// True if `path`, as the agent sees it, is one of the host's files.
    pub fn contains(&self, path: impl AsRef<Path>) -> bool {
        path.as_ref().starts_with(&self.0)
    }

    /// Returns the path where the agent sees the host's `path`. A path that is already under the root is returned
    /// unchanged.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if self.0 != Path::new("/") && path.starts_with(&self.0) {
            return path.to_path_buf();
        }
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the ID of the running boot: the kernel's boot ID, and the number of soft reboots since.
    pub fn boot_id(&self) -> anyhow::Result<BootId> {
        let path = self.path("/proc/sys/kernel/random/boot_id");
        let text = files::small_text(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let id = text.trim();
        anyhow::ensure!(!id.is_empty(), "{} is empty", path.display());
        // A host command or a file of the rollback guard may contain the ID.
        let is_word = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        anyhow::ensure!(is_word, "{} does not have the ID of a boot", path.display());
        let count = files::small_text(&self.path(SOFT_REBOOTS)).unwrap_or_default();
        Ok(BootId::after_soft_reboots(id, count.trim().parse().unwrap_or(0)))
    }

    /// Creates the directory of the runtime files if it is missing, and returns its path. systemd writes the output of
    /// Berth's units there, and the units fail without it.
    pub fn make_run_dir(&self) -> io::Result<PathBuf> {
        let path = self.path(RUN_DIR);
        match std::fs::create_dir_all(&path) {
            Ok(()) => Ok(path),
            Err(error) => {
                let text = format!("cannot create {}: {error}", path.display());
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    /// Like [`HostRoot::path`], but follows symbolic links as the host would.
    ///
    /// The kubelet's `kubelet-client-current.pem` is a link with an absolute target. In a pod, the kernel would follow
    /// it into the pod's own `/var/lib`.
    pub fn resolve(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let mut pending: Vec<PathBuf> = parts(&self.on_host(path.as_ref()));
        let mut done = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = pending.pop() {
            if part == Path::new("..") {
                done.pop();
                continue;
            }
            let next = done.join(&part);
            match std::fs::read_link(self.path(&next)) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(io::Error::other("too many levels of symbolic links"));
                    }
                    if target.is_absolute() {
                        done = PathBuf::from("/");
                    }
                    pending.extend(parts(&target));
                }
                // The path is not a link, or does not exist. A missing path makes the caller's open fail.
                Err(_) => done = next,
            }
        }
        Ok(self.path(done))
    }

    fn on_host(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.0) {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => path.to_path_buf(),
        }
    }
}

/// Returns the parts of a path without `/` and `.`, in reverse order.
fn parts(path: &Path) -> Vec<PathBuf> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(PathBuf::from(name)),
            Component::ParentDir => parts.push(PathBuf::from("..")),
            _ => {}
        }
    }
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn puts_host_paths_under_the_root_once() {
        let root = HostRoot::new("/host");
        assert_eq!(root.path("/run/berth"), Path::new("/host/run/berth"));
        assert_eq!(root.path("/host/run/berth"), Path::new("/host/run/berth"));
        assert_eq!(HostRoot::new("/").path("/run/berth"), Path::new("/run/berth"));
    }

    #[test]
    fn the_id_of_a_boot_is_one_word() {
        let scratch = tempfile::tempdir().unwrap();
        let root = HostRoot::new(scratch.path());
        let path = root.path("/proc/sys/kernel/random/boot_id");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let id = "1f8a9c0c-0000-4000-8000-000000000001";
        std::fs::write(&path, format!("{id}\n")).unwrap();
        assert_eq!(root.boot_id().unwrap().as_str(), id);
        for odd in ["", "\n", "a b", "a\nlimit=0", "a=b", &"a".repeat(5000)] {
            std::fs::write(&path, odd).unwrap();
            assert!(root.boot_id().is_err(), "{odd:?}");
        }
    }

    #[test]
    fn follows_links_as_the_host_would() {
        let scratch = std::env::temp_dir().join(format!("berth-root-{}", std::process::id()));
        let pki = scratch.join("var/lib/kubelet/pki");
        std::fs::create_dir_all(&pki).unwrap();
        std::fs::write(pki.join("a.pem"), "x").unwrap();
        symlink("/var/lib/kubelet/pki/a.pem", pki.join("absolute.pem")).unwrap();
        symlink("../pki/absolute.pem", pki.join("twice.pem")).unwrap();
        symlink("loop.pem", pki.join("loop.pem")).unwrap();
        let root = HostRoot::new(&scratch);
        for name in ["a", "absolute", "twice"] {
            let found = root.resolve(format!("/var/lib/kubelet/pki/{name}.pem")).unwrap();
            assert_eq!(found, pki.join("a.pem"), "{name}");
        }
        assert!(root.resolve("/var/lib/kubelet/pki/loop.pem").is_err());
        assert_eq!(root.resolve("/no/such").unwrap(), scratch.join("no/such"));
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
