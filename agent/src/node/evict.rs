//! Requests the eviction or deletion of one pod and interprets the API server's answer.

use std::future::Future;
use std::time::Duration;

use berth_api::condition::one_line;
use kube::Client;
use kube::core::Status;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::pods::Pod;
use super::{request, send};
use crate::clients::RequestError;

/// How long to send no requests if the API server is overloaded and does not send `retryAfterSeconds`.
const OVERLOAD_PAUSE: Duration = Duration::from_secs(2);

/// Result of asking a pod to leave the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The pod is terminating.
    Accepted,
    /// The pod is gone. Another pod may have its name.
    Gone,
    /// A PodDisruptionBudget does not permit the eviction now.
    Budget(String),
    /// The eviction cannot succeed until an admin repairs the problem that the text names.
    Misconfigured(String),
    /// The API server is overloaded. Send no requests for this long.
    Overloaded(Duration),
    /// The pod will end anyway, since its namespace is being deleted.
    Ending(String),
    /// The API server rejected the request, perhaps because the pod has just left this node: list the pods again.
    Refused(String),
    /// The request failed. Retry.
    Failed(String),
}

/// Asks pods to leave. The rest of the drain only counts pods, waits, and reports blockers.
///
/// EvictionRequest (KEP-4563) would need only another implementation of this trait. That implementation would create
/// the request on the first call, read it on later calls, and convert its responders' messages into an [`Answer`].
pub trait Mover {
    /// Asks the pod with this UID to leave. Another pod of the same name is not affected. May be called repeatedly.
    fn ask(&self, pod: &Pod) -> impl Future<Output = Answer> + Send;
}

/// Moves pods with the eviction API, or deletes them. A deletion ignores PodDisruptionBudgets.
pub struct ByRequest<'a> {
    /// Client with the kubelet's identity.
    pub client: &'a Client,
    /// Grace period in seconds that replaces each pod's own.
    pub grace_period: Option<u32>,
    /// True to delete instead of evicting.
    pub delete: bool,
}

impl std::fmt::Debug for ByRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByRequest")
            .field("delete", &self.delete)
            .finish_non_exhaustive()
    }
}

impl Mover for ByRequest<'_> {
    async fn ask(&self, pod: &Pod) -> Answer {
        let (method, path, body) = self.call(pod);
        let sent = match request(method, &path, body.to_string().into_bytes(), "application/json") {
            Ok(request) => send::<IgnoredAny>(self.client, request).await,
            Err(error) => Err(error),
        };
        match sent {
            Ok(_) => Answer::Accepted,
            Err(error) => interpret(&error),
        }
    }
}

impl ByRequest<'_> {
    fn call(&self, pod: &Pod) -> (&'static str, String, Value) {
        let metadata = &pod.metadata;
        let path = format!("/api/v1/namespaces/{}/pods/{}", metadata.namespace, metadata.name);
        let mut options = json!({"preconditions": {"uid": metadata.uid}});
        if let (Some(seconds), Some(options)) = (self.grace_period, options.as_object_mut()) {
            options.insert("gracePeriodSeconds".to_owned(), json!(seconds));
        }
        if self.delete {
            return ("DELETE", path, options);
        }
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata.name, "namespace": metadata.namespace},
            "deleteOptions": options,
        });
        ("POST", format!("{path}/eviction"), eviction)
    }
}

fn interpret(error: &RequestError) -> Answer {
    match error.status() {
        Some(status) => interpret_status(status),
        None => Answer::Failed(one_line(&error.to_string())),
    }
}

/// Interprets a rejection. Also reads its details, because budgets, overload and misconfiguration share status codes.
fn interpret_status(status: &Status) -> Answer {
    let message = one_line(&status.message);
    let retry_after = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
    match status.code {
        404 => Answer::Gone,
        // The pod with this UID is gone, and another pod has its name.
        409 => Answer::Gone,
        429 => match budget(status) {
            Some(text) => Answer::Budget(text),
            None if retry_after > 0 => Answer::Overloaded(Duration::from_secs(u64::from(retry_after))),
            None => Answer::Overloaded(OVERLOAD_PAUSE),
        },
        // Everything in the pod's namespace will be deleted soon.
        403 if has_cause(status, "NamespaceTerminating").is_some() => Answer::Ending(message),
        403 => Answer::Refused(message),
        500 if message.contains("more than one PodDisruptionBudget") => Answer::Misconfigured(format!(
            "misconfigured: {message} Change the PodDisruptionBudgets so that only one selects the pod."
        )),
        _ => Answer::Failed(message),
    }
}

