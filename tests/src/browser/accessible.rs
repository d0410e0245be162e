//! The accessibility tree of a page, as a screen reader gets it.

use serde_json::Value;

/// Roles that a person can operate, or that announce a change.
const INTERACTIVE: [&str; 17] = [
    "button",
    "checkbox",
    "columnheader",
    "combobox",
    "dialog",
    "gridcell",
    "link",
    "listbox",
    "menuitem",
    "option",
    "radio",
    "searchbox",
    "slider",
    "spinbutton",
    "switch",
    "tab",
    "textbox",
];

/// An element of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accessible {
    /// Role, such as `button`.
    pub role: String,
    /// Name that a screen reader reads.
    pub name: String,
    /// True if the keyboard can reach the element.
    pub is_focusable: bool,
}

impl Accessible {
    /// Reads the answer of `Accessibility.getFullAXTree`. Leaves out elements that the tree ignores.
    pub(super) fn all(tree: &Value) -> Vec<Self> {
        let nodes = tree.get("nodes").and_then(Value::as_array);
        let shown = nodes.into_iter().flatten().filter(|node| node["ignored"] != true);
        shown.map(Self::read).collect()
    }

    fn read(node: &Value) -> Self {
        let text = |field: &str| node[field]["value"].as_str().unwrap_or_default().trim().to_owned();
        let properties = node["properties"].as_array().into_iter().flatten();
        let mut focusable = properties.filter(|property| property["name"] == "focusable");
        Self {
            role: text("role"),
            name: text("name"),
            is_focusable: focusable.any(|property| property["value"]["value"] == true),
        }
    }

    /// True if a person operates the element.
    pub fn is_interactive(&self) -> bool {
        INTERACTIVE.contains(&self.role.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tree_is_read_without_ignored_elements() {
        let tree = json!({ "nodes": [
            { "ignored": false, "role": { "value": "button" }, "name": { "value": " Copy " },
              "properties": [{ "name": "focusable", "value": { "type": "boolean", "value": true } }] },
            { "ignored": true, "role": { "value": "none" } },
            { "ignored": false, "role": { "value": "StaticText" }, "name": { "value": "x" } },
        ]});
        let all = Accessible::all(&tree);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].role.as_str(), all[0].name.as_str()), ("button", "Copy"));
        assert!(all[0].is_focusable && all[0].is_interactive());
        assert!(!all[1].is_focusable && !all[1].is_interactive());
    }
}
