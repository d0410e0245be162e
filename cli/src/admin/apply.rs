use anyhow::{Context, Result, anyhow};
use berth_api::Digest;
use berth_api::berth::{Berth, lease};
use berth_api::decode::Decoded;
use berth_api::fleet::{self, BootcFleet, BootcFleetSpec};
use berth_api::keys;
use berth_api::pool::BootcNodePool;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::plan::{Change, Plan};
use crate::mark::Mark;
use crate::text::clean;

/// Field manager of all writes.
pub const FIELD_MANAGER: &str = "kubectl-berth";
/// Namespace of events about objects without a namespace.
const EVENTS: &str = "default";
/// Longest note of an event, in bytes; the API server accepts 1024.
const NOTE: usize = 1000;

/// Makes the changes in order and returns a sentence for each change. If a change fails, the error also lists the
/// earlier changes.
pub async fn apply(client: &Client, plan: &Plan, now: Timestamp) -> Result<Vec<String>> {
    let mut done = Vec::new();
    for change in &plan.changes {
        match make(client, change, now).await {
            Ok(lines) => done.extend(lines),
            Err(error) if done.is_empty() => return Err(error),
            Err(error) => return Err(error.context(format!("changes made before this error: {}", done.join(" ")))),
        }
    }
    Ok(done)
}

async fn make(client: &Client, change: &Change, now: Timestamp) -> Result<Vec<String>> {
    match change {
        Change::Label { node, uid, mark, on } => {
            label(client, (node, uid), *mark, *on).await?;
            let is = if *on { "is" } else { "is no longer" };
            Ok(vec![format!("Node {node} {is} {}.", mark.words())])
        }
        Change::Pause { pool, uid, paused } => {
            change_rollout(client, (pool, uid), json!({ "paused": paused })).await?;
            Ok(vec![format!(
                "Pool {pool} {}.",
                if *paused { "is paused" } else { "is resumed" }
            )])
        }
        Change::PauseFleet { uid, paused } => {
            pause_fleet(client, uid.as_deref(), *paused).await?;
            let now = if *paused {
                "All pools are paused"
            } else {
                "The fleet is resumed"
            };
            Ok(vec![format!("{now}.")])
        }
        Change::Dismiss { uid, machine, value } => {
            dismiss(client, uid, value).await?;
            Ok(vec![format!("Machine {} is dismissed.", clean(machine))])
        }
        Change::Approve {
            pool,
            uid,
            from,
            to,
            digest,
        } => {
            approve(client, (pool, uid), (from, digest), to).await?;
            Ok(vec![format!("The image of pool {pool} is set to {to}.")])
        }
        Change::Retry { pool, uid, token } => {
            change_rollout(client, (pool, uid), json!({ "retryToken": token })).await?;
            Ok(vec![format!("Pool {pool} retries its failed images.")])
        }
        Change::Close {
            lease,
            closed,
            node,
            uid,
            note,
        } => {
            close(client, lease, closed, now).await?;
            let mut done = vec![format!("Berth {} is closed.", closed.name())];
            if let Err(error) = write_event(client, lease, (node, uid), note, now).await {
                done.push(format!("The event about the closed berth was not written: {error:#}"));
            }
            Ok(done)
        }
    }
}

/// Adds or removes the label of a mark. A compromised kubelet can write times that are in the year 10000 in UTC. The API
/// server cannot parse them again, so it refuses each patch of that Node. The second try therefore replaces the managed
/// fields, and leaves out the status, which the API server then takes from the stored Node.
async fn label(client: &Client, (node, uid): (&str, &str), mark: Mark, on: bool) -> Result<()> {
    let value = if on { json!("true") } else { Value::Null };
    let mut patch = json!({ "metadata": { "uid": uid, "labels": { mark.key(): value } } });
    let nodes = Api::<Decoded<Node>>::all(client.clone());
    let mut patched = nodes.patch(node, &params(), &Patch::Merge(&patch)).await;
    if let Err(kube::Error::Api(refused)) = &patched
        && refused.code == 422
    {
        patch["metadata"]["managedFields"] = json!([{}]);
        patch["status"] = Value::Null;
        patched = nodes.patch(node, &params(), &Patch::Merge(&patch)).await;
    }
    patched.map(drop).with_context(|| format!("cannot change Node {node}"))
}

