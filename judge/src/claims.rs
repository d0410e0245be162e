//! The readiness that a Node claims. The controller believes it, even if a liar wrote it.

use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use crate::history::RecordedState;
use crate::judge::Judge;
use crate::names::name_of;
use crate::write::text;

impl Judge<'_> {
    /// True if the Node was not Ready when a berth was written, or less than the lag before, so that Berth may
    /// have counted the node as unavailable. A Node that cannot be read counts as not Ready.
    pub(super) fn claims_not_ready(&self, node: &str, state: &RecordedState) -> bool {
        let mut last = false;
        for (version, record, object) in self.writes("nodes/status") {
            if *version >= state.version || name_of(record, object) != node {
                continue;
            }
            let now = !is_ready(object) || serde_json::from_value::<Node>((*object).clone()).is_err();
            if (now || last) && record.at + self.lag >= state.received {
                return true;
            }
            last = now;
        }
        last
    }
}

fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| text(c, "/type") == Some("Ready") && text(c, "/status") == Some("True"))
}
