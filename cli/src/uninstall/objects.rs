//! The objects that install Berth: how they are found, and the order of their deletion.
//!
//! They are found by the label [`keys::LABEL_PART_OF`] among the objects of every kind that the API server serves. So a
//! component or a chart may add objects of any kind. An object that another one owns goes with its owner.

use std::collections::BTreeSet;

use anyhow::Result;
use berth_api::keys;
use serde_json::Value;

use super::requests::{Failed, Server};
use crate::text::clean;

/// Kinds whose objects other objects own, or that no manifest has. Listing all pods of a large cluster takes long.
const SKIPPED: [&str; 8] = [
    "Pod",
    "ReplicaSet",
    "ControllerRevision",
    "Endpoints",
    "EndpointSlice",
    "Event",
    "Node",
    "Lease",
];

/// An object that installs Berth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Object {
    /// Kind of the object.
    pub(super) kind: String,
    /// Namespace; empty for an object without one.
    pub(super) namespace: String,
    /// Name of the object.
    pub(super) name: String,
    /// UID of the object.
    pub(super) uid: String,
    /// Path of the object in the API.
    pub(super) path: String,
    /// Program that applies the object again and again, or must delete it.
    pub(super) manager: Option<Manager>,
}

/// Program that manages an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Manager {
    /// Helm, with the release's name and namespace.
    Helm(String, String),
    /// A program that applies objects from a repository.
    GitOps(&'static str),
}

impl Object {
    /// Returns the object's kind and name.
    pub(super) fn words(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("{} {}", self.kind, self.name),
            namespace => format!("{} {} in namespace {namespace}", self.kind, self.name),
        }
    }

    fn read(kind: &str, path: &str, object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        if owners.into_iter().any(|owner| owner["controller"] == true) {
            return None;
        }
        let (name, namespace) = (clean(text(metadata, "name")), clean(text(metadata, "namespace")));
        let path = match namespace.as_str() {
            "" => format!("{path}/{name}"),
            namespace => {
                let (start, plural) = path.rsplit_once('/')?;
                format!("{start}/namespaces/{namespace}/{plural}/{name}")
            }
        };
        Some(Self {
            kind: kind.to_owned(),
            uid: clean(text(metadata, "uid")),
            manager: manager(metadata),
            namespace,
            name,
            path,
        })
    }
}

/// Returns a field of an object's metadata; empty if it is absent.
pub(super) fn text<'a>(metadata: &'a Value, field: &str) -> &'a str {
    metadata[field].as_str().unwrap_or_default()
}

fn manager(metadata: &Value) -> Option<Manager> {
    let annotations = &metadata["annotations"];
    // First, because Flux installs releases of Helm.
    for (key, program) in [
        ("kustomize.toolkit.fluxcd.io/name", "Flux"),
        ("helm.toolkit.fluxcd.io/name", "Flux"),
        ("argocd.argoproj.io/instance", "Argo CD"),
    ] {
        if metadata["labels"].get(key).is_some() {
            return Some(Manager::GitOps(program));
        }
    }
    if annotations["argocd.argoproj.io/tracking-id"].is_string() {
        return Some(Manager::GitOps("Argo CD"));
    }
    let release = annotations["meta.helm.sh/release-name"].as_str()?;
    let namespace = text(annotations, "meta.helm.sh/release-namespace");
    Some(Manager::Helm(clean(release), clean(namespace)))
}

/// Kinds of objects that Helm records its releases in.
const RECORDS: [&str; 2] = ["secrets", "configmaps"];

/// Forgets the Helm releases that Helm no longer knows: it leaves some objects when a release is uninstalled, with the marks of the
/// release. Returns notes on releases whose records could not be read; they count as known.
async fn forget_ended_releases(server: &Server, objects: &mut [Object]) -> Vec<String> {
    let releases: BTreeSet<Manager> = objects.iter().filter_map(|object| object.manager.clone()).collect();
    let mut notes = vec![];
    for manager in releases {
        let Manager::Helm(name, namespace) = &manager else {
            continue;
        };
        match is_recorded(server, name, namespace).await {
            Ok(true) => {}
            Ok(false) => {
                for object in objects.iter_mut().filter(|object| object.manager.as_ref() == Some(&manager)) {
                    object.manager = None;
                }
            }
            Err(error) => notes.push(format!(
                "Helm's records of release {name} in namespace {namespace} cannot be read, so the release may be gone: {error}"
            )),
        }
    }
    notes
}

