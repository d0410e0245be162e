//! Condition reasons for failures on a host. Programs read them; the host tool's own words are in the message.

use berth_api::condition::{CommonReason, Word};
use berth_api::reasons;

reasons! {
    /// Reason why the host could not do a step.
    pub enum Reason {
        /// The registry is unreachable or returns errors.
        RegistryUnavailable,
        /// The registry does not have the image.
        ImageNotFound,
        /// The registry requires credentials, or rejects the ones in use.
        Unauthorized,
        /// The host has an auth file that Berth did not write, so the agent's credentials are not used.
        ForeignAuthFile,
        /// The auth file from the agent's Secret, or the host's, is not valid.
        InvalidAuthFile,
        /// The host's signature policy is missing, or cannot be used.
        InvalidPolicyFile,
        /// The host's auth file cannot be written or removed.
        AuthFileUnwritable,
        /// The image's registry is not in the host's own list.
        RegistryNotAllowed,
        /// The pool requires signed images, but the host would accept unsigned ones.
        SignatureNotEnforced,
        /// The host's signature policy rejects the image.
        SignatureRejected,
        /// The host's disk is full.
        DiskFull,
        /// The image is not a bootable OS image.
        NotBootable,
        /// The image is for another CPU architecture.
        WrongArchitecture,
        /// The published reference does not parse, or its digest is not the published digest.
        InvalidReference,
        /// The pool selects rpm-ostree, which the host does not have.
        RpmOstreeMissing,
        /// Another tool or person staged a deployment that the pool does not want, or one with other layered packages.
        ForeignStaged,
        /// The host has no bootc.
        BootcMissing,
        /// The host's bootc is older than the oldest supported version.
        BootcTooOld,
        /// bootc did not run, or its output cannot be parsed.
        BootcFailed,
        /// The host was not booted from an image by bootc.
        NotBootcHost,
        /// rpm-ostree has layered packages on the host's image, and bootc would drop them.
        LayeredHost,
        /// The host's layered packages cannot be installed on the new image.
        LayeringFailed,
        /// The host uses composefs, but its bootc cannot lock a staged image, or the opt-in flag is missing.
        ComposefsNotSupported,
        /// The staged image lacks `berth-firstboot.service`, which a link in the host's `/etc` requires.
        UnitMissing,
        /// The composefs host already has a deployment of this image, and bootc cannot stage a second one.
        SameDeployment,
        /// A tool that a bootc host needs is missing.
        HostToolMissing,
        /// The pull did not end within its deadline.
        PullTimedOut,
        /// The pull was stopped.
        PullCanceled,
        /// The pull failed for another reason.
        PullFailed,
        /// The image is staged, but its finalization could not be locked.
        LockFailed,
        /// Another updater runs on the host.
        RivalUpdater,
        /// The previous boot did not finalize the staged deployment.
        FinalizationFailed,
        /// The host's D-Bus, systemd or logind does not answer.
        HostUnreachable,
        /// logind refused to reboot.
        RebootRefused,
        /// The agent cannot write its memory file on the host.
        MemoryUnwritable,
        /// The API server does not reject an agent's write to another node's objects.
        Unguarded,
        /// A host tool did not end within its deadline.
        HostToolTimedOut,
        /// A host tool failed.
        HostToolFailed,
        /// Another process holds the lock on the host's images.
        HostBusy,
        /// The backend's status does not list the host's deployments.
        StatusFailed,
        /// The kubelet's credentials do not allow what the agent must do with its own Node.
        KubeletForbidden,
        /// A request to the API server failed.
        StepFailed,
    }
}

/// Returns the condition reason with this stored name; `Failed` if the name is unknown.
pub(crate) fn word(stored: &str) -> Word {
    Reason::from_word(stored).map_or(CommonReason::Failed.into(), Word::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_reason_is_read_back() {
        assert_eq!(Reason::from_word("DiskFull"), Some(Reason::DiskFull));
        assert_eq!(Reason::from_word("Nonsense"), None);
    }
}