async fn change_rollout(client: &Client, (pool, uid): (&str, &str), rollout: Value) -> Result<()> {
    let patch = json!({ "metadata": { "uid": uid }, "spec": { "rollout": rollout } });
    let pools = Api::<BootcNodePool>::all(client.clone());
    let patched = pools.patch(pool, &params(), &Patch::Merge(patch)).await;
    patched.map(drop).with_context(|| format!("cannot change pool {pool}"))
}

/// Writes the annotation with the dismissed machines to the BootcFleet.
async fn dismiss(client: &Client, uid: &str, value: &str) -> Result<()> {
    let annotations = json!({ keys::ANNOTATION_DISMISSED: value });
    let patch = json!({ "metadata": { "uid": uid, "annotations": annotations } });
    let fleets = Api::<BootcFleet>::all(client.clone());
    let patched = fleets.patch(fleet::NAME, &params(), &Patch::Merge(patch)).await;
    patched.map(drop).context("cannot change BootcFleet cluster")
}

/// Writes `spec.paused` of the BootcFleet. Creates the BootcFleet if `uid` is `None`.
async fn pause_fleet(client: &Client, uid: Option<&str>, paused: bool) -> Result<()> {
    let fleets = Api::<BootcFleet>::all(client.clone());
    let Some(uid) = uid else {
        let spec = BootcFleetSpec {
            paused,
            ..BootcFleetSpec::default()
        };
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let created = fleets.create(&params, &BootcFleet::new(fleet::NAME, spec)).await;
        return created.map(drop).context("cannot create BootcFleet cluster");
    };
    let patch = json!({ "metadata": { "uid": uid }, "spec": { "paused": paused } });
    let patched = fleets.patch(fleet::NAME, &params(), &Patch::Merge(patch)).await;
    patched.map(drop).context("cannot change BootcFleet cluster")
}

/// Maximum number of attempts to write a pool. An attempt fails if another program has just written the pool.
const TRIES: usize = 5;

/// Replaces a pool's image reference by compare-and-swap. Fails if the reference or the available digest has changed
/// since the plan was made.
async fn approve(client: &Client, (pool, uid): (&str, &str), was: (&str, &Digest), to: &str) -> Result<()> {
    let pools = Api::<BootcNodePool>::all(client.clone());
    for _ in 0..TRIES {
        let now = pools
            .get(pool)
            .await
            .with_context(|| format!("cannot read pool {pool}"))?;
        let available = now.status.as_ref().and_then(|s| s.available.as_ref());
        let same = now.uid().as_deref() == Some(uid)
            && now.spec.image_ref().as_str() == was.0
            && available.is_some_and(|available| available.digest == *was.1);
        if !same {
            return Err(anyhow!(
                "pool {pool} was not changed, because another program just changed it; run the command again for a new plan"
            ));
        }
        let metadata = json!({ "uid": uid, "resourceVersion": now.resource_version() });
        let patch = json!({ "metadata": metadata, "spec": { "image": { "ref": to } } });
        match pools.patch(pool, &params(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => return other.map(drop).with_context(|| format!("cannot change pool {pool}")),
        }
    }
    Err(anyhow!(
        "pool {pool} was not changed, because other programs keep changing it; run the command again"
    ))
}

/// Sends a change of a pool's spec to the API server as a dry run. Fails if the API server refuses the change. Returns
/// a note if the dry run itself fails, because the result is then unknown.
pub async fn would_accept(client: &Client, pool: &str, spec: &Value) -> Result<Option<String>> {
    let pools = Api::<BootcNodePool>::all(client.clone());
    let params = PatchParams {
        dry_run: true,
        ..params()
    };
    match pools.patch(pool, &params, &Patch::Merge(json!({ "spec": spec }))).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Err(anyhow!(
            "the API server would refuse this change: {}",
            clean(&status.message)
        )),
        Err(error) => Ok(Some(format!(
            "the dry run failed, so the API server may refuse this change: {error}"
        ))),
    }
}

