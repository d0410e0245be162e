//! Between phases 6 and 7, needs a client: reports on nodes why they wait, a few at a time.

use std::collections::BTreeMap;

use berth_api::condition::{self, Verdict, node as types};
use berth_api::membership::Membership;
use berth_api::node::BootcNode;
use berth_api::{PoolName, keys};
use berth_core::controller::plan::Plan;
use berth_core::controller::view::BootcNodeView;
use berth_core::controller::waiting;
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::phases::Observed;
use super::reconciler::Reconciler;
use crate::leader::Lost;

/// Maximum number of BootcNodes written in parallel.
const CONCURRENCY: usize = 10;

impl Reconciler {
    /// Updates the conditions `Waiting` with the reasons why nodes wait. Runs after the berths and only briefly: a late
    /// reason does no harm.
    pub(super) async fn waiting(
        &mut self,
        observed: &Observed,
        membership: &Membership,
        plans: &BTreeMap<PoolName, Plan>,
    ) -> Result<(), Lost> {
        let mut wanted = waiting::wanted(&observed.snapshot, &observed.pools, membership, plans);
        wanted.retain(|name, _| self.memory.backoffs.is_ready(&key(name.as_str()), observed.now));
        let picked = self.memory.desk.pick(wanted, observed.now);
        if let Some(due) = self.memory.desk.due() {
            self.again(due);
        }
        let bodies = picked.into_iter().filter_map(|(name, verdict)| {
            let host = observed.snapshot.bootc_nodes.get(name.as_str())?;
            let reason = verdict.reason.clone();
            Some((
                apply_body(name.as_str(), &host.view, (types::WAITING, verdict), observed.wall),
                name,
                reason,
            ))
        });
        let kube = self.kube.clone();
        let results: Vec<_> = futures::stream::iter(bodies)
            .map(|(body, name, reason)| {
                let kube = kube.clone();
                async move {
                    let result = kube.apply_status(&kube.all::<BootcNode>(), name.as_str(), body).await;
                    (name, reason, result)
                }
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (name, reason, result) in results {
            if self.outcome(&key(name.as_str()), result)?.is_some() {
                tracing::info!(node = %name, reason = &*reason, "Waiting");
            }
        }
        Ok(())
    }
}

fn key(name: &str) -> String {
    format!("waiting/{name}")
}

/// Body of a server-side apply that sets one of the controller's conditions. It repeats the others, since an apply
/// removes the fields that it leaves out.
pub(super) fn apply_body(name: &str, host: &BootcNodeView, (type_, verdict): (&str, Verdict), now: Timestamp) -> Value {
    let mut conditions = host
        .content
        .as_ref()
        .map(|content| content.told.clone())
        .unwrap_or_default();
    condition::set(&mut conditions, type_, verdict, host.generation, now);
    json!({
        "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
        "kind": "BootcNode",
        "metadata": { "name": name, "uid": host.uid },
        "status": { "conditions": conditions },
    })
}

#[cfg(test)]
mod tests {
    use kube::core::DeserializeGuard;

    use super::*;

    #[test]
    fn one_apply_has_all_controller_conditions() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let host = json!({
            "metadata": {"name": "n1", "uid": "u1", "generation": 3}, "spec": {},
            "status": {"conditions": [condition("Staged", "True"), condition("RebootTimedOut", "True")]},
        });
        let host = BootcNodeView::of(DeserializeGuard(Ok(serde_json::from_value(host).unwrap())));
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let body = apply_body(
            "n1",
            &host,
            (types::WAITING, Verdict::yes(condition::Why::WaveWaiting, "a\nb")),
            now,
        );
        let said: Vec<_> = body["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| ["type", "status", "message", "lastTransitionTime"].map(|key| c[key].as_str().unwrap()))
            .collect();
        assert_eq!(
            said,
            [
                ["RebootTimedOut", "True", "", "2026-01-01T00:00:00Z"],
                ["Waiting", "True", "a b", "2027-01-15T08:00:00Z"],
            ]
        );
        assert_eq!(body["metadata"]["uid"], "u1");
    }
}
