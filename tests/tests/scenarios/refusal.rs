//! Admission policies that refuse some updates, for scenarios of refused writes.

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Creates a policy that refuses updates of the resource, given as group and name, unless they satisfy `validation`.
pub async fn create(client: Client, name: &str, (group, resource): (&str, &str), validation: Value) -> Result<()> {
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource],
            }]},
            "validations": [validation],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Deny"] },
    }))?;
    let post = PostParams::default();
    Api::all(client.clone())
        .create(&post, &policy)
        .await
        .context("the policy")?;
    Api::all(client).create(&post, &binding).await.context("the binding")?;
    Ok(())
}

/// Deletes the policy.
pub async fn delete(client: Client, name: &str) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    bindings.delete(name, &DeleteParams::default()).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client);
    policies.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
