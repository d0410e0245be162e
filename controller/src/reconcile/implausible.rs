//! Reports nodes whose reports cannot be true, on their BootcNodes. A pass does this between its phases 6 and 7. Sends
//! requests to the API server.

use std::collections::BTreeMap;

use berth_api::NodeUid;
use berth_api::condition::node::IMPLAUSIBLE;
use berth_core::controller::implausible::{Facts, Held, Implausible, Witness};
use berth_core::controller::view::LeaseView;

use super::node_writes::{key, write_condition};
use super::phases::{Berths, Observed};
use super::reconciler::Reconciler;
use crate::events::Note;
use crate::leader::Lost;

/// Backoff key of writes of the condition `Implausible`.
const KIND: &str = "implausible";

impl Reconciler {
    /// Updates the conditions `Implausible`. Returns the nodes whose reports cannot be true, by the UID of the Node.
    /// The pool's status and the metrics show them even if the condition cannot be written.
    pub(super) async fn implausible(
        &mut self,
        observed: &Observed,
        berths: &Berths,
    ) -> Result<BTreeMap<NodeUid, Implausible>, Lost> {
        let facts = Facts {
            witnesses: self.witnesses(observed, berths),
            server: self.outside.server_clock.last(),
            silence: self.settings.agent_silence,
            deaf: !observed.snapshot.stale.is_empty(),
            now: observed.now,
        };
        let found = self.memory.nodes.implausible.judge(&facts);
        for (name, host) in observed.snapshot.bootc_nodes.iter() {
            let (Some(node), Some(content)) = (observed.node(name), host.view.readable()) else {
                continue;
            };
            let verdict = Implausible::verdict(found.get(&node.uid), content);
            let Some(verdict) = verdict.filter(|_| self.may_write(KIND, name, observed.now)) else {
                continue;
            };
            let (is_new, reason) = (verdict.status == Some(true), verdict.reason.to_string());
            let (message, pool) = (verdict.message.clone(), content.spec.pool_name.as_str().into());
            let written = write_condition(&self.kube, name, &host.view, (IMPLAUSIBLE, verdict), observed.wall).await;
            if self.outcome(&key(KIND, name), written)?.is_none() {
                continue;
            }
            if is_new {
                tracing::warn!(node = %name, reason, %message, "set the condition Implausible");
                let pool = observed.pool(&pool).and_then(|pool| pool.object.as_ref());
                self.outside
                    .events
                    .queue(Note::implausible(&node.name, &node.uid, message, pool));
            } else {
                tracing::info!(node = %name, "cleared the condition Implausible");
            }
        }
        Ok(found)
    }

    fn witnesses<'a>(&self, observed: &'a Observed, berths: &'a Berths) -> Vec<Witness<'a>> {
        let held = berths
            .leases
            .iter()
            .filter_map(|lease| Some((lease.holding()?.uid.clone(), lease)));
        let held: BTreeMap<NodeUid, &LeaseView> = held.collect();
        let (nodes, hosts) = (&observed.snapshot.nodes, observed.snapshot.bootc_nodes.iter());
        let witnesses = hosts.filter_map(|(name, host)| {
            let node = nodes.get(name)?;
            let lease = held.get(&node.view.uid);
            Some(Witness {
                node,
                host,
                held: lease.and_then(|lease| self.held(observed, lease)),
                lively: observed.heard.contains(&node.view.name),
            })
        });
        witnesses.collect()
    }

    fn held<'a>(&self, observed: &Observed, lease: &'a LeaseView) -> Option<Held<'a>> {
        let holding = lease.holding()?;
        let berth = observed.snapshot.leases.get(lease.name()).map(|entry| entry.heard);
        let host = observed.snapshot.bootc_nodes.get(holding.node.as_str());
        let pool = observed.pool(&lease.pool);
        Some(Held {
            berth: lease.name(),
            holding,
            heard: berth.max(host.map(|host| host.heard)).unwrap_or(observed.now),
            limit: pool.and_then(|pool| pool.turn_limit(self.settings.agent_silence.saturating_mul(2))),
        })
    }
}
