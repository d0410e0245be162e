//! Checks whether an API server has the CRDs and the admission policies of this version.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};

/// Names of the admission policies; their bindings have the same names.
pub const POLICIES: [&str; 4] = [
    "berth-agent-own-status",
    "berth-agent-own-berth",
    "berth-agent-own-token",
    "berth-node-labels",
];
/// Oldest supported version of Kubernetes.
pub const OLDEST_KUBERNETES: (u32, u32) = (1, 33);
/// Most fields of one CRD that a message names.
const FIELDS_NAMED: usize = 5;
const CRDS_REMEDY: &str = "upgrade the chart berth-crds, or apply manifests/base/crds.yaml again";
const POLICIES_REMEDY: &str = "upgrade the chart berth, or apply manifests/base/admission-policies.yaml again";

/// Objects of Berth that the API server has. Missing objects are absent.
#[derive(Debug, Clone, Default)]
pub struct Installed {
    /// Major and minor version of the API server.
    pub kubernetes: (u32, u32),
    /// CRDs by name.
    pub definitions: BTreeMap<String, CustomResourceDefinition>,
    /// Names of the admission policies.
    pub policies: Vec<String>,
    /// Bindings of the admission policies, by name.
    pub bindings: BTreeMap<String, ValidatingAdmissionPolicyBinding>,
}

/// Returns everything that is missing or outdated, each with its remedy. `expected` are the CRDs of this version.
pub fn objections(installed: &Installed, expected: &[CustomResourceDefinition]) -> Vec<String> {
    let mut objections = Vec::new();
    let (major, minor) = installed.kubernetes;
    if installed.kubernetes < OLDEST_KUBERNETES {
        let (oldest_major, oldest_minor) = OLDEST_KUBERNETES;
        objections.push(format!(
            "Kubernetes {major}.{minor} is too old: upgrade the cluster to {oldest_major}.{oldest_minor} or newer"
        ));
    }
    for definition in expected {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        let problem = match installed.definitions.get(name) {
            None => Some("is missing".to_owned()),
            Some(found) => problem_of_definition(found, definition),
        };
        if let Some(problem) = problem {
            objections.push(format!("CRD {name} {problem}: {CRDS_REMEDY}"));
        }
    }
    for name in POLICIES {
        if let Some(problem) = problem_of_policy(installed, name) {
            objections.push(format!("admission policy {name} {problem}: {POLICIES_REMEDY}"));
        }
    }
    objections
}

fn problem_of_definition(found: &CustomResourceDefinition, expected: &CustomResourceDefinition) -> Option<String> {
    for version in &expected.spec.versions {
        let name = &version.name;
        let Some(served) = found.spec.versions.iter().find(|one| one.name == *name && one.served) else {
            return Some(format!("does not serve {name}"));
        };
        let missing = missing_fields(served, version);
        if !missing.is_empty() {
            let named: Vec<&str> = missing.iter().take(FIELDS_NAMED).map(String::as_str).collect();
            return Some(format!("is of another version: it has no {}", named.join(", ")));
        }
    }
    if is_established(found) {
        return None;
    }
    Some("is not established".to_owned())
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let status = definition.status.as_ref();
    let mut conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Paths of the fields that the expected version has and the served one lacks.
fn missing_fields(served: &CustomResourceDefinitionVersion, expected: &CustomResourceDefinitionVersion) -> Vec<String> {
    let mut missing = Vec::new();
    if let (Some(served), Some(expected)) = (schema(served), schema(expected)) {
        add_missing(&mut missing, "", served, expected);
    }
    missing
}

fn schema(version: &CustomResourceDefinitionVersion) -> Option<&JSONSchemaProps> {
    version.schema.as_ref()?.open_api_v3_schema.as_ref()
}

fn add_missing(missing: &mut Vec<String>, path: &str, served: &JSONSchemaProps, expected: &JSONSchemaProps) {
    let of_served = served.properties.as_ref();
    for (name, field) in expected.properties.iter().flatten() {
        let path = match path {
            "" => name.clone(),
            _ => format!("{path}.{name}"),
        };
        match of_served.and_then(|fields| fields.get(name)) {
            None => missing.push(path),
            Some(found) => add_missing(missing, &path, found, field),
        }
    }
    if let (Some(served), Some(expected)) = (items(served), items(expected)) {
        add_missing(missing, path, served, expected);
    }
    if let (Some(served), Some(expected)) = (values(served), values(expected)) {
        add_missing(missing, path, served, expected);
    }
}

/// Schema of the items of a list.
fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(items) => Some(items),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

/// Schema of the values of a map.
fn values(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.additional_properties.as_ref()? {
        JSONSchemaPropsOrBool::Schema(values) => Some(values),
        JSONSchemaPropsOrBool::Bool(_) => None,
    }
}

fn problem_of_policy(installed: &Installed, name: &str) -> Option<&'static str> {
    if !installed.policies.iter().any(|policy| policy == name) {
        return Some("is missing");
    }
    let Some(binding) = installed.bindings.get(name) else {
        return Some("refuses nothing, because its binding is missing");
    };
    let spec = binding.spec.as_ref();
    let mut actions = spec
        .and_then(|spec| spec.validation_actions.as_ref())
        .into_iter()
        .flatten();
    if spec.and_then(|spec| spec.policy_name.as_deref()) != Some(name) {
        return Some("refuses nothing, because its binding names another policy");
    }
    if !actions.any(|action| action == "Deny") {
        return Some("refuses nothing, because its binding lacks the action Deny");
    }
    if spec.is_some_and(|spec| spec.match_resources.is_some() || spec.param_ref.is_some()) {
        return Some("may refuse too little, because its binding limits it");
    }
    None
}

#[cfg(test)]
mod tests;
