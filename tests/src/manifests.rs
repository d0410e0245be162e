//! The shipped manifests and charts, as an admin gets them: built by kustomize and Helm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::programs::workspace_root;
use crate::tools::{Tool, Tools};

/// Kinds of other projects that some overlays use: group, version, kind and plural.
const FOREIGN: [(&str, &str, &str, &str); 3] = [
    (
        "security.openshift.io",
        "v1",
        "SecurityContextConstraints",
        "securitycontextconstraints",
    ),
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
];

/// Names of the overlays: the directories of `manifests/overlays`, sorted.
pub fn overlays() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory().join("overlays")).context("reading manifests/overlays")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The objects of an overlay.
pub fn overlay(name: &str) -> Result<Vec<Value>> {
    objects(&kustomize(&directory().join("overlays").join(name))?)
}

/// The objects of the base with these components.
pub fn with_components(components: &[&str]) -> Result<Vec<Value>> {
    let own = tempfile::tempdir()?;
    // A kustomization can name others only by relative paths.
    let up = "../".repeat(own.path().components().count() - 1);
    let manifests = format!("{up}{}", directory().display()).replace("//", "/");
    let mut text = format!("resources:\n- {manifests}\n");
    if !components.is_empty() {
        text.push_str("components:\n");
    }
    for component in components {
        text.push_str(&format!("- {manifests}/components/{component}\n"));
    }
    fs::write(own.path().join("kustomization.yaml"), text)?;
    objects(&kustomize(own.path())?)
}

/// The YAML that `kubectl kustomize` builds from a directory.
pub fn kustomize(directory: &Path) -> Result<String> {
    let tools = Tools::ensure(&[Tool::Kubectl])?;
    let output = Command::new(tools.path(Tool::Kubectl)?)
        .arg("kustomize")
        .arg(directory)
        .output()
        .context("running kubectl kustomize")?;
    ensure!(
        output.status.success(),
        "{}: {}",
        directory.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// A command of Helm, with no configuration of this machine's user.
pub fn helm(home: &Path) -> Result<Command> {
    let tools = Tools::ensure(&[Tool::Helm])?;
    let mut command = Command::new(tools.path(Tool::Helm)?);
    command
        .env_clear()
        .env("HOME", home)
        .current_dir(workspace_root().join("charts"));
    Ok(command)
}

/// The objects of a chart with these values, as for `--set`, and the objects of its tests.
pub fn chart(name: &str, values: &[&str]) -> Result<Vec<Value>> {
    let home = tempfile::tempdir()?;
    let mut command = helm(home.path())?;
    command.args(["template", name, name, "--namespace", "berth-system"]);
    for value in values {
        command.args(["--set", value]);
    }
    let output = command.output().context("running helm template")?;
    ensure!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    objects(&String::from_utf8(output.stdout)?)
}

/// True if Helm applies the object only for an action such as `helm test`.
pub fn is_hook(object: &Value) -> bool {
    !object["metadata"]["annotations"]["helm.sh/hook"].is_null()
}

/// The objects of a YAML text, without empty documents.
pub fn objects(text: &str) -> Result<Vec<Value>> {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
    objects.retain(|object| !object.is_null());
    Ok(objects)
}

fn directory() -> PathBuf {
    workspace_root().join("manifests")
}

/// A CRD for a kind of another project. It accepts any fields.
fn any_fields((group, version, kind, plural): (&str, &str, &str, &str)) -> Value {
    let scope = match kind {
        "SecurityContextConstraints" => "Cluster",
        _ => "Namespaced",
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "scope": scope,
            "names": { "kind": kind, "plural": plural },
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}

/// CRDs for the kinds of other projects.
pub fn foreign_kinds() -> impl Iterator<Item = Value> {
    FOREIGN.into_iter().map(any_fields)
}
