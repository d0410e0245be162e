//! Server-side apply of manifests, like `kubectl apply --server-side`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};

use crate::manifests::kustomize;

/// Timeout until a new kind is served.
const KIND_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) async fn path(client: &Client, path: &Path) -> Result<()> {
    if path.join("kustomization.yaml").is_file() {
        let directory = path.to_owned();
        let rendered = tokio::task::spawn_blocking(move || kustomize(&directory)).await??;
        return text(client, &rendered).await;
    }
    for file in files(path)? {
        let content = fs::read_to_string(&file)?;
        text(client, &content)
            .await
            .with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        if file.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

pub(super) async fn text(client: &Client, text: &str) -> Result<()> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(text)?;
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let object: DynamicObject =
            serde_json::from_value(document).context("a document is not a Kubernetes object")?;
        let what = format!(
            "{} {}",
            object.types.as_ref().map_or("?", |types| &types.kind),
            object.name_any()
        );
        one(client, &object).await.context(what)?;
    }
    Ok(())
}

async fn one(client: &Client, object: &DynamicObject) -> Result<()> {
    let types = object.types.as_ref().context("the object has no apiVersion or kind")?;
    let kind = GroupVersionKind::try_from(types)?;
    let api = api(client, &kind, object.namespace().as_deref()).await?;
    let name = object
        .metadata
        .name
        .as_deref()
        .context("the object has no metadata.name")?;
    let parameters = PatchParams::apply("berth-tests").force();
    api.patch(name, &parameters, &Patch::Apply(object)).await?;
    if kind.kind == "CustomResourceDefinition" {
        established(&api, name).await?;
    }
    Ok(())
}

async fn api(client: &Client, kind: &GroupVersionKind, namespace: Option<&str>) -> Result<Api<DynamicObject>> {
    let started = Instant::now();
    let (resource, capabilities) = loop {
        match pinned_kind(client, kind).await {
            Ok(found) => break found,
            // Discovery lags slightly behind an established CRD.
            Err(_) if started.elapsed() < KIND_TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error).context("the kind is not served"),
        }
    };
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace.unwrap_or("default"), &resource),
    })
}

/// Waits until the API server serves the new kind; fails with the conditions of the CRD.
async fn established(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        let crd = api.get(name).await?;
        let conditions = crd.data["status"]["conditions"].clone();
        let mut all = conditions.as_array().into_iter().flatten();
        if all.any(|c| c["type"] == "Established" && c["status"] == "True") {
            return Ok(());
        }
        if started.elapsed() > KIND_TIMEOUT {
            bail!("the CRD is not established: {conditions}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
