//! Events of machines that are held back on their first boot. Such a machine has no Node; only its event reports it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::condition::one_line;
use berth_api::firstboot::{EVENT_HOLDS, EVENT_REFUSED};
use berth_core::controller::fleet::held::Refusal;
use berth_shell::{locked, retry};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, ObjectList, Request};
use kube::{Client, Resource};
use serde::Deserialize;

use crate::store::{PAGE, Store};

/// Namespace of events about cluster-scoped objects.
const NAMESPACE: &str = "default";
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two lists, before jitter.
const LIST_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum delay after repeated failures.
const LIST_RETRY_MAX: Duration = Duration::from_secs(600);

/// The fields of an event that Berth reads. Every node can write events, so no other field may fail the list.
#[derive(Debug, Clone, Deserialize)]
struct RefusalEvent {
    metadata: EventMetadata,
    reason: Option<String>,
    action: Option<String>,
    note: Option<String>,
    regarding: Option<Machine>,
}

/// The metadata of an event. The API server sets this time.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventMetadata {
    creation_timestamp: Option<String>,
}

/// The machine that an event is about.
#[derive(Debug, Clone, Deserialize)]
struct Machine {
    name: Option<String>,
}

/// Results of listing the events of machines that are held back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reports {
    /// Result of the last successful list; `None` before the first.
    pub refusals: Option<Vec<Refusal>>,
    /// Error of the latest list, if it failed.
    pub error: Option<String>,
}

/// Lists the events in a background task.
#[derive(Debug, Clone)]
pub struct FirstBoots {
    reports: Arc<Mutex<Reports>>,
}

impl FirstBoots {
    /// Starts the background task. A change of the results starts a pass.
    pub fn start(client: Client, store: Store) -> Self {
        let reports = Arc::<Mutex<Reports>>::default();
        tokio::spawn(run(client, reports.clone(), store));
        Self { reports }
    }

    /// Returns the latest results.
    pub fn reports(&self) -> Reports {
        locked(&self.reports).clone()
    }
}

async fn run(client: Client, reports: Arc<Mutex<Reports>>, store: Store) {
    let mut failures = 0;
    loop {
        let listed = list(&client).await;
        let delay = match &listed {
            Ok(_) => {
                failures = 0;
                retry::delay(1, LIST_INTERVAL, LIST_INTERVAL)
            }
            Err(error) => {
                failures += 1;
                tracing::warn!(%error, "cannot list the events of machines on their first boot");
                retry::delay(failures, LIST_INTERVAL, LIST_RETRY_MAX)
            }
        };
        if locked(&reports).take(listed) {
            store.wake();
        }
        tokio::time::sleep(delay).await;
    }
}

impl Reports {
    /// Records the result of listing the events. Returns true if the reports have changed.
    fn take(&mut self, listed: Result<Vec<Refusal>, String>) -> bool {
        let now = match listed {
            Ok(refusals) => Self {
                refusals: Some(refusals),
                error: None,
            },
            Err(error) => Self {
                refusals: self.refusals.clone(),
                error: Some(error),
            },
        };
        let is_news = *self != now;
        *self = now;
        is_news
    }
}

/// Returns the machines that are held back, from the first page of events. If the machines do not fit into one page,
/// the others probably have the same cause.
async fn list(client: &Client) -> Result<Vec<Refusal>, String> {
    let params = ListParams::default()
        .fields(&format!("reason={EVENT_REFUSED}"))
        .limit(PAGE);
    let request = Request::new(Event::url_path(&(), Some(NAMESPACE))).list(&params);
    let request = request.map_err(|error| error.to_string())?;
    match tokio::time::timeout(LIST_TIMEOUT, client.request::<ObjectList<RefusalEvent>>(request)).await {
        Ok(Ok(list)) => Ok(list.items.iter().filter_map(refusal).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!(
            "the API server gave no answer within {} s",
            LIST_TIMEOUT.as_secs()
        )),
    }
}

/// Reads an event. `None` if the event does not report a machine that is held back.
fn refusal(event: &RefusalEvent) -> Option<Refusal> {
    if event.reason.as_deref() != Some(EVENT_REFUSED) || event.action.as_deref() != Some(EVENT_HOLDS) {
        return None;
    }
    Some(Refusal {
        machine: event.regarding.as_ref()?.name.clone()?,
        message: one_line(event.note.as_deref().unwrap_or_default()),
        // By the API server's clock: a machine's own clock may be years off on its first boot.
        at: event.metadata.creation_timestamp.as_ref()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_list_keeps_the_last_result() {
        let refusal = Refusal {
            machine: "m7".to_owned(),
            message: "too old".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        };
        let mut reports = Reports::default();
        assert!(reports.take(Err("forbidden".to_owned())) && reports.refusals.is_none());
        assert!(reports.take(Ok(vec![refusal.clone()])) && reports.error.is_none());
        assert!(!reports.take(Ok(vec![refusal.clone()])));
        assert!(reports.take(Err("forbidden".to_owned())));
        assert!(!reports.take(Err("forbidden".to_owned())));
        assert_eq!(reports.refusals, Some(vec![refusal]));
    }

    #[test]
    fn only_machines_with_a_held_kubelet_count() {
        fn event(reason: &str, action: &str) -> RefusalEvent {
            // Times that the API server accepts, but that cannot be decoded.
            let late = "9999-12-31T23:59:59Z";
            serde_json::from_value(json!({
                "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{ "time": late }] },
                "reason": reason, "action": action, "note": "m7: too old",
                "eventTime": late, "series": { "count": 1, "lastObservedTime": late }, "regarding": { "kind": "Node", "name": "m7" },
            }))
            .unwrap()
        }
        let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (event, expected) in [
            (event("FirstBootRefused", "HoldKubelet"), Some(created)),
            (event("FirstBootRefused", "Report"), None),
            (event("FirstBootPivotFailed", "HoldKubelet"), None),
        ] {
            let found = refusal(&event);
            assert_eq!(found.as_ref().map(|refusal| refusal.at), expected);
            assert!(found.is_none_or(|refusal| refusal.machine == "m7" && refusal.message == "m7: too old"));
        }
    }
}
