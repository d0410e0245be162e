//! How a host stores its deployments, how an image is locked there, and which hosts Berth does not update.

/// How a host stores its deployments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// In ostree. A lock can be set on a staged image at any time.
    #[default]
    Ostree,
    /// In composefs, without ostree. Only bootc can lock an image, and only while it stages the image.
    Composefs,
}

/// The right to set ostree's lock. Only [`Storage::ostree_lock`] returns it, and only for an ostree host. So the code
/// that sets the lock cannot run on a composefs host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OstreeLock(());

impl Storage {
    /// Returns the right to set ostree's lock on a staged image. `None` on a composefs host, where an unlocked image
    /// must be removed and staged again.
    pub const fn ostree_lock(self) -> Option<OstreeLock> {
        match self {
            Self::Ostree => Some(OstreeLock(())),
            Self::Composefs => None,
        }
    }
}

/// How an image gets locked when it is staged (I3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagingLock {
    /// bootc stages the image unlocked. Berth sets ostree's lock as soon as the image is staged, and again after the
    /// pull.
    Ostree(OstreeLock),
    /// bootc stages the image locked. Berth sets ostree's lock as well, in case another process stages the image
    /// unlocked.
    Both(OstreeLock),
    /// bootc stages the image locked. The host has no other kind of lock.
    Bootc,
}

impl StagingLock {
    /// Returns the lock for a host; `None` if nothing would lock the image. `stages_locked` is true if the backend
    /// locks an image as it stages it.
    pub const fn of(storage: Storage, stages_locked: bool) -> Option<Self> {
        match (storage.ostree_lock(), stages_locked) {
            (Some(lock), false) => Some(Self::Ostree(lock)),
            (Some(lock), true) => Some(Self::Both(lock)),
            (None, true) => Some(Self::Bootc),
            (None, false) => None,
        }
    }

    /// True if bootc locks the image as it stages it.
    pub const fn is_bootcs(self) -> bool {
        matches!(self, Self::Both(_) | Self::Bootc)
    }

    /// Returns the right to set ostree's lock after the pull; `None` on a composefs host.
    pub const fn ostree(self) -> Option<OstreeLock> {
        match self {
            Self::Ostree(lock) | Self::Both(lock) => Some(lock),
            Self::Bootc => None,
        }
    }
}

/// Version and features of a host's bootc, and the agent's opt-in to composefs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means<'a> {
    /// Version of bootc.
    pub bootc: &'a str,
    /// True if `bootc switch` has `--download-only`.
    pub download_only: bool,
    /// True if the agent was started with `--experimental-composefs`.
    pub experimental_composefs: bool,
}

/// Returns why Berth begins no update on a host with this storage; `None` if Berth may begin one. Berth needs a way to
/// lock a staged image: any reboot would apply an unlocked image (I3).
pub fn refusal(storage: Storage, means: &Means<'_>) -> Option<String> {
    let opt_in = "start the agent with --experimental-composefs";
    match (storage, means.download_only, means.experimental_composefs) {
        (Storage::Ostree, ..) | (Storage::Composefs, true, true) => None,
        (Storage::Composefs, false, _) => Some(format!(
            "the host uses bootc's composefs backend, but its bootc {} cannot lock a staged image there: wait for the bootc \
             release after 1.16.9, whose `bootc switch` has --download-only; then {opt_in}",
            means.bootc
        )),
        (Storage::Composefs, true, false) => Some(format!(
            "updates of hosts with bootc's composefs backend are experimental; to enable them, {opt_in}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_staged_without_a_lock() {
        for (storage, stages_locked, ways) in [
            (Storage::Ostree, false, Some((false, true))),
            (Storage::Ostree, true, Some((true, true))),
            (Storage::Composefs, false, None),
            (Storage::Composefs, true, Some((true, false))),
        ] {
            let way = StagingLock::of(storage, stages_locked);
            let found = way.map(|way| (way.is_bootcs(), way.ostree().is_some()));
            assert_eq!(found, ways, "{storage:?} {stages_locked}");
        }
        assert_eq!(Storage::Composefs.ostree_lock(), None);
    }

    #[test]
    fn a_composefs_host_needs_bootc_that_locks() {
        for (storage, download_only, experimental_composefs, words) in [
            (Storage::Ostree, false, false, None),
            (Storage::Ostree, true, false, None),
            (Storage::Composefs, false, false, Some("after 1.16.9")),
            (Storage::Composefs, false, true, Some("but its bootc 1.16.8 cannot")),
            (Storage::Composefs, true, false, Some("--experimental-composefs")),
            (Storage::Composefs, true, true, None),
        ] {
            let means = Means {
                bootc: "1.16.8",
                download_only,
                experimental_composefs,
            };
            let refused = refusal(storage, &means);
            assert_eq!(refused.is_some(), words.is_some(), "{storage:?} {means:?}");
            assert!(
                refused.is_none_or(|r| words.is_some_and(|w| r.contains(w))),
                "{storage:?} {means:?}"
            );
        }
    }
}