/// True if Helm has a record of this release.
async fn is_recorded(server: &Server, release: &str, namespace: &str) -> Result<bool, Failed> {
    let selector = format!("owner=helm,name={release}");
    for kind in RECORDS {
        let path = format!("/api/v1/namespaces/{namespace}/{kind}");
        if !server.list(&path, Some(&selector)).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Step in the order of deletion. The controller ends first, because it would write Leases and a BootcFleet again. The
/// roles go before the policies: a token of an agent that still runs must never have rights that no policy confines.
/// The pods on the hosts need no rights, but their ServiceAccount.
pub(super) fn rank(kind: &str) -> usize {
    match kind {
        "Deployment" => 0,
        "ClusterRoleBinding" | "RoleBinding" => 1,
        "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding" => 2,
        "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy" => 3,
        "CustomResourceDefinition" => 4,
        "DaemonSet" => 5,
        "Namespace" => 7,
        _ => 6,
    }
}

/// Sorts objects in the order of deletion.
pub(super) fn sort(objects: &mut [Object]) {
    objects.sort_by_cached_key(|object| (rank(&object.kind), object.kind.clone(), object.words()));
}

/// Finds all objects that install Berth. Also returns notes on kinds that could not be listed.
pub(super) async fn find(server: &Server) -> Result<(Vec<Object>, Vec<String>)> {
    let (mut objects, mut notes) = (vec![], vec![]);
    let selector = format!("{}={}", keys::LABEL_PART_OF, keys::PART_OF);
    for group in groups(server).await? {
        let kinds = match server.get(&group).await {
            Ok(kinds) => kinds.unwrap_or_default(),
            Err(error) => {
                notes.push(format!("the kinds of {group} cannot be read: {error}"));
                continue;
            }
        };
        for kind in kinds["resources"].as_array().into_iter().flatten().filter(is_searched) {
            let (kind, plural) = (
                kind["kind"].as_str().unwrap_or_default(),
                kind["name"].as_str().unwrap_or_default(),
            );
            let path = format!("{group}/{plural}");
            match server.list(&path, Some(&selector)).await {
                Ok(found) => objects.extend(found.iter().filter_map(|object| Object::read(kind, &path, object))),
                Err(Failed::Forbidden(message)) => notes.push(format!("no search for {plural}: {message}")),
                // Some kinds can be created but not listed, whatever their list of verbs says.
                Err(error) => notes.push(format!("no search for {plural}: {error}")),
            }
        }
    }
    notes.extend(forget_ended_releases(server, &mut objects).await);
    sort(&mut objects);
    Ok((objects, notes))
}

fn is_searched(kind: &&Value) -> bool {
    let name = kind["name"].as_str().unwrap_or_default();
    let verbs: Vec<&str> = kind["verbs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let is_skipped = SKIPPED.contains(&kind["kind"].as_str().unwrap_or_default());
    !name.contains('/') && verbs.contains(&"list") && verbs.contains(&"delete") && !is_skipped
}

/// Returns the path of each group, in its preferred version.
async fn groups(server: &Server) -> Result<Vec<String>> {
    let list = server
        .get("/apis")
        .await
        .map_err(|error| error.while_doing("list the API groups"))?;
    let mut paths = vec!["/api/v1".to_owned()];
    for group in list.unwrap_or_default()["groups"].as_array().into_iter().flatten() {
        // The objects of these groups need more than a label: the kinds of Berth are deleted with their definitions.
        if group["name"] == keys::GROUP || group["name"] == "metrics.k8s.io" {
            continue;
        }
        if let Some(version) = group["preferredVersion"]["groupVersion"].as_str() {
            paths.push(format!("/apis/{version}"));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(path: &str, object: Value) -> Option<Object> {
        Object::read("Role", path, &object)
    }

    #[test]
    fn an_object_is_deleted_where_it_was_found() {
        let group = "/apis/rbac.authorization.k8s.io/v1";
        let role = json!({ "metadata": { "name": "a", "namespace": "default", "uid": "u" } });
        let found = read(&format!("{group}/roles"), role).unwrap();
        assert_eq!(found.path, format!("{group}/namespaces/default/roles/a"));
        assert_eq!(found.words(), "Role a in namespace default");
        let cluster = read(&format!("{group}/clusterroles"), json!({ "metadata": { "name": "b" } })).unwrap();
        assert_eq!(cluster.path, format!("{group}/clusterroles/b"));
        let owned = json!({ "metadata": { "name": "c", "ownerReferences": [{ "controller": true }] } });
        assert_eq!(read(group, owned), None);
    }

    #[test]
    fn managers_are_known_by_their_marks() {
        for (metadata, expected) in [
            (json!({}), None),
            (
                json!({ "annotations": { "meta.helm.sh/release-name": "b", "meta.helm.sh/release-namespace": "ns" } }),
                Some(Manager::Helm("b".to_owned(), "ns".to_owned())),
            ),
            (
                json!({ "labels": { "kustomize.toolkit.fluxcd.io/name": "x" } }),
                Some(Manager::GitOps("Flux")),
            ),
            (
                json!({
                    "labels": { "helm.toolkit.fluxcd.io/name": "x" },
                    "annotations": { "meta.helm.sh/release-name": "b", "meta.helm.sh/release-namespace": "ns" },
                }),
                Some(Manager::GitOps("Flux")),
            ),
            (
                json!({ "annotations": { "argocd.argoproj.io/tracking-id": "x" } }),
                Some(Manager::GitOps("Argo CD")),
            ),
        ] {
            assert_eq!(manager(&metadata), expected, "{metadata}");
        }
    }

    #[test]
    fn the_controller_goes_first_and_rights_before_their_policies() {
        let kinds = [
            "Namespace",
            "ServiceAccount",
            "DaemonSet",
            "CustomResourceDefinition",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "RoleBinding",
            "Deployment",
        ];
        let mut objects: Vec<Object> = kinds
            .iter()
            .map(|kind| Object {
                kind: (*kind).to_owned(),
                ..Object::default()
            })
            .collect();
        sort(&mut objects);
        let mut expected = kinds;
        expected.reverse();
        assert_eq!(
            objects.iter().map(|object| object.kind.as_str()).collect::<Vec<_>>(),
            expected
        );
    }
}
