//! The host's own policy: which images it may run, and which credentials it pulls with. It comes from files on the host
//! and flags of the agent.

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
    /// Problem with the host credentials that an admin gave the agent. `None` if the agent has usable credentials, or
    /// has none.
    pub credentials: Option<Objection>,
    /// Registries that images may come from.
    pub registries: Registries,
    /// The host's signature policy.
    pub policy: Policy,
    /// Digest of the text of `policy.json`; `None` if the file was not read.
    pub policy_digest: Option<Digest>,
}

impl Rules {
    /// Returns why the host's policy forbids staging this image; `None` if the policy allows the image.
    pub fn objection(&self, image: &DesiredImage) -> Option<Objection> {
        let by_registry = self.registries.objection(image);
        by_registry.or_else(|| self.policy.objection(image))
    }
}
