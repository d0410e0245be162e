//! Looks for traces of Berth.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::Client;
use serde_json::Value;

use crate::hosts::real::RealHost;
use crate::hosts::sim::SimHost;

/// Kinds that are not searched: the cluster's own log, and what disappears with another object a moment later.
const SKIPPED: [&str; 4] = ["events", "controllerrevisions", "pods", "replicasets"];

/// The API server forgets a deleted kind a moment later.
const FORGETS: Duration = Duration::from_secs(20);

/// Prints all paths with Berth's name, except below /usr and /sysroot, and the empty directories that the kubelet made.
const LOOK: &str = "find /etc /var/lib /run -xdev -name '*berth*' -not -path '/var/lib/kubelet/*' \
    -not -path '/var/lib/containerd/*' -not -path '/run/containerd/*' -not -path '/var/lib/cni/*' -not -path '/run/netns/*'; \
    find /etc/ostree /etc/containers /run/ostree -maxdepth 0 -empty 2>/dev/null; true";
/// Prints units with Berth's name. systemctl fails if it finds none.
const UNITS: &str =
    "systemctl list-units --all --no-legend 'berth-*'; systemctl list-unit-files --no-legend 'berth-*' || true";

/// Fails if the cluster has an object, a mark or a kind of Berth. Waits until the API server has forgotten Berth's kinds.
pub async fn cluster_is_clean(client: &Client) -> Result<()> {
    let give_up = Instant::now() + FORGETS;
    loop {
        match look(client).await {
            Err(_) if Instant::now() < give_up => tokio::time::sleep(Duration::from_millis(500)).await,
            looked => return looked,
        }
    }
}

/// Fails if an object of any kind has a name, a label, an annotation, a finalizer or a Node's mark of Berth.
async fn look(client: &Client) -> Result<()> {
    let mut groups = vec!["/api/v1".to_owned()];
    for group in get(client, "/apis").await?["groups"].as_array().into_iter().flatten() {
        let version = group["preferredVersion"]["groupVersion"]
            .as_str()
            .context("no version")?;
        ensure!(!version.contains("berth"), "the API server still serves {version}");
        groups.push(format!("/apis/{version}"));
    }
    let mut searched = BTreeSet::new();
    for group in groups {
        for kind in get(client, &group).await?["resources"].as_array().into_iter().flatten() {
            let name = kind["name"].as_str().context("no name")?;
            let can_list = kind["verbs"]
                .as_array()
                .is_some_and(|verbs| verbs.contains(&"list".into()));
            if !can_list || SKIPPED.contains(&name) {
                continue;
            }
            searched.insert(name.to_owned());
            for object in get(client, &format!("{group}/{name}")).await?["items"]
                .as_array()
                .into_iter()
                .flatten()
            {
                is_clean(name, object)?;
            }
        }
    }
    for kind in [
        "nodes",
        "leases",
        "namespaces",
        "clusterroles",
        "customresourcedefinitions",
        "secrets",
    ] {
        ensure!(searched.contains(kind), "{kind} were not searched: {searched:?}");
    }
    Ok(())
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    let request = http::Request::get(path).body(vec![])?;
    client.request(request).await.with_context(|| path.to_owned())
}

fn is_clean(kind: &str, object: &Value) -> Result<()> {
    let mut object = object.clone();
    // Names of the programs that wrote the object stay there as long as the object.
    object["metadata"]["managedFields"] = Value::Null;
    let marks = [
        &object["metadata"],
        &object["spec"]["taints"],
        &object["status"]["conditions"],
    ];
    for mark in marks {
        let text = mark.to_string().to_lowercase();
        ensure!(!text.contains("berth"), "{kind}: {mark}");
    }
    Ok(())
}

/// Fails if a real host has a unit, a file or a directory of Berth, except these paths.
pub async fn real_host_is_clean(host: &RealHost, kept: &[&str]) -> Result<()> {
    let paths = host.exec(&["sh", "-c", LOOK]).await?;
    let paths: Vec<&str> = paths.lines().collect();
    ensure!(paths == kept, "{} has {paths:?}", host.name());
    let units = host.exec(&["sh", "-c", UNITS]).await?;
    ensure!(units.trim().is_empty(), "{} has {units}", host.name());
    Ok(())
}

/// Fails if a simulated host has a unit, a file or a directory of Berth, except these files.
pub fn host_is_clean(host: &SimHost, kept: &[&str]) -> Result<()> {
    let units: Vec<String> = host.units().into_iter().filter(|unit| unit.contains("berth")).collect();
    ensure!(units.is_empty(), "{} has {units:?}", host.name());
    let mut paths = vec![];
    collect(host.root(), &mut paths)?;
    for path in paths {
        let path = path.strip_prefix(host.root())?.display().to_string();
        let is_kept = kept.iter().any(|kept| kept.starts_with(&path));
        ensure!(!path.contains("berth") || is_kept, "{} has /{path}", host.name());
        let is_made_by_kubelet = ["etc/ostree", "etc/containers", "run/ostree"].contains(&path.as_str());
        ensure!(
            !is_made_by_kubelet || fs::read_dir(host.root().join(&path))?.next().is_some(),
            "{} has an empty /{path}",
            host.name()
        );
    }
    Ok(())
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            collect(&path, paths)?;
        }
        paths.push(path);
    }
    Ok(())
}
