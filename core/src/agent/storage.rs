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

/// Version and features of a host's bootc, as far as they decide if Berth updates the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means<'a> {
    /// Version of bootc, as it prints it.
    pub bootc: &'a str,
    /// Version of bootc, as numbers.
    pub numbers: Version,
    /// True if `bootc switch` has `--download-only`; `None` if the agent could not find out.
    pub download_only: Option<bool>,
    /// True if the boot loader finds the host's unified kernel images (UKIs) through boot loader entries, as
    /// systemd-boot does.
    pub uki_entries: bool,
}

/// A version as numbers: major, minor, patch.
pub type Version = (u32, u32, u32);

/// First bootc whose `switch` has `--download-only`. Only for messages: the agent reads bootc's help.
const DOWNLOAD_ONLY: &str = "1.16.10";

/// First bootc that reports a queued rollback correctly where UKIs have boot loader entries (bootc#2405). Earlier ones
/// report a rollback as queued when none is, and the other way round.
const ROLLBACK_QUEUED: (Version, &str) = ((1, 16, 11), "1.16.11");

/// Returns why Berth begins no update on a host with this storage; `None` if Berth may begin one. Berth needs a way to
/// lock a staged image: any reboot would apply an unlocked image (I3). It must also know which image the host boots
/// next.
pub fn refusal(storage: Storage, means: &Means<'_>) -> Option<String> {
    if storage != Storage::Composefs {
        return None;
    }
    let bootc = means.bootc;
    let Some(download_only) = means.download_only else {
        return Some(format!(
            "the host uses bootc's composefs backend, and the agent cannot find out if its bootc {bootc} can lock a staged image \
             there: run `bootc switch --help` on the host to see why it fails; the agent tries again"
        ));
    };
    let (right, right_text) = ROLLBACK_QUEUED;
    let is_wrong = means.uki_entries && means.numbers < right;
    let what = match (download_only, is_wrong) {
        (false, _) => "cannot lock a staged image there, so any reboot would apply it",
        (true, true) => "reports there the wrong image as the next one to boot (bootc#2405)",
        (true, false) => return None,
    };
    let needed = if is_wrong { right_text } else { DOWNLOAD_ONLY };
    Some(format!(
        "the host uses bootc's composefs backend, but its bootc {bootc} {what}. Berth waits for bootc {needed} or newer on the \
         host; to install it: exclude and drain the node, run `bootc switch` on the host to an image with that bootc, and \
         reboot the host"
    ))
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
        let (old, first, newer) = ((1, 16, 9), (1, 16, 10), (1, 17, 5));
        let lock = "cannot lock a staged image there";
        for (storage, numbers, download_only, uki_entries, words) in [
            (Storage::Ostree, old, Some(false), false, vec![]),
            (Storage::Ostree, old, None, false, vec![]),
            (Storage::Ostree, newer, Some(true), false, vec![]),
            (
                Storage::Composefs,
                old,
                Some(false),
                false,
                vec!["its bootc 1.x cannot", lock, "1.16.10 or newer"],
            ),
            (
                Storage::Composefs,
                old,
                Some(false),
                true,
                vec![lock, "1.16.11 or newer"],
            ),
            (
                Storage::Composefs,
                first,
                Some(true),
                true,
                vec!["bootc#2405", "1.16.11 or newer", "exclude and drain"],
            ),
            (Storage::Composefs, first, Some(true), false, vec![]),
            (Storage::Composefs, newer, Some(true), true, vec![]),
            (
                Storage::Composefs,
                newer,
                None,
                false,
                vec!["`bootc switch --help`", "tries again"],
            ),
            // A distribution may add the flag to an older version: the flag counts, not the version.
            (Storage::Composefs, old, Some(true), false, vec![]),
        ] {
            let means = Means {
                bootc: "1.x",
                numbers,
                download_only,
                uki_entries,
            };
            let refused = refusal(storage, &means);
            assert_eq!(refused.is_some(), !words.is_empty(), "{storage:?} {means:?}");
            for word in words {
                assert!(
                    refused.as_ref().is_some_and(|r| r.contains(word)),
                    "{word}: {refused:?}"
                );
            }
        }
    }
}
