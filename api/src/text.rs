//! Formatting of text, shared by the controller and the CLI.

/// Lists the shown names and the number of names that are not shown: `n1, n2 and 3 more`. `count`: number of all names.
pub fn names<S: AsRef<str>>(shown: impl IntoIterator<Item = S>, count: usize) -> String {
    let shown: Vec<S> = shown.into_iter().collect();
    let list = shown.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match count.saturating_sub(shown.len()) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// Cuts a text to at most `most` characters. The last character of a cut text is an ellipsis.
pub fn truncated(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_shown_are_counted() {
        assert_eq!(names(["n1", "n2"], 5), "n1, n2 and 3 more");
        assert_eq!(names(["n1"], 1), "n1");
        assert_eq!(names(["n1", "n2"], 0), "n1, n2");
        assert_eq!(names::<&str>([], 0), "");
    }
}
