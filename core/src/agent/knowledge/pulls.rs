use berth_api::digest::Digest;

use crate::agent::facts::PullFacts;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pulls {
    pub(super) running: Option<PullFacts>,
    /// Digest of a successful pull, until the deployments are read again.
    pub succeeded: Option<Digest>,
    /// Digest of a finished pull that was processed, while the host still reports it.
    pub processed: Option<Digest>,
    /// True if the host's credentials changed since the last pull began.
    pub(super) renewed: bool,
}

impl Pulls {
    /// True if this end of a pull is not processed yet. The host reports it again until the agent removes the unit.
    pub fn is_news(&self, ended: &Digest) -> bool {
        self.processed.as_ref() != Some(ended)
    }
}
