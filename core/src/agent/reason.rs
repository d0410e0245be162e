//! Condition reasons for failures on a host. Programs may match on the reason; the message has the error text of the
//! host tool.

use berth_api::condition::{CommonReason, Word};
use berth_api::reasons;

reasons! {
    /// Reason why the host could not do a step.
    pub enum Reason {
        /// The registry is unreachable or returns errors.
        RegistryUnavailable,
        /// The registry does not have the image.
        ImageNotFound,
        /// The registry requires credentials, or rejects the credentials in use.
        Unauthorized,
        /// The host has an auth file that Berth did not write, so the agent's credentials are not used.
        ForeignAuthFile,
        /// The auth file from the agent's Secret, or the auth file on the host, is not valid.
        InvalidAuthFile,
        /// The host's signature policy is missing, or cannot be used.
        InvalidPolicyFile,
        /// The host's auth file cannot be written or removed.
        AuthFileUnwritable,
        /// The list of allowed registries on the host does not contain the image's registry.
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
        /// The image reference in the BootcNode's spec does not parse, or its digest differs from `image.digest` of the spec.
        InvalidReference,
        /// The pool selects rpm-ostree, which the host does not have.
        RpmOstreeMissing,
        /// Another tool or person staged a deployment of an image that the pool does not want, or a deployment with
        /// other layered packages.
        ForeignStaged,
        /// The host has no bootc.
        BootcMissing,
        /// The host's bootc is older than the oldest supported version.
        BootcTooOld,
        /// bootc did not run, or its output cannot be parsed.
        BootcFailed,
        /// `bootc status` shows no booted image: the host was not installed as a bootc host.
        NotBootcHost,
        /// rpm-ostree has layered packages on the host's image, and bootc would drop them.
        LayeredHost,
        /// The host's layered packages cannot be installed on the new image.
        LayeringFailed,
        /// The host uses bootc's composefs backend, and its bootc is too old for that: it cannot lock a staged image, or
        /// reports the wrong next boot.
        ComposefsNotSupported,
        /// A UKI of the image names another composefs digest than the one that the host's bootc computes.
        ComposefsDigestMismatch,
        /// The staged image lacks `berth-firstboot.service`, which a link in the host's `/etc` requires.
        UnitMissing,
        /// The composefs host already has a deployment of this image, and bootc cannot stage a second one.
        SameDeployment,
        /// A tool that Berth needs on a bootc host is missing.
        HostToolMissing,
        /// The pull did not end within its deadline.
        PullTimedOut,
        /// The pull was stopped.
        PullCanceled,
        /// The pull failed for another reason.
        PullFailed,
        /// The image is staged, but its finalization could not be locked.
        LockFailed,
        /// Another updater is active on the host.
        RivalUpdater,
        /// The last shutdown did not finalize the staged deployment.
        FinalizationFailed,
        /// The host's D-Bus, systemd or logind does not answer.
        HostUnreachable,
        /// logind refused to reboot.
        RebootRefused,
        /// The agent cannot write its memory file on the host.
        MemoryUnwritable,
        /// The API server accepts an agent's write to another node's object, or the agent could not check this.
        Unguarded,
        /// A host tool did not end within its deadline.
        HostToolTimedOut,
        /// A host tool failed.
        HostToolFailed,
        /// Another process holds the lock on the host's images.
        HostBusy,
        /// The backend's status output does not list the host's deployments.
        StatusFailed,
        /// The kubelet's identity does not permit a request that the agent must make about its own Node or pods.
        KubeletForbidden,
        /// The program that issues the kubelet's credentials, as on EKS, failed or its answer cannot be used.
        CredentialProgramFailed,
        /// The API server does not let the agent impersonate its node.
        ImpersonationRefused,
        /// A request to the API server failed.
        StepFailed,
    }
}

/// Returns the condition reason for a name that an earlier status stored; `Failed` if this version does not know the
/// name.
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
