//! `kubectl berth history`: images that a pool or a node has run.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::snapshot::Snapshot;
use crate::table::columns;
use crate::text::{age, clean, cut};

/// Returns the images that were deployed in a pool, in lines of at most `width` columns; 0 means unlimited.
pub fn pool_history(snapshot: &Snapshot, pool: &str, now: Timestamp, width: usize) -> Result<String, String> {
    let found = snapshot.pools.iter().find(|p| p.name_any() == pool);
    let found = found.ok_or_else(|| {
        let names: Vec<_> = snapshot.pools.iter().map(ResourceExt::name_any).collect();
        format!("there is no pool {pool:?}; existing pools: {}", names.join(", "))
    })?;
    let images = found
        .status
        .as_ref()
        .map_or(&[][..], |status| status.deploy_history.as_slice());
    let rows = images.iter().map(|image| {
        vec![
            version(image.version.as_ref()),
            image.node_count.to_string(),
            image
                .publish_time
                .as_ref()
                .map(|time| format!("{:.0}", time.0))
                .unwrap_or_default(),
            when(image.last_deployed.as_ref(), now),
            image.digest.to_string(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let head = format!("Pool {pool}: images deployed on its nodes, the newest first");
    Ok(table(
        &head,
        &["VERSION", "NODES", "TARGET SINCE", "LAST DEPLOYED", "DIGEST"],
        &rows,
        width,
    ))
}

/// Returns the images that were deployed on a node, or a line that no image has been deployed.
pub fn node_history(snapshot: &Snapshot, node: &str, now: Timestamp, width: usize) -> Result<String, String> {
    let found = snapshot.bootc_nodes.iter().find(|n| n.name_any() == node);
    let found = found.ok_or_else(|| format!("there is no BootcNode {node:?}: no pool has a node with that name"))?;
    let deployments = found
        .status
        .as_ref()
        .map_or(&[][..], |status| status.deployments.as_slice());
    let rows = deployments.iter().map(|deployment| {
        vec![
            version(deployment.version.as_ref()),
            clean(&deployment.pool),
            when(deployment.deployed_time.as_ref(), now),
            deployment.digest.to_string(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let head = format!("Node {node}: images deployed on it, the newest first");
    Ok(table(&head, &["VERSION", "POOL", "DEPLOYED", "DIGEST"], &rows, width))
}

fn version(version: Option<&String>) -> String {
    version.map(|version| clean(version)).unwrap_or_default()
}

/// Returns when an image was deployed. `None` for `time` means that nodes already ran the image when they joined.
fn when(time: Option<&Time>, now: Timestamp) -> String {
    time.map_or_else(
        || "found at join".to_owned(),
        |time| format!("{} ago ({:.0})", age(time.0, now), time.0),
    )
}

fn table(head: &str, heads: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let body = match rows {
        [] => "  none yet: no agent has reported an image\n".to_owned(),
        rows => columns(heads, rows, width),
    };
    cut(head, width) + "\n" + &body
}
