//! The last step: deletes the Leases and the objects that install Berth.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use berth_api::keys;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::context::{Context, INTERVAL};
use super::facts::{Facts, leases, list, namespaced, selector};
use super::objects::{Object, rank};
use super::progress::Progress;
use super::requests::Format;
use crate::text::{clean, count};

/// Deletes the objects in the order of their ranks. Objects of the next rank follow when the others are gone.
pub(super) async fn delete(context: &Context, progress: &mut Progress<'_>) -> Result<()> {
    let facts = Facts::read(&context.server, &context.options.namespace).await?;
    let mut ranks: BTreeMap<usize, Vec<&Object>> = BTreeMap::new();
    for object in &facts.objects {
        ranks.entry(rank(&object.kind)).or_default().push(object);
    }
    // Without a controller: no Lease is written again.
    let mut are_leases_gone = false;
    for (rank, objects) in ranks {
        if rank > 0 && !are_leases_gone {
            delete_leases(context, progress).await?;
            are_leases_gone = true;
        }
        delete_all(context, &objects, progress).await?;
    }
    if !are_leases_gone {
        delete_leases(context, progress).await?;
    }
    forget_hosts(context).await?;
    Ok(progress.end(&format!("done: {} deleted", count(facts.objects.len(), "object")))?)
}

/// Deletes Berth's Leases.
pub(super) async fn delete_leases(context: &Context, progress: &mut Progress<'_>) -> Result<()> {
    let namespace = &context.options.namespace;
    let facts = Facts::read_leases(&context.server, namespace).await?;
    for (name, uid) in &facts {
        progress.show(&format!("deleting Lease {name}"))?;
        let done = context
            .server
            .delete(&format!("{}/{name}", leases(namespace)), uid)
            .await;
        done.map_err(|error| error.while_doing(format!("delete Lease {name}")))?;
    }
    Ok(())
}

/// Deletes these objects, and waits until they and their pods are gone.
async fn delete_all(context: &Context, objects: &[&Object], progress: &mut Progress<'_>) -> Result<()> {
    for object in objects {
        progress.show(&format!("deleting {}", object.words()))?;
        let done = context.server.delete(&object.path, &object.uid).await;
        done.map_err(|error| error.while_doing(format!("delete {}", object.words())))?;
    }
    let has_pods = objects
        .iter()
        .any(|object| matches!(object.kind.as_str(), "Deployment" | "DaemonSet"));
    let give_up = context.deadline();
    loop {
        let mut left = vec![];
        for object in objects {
            if let Some(words) = still_there(context, object).await? {
                left.push(words);
            }
        }
        if has_pods && left.is_empty() {
            left.extend(pods(context, objects).await?);
        }
        if left.is_empty() {
            return Ok(());
        }
        progress.show(&format!("waiting for the end of {}", left.join(", ")))?;
        if Instant::now() >= give_up {
            bail!(
                "still there after {}: {}; if a host is lost, delete its Node, or add --leave NODE; then run the command \
                 again",
                context.limit(),
                left.join(", ")
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Returns the object's name and what its end waits for; `None` if the object is gone.
async fn still_there(context: &Context, object: &Object) -> Result<Option<String>> {
    let found = context.server.get(&object.path).await;
    let found = found.map_err(|error| error.while_doing(format!("read {}", object.words())))?;
    let Some(found) = found.filter(|found| found["metadata"]["uid"] == object.uid.as_str()) else {
        return Ok(None);
    };
    let mut words = object.words();
    for condition in found["status"]["conditions"].as_array().into_iter().flatten() {
        let is_cause = condition["type"]
            .as_str()
            .is_some_and(|type_| type_.starts_with("Namespace"));
        if is_cause && condition["status"] == "True" {
            words += &format!(" ({})", clean(condition["message"].as_str().unwrap_or_default()));
        }
    }
    Ok(Some(words))
}

/// Returns the pods of these Deployments or DaemonSets that are still there. Ends pods on nodes that are left: no kubelet
/// would end them.
async fn pods(context: &Context, objects: &[&Object]) -> Result<Vec<String>> {
    let namespace = &context.options.namespace;
    let owners: Vec<&str> = objects
        .iter()
        .filter_map(|object| match object.kind.as_str() {
            "Deployment" => Some("ReplicaSet"),
            "DaemonSet" => Some("DaemonSet"),
            _ => None,
        })
        .collect();
    let path = namespaced("/api/v1", namespace, "pods");
    let mut left = vec![];
    for pod in list(&context.server, &path, Some(&selector())).await? {
        let owner = pod["metadata"]["ownerReferences"][0]["kind"]
            .as_str()
            .unwrap_or_default();
        if !owners.contains(&owner) {
            continue;
        }
        let name = clean(pod["metadata"]["name"].as_str().unwrap_or_default());
        let node = clean(pod["spec"]["nodeName"].as_str().unwrap_or_default());
        if context.options.leave.contains(&node) {
            end_pod(context, &format!("{path}/{name}"), &pod).await?;
        }
        left.push(format!("pod {name} on {node}"));
    }
    Ok(left)
}

async fn end_pod(context: &Context, path: &str, pod: &Value) -> Result<()> {
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let done = context.server.delete_now(path, uid).await;
    done.map_err(|error| error.while_doing("delete a pod"))
}

/// Removes the record on the namespace, if the namespace stays because Berth's manifests have not created it.
async fn forget_hosts(context: &Context) -> Result<()> {
    let path = format!("/api/v1/namespaces/{}", context.options.namespace);
    let patch = json!({ "metadata": { "annotations": { keys::ANNOTATION_HOSTS_CLEAN: null } } });
    let done = context.server.patch(&path, Format::Merge, &patch).await;
    done.map_err(|error| error.while_doing("remove an annotation of the namespace"))
}
