//! The shipped manifests, as an admin gets them: built by kustomize.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::programs::workspace_root;
use crate::tools::{Tool, Tools};

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

/// The objects of a YAML text, without empty documents.
pub fn objects(text: &str) -> Result<Vec<Value>> {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
    objects.retain(|object| !object.is_null());
    Ok(objects)
}

fn directory() -> PathBuf {
    workspace_root().join("manifests")
}
