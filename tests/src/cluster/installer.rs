//! Files of the kubelet, at the places where each installer of clusters puts them.

use anyhow::{Context, Result};
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::hosts::real::NodeIdentity;

/// Files that this installer's kubelet has in addition to kubeadm's: path, permissions and content. `installer` is the name of an overlay;
/// most overlays are for clusters of kubeadm.
pub(super) fn kubelet_files(installer: &str, identity: &NodeIdentity) -> Result<Vec<(String, u32, Vec<u8>)>> {
    match installer {
        "k3s" | "rke2" => of_rancher(&format!("var/lib/rancher/{installer}/agent"), identity),
        "openshift" | "eks" => Ok(vec![(
            "var/lib/kubelet/kubeconfig".to_owned(),
            0o600,
            identity.kubeconfig.clone().into_bytes(),
        )]),
        _ => Ok(vec![]),
    }
}

/// The directory of k3s or RKE2: a kubeconfig that names the files beside it.
fn of_rancher(directory: &str, identity: &NodeIdentity) -> Result<Vec<(String, u32, Vec<u8>)>> {
    let parsed = Kubeconfig::from_yaml(&identity.kubeconfig).context("the kubelet's kubeconfig")?;
    let text: Value = serde_saphyr::from_str(&identity.kubeconfig).context("the kubelet's kubeconfig")?;
    let server = parsed
        .clusters
        .first()
        .and_then(|named| named.cluster.as_ref()?.server.clone())
        .context("the kubelet's kubeconfig has no server")?;
    let user = &text["users"][0]["user"];
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "local", "cluster": {
            "server": server, "certificate-authority": format!("/{directory}/server-ca.crt"),
        }}],
        "users": [{ "name": "user", "user": {
            "client-certificate": format!("/{directory}/client-kubelet.crt"),
            "client-key": format!("/{directory}/client-kubelet.key"),
        }}],
        "contexts": [{ "name": "Default", "context": { "cluster": "local", "user": "user" } }],
        "current-context": "Default",
    });
    let file = |name: &str, bytes: Vec<u8>| (format!("{directory}/{name}"), 0o600, bytes);
    Ok(vec![
        file("kubelet.kubeconfig", kubeconfig.to_string().into_bytes()),
        file("server-ca.crt", identity.ca.clone().into_bytes()),
        file("client-kubelet.crt", decoded(&user["client-certificate-data"])?),
        file("client-kubelet.key", decoded(&user["client-key-data"])?),
    ])
}

fn decoded(data: &Value) -> Result<Vec<u8>> {
    use base64::Engine as _;
    let text = data.as_str().context("the kubelet's kubeconfig has no certificate")?;
    base64::prelude::BASE64_STANDARD
        .decode(text)
        .context("the kubelet's certificate")
}
