//! Condition reasons of what fails on a host. Programs read them; the host tool's words stand beside them.

/// The registry cannot be reached or fails.
pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
/// The registry does not have the image.
pub const IMAGE_NOT_FOUND: &str = "ImageNotFound";
/// The registry wants credentials, or other ones.
pub const UNAUTHORIZED: &str = "Unauthorized";
/// The host's signature policy refuses the image.
pub const SIGNATURE_REJECTED: &str = "SignatureRejected";
/// No space on the host.
pub const DISK_FULL: &str = "DiskFull";
/// The image is no bootable OS image.
pub const NOT_BOOTABLE: &str = "NotBootable";
/// The image is for other machines.
pub const WRONG_ARCHITECTURE: &str = "WrongArchitecture";
/// There is no bootc on the host.
pub const BOOTC_MISSING: &str = "BootcMissing";
/// The host's bootc is older than the oldest supported one.
pub const BOOTC_TOO_OLD: &str = "BootcTooOld";
/// bootc itself could not be run, or says nothing that makes sense.
pub const BOOTC_FAILED: &str = "BootcFailed";
/// The host was not booted from an image by bootc.
pub const NOT_BOOTC_HOST: &str = "NotBootcHost";
/// Packages are layered on the host's image with rpm-ostree.
pub const LAYERED_HOST: &str = "LayeredHost";
/// A tool that a bootc host needs is missing.
pub const TOOL_MISSING: &str = "HostToolMissing";
/// The pull did not end within its deadline.
pub const PULL_TIMED_OUT: &str = "PullTimedOut";
/// The pull was stopped.
pub const PULL_CANCELED: &str = "PullCanceled";
/// The pull failed for a reason that is not one of these.
pub const PULL_FAILED: &str = "PullFailed";
/// Staged, but finalization could not be locked.
pub const LOCK_FAILED: &str = "LockFailed";
/// Another updater is active on the host.
pub const RIVAL_UPDATER: &str = "RivalUpdater";
/// The previous boot could not finalize what was staged.
pub const FINALIZATION_FAILED: &str = "FinalizationFailed";
/// The host's D-Bus, systemd or logind does not answer.
pub const HOST_UNREACHABLE: &str = "HostUnreachable";
/// logind refused to reboot.
pub const REBOOT_REFUSED: &str = "RebootRefused";
/// A host tool did not end within its deadline.
pub const HOST_TOOL_TIMED_OUT: &str = "HostToolTimedOut";
/// A host tool failed.
pub const HOST_TOOL_FAILED: &str = "HostToolFailed";

/// All of them, for whoever reads one back from a file.
pub const ALL: &[&str] = &[
    REGISTRY_UNAVAILABLE,
    IMAGE_NOT_FOUND,
    UNAUTHORIZED,
    SIGNATURE_REJECTED,
    DISK_FULL,
    NOT_BOOTABLE,
    WRONG_ARCHITECTURE,
    BOOTC_MISSING,
    BOOTC_TOO_OLD,
    BOOTC_FAILED,
    NOT_BOOTC_HOST,
    LAYERED_HOST,
    TOOL_MISSING,
    PULL_TIMED_OUT,
    PULL_CANCELED,
    PULL_FAILED,
    LOCK_FAILED,
    RIVAL_UPDATER,
    FINALIZATION_FAILED,
    HOST_UNREACHABLE,
    REBOOT_REFUSED,
    HOST_TOOL_TIMED_OUT,
    HOST_TOOL_FAILED,
];

/// The reason that is written like this. One that comes back from a stored object is again the constant that it was
/// written from; any other text is none.
pub fn known(stored: &str) -> Option<&'static str> {
    ALL.iter().copied().find(|reason| *reason == stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_reason_is_the_constant_that_it_was_written_from() {
        assert_eq!(known("DiskFull"), Some(DISK_FULL));
        assert_eq!(known("Nonsense"), None);
    }
}
