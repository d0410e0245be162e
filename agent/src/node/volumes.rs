//! Finds volumes that are still attached to this agent's Node although no pod that stays there uses them.
//!
//! The agent reads the Node's status, where the kubelet and the attach-detach controller list volumes. It also reads
//! the claims of the staying pods. Volumes that are never attached (NFS, host paths) are not in the status. If a
//! staying pod's claim cannot be read, or names no CSI volume, the pod's volume cannot be found in the status. Then
//! every mounted volume counts as in use.

use std::collections::BTreeSet;

use kube::Client;
use serde::Deserialize;

use super::pods::Pod;
use super::{request, send};
use crate::clients::RequestError;

#[derive(Deserialize, Default)]
struct Node {
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// Volumes that are mounted or about to be mounted, reported by the kubelet.
    volumes_in_use: Option<Vec<String>>,
    /// Attached volumes, reported by the attach-detach controller.
    volumes_attached: Option<Vec<Attached>>,
}

#[derive(Deserialize)]
struct Attached {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct PersistentVolumeClaim {
    #[serde(default)]
    spec: ClaimSpec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ClaimSpec {
    volume_name: String,
}

#[derive(Deserialize)]
struct PersistentVolume {
    #[serde(default)]
    spec: VolumeSpec,
}

#[derive(Deserialize, Default)]
struct VolumeSpec {
    csi: Option<Csi>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    driver: String,
    volume_handle: String,
}

/// Returns the node's volumes that no staying pod uses, by their names in the Node's status. If a claim cannot be read,
/// all mounted volumes count as used.
pub(super) async fn lingering<'a>(
    client: &Client,
    node: &str,
    staying: impl Iterator<Item = &'a Pod>,
) -> Result<Vec<String>, RequestError> {
    let node: Node = get(client, &format!("/api/v1/nodes/{node}")).await?;
    if node.status.all().is_empty() {
        return Ok(vec![]);
    }
    let (mut used, mut all_known) = (BTreeSet::new(), true);
    for pod in staying {
        for claim in pod.claims() {
            match volume_of(client, &pod.metadata.namespace, &claim).await {
                Some(name) => drop(used.insert(name)),
                None => all_known = false,
            }
        }
    }
    Ok(node.status.lingering(&used, all_known))
}

impl Status {
    fn all(&self) -> BTreeSet<&str> {
        let attached = self.volumes_attached.iter().flatten();
        let in_use = self.volumes_in_use.iter().flatten();
        let attached = attached.map(|volume| volume.name.as_str());
        in_use.map(String::as_str).chain(attached).collect()
    }

    /// Returns the volumes that are not in `used`. If `all_known` is false, every mounted volume also counts as used.
    fn lingering(&self, used: &BTreeSet<String>, all_known: bool) -> Vec<String> {
        let mut unused = self.all();
        unused.retain(|name| !used.contains(*name) && (all_known || !self.is_mounted(name)));
        unused.into_iter().map(ToOwned::to_owned).collect()
    }

    fn is_mounted(&self, name: &str) -> bool {
        self.volumes_in_use.iter().flatten().any(|volume| volume == name)
    }
}

/// Returns the name of a claim's volume in the Node's status; `None` if the claim cannot be read or its volume is not a
/// CSI volume.
async fn volume_of(client: &Client, namespace: &str, claim: &str) -> Option<String> {
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}");
    let claim = log_failure(get::<PersistentVolumeClaim>(client, &path).await, &path)?;
    let path = format!("/api/v1/persistentvolumes/{}", claim.spec.volume_name);
    let volume = log_failure(get::<PersistentVolume>(client, &path).await, &path)?;
    volume
        .spec
        .csi
        .map(|csi| format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle))
}

fn log_failure<T>(answer: Result<T, RequestError>, path: &str) -> Option<T> {
    answer
        .inspect_err(|error| tracing::debug!(path, %error, "cannot find the volume of a PersistentVolumeClaim"))
        .ok()
}

async fn get<T: serde::de::DeserializeOwned>(client: &Client, path: &str) -> Result<T, RequestError> {
    send(client, request("GET", path, vec![], "application/json")?).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unused_volumes_linger() {
        let node: Node = serde_json::from_value(json!({"status": {
            "volumesInUse": ["csi/a", "csi/b"],
            "volumesAttached": [{"name": "csi/b", "devicePath": ""}, {"name": "csi/c", "devicePath": "/dev/c"}],
        }}))
        .unwrap();
        fn lingering(node: &Node, used: &[&str], all_known: bool) -> Vec<String> {
            node.status
                .lingering(&used.iter().map(ToString::to_string).collect(), all_known)
        }
        assert_eq!(lingering(&node, &[], true), ["csi/a", "csi/b", "csi/c"]);
        assert_eq!(lingering(&node, &["csi/b"], true), ["csi/a", "csi/c"]);
        assert_eq!(lingering(&node, &[], false), ["csi/c"], "a mounted volume may be used");
        let bare: Node = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert!(bare.status.lingering(&BTreeSet::new(), true).is_empty());
    }
}
