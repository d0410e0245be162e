//! Objects of `manifests/` that this plugin knows: the CRDs and the admission policies of its own version.

use berth_api::keys;
use serde_json::Value;

const CRDS: &str = include_str!("../../../manifests/base/crds.yaml");
const POLICIES: &str = include_str!("../../../manifests/base/admission-policies.yaml");

/// Kinds of the shipped objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// CustomResourceDefinition.
    Crd,
    /// ValidatingAdmissionPolicy.
    Policy,
    /// ValidatingAdmissionPolicyBinding.
    Binding,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Crd, Self::Policy, Self::Binding];

    /// Returns the kind as objects have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crd => "CustomResourceDefinition",
            Self::Policy => "ValidatingAdmissionPolicy",
            Self::Binding => "ValidatingAdmissionPolicyBinding",
        }
    }

    /// Returns the resource and its group, as in a Role.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Crd => "customresourcedefinitions.apiextensions.k8s.io",
            Self::Policy => "validatingadmissionpolicies.admissionregistration.k8s.io",
            Self::Binding => "validatingadmissionpolicybindings.admissionregistration.k8s.io",
        }
    }

    /// Returns the path of the objects of this kind at an API server.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Crd => "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            Self::Policy => "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            Self::Binding => "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        }
    }
}

/// An object of `manifests/`.
#[derive(Debug, Clone, PartialEq)]
pub struct Shipped {
    /// Kind.
    pub kind: Kind,
    /// Name.
    pub name: String,
    /// The object, for the namespace that Berth is installed in.
    pub object: Value,
}

impl Shipped {
    /// Returns the path of the object at an API server.
    pub fn path(&self) -> String {
        format!("{}/{}", self.kind.path(), self.name)
    }
}

/// Returns the shipped objects for this namespace.
pub fn shipped(namespace: &str) -> Result<Vec<Shipped>, String> {
    // The policies name the namespace, as a part of the agents' user name and in selectors.
    let policies = POLICIES.replace(keys::NAMESPACE, namespace);
    let mut found = vec![];
    for text in [CRDS, &policies] {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
        found.extend(documents.into_iter().filter_map(of));
    }
    Ok(found)
}

fn of(object: Value) -> Option<Shipped> {
    let kind = Kind::ALL.into_iter().find(|kind| object["kind"] == kind.name())?;
    let name = object["metadata"]["name"].as_str()?.to_owned();
    Some(Shipped { kind, name, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_object_is_known() {
        let found = shipped("os-updates").unwrap();
        let count = |kind| found.iter().filter(|object| object.kind == kind).count();
        assert_eq!([count(Kind::Crd), count(Kind::Policy), count(Kind::Binding)], [3, 4, 4]);
        for text in [CRDS, POLICIES] {
            let documents = text.lines().filter(|line| line.starts_with("kind: ")).count();
            assert!([3, 8].contains(&documents), "{documents}");
        }
        let text = serde_json::to_string(&found[3].object).unwrap();
        assert!(
            text.contains("serviceaccount:os-updates:") && !text.contains("berth-system"),
            "{text}"
        );
    }
}