fn has_cause<'a>(status: &'a Status, reason: &str) -> Option<&'a str> {
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    let cause = causes.iter().find(|cause| cause.reason == reason)?;
    Some(&cause.message)
}

/// Returns the message of the PodDisruptionBudget that blocks an eviction; `None` if the API server is overloaded. The
/// message names the budget. The agent cannot look the budget up, because the kubelet's identity may not list budgets.
fn budget(status: &Status) -> Option<String> {
    let words = has_cause(status, "DisruptionBudget")?;
    Some(one_line(if words.is_empty() { &status.message } else { words }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Value) -> Answer {
        let status: Status = serde_json::from_value(status).unwrap();
        interpret_status(&status)
    }

    fn status(code: u16, message: &str, details: Value) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "x", "details": details, "code": code,
        })
    }

    #[test]
    fn distinguishes_a_budget_from_overload() {
        let would_violate = "Cannot evict pod as it would violate the pod's disruption budget.";
        let needs = "The disruption budget web needs 2 healthy pods and has 2 currently";
        let cause = json!({"causes": [{"reason": "DisruptionBudget", "message": needs}]});
        assert_eq!(
            answer(status(429, would_violate, cause)),
            Answer::Budget(needs.to_owned())
        );
        let processed = "The disruption budget web is still being processed by the server.";
        let cause = json!({"causes": [{"reason": "DisruptionBudget", "message": processed}], "retryAfterSeconds": 10});
        assert_eq!(
            answer(status(429, would_violate, cause)),
            Answer::Budget(processed.to_owned())
        );
        let busy = "too many requests, please try again later";
        assert_eq!(
            answer(status(429, busy, json!({"retryAfterSeconds": 3}))),
            Answer::Overloaded(Duration::from_secs(3))
        );
        assert_eq!(answer(status(429, busy, json!({}))), Answer::Overloaded(OVERLOAD_PAUSE));
        assert_eq!(
            answer(status(429, busy, Value::Null)),
            Answer::Overloaded(OVERLOAD_PAUSE)
        );
    }

    #[test]
    fn distinguishes_the_other_rejections() {
        let several =
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        let Answer::Misconfigured(text) = answer(status(500, several, Value::Null)) else {
            panic!("not recognized")
        };
        assert!(
            text.contains(several) && text.contains("only one selects the pod"),
            "{text}"
        );
        assert_eq!(
            answer(status(500, "etcd", Value::Null)),
            Answer::Failed("etcd".to_owned())
        );
        assert_eq!(answer(status(404, "pods \"p\" not found", Value::Null)), Answer::Gone);
        assert_eq!(
            answer(status(
                409,
                "the UID in the precondition (a) does not match",
                Value::Null
            )),
            Answer::Gone
        );
        assert_eq!(
            answer(status(403, "no relationship found", Value::Null)),
            Answer::Refused("no relationship found".to_owned())
        );
        let ending = json!({"causes": [{"reason": "NamespaceTerminating", "message": "it ends"}]});
        assert_eq!(
            answer(status(403, "it ends", ending)),
            Answer::Ending("it ends".to_owned())
        );
    }

    #[tokio::test]
    async fn the_request_names_one_pod_by_uid() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u1"}})).unwrap();
        let unused = unused_client();
        fn call(client: &Client, pod: &Pod, grace_period: Option<u32>, delete: bool) -> (&'static str, String, Value) {
            ByRequest {
                client,
                grace_period,
                delete,
            }
            .call(pod)
        }
        let (method, path, body) = call(&unused, &pod, None, false);
        assert_eq!(
            (method, path.as_str()),
            ("POST", "/api/v1/namespaces/d/pods/p/eviction")
        );
        assert_eq!(body["deleteOptions"], json!({"preconditions": {"uid": "u1"}}));
        assert_eq!(body["metadata"], json!({"name": "p", "namespace": "d"}));
        assert_eq!(
            call(&unused, &pod, Some(0), false).2["deleteOptions"]["gracePeriodSeconds"],
            json!(0)
        );
        let (method, path, body) = call(&unused, &pod, Some(7), true);
        assert_eq!((method, path.as_str()), ("DELETE", "/api/v1/namespaces/d/pods/p"));
        assert_eq!(body, json!({"preconditions": {"uid": "u1"}, "gracePeriodSeconds": 7}));
    }

    fn unused_client() -> Client {
        berth_shell::install_crypto();
        Client::try_from(kube::Config::new("http://127.0.0.1:1/".parse().unwrap())).unwrap()
    }
}
