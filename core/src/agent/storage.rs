//! The ways in which bootc keeps the deployments of a host, and on which hosts Berth therefore begins nothing.

/// Way in which bootc keeps the deployments of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// In ostree. Its tools lock what is staged at any time.
    #[default]
    Ostree,
    /// In composefs, without ostree. Only bootc itself locks an image there, and only while it stages it.
    Composefs,
}

/// Permission to use ostree's lock. Only a host whose deployments are ostree's gives it, so nobody can use that lock on
/// another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OstreeLock(());

impl Storage {
    /// Permission to lock what is staged where it stands. Where there is none, it is removed, and staged anew.
    pub const fn ostree_lock(self) -> Option<OstreeLock> {
        match self {
            Self::Ostree => Some(OstreeLock(())),
            Self::Composefs => None,
        }
    }
}

/// Way in which an image is locked while it is staged (I3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagingLock {
    /// bootc stages it unlocked. ostree's lock is set as soon as it is staged, and once more when the pull has ended.
    Ostree(OstreeLock),
    /// bootc locks it from the first instant, and ostree's lock is set when the pull has ended: bootc does not lock an image
    /// that somebody has staged unlocked meanwhile.
    Both(OstreeLock),
    /// bootc locks it from the first instant, and there is no other lock.
    Bootc,
}

impl StagingLock {
    /// The way on a host with this storage, by whether its bootc locks what it stages (`--download-only`). `None`: nothing
    /// would lock there, so nothing is staged.
    pub const fn of(storage: Storage, stages_locked: bool) -> Option<Self> {
        match (storage.ostree_lock(), stages_locked) {
            (Some(lock), false) => Some(Self::Ostree(lock)),
            (Some(lock), true) => Some(Self::Both(lock)),
            (None, true) => Some(Self::Bootc),
            (None, false) => None,
        }
    }

    /// Says whether bootc itself locks what it stages.
    pub const fn is_bootcs(self) -> bool {
        matches!(self, Self::Both(_) | Self::Bootc)
    }

    /// The lock of ostree's that is set when the pull has ended, where there is one.
    pub const fn ostree(self) -> Option<OstreeLock> {
        match self {
            Self::Ostree(lock) | Self::Both(lock) => Some(lock),
            Self::Bootc => None,
        }
    }
}

/// The bootc of a host, and what the agent was told about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means<'a> {
    /// Version of bootc.
    pub bootc: &'a str,
    /// Has `bootc switch --download-only`.
    pub download_only: bool,
    /// Whoever started the agent asks for updates of composefs hosts, which are experimental.
    pub experimental_composefs: bool,
}

/// Reason for which nothing is begun on a host with this storage, for people; `None` where it is updated. Without a lock
/// from the first instant, any reboot would apply what is staged (I3).
pub fn refusal(storage: Storage, means: &Means<'_>) -> Option<String> {
    let opt_in = "start the agent with --experimental-composefs";
    match (storage, means.download_only, means.experimental_composefs) {
        (Storage::Ostree, ..) | (Storage::Composefs, true, true) => None,
        (Storage::Composefs, false, _) => Some(format!(
            "the host uses bootc's composefs backend, and its bootc {} cannot lock there what it stages: wait for the release \
             after 1.16.9, whose `bootc switch` has --download-only; then {opt_in}",
            means.bootc
        )),
        (Storage::Composefs, true, false) => Some(format!(
            "the host uses bootc's composefs backend, on which updates are experimental: {opt_in} to have them"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ostrees_lock_is_for_ostrees_hosts_and_nothing_is_staged_without_a_lock() {
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
    fn a_composefs_host_needs_a_bootc_that_locks_and_somebody_who_asks_for_it() {
        for (storage, download_only, experimental_composefs, words) in [
            (Storage::Ostree, false, false, None),
            (Storage::Ostree, true, false, None),
            (Storage::Composefs, false, false, Some("after 1.16.9")),
            (Storage::Composefs, false, true, Some("its bootc 1.16.8 cannot")),
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
