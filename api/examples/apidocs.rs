//! Prints the API reference as Markdown, made from the CustomResourceDefinitions. `make generate` writes `docs/api.md`.

use std::collections::BTreeMap;

use berth_api::fleet::{BootcFleet, BootcFleetSpec, BootcFleetStatus};
use berth_api::node::{BootcNode, BootcNodeSpec, BootcNodeStatus};
use berth_api::pool::{BootcNodePool, BootcNodePoolSpec, BootcNodePoolStatus};
use kube::CustomResourceExt;
use schemars::{JsonSchema, schema_for};
use serde_json::Value;

const HEAD: &str = "\
# API reference

```
kubectl explain bootcnodepool.spec.rollout
```

<!-- Generated from the Rust types in api/ by `make generate`. Do not edit. -->

All kinds are of the group `berth.dev`, version `v1alpha1`, and belong to no namespace. People write the spec of a
BootcNodePool and of the BootcFleet `cluster`. The controller writes the spec of each BootcNode, and programs write every
status. A default is in effect while the field is absent; the API server does not write it into the object. The API
server refuses a value outside of the limits, with a message that says what to write.

A *quantity* is a number, or a percentage such as `25%`. A *label selector* has `matchLabels` and `matchExpressions`, as
in other kinds of Kubernetes. A *condition* has `type`, `status`, `reason`, `message`, `lastTransitionTime` and
`observedGeneration`; [conditions.md](conditions.md) has all types and reasons.
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    print!("{HEAD}");
    print!("{}", kind::<BootcNodePool, BootcNodePoolSpec, BootcNodePoolStatus>()?);
    print!("{}", kind::<BootcFleet, BootcFleetSpec, BootcFleetStatus>()?);
    print!("{}", kind::<BootcNode, BootcNodeSpec, BootcNodeStatus>()?);
    Ok(())
}

/// Returns the section of a kind with its spec and status.
fn kind<Kind, Spec, Status>() -> Result<String, serde_json::Error>
where
    Kind: CustomResourceExt,
    Spec: JsonSchema,
    Status: JsonSchema,
{
    let crd = Kind::crd();
    let names = &crd.spec.names;
    let schema = serde_json::to_value(&crd.spec.versions[0].schema)?;
    let schema = &schema["openAPIV3Schema"];
    let short = names.short_names.clone().unwrap_or_default().join(", ");
    let mut text = format!(
        "\n## {}\n\n{} Short name: `{short}`.\n",
        names.kind,
        text_of(&schema["properties"]["spec"])
    );
    let types = [
        ("spec", Types::new(schema_for!(Spec).into())),
        ("status", Types::new(schema_for!(Status).into())),
    ];
    for (part, types) in &types {
        text += &half(&format!("{}: {part}", names.kind), &schema["properties"][*part], types);
    }
    Ok(text)
}

/// Returns the sections of a spec or status. `path` is its heading.
fn half(path: &str, object: &Value, types: &Types) -> String {
    let (_, properties) = fields(object);
    let mut table = Table::new(types);
    for (name, field) in &properties {
        let this = types.field(&types.root, name);
        if is_group(field) {
            let link = format!("[`{name}`](#{})", anchor(&format!("{path}.{name}")));
            table.add(name, &link, field, this, false);
        } else {
            table.add_with_inner(name, field, this, false);
        }
    }
    let mut text = section(path, object, &table);
    for (name, field) in properties {
        if is_group(field) {
            let mut table = Table::new(types);
            table.add_fields("", field, types.field(&types.root, name));
            text += &section(&format!("{path}.{name}"), field, &table);
        }
    }
    text
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let letters = heading.to_lowercase().replace(' ', "-");
    letters.replace([':', '.'], "")
}

