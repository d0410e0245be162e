//! Words for people.

use berth_api::text;

/// Named nodes in a message; the rest is only counted.
pub const NAMED: usize = 5;

/// The first few of these names, and how many more there are.
pub fn few(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    text::names(names.iter().take(NAMED), names.len())
}
