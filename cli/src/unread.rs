//! Changes of a pool that the controller has not read yet. For a while after the change that is no trouble.

use berth_api::pool::BootcNodePool;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;

use crate::status::Warning;

/// Seconds for which the controller may take no notice of a change, for whatever reason: a new leader, or a clock of this machine
/// that goes ahead of the API server's by somewhat less.
const GRACE: i64 = 120;

/// The warning about a change that should have been read by now. One of which the API server does not tell the time should.
pub(crate) fn unread(pool: &BootcNodePool, now: Timestamp) -> Option<Warning> {
    let asked = pool.metadata.generation?;
    let observed = pool.status.as_ref().and_then(|s| s.observed_generation);
    if observed.is_some_and(|seen| seen >= asked) {
        return None;
    }
    let since = changed(pool);
    let is_new = since.is_some_and(|since| now.as_second() - since.as_second() < GRACE);
    (!is_new).then(|| Warning {
        type_: Warning::UNREAD.to_owned(),
        since,
        ..Warning::told(
            "ControllerBehind",
            "the controller has not read the last change of this pool yet",
        )
    })
}

/// Time of the last change of the spec, or of the request to delete the pool, by the API server's clock.
fn changed(pool: &BootcNodePool) -> Option<Timestamp> {
    let is_spec = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
        entry.subresource.is_none() && fields.is_some_and(|fields| fields.contains_key("f:spec"))
    };
    let changes = pool.managed_fields().iter().filter(is_spec);
    let times = changes.filter_map(|entry| entry.time.as_ref());
    times.chain(&pool.metadata.deletion_timestamp).map(|time| time.0).max()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn pool(generation: Value, observed: Value, managed: Value, deleted: Option<i64>) -> BootcNodePool {
        let pool = json!({
            "metadata": {
                "name": "p", "generation": generation, "managedFields": managed,
                "deletionTimestamp": deleted.map(|second| at(second).to_string()),
            },
            "spec": {}, "status": {"observedGeneration": observed},
        });
        serde_json::from_value(pool).unwrap()
    }

    fn by(manager: &str, subresource: Option<&str>, second: i64, field: &str) -> Value {
        json!({
            "manager": manager, "operation": "Update", "subresource": subresource, "time": at(second).to_string(),
            "fieldsV1": {field: {}},
        })
    }

    #[test]
    fn a_change_has_its_time_to_be_read_and_one_that_stays_unread_is_told() {
        let edit = |second| by("kubectl-edit", None, second, "f:spec");
        let status = by("berth-controller", Some("status"), 199, "f:spec");
        let finalizer = by("berth-controller", None, 199, "f:metadata");
        let none = json!([]);
        for (generation, observed, managed, deleted, told) in [
            (json!(2), json!(2), json!([edit(0)]), None, None),
            (json!(2), json!(1), json!([edit(81)]), None, None),
            (json!(2), json!(1), json!([edit(80)]), None, Some(Some(80))),
            (json!(2), json!(1), json!([edit(0), edit(81)]), None, None),
            // Another machine's clock may go ahead of this one's.
            (json!(2), json!(1), json!([edit(260)]), None, None),
            // Whatever else was written is no change of the spec.
            (
                json!(2),
                json!(1),
                json!([edit(80), status, finalizer]),
                None,
                Some(Some(80)),
            ),
            (json!(2), Value::Null, json!([edit(81)]), None, None),
            (json!(1), Value::Null, json!([edit(2)]), None, Some(Some(2))),
            (json!(3), json!(2), json!([edit(0)]), Some(81), None),
            (json!(3), json!(2), json!([edit(0)]), Some(80), Some(Some(80))),
            (json!(2), json!(1), none.clone(), None, Some(None)),
            (Value::Null, Value::Null, none.clone(), None, None),
        ] {
            let pool = pool(generation, observed, managed, deleted);
            let warning = unread(&pool, at(200));
            assert!(warning.iter().all(|w| w.type_ == Warning::UNREAD), "{warning:?}");
            let since = warning.map(|warning| warning.since);
            assert_eq!(since, told.map(|second| second.map(at)), "{pool:?}");
        }
    }
}
