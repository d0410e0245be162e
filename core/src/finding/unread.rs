//! Finding about a change to a pool that the controller has not read in time.

use berth_api::PoolName;
use berth_api::condition::CommonReason;
use berth_api::pool::BootcNodePool;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;

use super::kind::Kind;
use super::{Finding, Subject};

/// Seconds that the controller may take to read a change. Allows for a change of leader, and for a local clock that is
/// ahead of the API server's clock.
const GRACE: i64 = 120;

/// Returns a finding if the controller should have read the pool's last change by now. A change without a known time
/// counts as overdue.
pub fn finding(pool: &BootcNodePool, now: Timestamp) -> Option<Finding> {
    let asked = pool.metadata.generation?;
    let observed = pool.status.as_ref().and_then(|s| s.observed_generation);
    if observed.is_some_and(|seen| seen >= asked) {
        return None;
    }
    let since = changed(pool);
    let is_new = since.is_some_and(|since| now.as_second() - since.as_second() < GRACE);
    let subject = Subject::Pool(PoolName::new(pool.name_any()));
    let message = "the controller has not read the last change of this pool yet";
    (!is_new).then(|| Finding {
        since,
        ..Finding::new(Kind::ControllerBehind, subject, CommonReason::ControllerBehind, message)
    })
}

/// Returns the time when the spec was last changed, or when the deletion of the pool was requested, whichever is later.
/// Both times are by the API server's clock.
fn changed(pool: &BootcNodePool) -> Option<Timestamp> {
    let changes = pool.managed_fields().iter().filter(|entry| is_of_spec(entry));
    let times = changes.filter_map(|entry| entry.time.as_ref());
    times.chain(&pool.metadata.deletion_timestamp).map(|time| time.0).max()
}

fn is_of_spec(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
    entry.subresource.is_none() && fields.is_some_and(|fields| fields.contains_key("f:spec"))
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
    fn a_change_unread_after_the_grace_time_warns() {
        fn edit(second: i64) -> Value {
            by("kubectl-edit", None, second, "f:spec")
        }
        let status = by("berth-controller", Some("status"), 199, "f:spec");
        let finalizer = by("berth-controller", None, 199, "f:metadata");
        let none = json!([]);
        for (generation, observed, managed, deleted, expected) in [
            (json!(2), json!(2), json!([edit(0)]), None, None),
            (json!(2), json!(1), json!([edit(81)]), None, None),
            (json!(2), json!(1), json!([edit(80)]), None, Some(Some(80))),
            (json!(2), json!(1), json!([edit(0), edit(81)]), None, None),
            // The API server's clock may be ahead of the local one.
            (json!(2), json!(1), json!([edit(260)]), None, None),
            // Writes of a status or of metadata are not changes of the spec.
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
            let since = finding(&pool, at(200)).map(|found| found.since);
            assert_eq!(since, expected.map(|second| second.map(at)), "{pool:?}");
        }
    }
}