/// Returns a heading, the description of an object, the table of its fields, and its rules.
fn section(path: &str, object: &Value, table: &Table<'_>) -> String {
    let mut text = format!("\n### {path}\n\n{}\n", text_of(object));
    if !table.rows.is_empty() {
        text += "\n| field | type | default | limits | description |\n| --- | --- | --- | --- | --- |\n";
        text += &table.rows.join("\n");
        text += "\n";
    }
    let rules = rules(object);
    if rules.is_empty() {
        return text;
    }
    text += "\nMessages of the API server:\n";
    for rule in rules {
        text += &format!("- {rule}\n");
    }
    text
}

/// Schema of the Rust types of a spec or status. Unlike the CustomResourceDefinition, it keeps the comment of a field
/// beside the comment of the field's type, and the comments of the values of an enumeration.
struct Types {
    root: Value,
}

impl Types {
    fn new(root: Value) -> Self {
        Self { root }
    }

    /// Follows references to the definition of a type.
    fn definition<'a>(&'a self, of: &'a Value) -> &'a Value {
        let mut schema = of;
        loop {
            if let Some(reference) = schema["$ref"].as_str() {
                let name = reference.rsplit('/').next().unwrap_or_default();
                schema = &self.root["$defs"][name];
            } else if schema["anyOf"][0].is_object() {
                schema = &schema["anyOf"][0];
            } else {
                return schema;
            }
        }
    }

    fn field<'a>(&'a self, of: &'a Value, name: &str) -> &'a Value {
        &self.definition(of)["properties"][name]
    }

    /// Returns the values of an enumeration that have a comment, each with it.
    fn values(&self, of: &Value) -> Vec<String> {
        let mut values = vec![];
        for value in self.definition(of)["oneOf"].as_array().into_iter().flatten() {
            let comment = text_of(value);
            if let Some(word) = value["const"].as_str().filter(|_| !comment.is_empty()) {
                values.push(format!("`{word}`: {comment}"));
            }
        }
        values
    }
}

/// Rows of a table of fields.
struct Table<'a> {
    types: &'a Types,
    rows: Vec<String>,
}

impl<'a> Table<'a> {
    fn new(types: &'a Types) -> Self {
        Self { types, rows: vec![] }
    }

    /// Adds rows for the fields of an object, and for the fields within them. `prefix` is the path to the object,
    /// `this` its schema among the types.
    fn add_fields(&mut self, prefix: &str, object: &Value, this: &Value) {
        let (required, properties) = fields(object);
        for (name, field) in properties {
            let is_required = required.contains(&name);
            let inner = self.types.field(this, name);
            self.add_with_inner(&format!("{prefix}{name}"), field, inner, is_required);
        }
    }

    /// Adds a row for a field, and rows for the fields within it.
    fn add_with_inner(&mut self, path: &str, field: &Value, this: &Value, is_required: bool) {
        self.add(path, &format!("`{path}`"), field, this, is_required);
        let definition = self.types.definition(this);
        let places = [
            (field, this, "."),
            (&field["items"], &definition["items"], "[]."),
            (
                &field["additionalProperties"],
                &definition["additionalProperties"],
                ".*.",
            ),
        ];
        for (object, this, sign) in places {
            if is_group(object) {
                self.add_fields(&format!("{path}{sign}"), object, this);
            }
        }
    }

