//! The host's own policy: the allowed images and the credentials, from files and flags on the host.

pub mod credentials;
mod objection;
pub mod registries;
pub mod signatures;

use berth_api::Digest;
use berth_api::node::DesiredImage;

pub use self::objection::Objection;
use self::registries::Registries;
use self::signatures::Policy;

/// The host's policy as last read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// Problem with the credentials that the agent was given for the host.
    pub credentials: Option<Objection>,
    /// Allowed registries.
    pub registries: Registries,
    /// The host's signature policy.
    pub policy: Policy,
    /// Digest of the policy file's text; `None` if it was not read.
    pub policy_digest: Option<Digest>,
}

impl Rules {
    /// Returns the objection to staging this image on the host.
    pub fn objection(&self, image: &DesiredImage) -> Option<Objection> {
        let by_registry = self.registries.objection(image);
        by_registry.or_else(|| self.policy.objection(image))
    }
}
