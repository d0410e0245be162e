//! Signs on the Node for tools that do not know Berth: lifecycle conditions, and the cluster autoscaler's annotation.

use std::collections::BTreeSet;

use berth_api::condition::lifecycle::{
    ALL, DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS, MAINTENANCE_PLANNED, REASON,
};
use berth_api::keys::{ANNOTATION_CORDON, ANNOTATION_SCALE_DOWN, ANNOTATION_SCALE_DOWN_DISABLED};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::*;

/// State of a Node after one write.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    /// Lifecycle conditions that are True and were set by Berth.
    ours: BTreeSet<String>,
    scale_down_disabled: Option<String>,
    scale_down_is_ours: bool,
    cordoned_by_us: bool,
}

/// All states that a Node has shown, in the order of the writes, without repetitions.
fn shown(cluster: &Cluster, node: &str) -> Result<Vec<Shown>> {
    let log = AuditLog::read(&cluster.control_plane.audit_log())?;
    let mut writes = vec![];
    for record in log
        .writes()
        .filter(|r: &&Record| r.resource == "nodes" && r.name == node)
    {
        let body = record.response.clone().context("a Node without its body")?;
        let object: Node = serde_json::from_value(body).context("a Node in the audit log")?;
        let version = object.metadata.resource_version.as_deref().unwrap_or_default();
        writes.push((version.parse::<u64>().context("a resourceVersion")?, of(&object)));
    }
    writes.sort_by_key(|(version, _)| *version);
    let mut all: Vec<Shown> = writes.into_iter().map(|(_, shown)| shown).collect();
    all.dedup();
    Ok(all)
}

fn of(node: &Node) -> Shown {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ours = conditions
        .filter(|c| c.status == "True" && c.reason.as_deref() == Some(REASON) && ALL.contains(&c.type_.as_str()));
    let annotations = node.annotations();
    Shown {
        ours: ours.map(|c| c.type_.clone()).collect(),
        scale_down_disabled: annotations.get(ANNOTATION_SCALE_DOWN_DISABLED).cloned(),
        scale_down_is_ours: annotations.contains_key(ANNOTATION_SCALE_DOWN),
        cordoned_by_us: annotations.contains_key(ANNOTATION_CORDON),
    }
}

/// Sets the autoscaler's annotation on a Node, as its admin does.
pub async fn annotate(cluster: &Cluster, node: &str, value: &str) -> Result<()> {
    let annotations = json!({ ANNOTATION_SCALE_DOWN_DISABLED: value });
    cluster
        .patch_node(node, json!({ "metadata": { "annotations": annotations } }))
        .await
}

fn set(types: &[&str]) -> BTreeSet<String> {
    types.iter().map(|type_| (*type_).to_owned()).collect()
}

/// Fails unless the Node has shown its turns: the drain, then the maintenance, and soon afterwards nothing.
/// `taken_back`: the first turn ended during the drain. `admins`: annotation value that the admin has set, and that
/// must stay.
pub async fn ensure_shown(cluster: &Cluster, node: &str, taken_back: bool, admins: Option<&str>) -> Result<()> {
    // The signs are removed after the berth is given back, and the audit log is written a little later still.
    let what = format!("{node} shows nothing of its turn");
    soon(cluster, &what, || async {
        Ok(shown(cluster, node)?.last().is_some_and(|last| last.ours.is_empty()))
    })
    .await?;
    let all = shown(cluster, node)?;
    let nothing = set(&[]);
    let draining = set(&[DRAIN_IN_PROGRESS, MAINTENANCE_IN_PROGRESS]);
    let down = set(&[DRAINED, MAINTENANCE_IN_PROGRESS]);
    // A node shows that it waits for its turn only if the turn does not come at once.
    let planned = set(&[MAINTENANCE_PLANNED]);
    let mut walk: Vec<_> = all
        .iter()
        .map(|shown| &shown.ours)
        .filter(|ours| **ours != planned)
        .collect();
    walk.dedup();
    // A drain without pods ends before the Node shows it.
    let turns: &[&[_]] = if taken_back {
        &[
            &[&nothing, &draining, &nothing, &draining, &down, &nothing],
            &[&nothing, &draining, &nothing, &down, &nothing],
        ]
    } else {
        &[&[&nothing, &draining, &down, &nothing], &[&nothing, &down, &nothing]]
    };
    ensure!(turns.contains(&walk.as_slice()), "{node} has shown {all:#?}");
    for shown in &all {
        let value = shown.scale_down_disabled.as_deref();
        let ours = shown.cordoned_by_us.then_some("true");
        ensure!(
            shown.scale_down_is_ours == (admins.is_none() && shown.cordoned_by_us),
            "{node} has shown {shown:?} in {all:#?}"
        );
        // The admin sets the annotation after the Node is created.
        let is_right = match admins {
            Some(_) if value.is_none() => !shown.cordoned_by_us,
            Some(admins) => value == Some(admins),
            None => value == ours,
        };
        ensure!(is_right, "{node} has shown {shown:?} in {all:#?}");
    }
    Ok(())
}
