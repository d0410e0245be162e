//! Images that a pool, or one node, ran before.

use berth_api::node::NodeDeployment;
use berth_api::pool::DeployedImage;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::Snapshot;
use crate::table::columns;
use crate::text::{age, clean, cut};

/// The images that the members of a pool were deployed to, or why there is nothing to show. No line is longer than `width`,
/// unless that is 0.
///
/// # Errors
/// When there is no pool of that name.
pub fn pool_history(snapshot: &Snapshot, pool: &str, now: Timestamp, width: usize) -> Result<String, String> {
    let found = snapshot.pools.iter().find(|p| p.name_any() == pool);
    let found = found.ok_or_else(|| {
        let names: Vec<_> = snapshot.pools.iter().map(ResourceExt::name_any).collect();
        format!("there is no pool {pool:?}; there are: {}", names.join(", "))
    })?;
    let images = found
        .status
        .as_ref()
        .map_or(&[][..], |status| status.deploy_history.as_slice());
    let row = |image: &DeployedImage| {
        vec![
            version(image.version.as_ref()),
            image.node_count.to_string(),
            when(image.last_deployed.as_ref(), now),
            image.digest.to_string(),
        ]
    };
    let rows: Vec<_> = images.iter().map(row).collect();
    let head = format!("Pool {pool}: the images that its nodes were deployed to, the newest first");
    Ok(table(
        &head,
        &["VERSION", "NODES", "LAST DEPLOYED", "DIGEST"],
        &rows,
        width,
    ))
}

/// The images that one node was deployed to, or why there is nothing to show.
///
/// # Errors
/// When there is no BootcNode of that name.
pub fn node_history(snapshot: &Snapshot, node: &str, now: Timestamp, width: usize) -> Result<String, String> {
    let found = snapshot.bootc_nodes.iter().find(|n| n.name_any() == node);
    let found = found.ok_or_else(|| format!("there is no BootcNode {node:?}: no pool has a node of that name"))?;
    let deployments = found
        .status
        .as_ref()
        .map_or(&[][..], |status| status.deployments.as_slice());
    let row = |deployment: &NodeDeployment| {
        vec![
            version(deployment.version.as_ref()),
            clean(&deployment.pool),
            when(deployment.deployed_time.as_ref(), now),
            deployment.digest.to_string(),
        ]
    };
    let rows: Vec<_> = deployments.iter().map(row).collect();
    let head = format!("Node {node}: the images that it was deployed to, the newest first");
    Ok(table(&head, &["VERSION", "POOL", "DEPLOYED", "DIGEST"], &rows, width))
}

fn version(version: Option<&String>) -> String {
    version.map(|version| clean(version)).unwrap_or_default()
}

/// Nodes bring an image along that they were installed with.
fn when(time: Option<&Time>, now: Timestamp) -> String {
    time.map_or_else(
        || "found there".to_owned(),
        |time| format!("{} ago ({:.0})", age(time.0, now), time.0),
    )
}

fn table(head: &str, heads: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let body = match rows {
        [] => "  nothing yet: no agent has reported what it runs\n".to_owned(),
        rows => columns(heads, rows, width),
    };
    cut(head, width) + "\n" + &body
}
