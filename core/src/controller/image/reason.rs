//! Reasons for which a registry's answer about an image is missing.

use berth_api::reasons;

reasons! {
    /// The sort of a failure to resolve.
    pub enum ResolveReason {
        /// The client of the registry cannot be set up.
        ClientSetup,
        /// The pool's pull secret does not exist.
        PullSecretNotFound,
        /// The pool's pull secret cannot be read now.
        PullSecretUnreadable,
        /// The pool's pull secret has no credentials that can be used.
        InvalidPullSecret,
        /// The reference is not one that can be resolved.
        InvalidReference,
        /// The registry's answer makes no sense.
        InvalidAnswer,
        /// The registry's answer is not what its digest says.
        DigestMismatch,
        /// The registry does not have the image.
        ImageNotFound,
        /// The registry does not have the digest that the reference names.
        DigestUnavailable,
        /// The image is not for Linux.
        NoSuchPlatform,
        /// The image is none that a host can boot.
        NotBootable,
        /// The registry wants credentials, or other ones.
        Unauthorized,
        /// The registry wants fewer requests.
        RateLimited,
        /// The registry is blocked by `registries.conf`.
        RegistryBlocked,
        /// The registry refuses.
        RegistryRefused,
        /// The registry cannot be reached, or fails.
        RegistryUnavailable,
    }
}

impl ResolveReason {
    /// True if the controller or its settings are the cause, so that no registry was asked.
    pub const fn is_our_own(self) -> bool {
        matches!(
            self,
            Self::ClientSetup
                | Self::PullSecretNotFound
                | Self::PullSecretUnreadable
                | Self::InvalidPullSecret
                | Self::InvalidReference
                | Self::RegistryBlocked
        )
    }

    /// True if the failure mostly passes without a person. Every other one stays until somebody changes the registry, the
    /// reference or the controller's settings.
    pub const fn is_passing(self) -> bool {
        matches!(
            self,
            Self::RegistryUnavailable | Self::RateLimited | Self::InvalidAnswer | Self::PullSecretUnreadable
        )
    }

    /// The reason with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
    }
}
