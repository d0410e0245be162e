//! The writes that the API server must refuse an agent (I6): tried as dry runs, so that nothing comes of one that it
//! would do. Policies that were deleted, that lost their bindings, or that the server does not know show here.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::keys;
use berth_api::names::NodeName;
use berth_api::node::BootcNode;
use berth_core::agent::facts::Guard;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::clients::{RequestError, with_deadline};

/// The next step waits for the answers.
const DEADLINE: Duration = Duration::from_secs(5);
/// BootcNodes among which one is chosen.
const PAGE: u32 = 20;

/// The questions to the API server.
#[derive(Debug)]
pub(crate) struct GuardProbe {
    node: NodeName,
    berths: Api<Lease>,
    nodes: Api<BootcNode>,
}

impl GuardProbe {
    /// Prepares the questions, under the agent's own identity.
    pub(crate) fn new(client: Client, namespace: &str, node: &NodeName) -> Self {
        Self {
            node: node.clone(),
            berths: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client),
        }
    }

    /// Tries one write against each policy. Where one has nothing that it could hit, that is said.
    ///
    /// # Errors
    /// When the API server does not answer, or its answer says neither yes nor no.
    pub(crate) async fn ask(&self) -> Result<Guard> {
        let berth = self.write_berth().await.context("cannot try to write a berth")?;
        if let Guard::Allows(_) = berth {
            return Ok(berth);
        }
        let status = self.write_another_node().await;
        Ok(match status.context("cannot try to write another node's status")? {
            Guard::Refuses => berth,
            other => other,
        })
    }

    /// Writes a berth with another epoch, which is the controller's alone, whoever has the berth.
    async fn write_berth(&self) -> Result<Guard> {
        let first = ListParams::default().labels(keys::LABEL_POOL).limit(1);
        let list = with_deadline(DEADLINE, self.berths.list(&first)).await?;
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
        let answer = with_deadline(DEADLINE, self.berths.replace(&name, &params, &berth)).await;
        guard(answer, || {
            format!("this node's agent could write Lease {name} as it likes")
        })
    }

    /// Writes the status of another node's BootcNode, any of a page of them: one that is about to be deleted is not asked for
    /// each time.
    async fn write_another_node(&self) -> Result<Guard> {
        let page = ListParams::default().limit(PAGE);
        let list = with_deadline(DEADLINE, self.nodes.list_metadata(&page)).await?;
        let names = list.items.iter().map(ResourceExt::name_any);
        let others: Vec<_> = names.filter(|name| *name != self.node.as_str()).collect();
        let Some(other) = fastrand::choice(&others) else {
            return Ok(Guard::NothingToTry);
        };
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let nothing = Patch::Merge(json!({ "status": {} }));
        let answer = with_deadline(DEADLINE, self.nodes.patch_status(other, &params, &nothing)).await;
        guard(answer, || {
            format!("this node's agent could write the status of BootcNode {other}, which is not its own")
        })
    }
}

/// The answer to a write, with the words for one that would be done.
fn guard<T>(answer: Result<T, RequestError>, what: impl FnOnce() -> String) -> Result<Guard> {
    Ok(match is_taken(answer)? {
        true => Guard::Allows(what()),
        false => Guard::Refuses,
    })
}

/// Says whether a write would be done. An error is neither that nor a refusal.
fn is_taken<T>(answer: Result<T, RequestError>) -> Result<bool, RequestError> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.status().is_some_and(is_refusal) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Says whether this is the word of a policy, of an admission webhook in its place, or of the authorizer; and not one
/// about the object, such as a conflict.
fn is_refusal(status: &Status) -> bool {
    status.code == 403 || ((400..500).contains(&status.code) && status.message.contains(" denied "))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (500, "failed calling webhook: the request was denied by nobody", false),
        ] {
            let status = Status::failure(message, "Reason").with_code(code);
            assert_eq!(is_refusal(&status), expected, "{code} {message}");
        }
    }
}
