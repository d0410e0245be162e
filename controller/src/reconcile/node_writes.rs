//! Writes to many BootcNodes in parallel. A failed write delays only the next write of the same kind to the same node.

use berth_api::condition::{self, Verdict};
use berth_api::decode::Decoded;
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_core::Moment;
use berth_core::controller::view::BootcNodeView;
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::reconciler::Reconciler;
use crate::api::{CallError, Kube, MANAGER};
use crate::leader::Lost;

const CONCURRENCY: usize = 16;

pub(super) fn key(kind: &str, node: &str) -> String {
    format!("{kind}/{node}")
}

impl Reconciler {
    /// False while a failed write of this kind to the node waits for its retry.
    pub(super) fn may_write(&self, kind: &str, node: &str, now: Moment) -> bool {
        self.memory.backoffs.is_ready(&key(kind, node), now)
    }

    /// Makes one write for each item. Returns the items that were written, with their results. `name` returns an item's
    /// node.
    pub(super) async fn write_nodes<T, R>(
        &mut self,
        kind: &str,
        items: Vec<T>,
        name: fn(&T) -> &str,
        write: impl AsyncFn(&Kube, &T) -> Result<R, CallError>,
    ) -> Result<Vec<(T, R)>, Lost> {
        let (kube, write) = (&self.kube, &write);
        let requests = items.into_iter().map(|item| async move {
            let result = write(kube, &item).await;
            (item, result)
        });
        let requests = futures::stream::iter(requests).buffer_unordered(CONCURRENCY);
        let results: Vec<(T, Result<R, CallError>)> = requests.collect().await;
        let mut written = vec![];
        for (item, result) in results {
            if let Some(value) = self.outcome(&key(kind, name(&item)), result)? {
                written.push((item, value));
            }
        }
        Ok(written)
    }
}

pub(super) async fn write_condition(
    kube: &Kube,
    name: &str,
    host: &BootcNodeView,
    condition: (&str, Verdict),
    now: Timestamp,
) -> Result<(), CallError> {
    let body = condition_body(name, host, condition, now);
    kube.apply_status(MANAGER, &kube.all::<Decoded<BootcNode>>(), name, body)
        .await
        .map(drop)
}

/// Body of an apply that sets one condition. Contains the controller's other conditions too, because the apply would
/// remove missing ones.
fn condition_body(name: &str, host: &BootcNodeView, (type_, verdict): (&str, Verdict), now: Timestamp) -> Value {
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
    use super::*;

    #[test]
    fn one_apply_has_all_controller_conditions() {
        let conditions = ["Staged", "RebootTimedOut"].map(|type_| {
            json!({"type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let host = json!({
            "metadata": {"name": "n1", "uid": "u1", "generation": 3}, "spec": {}, "status": {"conditions": conditions},
        });
        let host = BootcNodeView::of(serde_json::from_value(host).unwrap());
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let body = condition_body(
            "n1",
            &host,
            (
                condition::node::WAITING,
                Verdict::yes(condition::CommonReason::WaveWaiting, "a\nb"),
            ),
            now,
        );
        let said: Vec<_> = body["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| ["type", "status", "message", "lastTransitionTime"].map(|field| c[field].as_str().unwrap()))
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
