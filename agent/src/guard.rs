//! Dry runs of writes that the API server must reject (I6). If the server accepts such a write, NodeRestriction is off,
//! or an admission policy does not work: it or its binding was deleted, or the server does not support it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::decode::Decoded;
use berth_api::keys;
use berth_api::names::NodeName;
use berth_api::node::BootcNode;
use berth_core::agent::facts::Guard;
use berth_core::agent::impersonation;
use berth_shell::client::impersonating_client;
use berth_shell::names::list_names;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::clients::{RequestError, with_deadline};
use crate::node;

/// Timeout of one dry run. The agent's next step waits for the answers.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of BootcNodes to list. The agent tries them in random order, until it finds one whose Node exists.
const PAGE: u32 = 20;

/// Shortest lifetime that the API server accepts in a request for a token, in seconds.
const SHORTEST: i64 = 600;

/// Service account of the agents.
const ACCOUNT: &str = "berth-agent";

/// Advice if the API server accepts a write that a policy must reject.
const POLICIES: &str = "apply manifests/base/admission-policies.yaml again, with its bindings";
/// Advice if the kubelet's identity permits too much.
const RESTRICTION: &str = "turn on NodeRestriction in the API server (--enable-admission-plugins), or set --kubelet-kubeconfig to \
     the kubelet's own kubeconfig";

/// Advice if the agent may impersonate other nodes.
const IMPERSONATION: &str = "remove the verbs impersonate and impersonate:arbitrary-node from all roles of the service \
     account berth-agent";

#[derive(Debug)]
pub(crate) struct GuardProbe {
    node: NodeName,
    berths: Api<Decoded<Lease>>,
    nodes: Api<Decoded<BootcNode>>,
    accounts: Api<ServiceAccount>,
}

impl GuardProbe {
    pub(crate) fn new(client: Client, namespace: &str, node: &NodeName) -> Self {
        Self {
            node: node.clone(),
            berths: Api::namespaced(client.clone(), namespace),
            accounts: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client),
        }
    }

    /// Sends dry-run writes that the API server must reject: one for each policy with the agent's own identity, and one
    /// to another Node with the kubelet's identity. If the agent `impersonates` its node, also one to another Node as
    /// that node. Returns [`Guard::NothingToTry`] if the cluster has no object for one of these writes.
    pub(crate) async fn ask(&self, kubelet: &Client, impersonates: bool) -> Result<Guard> {
        let berth = self
            .write_berth()
            .await
            .context("cannot send the dry-run write of a berth")?;
        if let Guard::Allows(_) = berth {
            return Ok(berth);
        }
        let token = self.request_unbound_token().await;
        let token = token.context("cannot send the dry-run request of a token")?;
        if let Guard::Allows(_) = token {
            return Ok(token);
        }
        for other in self.others().await.context("cannot list the BootcNodes")? {
            let status = self.write_another_status(&other).await;
            let status = status.context("cannot send the dry-run write of another node's status")?;
            if let Guard::Allows(_) = status {
                return Ok(status);
            }
            let node = write_another_node(kubelet, &other).await;
            match node.context("cannot send the dry-run write of another Node with the kubelet's identity")? {
                Guard::Refuses if impersonates => return self.act_as(&other, berth).await,
                Guard::Refuses => return Ok(berth),
                // The Node was deleted, so the API server's answer shows nothing: try another node.
                Guard::NothingToTry => {}
                other => return Ok(other),
            }
        }
        Ok(Guard::NothingToTry)
    }

    /// Tries to write another node's Node as that node. Returns `berth` if the API server rejects it.
    async fn act_as(&self, other: &str, berth: Guard) -> Result<Guard> {
        let as_other = impersonating_client(&self.nodes.clone().into_client(), &impersonation::user(other))?;
        let answer = guard(node::try_patch(&as_other, other).await, || {
            format!("this node's agent could act as node {other}; {IMPERSONATION}")
        });
        match answer.context("cannot send the dry-run write of another Node as that node")? {
            Guard::Refuses => Ok(berth),
            other => Ok(other),
        }
    }

    /// Tries to change the epoch of the first berth in the list. Only the controller may change an epoch, so the API
    /// server must reject this write from every agent, even from the berth's holder.
    async fn write_berth(&self) -> Result<Guard> {
        let first = ListParams::default().labels(keys::LABEL_POOL).limit(1);
        let list = with_deadline(TIMEOUT, self.berths.list(&first)).await?;
        let Some(mut berth) = list.items.into_iter().next() else {
            return Ok(Guard::NothingToTry);
        };
        let annotations: &mut BTreeMap<_, _> = berth.annotations_mut();
        annotations.insert(keys::ANNOTATION_EPOCH.to_owned(), "0".to_owned());
        let name = berth.name_any();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let answer = with_deadline(TIMEOUT, self.berths.replace(&name, &params, &berth)).await;
        guard(answer, || {
            format!("this node's agent could write Lease {name} without limits; {POLICIES}")
        })
    }

    /// Requests a token that is not bound to this node. The API server issues tokens even in a dry run: without the
    /// policy, the agent receives one, and drops it. It names no node, so the other policies accept no write with it.
    async fn request_unbound_token(&self) -> Result<Guard> {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(SHORTEST),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let request = self
            .accounts
            .create_subresource::<_, TokenRequest>("token", ACCOUNT, &params, &request);
        let answer = with_deadline(TIMEOUT, request).await;
        guard(answer, || {
            format!("this node's agent could request tokens that are not bound to its Node; {POLICIES}")
        })
    }

    /// Lists one page of the other nodes' BootcNodes, in random order; empty if this node is the only one. In a fixed
    /// order, each check could begin with the same node, which may be about to be deleted.
    async fn others(&self) -> Result<Vec<String>, RequestError> {
        let page = ListParams::default().limit(PAGE);
        let client = self.nodes.clone().into_client();
        let mut others = with_deadline(TIMEOUT, list_names::<BootcNode>(&client, &page)).await?;
        others.retain(|name| *name != self.node.as_str());
        fastrand::shuffle(&mut others);
        Ok(others)
    }

    async fn write_another_status(&self, other: &str) -> Result<Guard> {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let nothing = Patch::Merge(json!({ "status": {} }));
        let answer = with_deadline(TIMEOUT, self.nodes.patch_status(other, &params, &nothing)).await;
        guard(answer, || {
            format!(
                "this node's agent could write the status of BootcNode {other}, which belongs to another node; {POLICIES}"
            )
        })
    }
}

