//! Output as JSON or YAML.

use anyhow::{Context, Result};
use berth_api::foreign::printable;
use serde::Serialize;

use crate::arguments::Output;

/// Returns a value in this format; JSON for `Table`. Characters that would control a terminal are removed where the
/// format does not escape them.
pub fn export(form: Output, value: &impl Serialize) -> Result<String> {
    let text = match form {
        Output::Yaml => serde_saphyr::to_string(value).context("cannot write YAML")?,
        Output::Json | Output::Table => serde_json::to_string_pretty(value)? + "\n",
    };
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_format_controls_a_terminal() {
        let value = serde_json::json!({"a": "x\u{1b}[2J\u{9b}2J\u{202e}y\u{2028}\nz"});
        for form in [Output::Json, Output::Yaml] {
            let text = export(form, &value).unwrap();
            assert!(text.split('\n').all(berth_api::foreign::is_printable), "{text:?}");
            let again: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
            let kept = again["a"].as_str().unwrap();
            assert!(kept.starts_with('x') && kept.ends_with('z'), "{text:?}");
        }
    }
}
