//! Between phases 6 and 7, needs a client: finds holders that do not come back, and reports them on their BootcNodes.

use std::collections::BTreeSet;

use berth_api::NodeUid;
use berth_api::berth::Holding;
use berth_api::condition::{Verdict, Why, node as types};
use berth_api::node::BootcNode;
use berth_api::pool::DEFAULT_REBOOT_TIMEOUT;
use berth_core::controller::overdue::{self, Holder, Timeouts};
use berth_core::controller::pool::Pool;
use berth_core::controller::view::{LeaseView, NodeView};

use super::phases::{Berths, Observed};
use super::reconciler::Reconciler;
use super::waiting::apply_body;
use crate::events::Note;
use crate::leader::Lost;

impl Reconciler {
    /// Finds the holders that do not come back, and updates the conditions `RebootTimedOut`.
    pub(super) async fn timeouts(&mut self, observed: &Observed, berths: &Berths) -> Result<BTreeSet<NodeUid>, Lost> {
        let holders = berths.leases.iter().filter_map(|lease| {
            let holding = lease.berth.as_ref().ok()?.holding()?;
            let node = observed.snapshot.nodes.get(holding.node.as_str())?.view.as_ref();
            (node.uid == holding.uid).then(|| holder(self, observed, node, lease, holding))
        });
        let holders: Vec<Holder<'_>> = holders.collect();
        let timed_out = self.memory.overdue.judge(holders.into_iter(), observed.now);
        let hosts = observed.snapshot.bootc_nodes.iter();
        let said = hosts
            .filter(|(_, host)| host.view.has_timed_out())
            .map(|(name, _)| name);
        let lost = observed
            .snapshot
            .nodes
            .iter()
            .filter(|(_, n)| timed_out.contains(&n.view.uid))
            .map(|(name, _)| name);
        for name in said.chain(lost).collect::<BTreeSet<_>>() {
            self.update_condition(observed, berths, &timed_out, name).await?;
        }
        Ok(timed_out)
    }

    /// Updates the condition of one BootcNode if it has changed.
    async fn update_condition(
        &mut self,
        observed: &Observed,
        berths: &Berths,
        timed_out: &BTreeSet<NodeUid>,
        name: &str,
    ) -> Result<(), Lost> {
        let (Some(host), Some(node)) = (
            observed.snapshot.bootc_nodes.get(name),
            observed.snapshot.nodes.get(name),
        ) else {
            return Ok(());
        };
        let lost = timed_out.contains(&node.view.uid);
        let key = format!("timeout/{name}");
        if lost == host.view.has_timed_out()
            || host.view.content.is_err()
            || !self.memory.backoffs.is_ready(&key, observed.now)
        {
            return Ok(());
        }
        let held = berths.leases.iter().find_map(|lease| {
            let holding = lease.berth.as_ref().ok()?.holding()?;
            (holding.uid == node.view.uid).then_some((lease, holding))
        });
        let (reason, message) = match held {
            Some((lease, holding)) if lost => {
                let allowed = self
                    .timeouts_of(observed, lease)
                    .allowed(&holding.phase, node.view.ready);
                (
                    Why::RebootTimedOut,
                    overdue::message(&node.view, lease, &holding.phase, allowed),
                )
            }
            Some(_) => (Why::HeardAgain, format!("node {name} was heard from again")),
            None => (Why::NoBerth, format!("node {name} no longer holds a berth")),
        };
        let verdict = if lost {
            Verdict::yes(reason, &*message)
        } else {
            Verdict::no(reason, &*message)
        };
        let body = apply_body(name, &host.view, (types::REBOOT_TIMED_OUT, verdict), observed.wall);
        let result = self.kube.apply_status(&self.kube.all::<BootcNode>(), name, body).await;
        if self.outcome(&key, result)?.is_some() {
            if lost {
                tracing::warn!(node = %name, %message, "RebootTimedOut");
                let pool = held.and_then(|(lease, _)| observed.pools.iter().find(|pool| pool.name == lease.pool));
                let pool = pool.and_then(|pool| pool.object.as_ref());
                self.outside
                    .events
                    .queue(Note::reboot_timed_out(&node.view.name, &node.view.uid, message, pool));
            } else {
                tracing::info!(node = %name, reason = reason.as_str(), "no longer RebootTimedOut");
            }
        }
        Ok(())
    }

    fn timeouts_of(&self, observed: &Observed, lease: &LeaseView) -> Timeouts {
        let pool = observed.pools.iter().find(|pool| pool.name == lease.pool);
        Timeouts {
            reboot: pool.map_or(DEFAULT_REBOOT_TIMEOUT, Pool::reboot_timeout),
            silence: self.settings.agent_silence,
        }
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
    // As seen by this process: in its report, and in its writes of its berth.
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