async fn write_another_node(kubelet: &Client, other: &str) -> Result<Guard> {
    let answer = node::try_patch(kubelet, other).await;
    if let Err(error) = &answer
        && error.status().is_some_and(|status| status.code == 404)
    {
        return Ok(Guard::NothingToTry);
    }
    guard(answer, || {
        format!("this node's agent could write Node {other} of another node with the kubelet's identity; {RESTRICTION}")
    })
}

/// Converts the API server's answer to a dry run. If the server accepted the write, `what` creates the message.
fn guard<T>(answer: Result<T, RequestError>, what: impl FnOnce() -> String) -> Result<Guard> {
    match answer {
        Ok(_) => Ok(Guard::Allows(what())),
        Err(error) if error.status().is_some_and(is_refusal) => Ok(Guard::Refuses),
        Err(error) => Err(error.into()),
    }
}

/// True if an admission policy, a webhook or the authorizer rejected the write. False for errors about the object, such
/// as a conflict.
fn is_refusal(status: &Status) -> bool {
    status.code == 403 || ((400..500).contains(&status.code) && status.message.contains(" denied "))
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::fake_api_server;

    fn server(end: &'static str, code: u16) -> Client {
        server_of(&["n1", "n2"], vec![(end, code)])
    }

    /// A time that the API server accepts, but that cannot be decoded. Another node may write it into its objects.
    const LATE: &str = "9999-12-31T23:59:59Z";

    /// A fake API server with these nodes and one berth. The server rejects dry runs with status 403. If a path ends
    /// with a suffix in `answers`, the server returns the suffix's status code instead. Other writes panic.
    fn server_of(names: &'static [&str], answers: Vec<(&'static str, u16)>) -> Client {
        fake_api_server::client(move |call| {
            let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
            fn node(name: &str) -> serde_json::Value {
                json!({ "metadata": { "name": name, "managedFields": [{ "time": LATE }] } })
            }
            let berth = json!({ "metadata": { "name": "workers-0" }, "spec": { "acquireTime": LATE } });
            fn list(items: serde_json::Value) -> (u16, serde_json::Value) {
                (200, json!({ "metadata": {}, "items": items }))
            }
            let is_dry = query.contains("dryRun=All");
            let (code, mut answer) = match call.method {
                Method::GET if path.ends_with("/leases") => list(json!([berth])),
                Method::GET => list(names.iter().map(|name| node(name)).collect()),
                _ if !is_dry => panic!("{path} is written"),
                _ => {
                    let answer = answers.iter().find(|(end, _)| path.ends_with(end));
                    (answer.map_or(403, |(_, code)| *code), berth)
                }
            };
            if code != 200 {
                answer = json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code });
            }
            (code, answer)
        })
    }

    #[tokio::test]
    async fn every_forbidden_write_is_tried() {
        for (end, said) in [
            (
                "/leases/workers-0",
                "agent could write Lease workers-0 without limits; apply manifests",
            ),
            (
                "/serviceaccounts/berth-agent/token",
                "agent could request tokens that are not bound to its Node; apply manifests",
            ),
            (
                "/bootcnodes/n2/status",
                "agent could write the status of BootcNode n2, ",
            ),
            (
                "/api/v1/nodes/n2",
                "could write Node n2 of another node with the kubelet's identity; turn on NodeRestriction",
            ),
        ] {
            async fn ask(client: Client) -> Result<Guard> {
                let probe = GuardProbe::new(client.clone(), "ns", &"n1".into());
                probe.ask(&client, false).await
            }
            match ask(server(end, 200)).await.unwrap() {
                Guard::Allows(what) => assert!(what.contains(said), "{what}"),
                other => panic!("{end}: {other:?}"),
            }
            assert_eq!(ask(server(end, 403)).await.unwrap(), Guard::Refuses, "{end}");
            ask(server(end, 500)).await.unwrap_err();
        }
        let client = server("/api/v1/nodes/n2", 404);
        let gone = GuardProbe::new(client.clone(), "ns", &"n1".into())
            .ask(&client, false)
            .await;
        assert_eq!(gone.unwrap(), Guard::NothingToTry, "its Node was deleted just now");
    }

    /// An agent that impersonates its node tries whether it could act as another one.
    #[tokio::test]
    async fn acting_as_another_node_is_tried() {
        async fn ask(code: u16, impersonates: bool) -> Result<Guard> {
            let own = fake_api_server::client(move |call| {
                let (path, _) = call.path.split_once('?').unwrap_or((&call.path, ""));
                let is_other = path == "/api/v1/nodes/n2" && call.user.as_deref() == Some("system:node:n2");
                let (code, items) = match (call.method.clone(), path.ends_with("/bootcnodes")) {
                    (Method::GET, true) => (200, json!([{"metadata": {"name": "n2"}}])),
                    (Method::GET, false) => (200, json!([])),
                    _ if is_other => (code, json!([])),
                    _ => (403, json!([])),
                };
                let status = json!({"kind": "Status", "status": "Failure", "message": "no", "code": code});
                let list = json!({"metadata": {}, "items": items});
                (code, if code == 200 { list } else { status })
            });
            let kubelet = impersonating_client(&own, "system:node:n1").unwrap();
            GuardProbe::new(own, "ns", &"n1".into())
                .ask(&kubelet, impersonates)
                .await
        }
        match ask(200, true).await.unwrap() {
            Guard::Allows(what) => assert!(what.contains("could act as node n2; remove the verbs"), "{what}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(ask(403, true).await.unwrap(), Guard::NothingToTry, "there is no berth");
        assert_eq!(ask(200, false).await.unwrap(), Guard::NothingToTry, "not tried");
        ask(500, true).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_deleted_node_proves_nothing() {
        for _ in 0..16 {
            let answers = vec![("/api/v1/nodes/n2", 404), ("/api/v1/nodes/n3", 200)];
            let client = server_of(&["n1", "n2", "n3"], answers);
            let answer = GuardProbe::new(client.clone(), "ns", &"n1".into())
                .ask(&client, false)
                .await;
            match answer.unwrap() {
                Guard::Allows(what) => assert!(what.contains("could write Node n3"), "{what}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn only_a_refusal_counts_as_one() {
        let by_policy = "leases.coordination.k8s.io \"workers-0\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        for (code, message, expected) in [
            (422, by_policy, true),
            (
                400,
                "admission webhook \"policies.example.com\" denied the request: no",
                true,
            ),
            (403, "cannot update resource \"leases\"", true),
            (
                422,
                "Lease \"workers-0\" is invalid: metadata.resourceVersion: Invalid value",
                false,
            ),
            (409, "the object has been modified", false),
            (404, "bootcnodes.berth.dev \"n2\" not found", false),
            (401, "Unauthorized", false),
            (
                500,
                "failed calling webhook: the request was denied by no policy",
                false,
            ),
        ] {
            let status = Status::failure(message, "Reason").with_code(code);
            assert_eq!(is_refusal(&status), expected, "{code} {message}");
        }
    }
}
