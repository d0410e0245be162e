use berth_api::berth::{Berth, Holding};
use berth_api::names::NodeName;

use super::guard_probe::GuardProbe;
use crate::agent::facts::{ClusterNode, Guard};
use crate::{Moment, Now};

#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    pub node: ClusterNode,
    /// Berths labeled with this node; `None` until they are read.
    pub(super) berths: Option<Vec<Berth>>,
    /// True if this agent process made the last write of the held berth, and the API server confirmed it. Any older
    /// write that is still in flight then fails.
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

    /// True if a berth that is offered to this node or held by it has a deadline for the start of the reboot
    /// (`open-until`).
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

    /// During a turn, forgets the Node, so that the next decision reads it again: a holder acts only on a Node that it
    /// has just read.
    pub(super) fn unread_node_in_turn(&mut self) {
        if self.holding().is_some() {
            self.node = ClusterNode::Unread;
        }
    }
}
