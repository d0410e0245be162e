//! Between phases 6 and 7 of a pass: sets the condition `Waiting` of a few nodes. Sends requests to the API server.

use std::collections::BTreeMap;

use berth_api::PoolName;
use berth_api::condition::node::WAITING;
use berth_api::membership::Membership;
use berth_core::controller::plan::Plan;
use berth_core::controller::waiting;

use super::node_writes::write_condition;
use super::phases::Observed;
use super::reconciler::Reconciler;
use crate::api::CallError;
use crate::leader::Lost;

/// Backoff key of writes of the condition `Waiting`.
const KIND: &str = "waiting";

impl Reconciler {
    /// Updates the condition `Waiting` of a few nodes in each pass. Runs after the writes of berths, because a small
    /// delay of this condition does no harm.
    pub(super) async fn waiting(
        &mut self,
        observed: &Observed,
        membership: &Membership,
        plans: &BTreeMap<PoolName, Plan>,
    ) -> Result<(), Lost> {
        let mut wanted = waiting::wanted(&observed.snapshot, &observed.pools, membership, plans);
        wanted.retain(|name, _| self.may_write(KIND, name.as_str(), observed.now));
        let picked = self.memory.waiting.pick(wanted, observed.now);
        if let Some(due) = self.memory.waiting.due() {
            self.again(due);
        }
        let written = self
            .write_nodes(
                KIND,
                picked,
                |(name, _)| name.as_str(),
                async |kube, (name, verdict)| {
                    let Some(host) = observed.host(name.as_str()) else {
                        return Err(CallError::Conflict(format!("BootcNode {name} is gone")));
                    };
                    write_condition(kube, name.as_str(), host, (WAITING, verdict.clone()), observed.wall).await
                },
            )
            .await?;
        for ((name, verdict), ()) in written {
            tracing::info!(node = %name, reason = &*verdict.reason, "wrote the condition Waiting");
        }
        Ok(())
    }
}
