//! Parses lines of an API server's audit log into typed records: the sender, object, time and response of each request.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An audited request. A watch has two records: one at its start, one at its end.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Time when the API server received the request. The log, however, is ordered by the end of the requests.
    pub received: Timestamp,
    /// Time when the request reached this `stage`.
    pub at: Timestamp,
    /// Stage of the request: `ResponseStarted` at the start of a watch, or `ResponseComplete` at the end of any
    /// request.
    pub stage: String,
    /// ID shared by all entries of one request.
    pub audit_id: String,
    /// The user's name, for example `system:serviceaccount:…` or `system:node:…`. If the sender impersonated a node, the
    /// node's name as a user.
    pub user: String,
    /// Name of the node that the sender's token is bound to (the token's node claim).
    pub node_claim: Option<String>,
    /// The whole user agent.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource in the plural; empty for a request without an object.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name of the object. Empty for a list, or for a creation with a generated name.
    pub name: String,
    /// HTTP status of the response; 0 if there was none.
    pub code: u16,
    /// The API server's message, if it rejected the request.
    pub message: String,
    /// True if Berth's own rules rejected the request: the permissions of Berth's programs, or Berth's admission
    /// policies.
    pub refused_by_own_rules: bool,
    /// The path and query.
    pub uri: String,
    /// Body of the request, if the audit policy keeps it (berths and Nodes).
    pub request: Option<Value>,
    /// Body of the response, if the audit policy keeps it.
    pub response: Option<Value>,
}

