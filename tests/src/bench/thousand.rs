//! Many Nodes of realistic size, without hosts.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::fleet::manager;

pub(super) const AT_ONCE: usize = 16;
/// Number of images that the kubelet reports: its default limit.
const IMAGES: usize = 50;

/// Most Nodes that [`make`] can create: each has its own network in 10.0.0.0/8.
pub(super) const MAX_NODES: usize = 1 << 16;

/// Creates this many Nodes. The API server derives their managedFields from these writes.
pub(super) async fn make(client: &Client, count: usize) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    stream::iter((0..count).map(|number| make_one(nodes.clone(), number)))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn make_one(nodes: Api<Node>, number: usize) -> Result<()> {
    let name = name(number);
    let object: Node = serde_json::from_value(node(number)).context("the Node is malformed")?;
    let kubelet = PostParams {
        field_manager: Some("kubelet".to_owned()),
        ..PostParams::default()
    };
    nodes.create(&kubelet, &object).await?;
    // Another writer with its own fields, as the controller manager and a network plugin are.
    let others = Patch::Merge(json!({ "metadata": { "annotations": annotations(number) } }));
    let patched = nodes.patch(&name, &manager("network-plugin"), &others).await;
    patched.with_context(|| format!("the annotations of {name}"))?;
    // Last, because it is large: etcd keeps each version of an object for minutes.
    let status = Patch::Merge(json!({ "status": status(number) }));
    let patched = nodes.patch_status(&name, &manager("kubelet"), &status).await;
    patched.with_context(|| format!("the status of {name}"))?;
    Ok(())
}

/// Copies a Node that the API server returned. Replaces the fields that differ between Nodes.
pub(super) fn copy(pattern: &Value, number: usize) -> Value {
    let (mut object, new) = (pattern.clone(), node(number));
    object["metadata"]["labels"] = new["metadata"]["labels"].clone();
    object["metadata"]["annotations"] = new["metadata"]["annotations"].clone();
    for (key, value) in annotations(number).as_object().into_iter().flatten() {
        object["metadata"]["annotations"][key] = value.clone();
    }
    object["spec"] = new["spec"].clone();
    object["status"] = status(number);
    object
}

pub(super) fn name(number: usize) -> String {
    format!("worker-{number:04}.pool-a.example.internal")
}

fn node(number: usize) -> Value {
    let name = name(number);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m5.4xlarge", "beta.kubernetes.io/instance-type": "m5.4xlarge",
                "topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": format!("region-1{}", number % 3),
                "topology.ebs.csi.aws.com/zone": format!("region-1{}", number % 3),
                "node.example.com/rack": format!("rack-{}", number / 40), "node.example.com/role": "worker",
            },
            "annotations": {
                "kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd/containerd.sock",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": { "providerID": format!("aws:///region-1a/i-{number:017x}"), "podCIDR": format!("10.{}.{}.0/24", number / 256, number % 256) },
    })
}

fn annotations(number: usize) -> Value {
    json!({
        "csi.volume.kubernetes.io/nodeid": format!("{{\"ebs.csi.aws.com\":\"i-{number:017x}\",\"efs.csi.aws.com\":\"i-{number:017x}\"}}"),
        "projectcalico.org/IPv4Address": format!("10.0.{}.{}/20", number / 256, number % 256),
        "projectcalico.org/IPv4VXLANTunnelAddr": format!("192.168.{}.{}", number / 256, number % 256),
        "alpha.kubernetes.io/provided-node-ip": format!("10.0.{}.{}", number / 256, number % 256),
    })
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": time,
        "lastTransitionTime": time,
    })
}

fn status(number: usize) -> Value {
    let conditions: Vec<Value> = [
        ("Memory", "SufficientMemory", "sufficient memory available"),
        ("Disk", "NoDiskPressure", "no disk pressure"),
        ("PID", "SufficientPID", "sufficient PID available"),
    ]
    .iter()
    .map(|(what, reason, message)| {
        let (reason, message) = (format!("KubeletHas{reason}"), format!("kubelet has {message}"));
        condition(&format!("{what}Pressure"), "False", &reason, &message)
    })
    .chain([condition(
        "Ready",
        "True",
        "KubeletReady",
        "kubelet is posting ready status",
    )])
    .collect();
    let resources = json!({
        "cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "200Gi", "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
    });
    json!({
        "conditions": conditions, "capacity": resources, "allocatable": resources, "images": images(number),
        "addresses": [
            { "type": "InternalIP", "address": format!("10.0.{}.{}", number / 256, number % 256) },
            { "type": "Hostname", "address": name(number) },
        ],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
        "nodeInfo": {
            "bootID": format!("00000000-0000-4000-8000-{number:012x}"), "machineID": format!("{number:032x}"),
            "systemUUID": format!("ec2{number:029x}"), "kernelVersion": "6.12.0-55.el10.x86_64",
            "osImage": "Example Linux 10", "operatingSystem": "linux", "architecture": "amd64",
            "containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
        },
    })
}

/// Each image by digest and by tag, as the kubelet reports it.
fn images(number: usize) -> Vec<Value> {
    let mut images = vec![];
    for n in 0..IMAGES {
        let repository = format!("registry.example.com/platform/team-{}/service-{n}", n % 7);
        let digest = format!("{:064x}", n * 1_000_003 + number % 5);
        let names = [
            format!("{repository}@sha256:{digest}"),
            format!("{repository}:v1.{n}.0"),
        ];
        images.push(json!({ "names": names, "sizeBytes": 50_000_000 + n }));
    }
    images
}
