use berth_api::digest::Digest;

use crate::agent::facts::PullFacts;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pulls {
    pub(super) running: Option<PullFacts>,
    /// Digest of a successful pull, until the agent reads the deployments again.
    pub succeeded: Option<Digest>,
    /// Digest of a finished pull that the agent has already processed. Kept while the host still reports that pull.
    pub processed: Option<Digest>,
    /// True if the host's registry credentials have changed since the last pull began.
    pub(super) renewed: bool,
}

impl Pulls {
    /// True if the agent has not processed this finished pull yet. Until the agent removes the pull's unit, each read
    /// of the host shows the same pull again.
    pub fn is_news(&self, ended: &Digest) -> bool {
        self.processed.as_ref() != Some(ended)
    }
}
