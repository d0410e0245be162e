//! Words for people.

/// Named nodes in a message; the rest is only counted.
pub const NAMED: usize = 5;

/// The first few of these names, and how many more there are.
pub fn few(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
