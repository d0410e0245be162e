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

    /// Tries one write against each policy.
    ///
    /// # Errors
    /// When the API server does not answer, or its answer says neither yes nor no.
    pub(crate) async fn ask(&self) -> Result<Guard> {
        let mut taken = self.forge_berth().await.context("cannot try to forge a berth")?;
        if taken.is_none() {
            taken = self
                .write_another_node()
                .await
                .context("cannot try to write another node's status")?;
        }
        Ok(taken.map_or(Guard::Refuses, Guard::Allows))
    }

    /// Writes a berth with another epoch, which is the controller's alone, whoever has the berth. Answers the write that
    /// would be done. Where there is no berth, there is nothing to guard yet.
    async fn forge_berth(&self) -> Result<Option<String>> {
        let first = ListParams::default().labels(keys::LABEL_POOL).limit(1);
        let list = with_deadline(DEADLINE, self.berths.list(&first)).await?;
        let Some(mut berth) = list.items.into_iter().next() else {
            return Ok(None);
        };
        let annotations: &mut BTreeMap<_, _> = berth.annotations_mut();
        annotations.insert(keys::ANNOTATION_EPOCH.to_owned(), "0".to_owned());
        let name = berth.name_any();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let answer = with_deadline(DEADLINE, self.berths.replace(&name, &params, &berth)).await;
        Ok(is_taken(answer)?.then(|| format!("this one may forge Lease {name}")))
    }

    /// Writes the status of another node's BootcNode. A node that is alone has no other.
    async fn write_another_node(&self) -> Result<Option<String>> {
        let two = ListParams::default().limit(2);
        let list = with_deadline(DEADLINE, self.nodes.list_metadata(&two)).await?;
        let names = list.items.iter().map(ResourceExt::name_any);
        let Some(other) = names.into_iter().find(|name| *name != self.node.as_str()) else {
            return Ok(None);
        };
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let nothing = Patch::Merge(json!({ "status": {} }));
        let answer = with_deadline(DEADLINE, self.nodes.patch_status(&other, &params, &nothing)).await;
        Ok(is_taken(answer)?.then(|| format!("this one may write the status of BootcNode {other}")))
    }
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