    /// Adds a row. `shown` is the path as Markdown.
    fn add(&mut self, path: &str, shown: &str, field: &Value, this: &Value, is_required: bool) {
        let own = text_of(this);
        let description = if own.is_empty() { text_of(field) } else { own };
        let (description, mut default) = without_default(&description);
        if is_required {
            default = "required".to_owned();
        }
        let mut limits = limits(field);
        // The rules of an object with a section of its own are in that section.
        if !is_group(field) || path.contains('.') {
            limits.extend(rules(field));
        }
        let mut paragraphs = vec![description];
        paragraphs.extend(self.types.values(this));
        let cells = [
            shown.to_owned(),
            type_of(field),
            default,
            limits.join("; "),
            paragraphs.join("<br>"),
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        self.rows.push(format!("| {} |", cells.join(" | ")));
    }
}

/// Returns the names of the required fields of an object, and all its fields.
fn fields(object: &Value) -> (Vec<&str>, BTreeMap<&str, &Value>) {
    let mut required = vec![];
    for name in object["required"].as_array().into_iter().flatten() {
        required.extend(name.as_str());
    }
    let mut properties = BTreeMap::new();
    for (name, field) in object["properties"].as_object().into_iter().flatten() {
        properties.insert(name.as_str(), field);
    }
    (required, properties)
}

/// True for an object whose fields have a section of their own.
fn is_group(field: &Value) -> bool {
    field["properties"].is_object() && !is_known_shape(field)
}

fn is_selector(field: &Value) -> bool {
    field["properties"]["matchExpressions"].is_object() && field["properties"]["matchLabels"].is_object()
}

fn is_condition(field: &Value) -> bool {
    field["properties"]["lastTransitionTime"].is_object() && field["properties"]["reason"].is_object()
}

/// True for an object that the head of the page describes.
fn is_known_shape(field: &Value) -> bool {
    is_selector(field) || is_condition(field)
}

/// Returns the description as one line that Markdown shows as it is.
fn text_of(field: &Value) -> String {
    let text = field["description"].as_str().unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// Splits a description into its text and the default that it names. The default is empty if it names none.
fn without_default(description: &str) -> (String, String) {
    let starts = [". Default: ", ". Default "];
    let found = starts.iter().find_map(|start| description.split_once(start));
    let Some((before, rest)) = found else {
        return (description.to_owned(), String::new());
    };
    let (default, after) = rest.split_once(". ").unwrap_or((rest.trim_end_matches('.'), ""));
    (format!("{before}. {after}").trim_end().to_owned(), default.to_owned())
}

fn type_of(field: &Value) -> String {
    if is_selector(field) {
        return "label selector".to_owned();
    }
    if is_condition(field) {
        return "condition".to_owned();
    }
    if field["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    if let Some(values) = field["enum"].as_array() {
        return alternatives(values);
    }
    let name = field["type"].as_str().unwrap_or("any");
    match name {
        "array" => format!("list of {}", plural(&field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map of {}", plural(&field["additionalProperties"]))
        }
        "string" if field["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the type of the items of a list or map.
fn plural(field: &Value) -> String {
    let name = type_of(field);
    if name.contains('`') { name } else { format!("{name}s") }
}

/// Returns the words of an enumeration.
fn alternatives(values: &[Value]) -> String {
    let mut words = vec![];
    for value in values {
        if let Some(word) = value.as_str() {
            words.push(format!("`{word}`"));
        }
    }
    words.join(", ")
}

/// Returns the bounds of a field, and of the items of a list.
fn limits(field: &Value) -> Vec<String> {
    let mut limits = vec![];
    limits.extend(range(field, ["minimum", "maximum"], ""));
    limits.extend(range(field, ["minLength", "maxLength"], " characters"));
    limits.extend(range(field, ["minItems", "maxItems"], " items"));
    limits.extend(range(field, ["minProperties", "maxProperties"], " entries"));
    if let Some(pattern) = field["pattern"].as_str() {
        limits.push(format!("matches `{pattern}`"));
    }
    let of_items = range(&field["items"], ["minLength", "maxLength"], " characters");
    if let Some(range) = of_items {
        limits.push(format!("each {range}"));
    }
    limits
}

fn range(field: &Value, [least, most]: [&str; 2], unit: &str) -> Option<String> {
    let least = field[least].as_f64();
    let most = field[most].as_f64();
    match (least, most) {
        (None, None) => None,
        (Some(0.0), None) => None,
        (Some(least), None) => Some(format!("at least {least}{unit}")),
        (None, Some(most)) => Some(format!("at most {most}{unit}")),
        (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
    }
}

/// Returns the messages of the rules that the API server checks.
fn rules(field: &Value) -> Vec<String> {
    let mut messages = vec![];
    for rule in field["x-kubernetes-validations"].as_array().into_iter().flatten() {
        if let Some(message) = rule["message"].as_str() {
            messages.push(message.to_owned());
        }
    }
    messages
}
