use berth_api::berth::{Berth, Holding};
use berth_api::names::NodeName;

use super::guard_probe::GuardProbe;
use crate::agent::facts::{ClusterNode, Guard};
use crate::{Moment, Now};

#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    pub node: ClusterNode,
    /// Berths labelled with this node; `None` before they were read.
    pub(super) berths: Option<Vec<Berth>>,
    /// True if this process wrote the held berth last, and the API server answered: older writes in flight then fail.
    pub fenced: bool,
    pub guard: GuardProbe,
}

impl ClusterView {
    pub(super) fn unread(now: Moment) -> Self {
        Self {
            node: ClusterNode::Unread,
            berths: None,
            fenced: false,
            guard: GuardProbe::unknown(now),
        }
    }

    pub fn has_read_berths(&self) -> bool {
        self.berths.is_some()
    }

    pub(super) fn held(&self) -> Option<&Berth> {
        self.berths.iter().flatten().find(|berth| berth.holding().is_some())
    }

    pub fn holding(&self) -> Option<&Holding> {
        self.held().and_then(Berth::holding)
    }

    /// True if an offered or held berth has a time limit for starting the reboot.
    pub fn is_under_window(&self) -> bool {
        self.berths.iter().flatten().any(|berth| match berth.offer() {
            Some(offer) => offer.open_until.is_some(),
            None => berth.holding().is_some_and(|holding| holding.open_until.is_some()),
        })
    }

    pub(super) fn guard_answered(&mut self, answer: Result<Guard, String>, node: &NodeName, now: &Now) {
        let has_berth = self.berths.iter().flatten().any(|berth| {
            berth.offer().is_some_and(|offer| offer.node == *node)
                || berth.holding().is_some_and(|holding| holding.node == *node)
        });
        self.guard.answered(answer, has_berth, now);
    }

    /// Drops the reading of the Node during a turn, since a holder acts only on a fresh one.
    pub(super) fn unread_node_in_turn(&mut self) {
        if self.holding().is_some() {
            self.node = ClusterNode::Unread;
        }
    }
}
