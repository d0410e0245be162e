//! Dry runs of writes that the API server must refuse, sent as an agent and as a kubelet by impersonation. They change
//! nothing.

use std::collections::BTreeMap;

use berth_api::keys;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{Method, Request};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::facts::{AGENT, Answer, CONTROLLER};
use super::requests::{Asker, Failure, Wanted};
use super::seen::Seen;
use crate::snapshot::Snapshot;

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// Policies that are tested, by name.
pub(super) const OWN_STATUS: &str = "berth-agent-own-status";
const OWN_BERTH: &str = "berth-agent-own-berth";
const NODE_LABELS: &str = "berth-node-labels";

/// Words of NodeRestriction in a refusal.
const OF_RESTRICTION: &str = "is not allowed to modify node";
/// Words of a refusal of the impersonation itself.
const OF_IMPERSONATION: &str = "cannot impersonate";

/// A dry run of a write.
struct Probe {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Value,
    user: String,
    group: Option<&'static str>,
}

/// Tries a forbidden write for each policy that has an object to try it with.
pub(super) async fn policies(
    asker: &Asker,
    namespace: &str,
    snapshot: &Snapshot,
) -> BTreeMap<&'static str, Seen<Answer>> {
    let agent = format!("system:serviceaccount:{namespace}:{AGENT}");
    let status = snapshot.bootc_nodes.first().map(|bootc| Probe {
        path: format!(
            "/apis/{}/{}/bootcnodes/{}/status",
            keys::GROUP,
            keys::VERSION,
            bootc.name_any()
        ),
        body: json!({ "status": {} }),
        ..Probe::patch(&agent, None)
    });
    let label = snapshot.nodes.first().map(|node| Probe {
        path: format!("/api/v1/nodes/{}", node.name()),
        body: json!({ "metadata": { "labels": { keys::LABEL_HOLD: "doctor" } } }),
        ..Probe::patch(&format!("system:node:{}", node.name()), Some("system:nodes"))
    });
    let berth = lease(asker, namespace, &agent).await;
    let (status, berth, label) = futures::join!(
        ask_policy(asker, status, OWN_STATUS),
        ask_policy(asker, berth, OWN_BERTH),
        ask_policy(asker, label, NODE_LABELS)
    );
    BTreeMap::from([(OWN_STATUS, status), (OWN_BERTH, berth), (NODE_LABELS, label)])
}

/// Returns the write of the controller's Lease, which is not a berth. An agent may not patch Leases, so it has to be
/// written as a whole.
async fn lease(asker: &Asker, namespace: &str, agent: &str) -> Option<Probe> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{CONTROLLER}");
    let found: Option<Value> = asker.read(&Wanted::new(&path, "", "")).await.ok()?;
    Some(Probe {
        method: Method::PUT,
        path,
        content_type: "application/json",
        body: found?,
        user: agent.to_owned(),
        group: None,
    })
}

/// Tries a kubelet's write of another Node.
pub(super) async fn restriction(asker: &Asker, snapshot: &Snapshot) -> Seen<Answer> {
    let Some(node) = snapshot.nodes.first() else {
        return Ok(Answer::NothingToTry);
    };
    // No Node has this name: it has characters that names of Nodes may not have.
    let probe = Probe {
        path: format!("/api/v1/nodes/{}", node.name()),
        body: json!({ "metadata": { "annotations": { "berth.dev/released": "doctor" } } }),
        ..Probe::patch("system:node:berth_doctor", Some("system:nodes"))
    };
    ask(
        asker,
        Some(probe),
        OF_RESTRICTION,
        "whether a kubelet can write its own Node only",
    )
    .await
}

impl Probe {
    fn patch(user: &str, group: Option<&'static str>) -> Self {
        Self {
            method: Method::PATCH,
            path: String::new(),
            content_type: "application/merge-patch+json",
            body: Value::Null,
            user: user.to_owned(),
            group,
        }
    }
}

/// Returns the permission to send the write as another user.
fn impersonation(probe: &Probe) -> String {
    let (user, group) = (&probe.user, probe.group);
    match group {
        Some(group) => format!("impersonate user {user} and group {group}"),
        None => format!("impersonate user {user}"),
    }
}

/// Sends a write that this policy must refuse.
async fn ask_policy(asker: &Asker, probe: Option<Probe>, policy: &str) -> Seen<Answer> {
    // The API server names the policy that refused.
    let what = format!("whether the policy {policy} refuses a forbidden write");
    ask(asker, probe, &format!("'{policy}'"), &what).await
}

/// Sends a write that must be refused in these words.
async fn ask(asker: &Asker, probe: Option<Probe>, words: &str, what: &str) -> Seen<Answer> {
    let Some(probe) = probe else {
        return Ok(Answer::NothingToTry);
    };
    let permission = impersonation(&probe);
    match send(asker, probe).await {
        Ok(()) => Ok(Answer::Accepted),
        Err(failure) => match refusal(&failure) {
            Some(found) if found.contains(words) => Ok(Answer::Refused),
            Some(found) => Ok(Answer::RefusedOtherwise(found.to_owned())),
            None => Err(failure.unseen(what, &permission)),
        },
    }
}

/// Returns the API server's words, if it refused the write and not the impersonation.
fn refusal(failure: &Failure) -> Option<&str> {
    let status = failure.status()?;
    let is_refusal = matches!(status.code, 400 | 403 | 422) && !status.message.contains(OF_IMPERSONATION);
    is_refusal.then_some(status.message.as_str())
}

async fn send(asker: &Asker, probe: Probe) -> Result<(), Failure> {
    let mut request = Request::builder()
        .method(probe.method)
        .uri(format!("{}?dryRun=All", probe.path))
        .header(CONTENT_TYPE, probe.content_type)
        .header(USER, probe.user);
    if let Some(group) = probe.group {
        request = request.header(GROUP, group);
    }
    let body = probe.body.to_string().into_bytes();
    asker.send(request.body(body)?).await.map(drop)
}
