//! Checks that the admission policies are installed, unchanged and bound.

use serde_json::{Value, json};

use super::check::{Check, Topic};
use super::commands::VERSION;
use super::facts::Facts;
use super::json::differences;
use super::seen::unknown;
use super::shipped::{Kind, Shipped};
use super::versions::Skew;

/// Variable of a policy that an admin may change: the audiences of the API server.
const OF_ADMIN: &str = "audiences";

/// Checks the policies and their bindings.
pub(crate) fn check(facts: &Facts, skew: Skew) -> Vec<Check> {
    let mut found = vec![];
    let (mut missing, mut unseens) = (vec![], vec![]);
    for kind in [Kind::Policy, Kind::Binding] {
        for shipped in facts.shipped(kind) {
            match facts.installed(shipped) {
                Err(unseen) => unseens.push(unseen),
                Ok(None) => missing.push((kind, shipped.name.as_str())),
                Ok(Some(object)) => found.extend(fault(facts, shipped, object, skew)),
            }
        }
    }
    found.extend(unknown(Topic::Policies, &unseens));
    let missing = absent(facts, &missing);
    if found.is_empty() && missing.is_empty() {
        let count = facts.shipped(Kind::Policy).count();
        let message = format!("{count} admission policies of version {VERSION}, all bound with the action Deny");
        return vec![Check::ok(Topic::Policies, &message)];
    }
    missing.into_iter().chain(found).collect()
}

/// True if all policies and bindings are installed, as far as it is known.
pub(crate) fn are_installed(facts: &Facts) -> bool {
    let mut all = facts.shipped(Kind::Policy).chain(facts.shipped(Kind::Binding));
    all.all(|shipped| !matches!(facts.installed(shipped), Ok(None)))
}

/// Returns a check for the objects that are missing. If all are, returns one check that names the policies.
fn absent(facts: &Facts, missing: &[(Kind, &str)]) -> Vec<Check> {
    let policies: Vec<&str> = facts.shipped(Kind::Policy).map(|policy| policy.name.as_str()).collect();
    if missing.len() == 2 * policies.len() {
        let message = format!("admission policies are not installed: {}", policies.join(", "));
        return vec![repaired(
            facts,
            Check::broken(Topic::Policies, &message).because(EFFECT),
        )];
    }
    let checks = missing.iter().map(|(kind, name)| {
        let effect = match kind {
            Kind::Binding => format!("without its binding the policy {name} has no effect; {EFFECT}"),
            _ => EFFECT.to_owned(),
        };
        let check = Check::broken(Topic::Policies, &format!("{} {name} is missing", kind.name()));
        repaired(facts, check.because(&effect))
    });
    checks.collect()
}

/// Effect of a policy that does not work.
const EFFECT: &str =
    "the API server may accept writes of one node's agent to other nodes' objects, so no node takes a berth";

fn repaired(facts: &Facts, check: Check) -> Check {
    let commands = facts.commands.policies(facts.release().as_ref());
    let namespace = &facts.namespace;
    let remedy = if commands.is_empty() {
        format!(
            "apply your copy of admission-policies.yaml for the namespace {namespace}; --manifests names its directory"
        )
    } else {
        format!("apply the admission policies of version {VERSION}")
    };
    check.remedy(&remedy).commands(commands)
}

/// Returns a check if an installed object does not have the effect of the shipped one.
fn fault(facts: &Facts, shipped: &Shipped, object: &Value, skew: Skew) -> Option<Check> {
    let what = format!("{} {}", shipped.kind.name(), shipped.name);
    if shipped.kind == Kind::Binding && !denies(object) {
        let message = format!("{what} does not deny");
        let cause = format!(
            "its validationActions are {}; {EFFECT}",
            object["spec"]["validationActions"]
        );
        return Some(repaired(
            facts,
            Check::broken(Topic::Policies, &message).because(&cause),
        ));
    }
    let different = differences(&comparable(&shipped.object), &comparable(object));
    if different.is_empty() {
        return None;
    }
    let message = format!("{what} differs from version {VERSION} in {}", different.join(", "));
    if skew.is_other_version() {
        let remedy = "install the plugin of the controller's version, and run this again";
        return Some(Check::warning(Topic::Policies, &message).remedy(remedy));
    }
    Some(repaired(
        facts,
        Check::broken(Topic::Policies, &message).because(EFFECT),
    ))
}

fn denies(binding: &Value) -> bool {
    let actions = binding["spec"]["validationActions"].as_array();
    actions.into_iter().flatten().any(|action| action == "Deny")
}

/// Returns the parts of a policy or binding that decide its effect, with the API server's defaults. Leaves out what an
/// admin may change.
fn comparable(object: &Value) -> Value {
    let mut spec = object["spec"].clone();
    let Some(fields) = spec.as_object_mut() else {
        return spec;
    };
    // A binding that denies may also audit or warn.
    fields.remove("validationActions");
    if let Some(Value::Array(variables)) = fields.get_mut("variables") {
        variables.retain(|variable| variable["name"] != OF_ADMIN);
    }
    if let Some(Value::Object(constraints)) = fields.get_mut("matchConstraints") {
        let defaults = [
            ("matchPolicy", json!("Equivalent")),
            ("namespaceSelector", json!({})),
            ("objectSelector", json!({})),
        ];
        for (name, default) in defaults {
            constraints.entry(name).or_insert(default);
        }
        let rules = constraints.get_mut("resourceRules").and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten().filter_map(Value::as_object_mut) {
            rule.entry("scope").or_insert(json!("*"));
        }
    }
    spec
}
