use k8s_openapi::api::admissionregistration::v1::{MatchResources, ValidatingAdmissionPolicyBindingSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionCondition;

use berth_api::fleet::BootcFleet;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use kube::CustomResourceExt;

use super::*;

fn expected() -> Vec<CustomResourceDefinition> {
    vec![BootcNodePool::crd(), BootcNode::crd(), BootcFleet::crd()]
}

fn binding(name: &str) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(name.to_owned()),
            validation_actions: Some(vec!["Deny".to_owned(), "Audit".to_owned()]),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// An API server that has everything.
fn whole() -> Installed {
    let mut installed = Installed {
        kubernetes: (1, 33),
        policies: POLICIES.map(str::to_owned).to_vec(),
        ..Installed::default()
    };
    for mut definition in expected() {
        let established = CustomResourceDefinitionCondition {
            type_: "Established".to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        };
        definition.status.get_or_insert_default().conditions = Some(vec![established]);
        let name = definition.metadata.name.clone().unwrap();
        installed.definitions.insert(name, definition);
    }
    for name in POLICIES {
        installed.bindings.insert(name.to_owned(), binding(name));
    }
    installed
}

/// Fails unless the only objection is this one.
fn only(installed: &Installed, words: &str) {
    let found = objections(installed, &expected());
    assert!(found.len() == 1 && found[0].starts_with(words), "{found:?}");
}

fn served_fields<'a>(installed: &'a mut Installed, name: &str) -> &'a mut JSONSchemaProps {
    let definition = installed.definitions.get_mut(name).unwrap();
    let schema = definition.spec.versions[0].schema.as_mut().unwrap();
    schema.open_api_v3_schema.as_mut().unwrap()
}

#[test]
fn a_whole_installation_has_no_objection() {
    assert_eq!(objections(&whole(), &expected()), Vec::<String>::new());
}

#[test]
fn an_empty_cluster_lacks_everything() {
    let found = objections(&Installed::default(), &expected());
    assert_eq!(found.len(), 8, "{found:?}");
    assert!(found[0].contains("Kubernetes 0.0 is too old"), "{found:?}");
    assert!(
        found
            .iter()
            .skip(1)
            .all(|text| text.contains("is missing: upgrade the chart")),
        "{found:?}"
    );
}

#[test]
fn an_older_definition_names_the_fields_that_it_lacks() {
    let mut installed = whole();
    let fields = served_fields(&mut installed, "bootcnodes.berth.dev");
    let status = fields.properties.as_mut().unwrap().get_mut("status").unwrap();
    status.properties.as_mut().unwrap().remove("booted").unwrap();
    only(
        &installed,
        "CRD bootcnodes.berth.dev is of another version: it has no status.booted: upgrade the chart berth-crds",
    );
}

/// Items of lists have fields, too.
#[test]
fn fields_of_items_are_compared() {
    let mut installed = whole();
    let fields = served_fields(&mut installed, "bootcnodepools.berth.dev");
    let status = fields.properties.as_mut().unwrap().get_mut("status").unwrap();
    let conditions = status.properties.as_mut().unwrap().get_mut("conditions").unwrap();
    let Some(JSONSchemaPropsOrArray::Schema(items)) = conditions.items.as_mut() else {
        panic!("conditions are not a list");
    };
    items.properties.as_mut().unwrap().remove("reason").unwrap();
    only(
        &installed,
        "CRD bootcnodepools.berth.dev is of another version: it has no status.conditions.reason",
    );
}

/// A newer definition has more fields, which are nothing to this program.
#[test]
fn a_newer_definition_is_accepted() {
    let mut installed = whole();
    let fields = served_fields(&mut installed, "bootcfleets.berth.dev");
    let more = JSONSchemaProps::default();
    fields.properties.as_mut().unwrap().insert("later".to_owned(), more);
    assert!(objections(&installed, &expected()).is_empty());
}

#[test]
fn a_definition_must_be_served_and_established() {
    let mut installed = whole();
    let definition = installed.definitions.get_mut("bootcfleets.berth.dev").unwrap();
    definition.status = None;
    only(&installed, "CRD bootcfleets.berth.dev is not established");
    let definition = installed.definitions.get_mut("bootcfleets.berth.dev").unwrap();
    definition.spec.versions[0].served = false;
    only(&installed, "CRD bootcfleets.berth.dev does not serve v1alpha1");
}

#[test]
fn a_policy_must_be_bound() {
    let name = POLICIES[0];
    let mut installed = whole();
    installed.bindings.remove(name);
    only(
        &installed,
        "admission policy berth-agent-own-status refuses nothing, because its binding is missing",
    );
    for (change, words) in [
        (
            ValidatingAdmissionPolicyBindingSpec {
                validation_actions: Some(vec!["Audit".to_owned()]),
                ..binding(name).spec.unwrap()
            },
            "refuses nothing, because its binding lacks the action Deny",
        ),
        (
            ValidatingAdmissionPolicyBindingSpec {
                policy_name: Some("other".to_owned()),
                ..binding(name).spec.unwrap()
            },
            "refuses nothing, because its binding names another policy",
        ),
        (
            ValidatingAdmissionPolicyBindingSpec {
                match_resources: Some(MatchResources::default()),
                ..binding(name).spec.unwrap()
            },
            "may refuse too little",
        ),
    ] {
        installed.bindings.insert(
            name.to_owned(),
            ValidatingAdmissionPolicyBinding {
                spec: Some(change),
                ..Default::default()
            },
        );
        only(&installed, &format!("admission policy {name} {words}"));
    }
    installed.policies.remove(0);
    only(&installed, "admission policy berth-agent-own-status is missing");
}