impl Record {
    /// True if the request is a write. A dry run does not count.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch") && !self.uri.contains("dryRun=All")
    }

    /// True if the request was answered with success.
    pub fn succeeded(&self) -> bool {
        self.stage == "ResponseComplete" && (200..300).contains(&self.code)
    }

    /// The user agent up to its version: `berth-agent` of `berth-agent/0.1.0 (linux)`.
    pub fn program(&self) -> &str {
        self.user_agent.split(['/', ' ']).next().unwrap_or_default()
    }

    /// Resource and subresource, for example `nodes/status` or `leases`.
    pub fn target(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    /// True if the record is about this resource or subresource, in the form of [`Record::target`].
    pub fn is_of(&self, target: &str) -> bool {
        let (resource, subresource) = target.split_once('/').unwrap_or((target, ""));
        self.resource == resource && self.subresource == subresource
    }

    /// Returns `spec.holderIdentity` of the Lease in the response. If there is no response body, uses the request body.
    pub fn holder(&self) -> Option<&str> {
        self.response
            .as_ref()
            .or(self.request.as_ref())?
            .pointer("/spec/holderIdentity")?
            .as_str()
    }

    /// Returns `spec.unschedulable` of the Node in the response; false if the field is absent. `None` without a Node.
    pub fn unschedulable(&self) -> Option<bool> {
        if self.resource != "nodes" {
            return None;
        }
        let node = self.response.as_ref()?;
        let value = node.pointer("/spec/unschedulable");
        Some(value.and_then(Value::as_bool).unwrap_or(false))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    request_object: Option<Value>,
    response_object: Option<Value>,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

/// The head of a line: fields that show whether any rule needs the line. Most lines of a large log are not needed, so
/// the head is parsed first, without the bodies.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    pub(crate) stage: String,
    pub(crate) verb: String,
    #[serde(default)]
    pub(crate) object_ref: ObjectRef,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjectRef {
    pub(crate) resource: String,
    pub(crate) namespace: String,
    name: String,
    pub(crate) api_group: String,
    pub(crate) subresource: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
    message: String,
}

/// Audit annotation with the authorizer's decision: `allow` or `forbid`.
const AUTHORIZED: &str = "authorization.k8s.io/decision";
/// Audit annotation that lists, as JSON, the validating policies that rejected a write. The API server lists only
/// policies whose bindings have the action Audit.
const FAILED_VALIDATIONS: &str = "validation.policy.admission.k8s.io/validation_failure";
const OWN_POLICIES: &str = "berth-";

#[derive(Deserialize)]
struct FailedValidation {
    policy: String,
}

/// True if an event's annotations show that Berth's own rules rejected the request.
fn is_refused_by_own_rules(annotations: &BTreeMap<String, String>) -> bool {
    if annotations.get(AUTHORIZED).is_some_and(|decision| decision == "forbid") {
        return true;
    }
    let failed = annotations.get(FAILED_VALIDATIONS).map_or("[]", String::as_str);
    let failed: Vec<FailedValidation> = serde_json::from_str(failed).unwrap_or_default();
    failed.iter().any(|one| one.policy.starts_with(OWN_POLICIES))
}

/// True if the user is a node. Agents impersonate nodes only; a request that impersonates someone else counts for its
/// sender, who is responsible for it.
fn is_node(user: &User) -> bool {
    user.username.starts_with("system:node:")
}

/// Reads the head of a line. Fails if the line is not an audit event in JSON.
pub(crate) fn head(line: &[u8]) -> serde_json::Result<Head> {
    serde_json::from_slice(line)
}

/// Valid times of an audit log, in seconds since 1970: up to the year 9000.
const YEARS: std::ops::Range<i64> = 0..(9000 - 1970) * 31_556_952;

/// Reads a line; `None` if it is blank. Fails if the line is not an audit event in JSON, or has an invalid time.
pub fn parse(line: &[u8]) -> serde_json::Result<Option<Record>> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let event: Event = serde_json::from_slice(line)?;
    for time in [event.request_received_timestamp, event.stage_timestamp] {
        // The rules add tolerances to this time. The sums must not overflow.
        if !YEARS.contains(&time.as_second()) {
            return Err(serde::de::Error::custom(format_args!(
                "{time} is not a valid time of an audit log"
            )));
        }
    }
    let claim = event.user.extra.get("authentication.kubernetes.io/node-name");
    let node_claim = claim.and_then(|values| values.first().cloned());
    let acting = event.impersonated_user.filter(is_node).unwrap_or(event.user);
    Ok(Some(Record {
        received: event.request_received_timestamp,
        at: event.stage_timestamp,
        stage: event.stage,
        audit_id: event.audit_id,
        node_claim,
        user: acting.username,
        user_agent: event.user_agent,
        verb: event.verb,
        group: event.object_ref.api_group,
        resource: event.object_ref.resource,
        subresource: event.object_ref.subresource,
        namespace: event.object_ref.namespace,
        name: event.object_ref.name,
        code: event.response_status.code,
        message: event.response_status.message,
        refused_by_own_rules: is_refused_by_own_rules(&event.annotations),
        uri: event.request_uri,
        request: event.request_object,
        response: event.response_object,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent with the component `impersonation` cordons its Node as its node.
    #[test]
    fn a_request_counts_for_the_impersonated_user() {
        let line = r#"{"kind":"Event","auditID":"a","stage":"ResponseComplete","requestURI":"/","verb":"patch",
            "user":{"username":"system:serviceaccount:berth-system:berth-agent",
                "extra":{"authentication.kubernetes.io/node-name":["n1"]}},
            "impersonatedUser":{"username":"system:node:n1","groups":["system:nodes","system:authenticated"]},
            "requestReceivedTimestamp":"2026-01-01T00:00:00Z","stageTimestamp":"2026-01-01T00:00:00Z"}"#;
        let record = parse(line.as_bytes()).unwrap().unwrap();
        assert_eq!(record.user, "system:node:n1");
        assert_eq!(record.node_claim.as_deref(), Some("n1"));
    }

    /// A compromised agent or an admin might write as someone else.
    #[test]
    fn a_request_as_someone_else_counts_for_its_sender() {
        for user in [
            "system:serviceaccount:berth-system:berth-controller",
            "admin",
            "system:nodes",
        ] {
            let line = format!(
                r#"{{"kind":"Event","auditID":"a","stage":"ResponseComplete","requestURI":"/","verb":"patch",
                "user":{{"username":"system:serviceaccount:berth-system:berth-agent"}},"impersonatedUser":{{"username":"{user}"}},
                "requestReceivedTimestamp":"2026-01-01T00:00:00Z","stageTimestamp":"2026-01-01T00:00:00Z"}}"#
            );
            let record = parse(line.as_bytes()).unwrap().unwrap();
            assert_eq!(record.user, "system:serviceaccount:berth-system:berth-agent", "{user}");
        }
    }

    #[test]
    fn annotations_show_whose_rules_refused() {
        // An API server 1.36 writes this for a policy whose binding has the actions Deny and Audit.
        fn failed(policy: &str) -> String {
            format!(
                r#"[{{"message":"no","policy":"{policy}","binding":"b","expressionIndex":1,"validationActions":["Deny","Audit"]}}]"#
            )
        }
        for (key, value, expected) in [
            (AUTHORIZED, "forbid".to_owned(), true),
            (AUTHORIZED, "allow".to_owned(), false),
            (FAILED_VALIDATIONS, failed("berth-agent-own-berth"), true),
            (FAILED_VALIDATIONS, failed("frozen-lease"), false),
            (FAILED_VALIDATIONS, "nonsense".to_owned(), false),
        ] {
            let annotations = BTreeMap::from([(key.to_owned(), value)]);
            assert_eq!(is_refused_by_own_rules(&annotations), expected, "{annotations:?}");
        }
        assert!(!is_refused_by_own_rules(&BTreeMap::new()));
    }
}
