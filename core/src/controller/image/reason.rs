//! Reasons why an image could not be resolved.

use berth_api::reasons;

reasons! {
    /// Reason of a failure to resolve an image.
    pub enum ResolveReason {
        /// The controller cannot set up its client for the registry.
        ClientSetup,
        /// The pool's pull secret does not exist.
        PullSecretNotFound,
        /// The pool's pull secret cannot be read at the moment.
        PullSecretUnreadable,
        /// The pool's pull secret has no usable credentials.
        InvalidPullSecret,
        /// The reference of the image is invalid.
        InvalidReference,
        /// The registry's answer is invalid.
        InvalidAnswer,
        /// The registry's answer does not have the requested digest.
        DigestMismatch,
        /// The registry does not have the image.
        ImageNotFound,
        /// The registry does not have the digest that the reference names.
        DigestUnavailable,
        /// The image is not for Linux.
        NoSuchPlatform,
        /// The image is not bootable.
        NotBootable,
        /// The registry requires credentials, or rejects the given ones.
        Unauthorized,
        /// The registry limits the rate of requests.
        RateLimited,
        /// The registry is blocked by `registries.conf`.
        RegistryBlocked,
        /// The registry refuses the request.
        RegistryRefused,
        /// The registry is unreachable or fails.
        RegistryUnavailable,
    }
}

impl ResolveReason {
    /// True if the controller or its settings caused the failure. The registry was then not queried.
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

    /// True if the failure usually ends without an admin's help. Any other failure lasts until an admin changes the
    /// registry, the reference or the controller's settings.
    pub const fn is_passing(self) -> bool {
        matches!(
            self,
            Self::RegistryUnavailable | Self::RateLimited | Self::InvalidAnswer | Self::PullSecretUnreadable
        )
    }
}