pub(super) fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Closes a berth with a compare-and-swap on the UID and resourceVersion in the plan.
async fn close(client: &Client, lease: &Lease, closed: &Berth, now: Timestamp) -> Result<()> {
    let name = closed.name();
    if lease.uid().is_none() || lease.resource_version().is_none() {
        return Err(anyhow!(
            "Lease {name} was not changed, because the API server returned it without UID or resourceVersion"
        ));
    }
    let leases = Api::<Decoded<Lease>>::namespaced(client.clone(), &lease.namespace().unwrap_or_default());
    let mut changed = lease.clone();
    lease::write(closed, &mut changed, now);
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    match leases.replace(&name, &params, &changed.into()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(anyhow!(
            "berth {name} was not closed, because another program just changed it; run the command again for a new plan"
        )),
        Err(error) => Err(error).with_context(|| format!("cannot close berth {name}")),
    }
}

/// Writes an event about the Node. The event names the admin who closed the Node's berth.
async fn write_event(client: &Client, lease: &Lease, node: (&str, &str), note: &str, now: Timestamp) -> Result<()> {
    let user = user_name(client)
        .await
        .context("cannot ask the API server for your user name")?;
    let events = Api::<Event>::namespaced(client.clone(), EVENTS);
    let event = event(lease, node, &format!("{note}; by {}", clean(&user)), now);
    events
        .create(&PostParams::default(), &event)
        .await
        .context("cannot create the event")?;
    Ok(())
}

async fn user_name(client: &Client) -> Result<String> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let name = review.status.and_then(|s| s.user_info).and_then(|u| u.username);
    name.context("the SelfSubjectReview has no user name")
}

fn event(lease: &Lease, (node, uid): (&str, &str), note: &str, now: Timestamp) -> Event {
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    let related = ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        name: lease.metadata.name.clone(),
        namespace: lease.metadata.namespace.clone(),
        uid: lease.metadata.uid.clone(),
        ..ObjectReference::default()
    };
    Event {
        metadata: ObjectMeta {
            // The berth's name is short and ends with a digit; a Node's name may leave no room for the suffix.
            generate_name: Some(format!("{}-", lease.name_any())),
            namespace: Some(EVENTS.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some("Release".to_owned()),
        reason: Some("BerthReleased".to_owned()),
        type_: Some("Warning".to_owned()),
        note: Some(bounded(note)),
        event_time: Some(MicroTime::from(now)),
        regarding: Some(regarding),
        related: Some(related),
        reporting_controller: Some(format!("{}/{FIELD_MANAGER}", keys::GROUP)),
        reporting_instance: Some(FIELD_MANAGER.to_owned()),
        ..Event::default()
    }
}

fn bounded(note: &str) -> String {
    let mut bounded = note.to_owned();
    while bounded.len() > NOTE {
        bounded.pop();
    }
    bounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_node_and_the_lease() {
        let mut lease = Lease::default();
        lease.metadata.name = Some("workers-0".to_owned());
        lease.metadata.namespace = Some("berth-system".to_owned());
        let event = event(&lease, ("n5", "uid-n5"), &"ü".repeat(2000), Timestamp::UNIX_EPOCH);
        let note = event.note.unwrap();
        assert!(note.len() <= NOTE && note.len() > NOTE - 4);
        let regarding = event.regarding.unwrap();
        assert_eq!(
            (regarding.kind.as_deref(), regarding.uid.as_deref()),
            (Some("Node"), Some("uid-n5"))
        );
        assert_eq!(event.related.unwrap().name.as_deref(), Some("workers-0"));
        // In another namespace the API server refuses events about objects without a namespace.
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    }
}
