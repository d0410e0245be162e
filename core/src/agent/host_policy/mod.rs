//! Rules of the host about what it pulls, and by which credentials. They come from files and flags of the host, never from the
//! cluster alone.

pub mod credentials;
mod objection;
pub mod registries;
pub mod signatures;

use berth_api::Digest;
use berth_api::node::DesiredImage;

pub use self::objection::Objection;
use self::registries::Registries;
use self::signatures::Policy;

/// The host's rules, as they were read last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// Trouble with the credentials that the agent was given for the host.
    pub credentials: Option<Objection>,
    /// Registries from which an image may come.
    pub registries: Registries,
    /// The host's signature policy.
    pub policy: Policy,
    /// Digest of the text of the policy file; `None` if it was not read.
    pub policy_digest: Option<Digest>,
}

impl Rules {
    /// Objection to staging this image here.
    pub fn objection(&self, image: &DesiredImage) -> Option<Objection> {
        let by_registry = self.registries.objection(image);
        by_registry.or_else(|| self.policy.objection(image))
    }
}
