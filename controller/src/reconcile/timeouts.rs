//! Between phases 6 and 7, client required: which holders do not come back, and telling of it on their BootcNodes.

use std::collections::BTreeSet;

use berth_api::berth::{HoldPhase, Holding};
use berth_api::condition::{Verdict, Why, node as types};
use berth_api::node::BootcNode;
use berth_api::pool::DEFAULT_REBOOT_TIMEOUT;
use berth_api::{NodeUid, keys};
use berth_core::controller::overdue::{Holder, Timeouts};
use berth_core::controller::pool::Pool;
use berth_core::controller::view::{LeaseView, NodeView};

use super::Reconciler;
use super::seen::{Berths, Seen};
use super::waiting::told;
use crate::events::Note;
use crate::leader::Lost;

impl Reconciler {
    /// Works out who does not come back, and makes the conditions `RebootTimedOut` say so.
    pub(super) async fn timeouts(&mut self, seen: &Seen, berths: &Berths) -> Result<BTreeSet<NodeUid>, Lost> {
        let holders = berths.leases.iter().filter_map(|lease| {
            let holding = lease.berth.as_ref().ok()?.holding()?;
            let node = seen.snapshot.nodes.get(holding.node.as_str())?.view.as_ref();
            (node.uid == holding.uid).then(|| holder(self, seen, node, lease, holding))
        });
        let holders: Vec<Holder<'_>> = holders.collect();
        let timed_out = self.memory.overdue.judge(holders.into_iter(), seen.now);
        let hosts = || seen.snapshot.bootc_nodes.iter();
        let said = hosts()
            .filter(|(_, host)| host.view.has_timed_out())
            .map(|(name, _)| name);
        let lost = seen
            .snapshot
            .nodes
            .iter()
            .filter(|(_, n)| timed_out.contains(&n.view.uid))
            .map(|(name, _)| name);
        for name in said.chain(lost).collect::<BTreeSet<_>>() {
            self.say(seen, berths, &timed_out, name).await?;
        }
        Ok(timed_out)
    }

    /// Makes one BootcNode say whether its node comes back, if it does not.
    async fn say(
        &mut self,
        seen: &Seen,
        berths: &Berths,
        timed_out: &BTreeSet<NodeUid>,
        name: &str,
    ) -> Result<(), Lost> {
        let (Some(host), Some(node)) = (seen.snapshot.bootc_nodes.get(name), seen.snapshot.nodes.get(name)) else {
            return Ok(());
        };
        let lost = timed_out.contains(&node.view.uid);
        let key = format!("timeout/{name}");
        if lost == host.view.has_timed_out()
            || host.view.content.is_err()
            || !self.memory.backoffs.ready(&key, seen.now)
        {
            return Ok(());
        }
        let held = berths.leases.iter().find_map(|lease| {
            let holding = lease.berth.as_ref().ok()?.holding()?;
            (holding.uid == node.view.uid).then_some((lease, holding))
        });
        let (reason, message) = match held {
            Some((lease, holding)) if lost => {
                let allowed = self.timeouts_of(seen, lease).allowed(&holding.phase, node.view.ready);
                (
                    Why::RebootTimedOut,
                    lost_words(&node.view, lease, &holding.phase, allowed.as_secs()),
                )
            }
            Some(_) => (Why::HeardAgain, format!("node {name} was heard of again")),
            None => (Why::NoBerth, format!("node {name} holds no berth any more")),
        };
        let verdict = match lost {
            true => Verdict::yes(reason, &*message),
            false => Verdict::no(reason, &*message),
        };
        let body = told(name, &host.view, (types::REBOOT_TIMED_OUT, verdict), seen.wall);
        let result = self.kube.apply_status(&self.kube.all::<BootcNode>(), name, body).await;
        if self.outcome(&key, result)?.is_some() {
            if lost {
                tracing::warn!(node = %name, %message, "RebootTimedOut");
                let pool = held.and_then(|(lease, _)| seen.pools.iter().find(|pool| pool.name == lease.pool));
                let pool = pool.and_then(|pool| pool.object.as_ref());
                self.outside
                    .events
                    .tell(Note::reboot_timed_out(&node.view.name, &node.view.uid, message, pool));
            } else {
                tracing::info!(node = %name, reason = reason.as_str(), "no longer RebootTimedOut");
            }
        }
        Ok(())
    }

    fn timeouts_of(&self, seen: &Seen, lease: &LeaseView) -> Timeouts {
        let pool = seen.pools.iter().find(|pool| pool.name == lease.pool);
        Timeouts {
            reboot: pool.map_or(DEFAULT_REBOOT_TIMEOUT, Pool::reboot_timeout),
            silence: self.settings.agent_silence,
        }
    }
}

fn holder<'a>(
    this: &Reconciler,
    seen: &'a Seen,
    node: &'a NodeView,
    lease: &LeaseView,
    holding: &'a Holding,
) -> Holder<'a> {
    let host = seen.snapshot.bootc_nodes.get(node.name.as_str());
    // By what this process has seen of it: its report, and what it wrote on its berth.
    let berth = seen.snapshot.leases.get(lease.name()).map(|entry| entry.heard);
    Holder {
        node,
        host: host.map(|entry| entry.view.as_ref()),
        holding,
        heard: berth.max(host.map(|entry| entry.heard)),
        lively: seen.heard.contains(&node.name),
        timeouts: this.timeouts_of(seen, lease),
    }
}

/// Says for how long nobody has heard of it in words: whoever reads it has another clock than this machine.
fn lost_words(node: &NodeView, lease: &LeaseView, phase: &HoldPhase, allowed: u64) -> String {
    let what = match phase {
        HoldPhase::Committed => "has not come back from its reboot",
        HoldPhase::Taken | HoldPhase::Releasing(_) => "is silent in the middle of its turn",
    };
    format!(
        "node {} {what}: nothing was heard of it for {allowed} s; it keeps berth {} until it is back, so repair it, \
         delete its Node, or label the Node {}",
        node.name,
        lease.name(),
        keys::LABEL_EXCLUDE
    )
}
