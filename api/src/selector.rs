//! Schema and parser of label selectors. The schema of the Kubernetes types checks neither the operator nor the
//! combination of fields, so a typing error would select no node or all nodes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::written::Parse;

/// Longest label key: a DNS subdomain, a slash and a name.
const MAX_KEY: u32 = 317;
const MAX_VALUE: u32 = 63;
/// Maximum number of labels, of expressions, and of values in one expression.
const MAX_ITEMS: u32 = 64;

/// Schema of `LabelSelector`, with the bounds and rules that the API server applies to built-in kinds.
pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Labels that must all match.",
                "type": "object",
                "maxProperties": MAX_ITEMS,
                "additionalProperties": { "type": "string", "maxLength": MAX_VALUE },
            },
            "matchExpressions": {
                "description": "Conditions on labels that must all be met.",
                "type": "array",
                "maxItems": MAX_ITEMS,
                "items": expression(),
            },
        },
    })
}

fn expression() -> Schema {
    json_schema!({
        "description": "A condition on one label.",
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {
                "description": "Key of the label.",
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_KEY,
            },
            "operator": {
                "description": "Relation of the label to the values.",
                "type": "string",
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
            },
            "values": {
                "description": "Values for In and NotIn; empty for Exists and DoesNotExist.",
                "type": "array",
                "maxItems": MAX_ITEMS,
                "items": { "type": "string", "maxLength": MAX_VALUE },
            },
        },
        "x-kubernetes-validations": [{
            "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "message": "the operators In and NotIn need values; Exists and DoesNotExist must not have any",
        }],
    })
}

impl Parse for Selector {
    type Raw = LabelSelector;
    type Error = String;

    fn parse(written: &LabelSelector) -> Result<Self, String> {
        for requirement in written.match_expressions.iter().flatten() {
            well_formed(requirement)?;
        }
        Self::try_from(written.clone()).map_err(|e| e.to_string())
    }
}

fn well_formed(requirement: &LabelSelectorRequirement) -> Result<(), String> {
    let values = requirement.values.as_ref().map_or(0, Vec::len);
    let (operator, key) = (&requirement.operator, &requirement.key);
    match (operator.as_str(), values) {
        ("In" | "NotIn", 1..) | ("Exists" | "DoesNotExist", 0) => Ok(()),
        ("In" | "NotIn", 0) => Err(format!("{operator} for {key} needs values")),
        ("Exists" | "DoesNotExist", _) => Err(format!("{operator} for {key} takes no values")),
        _ => Err(format!(
            "operator {operator:?} for {key} is unknown; write In, NotIn, Exists or DoesNotExist"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Written;

    #[test]
    fn expressions_are_checked() {
        for (operator, values, is_valid) in [
            ("In", Some(&["a"][..]), true),
            ("Exists", None, true),
            ("DoesNotExist", Some(&[]), true),
            ("In", None, false),
            ("NotIn", Some(&[]), false),
            ("Exists", Some(&["a"]), false),
            ("Gt", Some(&["1"]), false),
        ] {
            let expression = serde_json::json!({ "key": "k", "operator": operator, "values": values });
            let selector = serde_json::json!({ "matchExpressions": [expression] });
            let read: Written<Selector> = serde_json::from_value(selector).unwrap();
            let names_operator = read.get().is_err_and(|error| error.contains(operator));
            assert_eq!((read.get().is_ok(), names_operator), (is_valid, !is_valid), "{read:?}");
            let written = read.raw().match_expressions.as_ref().unwrap();
            assert_eq!(written[0].operator, operator, "it is kept as written");
        }
    }
}
