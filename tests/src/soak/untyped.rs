//! Reads objects as JSON. A liar's objects may hold values that typed clients cannot read.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::Cluster;

pub(super) const NODES: &str = "/api/v1/nodes";
/// Pods of all namespaces.
pub(super) const PODS: &str = "/api/v1/pods";
pub(super) const POOLS: &str = "/apis/berth.dev/v1alpha1/bootcnodepools";
pub(super) const BOOTC_NODES: &str = "/apis/berth.dev/v1alpha1/bootcnodes";
pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases";

/// Reads an object or a list, as an admin.
pub(super) async fn read(cluster: &Cluster, path: &str) -> Result<Value> {
    let request = http::Request::get(path).body(vec![])?;
    let read = cluster.client().request(request).await;
    read.with_context(|| format!("cannot read {path}"))
}

/// Deletes an object at once, as an admin. Accepts that it does not exist.
pub(super) async fn delete(cluster: &Cluster, path: &str) -> Result<()> {
    let path = format!("{path}?gracePeriodSeconds=0");
    let request = http::Request::delete(&path).body(vec![])?;
    match cluster.client().request_text(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).with_context(|| format!("cannot delete {path}")),
    }
}

/// Patches an object, as an admin.
pub(super) async fn patch(cluster: &Cluster, path: &str, body: &Value) -> Result<()> {
    let request = http::Request::patch(path)
        .header(http::header::CONTENT_TYPE, "application/strategic-merge-patch+json")
        .body(body.to_string().into_bytes())?;
    let patched = cluster.client().request_text(request).await;
    patched.map(drop).with_context(|| format!("cannot change {path}"))
}

/// Items of a list.
pub(super) fn items(list: &Value) -> &[Value] {
    list.pointer("/items")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Conditions of an object.
pub(super) fn conditions(object: &Value) -> &[Value] {
    let found = object.pointer("/status/conditions").and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

/// A string in an object, or the empty string.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
