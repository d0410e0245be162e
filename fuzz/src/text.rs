//! Properties of printed text.

use berth_api::foreign;
use serde_json::Value;

/// Panics unless the text is one line of at most `most` characters that shows all of its characters.
pub fn is_line(text: &str, most: usize) {
    assert!(foreign::is_printable(text), "{text:?} is not one printable line");
    let length = text.chars().count();
    assert!(length <= most, "{length} characters instead of {most}");
}

/// Panics unless each line of the text shows all of its characters.
pub fn are_lines(text: &str) {
    text.split('\n').for_each(|line| is_line(line, usize::MAX));
}

/// Panics unless each text in the JSON is one printable line.
pub fn is_printable(json: &Value) {
    check(json, "");
}

fn check(json: &Value, at: &str) {
    match json {
        Value::String(text) => assert!(foreign::is_printable(text), "{at} is {text:?}"),
        Value::Array(items) => items.iter().for_each(|item| check(item, at)),
        Value::Object(fields) => {
            for (key, value) in fields {
                is_line(key, usize::MAX);
                check(value, &format!("{at}.{key}"));
            }
        }
        _ => {}
    }
}

/// Panics if a text contains this secret, in any of its forms.
pub fn hides(text: &str, secret: &str) {
    assert!(!text.contains(secret), "{text:?} contains a credential");
}
