//! The lock of the staged deployment, as ostree's files have it.
//!
//! rpm-ostree locks with a key in the state of the staged deployment since 2024.6, and with a file beside it before. The daemon's
//! property `finalization-locked` shows the file alone. A deployment is locked if either of the two says so.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use berth_core::agent::staged;

use crate::host::root::HostRoot;

/// State of the staged deployment.
pub(super) const STATE: &str = "/run/ostree/staged-deployment";
/// The file whose presence locks what is staged.
pub(super) const LOCK_FILE: &str = "/run/ostree/staged-deployment-locked";

/// What the files say about the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lock {
    /// A shutdown discards what is staged.
    Locked,
    /// A shutdown applies what is staged.
    Unlocked,
    /// A file cannot be read or makes no sense, for this reason. What is staged may be locked or not.
    Unreadable(String),
}

impl Lock {
    /// Reads the files of a host on which something is staged. Where nothing is staged, the answer means nothing.
    pub(super) fn read(root: &HostRoot) -> Self {
        match root.path(LOCK_FILE).try_exists() {
            Ok(true) => return Self::Locked,
            Ok(false) => {}
            Err(error) => return Self::Unreadable(format!("{LOCK_FILE}: {error}")),
        }
        match read_state(&root.path(STATE)) {
            Ok(state) => match staged::is_locked(&state) {
                Ok(true) => Self::Locked,
                Ok(false) => Self::Unlocked,
                Err(error) => Self::Unreadable(format!("{STATE}: {error}")),
            },
            Err(error) => Self::Unreadable(format!("{STATE}: {error}")),
        }
    }
}

/// Reads one byte more than a state may have, so that a longer one is noticed.
fn read_state(path: &Path) -> io::Result<Vec<u8>> {
    let mut state = vec![];
    let most = u64::try_from(staged::MAX_LENGTH).unwrap_or(u64::MAX);
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut state)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/locked.bin");
    const UNLOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/unlocked.bin");
    const NO_KEY: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/no-key.bin");

    /// The states that a real rpm-ostreed 2026.2 with ostree 2026.4 was seen in, and those of older ones.
    #[test]
    fn either_lock_counts_and_what_cannot_be_read_is_neither() {
        let scratch = std::env::temp_dir().join(format!("berth-staged-lock-{}", std::process::id()));
        fs::create_dir_all(scratch.join("run/ostree")).unwrap();
        let root = HostRoot::new(&scratch);
        for (name, state, file, expected) in [
            ("staged by the daemon", Some(LOCKED), false, Some(true)),
            ("unlocked", Some(UNLOCKED), false, Some(false)),
            ("locked again", Some(UNLOCKED), true, Some(true)),
            ("staged by an older daemon", Some(NO_KEY), true, Some(true)),
            ("staged by somebody", Some(NO_KEY), false, Some(false)),
            ("nonsense beside the file", Some(b"x" as &[u8]), true, Some(true)),
            ("nonsense", Some(b"x"), false, None),
            ("no bytes", Some(b""), false, None),
            ("no state", None, false, None),
        ] {
            let write = |path: &str, bytes: Option<&[u8]>| match bytes {
                Some(bytes) => fs::write(root.path(path), bytes),
                None => fs::remove_file(root.path(path)).or(Ok(())),
            };
            write(STATE, state).unwrap();
            write(LOCK_FILE, file.then_some(b"")).unwrap();
            let found = match Lock::read(&root) {
                Lock::Locked => Some(true),
                Lock::Unlocked => Some(false),
                Lock::Unreadable(why) => {
                    assert!(why.contains("/run/ostree/staged-deployment"), "{why}");
                    None
                }
            };
            assert_eq!(found, expected, "{name}");
        }
        fs::remove_dir_all(&scratch).unwrap();
    }
}
