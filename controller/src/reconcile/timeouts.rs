//! Reports overdue holders of berths on their BootcNodes. A holder is overdue if it is silent or did not come back from
//! its reboot in time. A pass does this between its phases 6 and 7.

use std::collections::BTreeSet;

use berth_api::NodeUid;
use berth_api::berth::Holding;
use berth_api::condition::node::REBOOT_TIMED_OUT;
use berth_api::condition::{CommonReason, Verdict};
use berth_core::controller::overdue::{self, Holder, Timeouts};
use berth_core::controller::pool::Pool;
use berth_core::controller::view::{BootcNodeView, LeaseView, NodeView};

use super::node_writes::{key, write_condition};
use super::phases::{Berths, Observed};
use super::reconciler::Reconciler;
use crate::events::Note;
use crate::leader::Lost;

/// Backoff key of writes of the condition `RebootTimedOut`.
const KIND: &str = "timeout";

impl Reconciler {
    /// Updates the conditions `RebootTimedOut`. Returns the Node UIDs of the overdue holders.
    pub(super) async fn timeouts(&mut self, observed: &Observed, berths: &Berths) -> Result<BTreeSet<NodeUid>, Lost> {
        let mut holders = vec![];
        for lease in &berths.leases {
            let Some(holding) = lease.holding() else {
                continue;
            };
            let node = observed.node(holding.node.as_str());
            if let Some(node) = node.filter(|node| node.uid == holding.uid) {
                holders.push(holder(self, observed, node, lease, holding));
            }
        }
        let timed_out = self.memory.nodes.overdue.judge(holders.into_iter(), observed.now);
        for (name, host) in observed.snapshot.bootc_nodes.iter() {
            let Some(node) = observed.node(name) else {
                continue;
            };
            let is_lost = timed_out.contains(&node.uid);
            let is_due = is_lost != host.view.has_timed_out() && host.view.readable().is_some();
            if is_due && self.may_write(KIND, name, observed.now) {
                self.update_condition(observed, berths, node, &host.view, is_lost)
                    .await?;
            }
        }
        Ok(timed_out)
    }

    async fn update_condition(
        &mut self,
        observed: &Observed,
        berths: &Berths,
        node: &NodeView,
        host: &BootcNodeView,
        is_lost: bool,
    ) -> Result<(), Lost> {
        let mut held = berths.leases.iter().filter_map(|lease| Some((lease, lease.holding()?)));
        let held = held.find(|(_, holding)| holding.uid == node.uid);
        let (reason, message) = match held {
            Some((lease, holding)) if is_lost => {
                let timeouts = self.timeouts_of(observed, lease);
                let allowed = timeouts.allowed(&holding.phase, node.ready);
                let message = overdue::message(node, lease, &holding.phase, allowed);
                (CommonReason::RebootTimedOut, message)
            }
            Some(_) => (
                CommonReason::HeardAgain,
                format!("the agent of node {} reports again", node.name),
            ),
            None => (
                CommonReason::NoBerth,
                format!("node {} no longer holds a berth", node.name),
            ),
        };
        let verdict = if is_lost {
            Verdict::yes(reason, &*message)
        } else {
            Verdict::no(reason, &*message)
        };
        let condition = (REBOOT_TIMED_OUT, verdict);
        let written = write_condition(&self.kube, node.name.as_str(), host, condition, observed.wall).await;
        if self.outcome(&key(KIND, node.name.as_str()), written)?.is_none() {
            return Ok(());
        }
        if is_lost {
            tracing::warn!(node = %node.name, %message, "set the condition RebootTimedOut");
            let pool = held.and_then(|(lease, _)| observed.pool(&lease.pool)?.object.as_ref());
            let note = Note::reboot_timed_out(&node.name, &node.uid, message, pool);
            self.outside.events.queue(note);
        } else {
            tracing::info!(node = %node.name, reason = reason.as_str(), "cleared the condition RebootTimedOut");
        }
        Ok(())
    }

    fn timeouts_of(&self, observed: &Observed, lease: &LeaseView) -> Timeouts {
        Pool::timeouts(observed.pool(&lease.pool), self.settings.agent_silence)
    }
}

fn holder<'a>(
    this: &Reconciler,
    observed: &'a Observed,
    node: &'a NodeView,
    lease: &LeaseView,
    holding: &'a Holding,
) -> Holder<'a> {
    let host = observed.snapshot.bootc_nodes.get(node.name.as_str());
    // When this process last saw a sign of life of the holder: a report of its agent, or a write to the berth.
    let berth = observed.snapshot.leases.get(lease.name()).map(|entry| entry.heard);
    Holder {
        node,
        host: host.map(|entry| entry.view.as_ref()),
        holding,
        heard: berth.max(host.map(|entry| entry.heard)),
        lively: observed.heard.contains(&node.name),
        timeouts: this.timeouts_of(observed, lease),
    }
}
