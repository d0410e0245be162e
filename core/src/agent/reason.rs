//! Condition reasons of what fails on a host. Programs read them; the host tool's words stand beside them.

use berth_api::condition::{Why, Word};
use berth_api::reasons;

reasons! {
    /// A reason why the host could not do what was asked.
    pub enum Reason {
        /// The registry cannot be reached or fails.
        RegistryUnavailable,
        /// The registry does not have the image.
        ImageNotFound,
        /// The registry wants credentials, or other ones.
        Unauthorized,
        /// The host has an auth file that Berth did not write, in place of what the agent was given.
        ForeignAuthFile,
        /// The auth file that the agent was given, or that the host has, cannot be used.
        InvalidAuthFile,
        /// The host's signature policy is missing, or cannot be used.
        InvalidPolicyFile,
        /// The host's auth file cannot be written or removed.
        AuthFileUnwritable,
        /// The host's own list of registries does not have the image's.
        RegistryNotAllowed,
        /// The pool wants signed images, and the host would take others.
        SignatureNotEnforced,
        /// The host's signature policy refuses the image.
        SignatureRejected,
        /// No space on the host.
        DiskFull,
        /// The image is no bootable OS image.
        NotBootable,
        /// The image is for other machines.
        WrongArchitecture,
        /// The reference that was published is none, or is not of the digest that was published with it.
        InvalidReference,
        /// The pool asks for rpm-ostree, and the host has none.
        RpmOstreeMissing,
        /// Somebody has staged a deployment with other layered packages than the one that runs.
        ForeignStaged,
        /// There is no bootc on the host.
        BootcMissing,
        /// The host's bootc is older than the oldest supported one.
        BootcTooOld,
        /// bootc itself could not be run, or says nothing that makes sense.
        BootcFailed,
        /// The host was not booted from an image by bootc.
        NotBootcHost,
        /// Packages are layered on the host's image with rpm-ostree.
        LayeredHost,
        /// The packages that are layered on the host cannot be put on the new image.
        LayeringFailed,
        /// The host keeps its deployments in composefs, and cannot lock what it stages, or nobody has asked for updates there.
        ComposefsNotSupported,
        /// The staged image lacks `berth-firstboot.service`, and a link in the host's `/etc` requires it.
        UnitMissing,
        /// The host has another deployment of the same image in composefs, beside which bootc stages none.
        SameDeployment,
        /// A tool that a bootc host needs is missing.
        HostToolMissing,
        /// The pull did not end within its deadline.
        PullTimedOut,
        /// The pull was stopped.
        PullCanceled,
        /// The pull failed for a reason that is not one of these.
        PullFailed,
        /// Staged, but finalization could not be locked.
        LockFailed,
        /// Another updater is active on the host.
        RivalUpdater,
        /// The previous boot could not finalize what was staged.
        FinalizationFailed,
        /// The host's D-Bus, systemd or logind does not answer.
        HostUnreachable,
        /// logind refused to reboot.
        RebootRefused,
        /// The agent's memory on the host cannot be written.
        MemoryUnwritable,
        /// The API server lets agents write what belongs to other nodes.
        Unguarded,
        /// A host tool did not end within its deadline.
        HostToolTimedOut,
        /// A host tool failed.
        HostToolFailed,
        /// Another process holds the lock on the host's images.
        HostBusy,
        /// The backend does not say which deployments the host has.
        StatusFailed,
        /// The kubelet's credentials do not allow what the agent needs of its own Node.
        KubeletForbidden,
        /// A request to the API server failed.
        StepFailed,
    }
}

/// The reason that is written like this. One that comes back from a stored object is again the constant that it was
/// written from; any other text is none.
pub fn known(stored: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.as_str() == stored)
}

/// Reasons that come back from a stored object are again the constants that they were written from.
pub(crate) fn word(stored: &str) -> Word {
    known(stored).map_or(Why::Failed.into(), Word::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_reason_is_the_constant_that_it_was_written_from() {
        assert_eq!(known("DiskFull"), Some(Reason::DiskFull));
        assert_eq!(known("Nonsense"), None);
    }
}
