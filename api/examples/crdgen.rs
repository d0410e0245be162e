//! Prints the CustomResourceDefinitions as YAML. `make generate` writes them into `manifests/`.

use berth_api::{fleet::BootcFleet, keys, node::BootcNode, pool::BootcNodePool};
use kube::CustomResourceExt;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("# Generated from the Rust types in api/ by `make generate`. Do not edit.");
    for crd in [BootcNodePool::crd(), BootcNode::crd(), BootcFleet::crd()] {
        let mut value = serde_json::to_value(&crd)?;
        strip(&mut value);
        value["metadata"]["labels"] = serde_json::json!({ keys::LABEL_PART_OF: keys::PART_OF });
        println!("---\n{}", serde_saphyr::to_string(&value)?.trim_end());
    }
    Ok(())
}

/// Removes two fields that the derive adds. With `default`, the API server would write the default into every object.
/// With `nullable`, it would accept `null` in addition to a missing field.
fn strip(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            // A schema's `default` is next to its `type`; a property named `default` would not be.
            if map.contains_key("type") || map.contains_key("x-kubernetes-int-or-string") {
                map.remove("default");
                map.remove("nullable");
                bound(map);
            }
            map.values_mut().for_each(strip);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Replaces a format of unsigned numbers by their largest value. The API server does not know these formats, and `kubectl apply`
/// prints a warning for each.
fn bound(schema: &mut serde_json::Map<String, serde_json::Value>) {
    let format = schema
        .get("format")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let largest = match format {
        "uint8" => Some(u64::from(u8::MAX)),
        "uint16" => Some(u64::from(u16::MAX)),
        "uint32" => Some(u64::from(u32::MAX)),
        "uint64" => None,
        other => {
            assert!(!other.starts_with("uint"), "the format {other} has no maximum");
            return;
        }
    };
    schema.remove("format");
    if let Some(largest) = largest {
        schema.entry("maximum").or_insert(largest.into());
    }
}
