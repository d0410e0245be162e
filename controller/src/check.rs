//! `berth-controller check`: reads the CRDs and the admission policies, and reports missing and outdated ones.

use std::fmt::Debug;

use anyhow::{Context, Result};
use berth_api::fleet::BootcFleet;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_core::controller::installation::{Installed, POLICIES, objections};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResourceExt};
use serde::de::DeserializeOwned;

/// Returns everything that the API server lacks, each with its remedy. Fails if it cannot be read.
pub async fn check(client: Client) -> Result<Vec<String>> {
    let expected = [BootcNodePool::crd(), BootcNode::crd(), BootcFleet::crd()];
    let version = client
        .apiserver_version()
        .await
        .context("cannot read the API server's version")?;
    let mut installed = Installed {
        kubernetes: (number(&version.major), number(&version.minor)),
        ..Installed::default()
    };
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in &expected {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        if let Some(found) = get(&definitions, "CRD", name).await? {
            installed.definitions.insert(name.to_owned(), found);
        }
    }
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client);
    for name in POLICIES {
        if get(&policies, "ValidatingAdmissionPolicy", name).await?.is_some() {
            installed.policies.push(name.to_owned());
        }
        if let Some(found) = get(&bindings, "ValidatingAdmissionPolicyBinding", name).await? {
            installed.bindings.insert(name.to_owned(), found);
        }
    }
    Ok(objections(&installed, &expected))
}

async fn get<K>(api: &Api<K>, kind: &str, name: &str) -> Result<Option<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    api.get_opt(name)
        .await
        .with_context(|| format!("cannot read {kind} {name}"))
}

/// The leading digits of a part of the API server's version: some report a minor version such as `33+`.
fn number(part: &str) -> u32 {
    let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
    part[..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_vendors_have_digits_first() {
        for (part, expected) in [("33", 33), ("33+", 33), ("", 0), ("x", 0)] {
            assert_eq!(number(part), expected, "{part}");
        }
    }
}
