//! Schema of a label selector, bounded and validated. The schema of the Kubernetes types does not validate the operator
//! and the combination of fields, so a typing error would select no node or all nodes.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Longest label key: a DNS subdomain, a slash and a name.
const MAX_KEY: u32 = 317;
/// Longest label value.
const MAX_VALUE: u32 = 63;
/// Most labels, most expressions, and most values of one expression.
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
            "message": "write values with the operators In and NotIn, and none with Exists and DoesNotExist",
        }],
    })
}
