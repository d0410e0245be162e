//! Phrases for people that the controller and the CLI have in common.

/// Lists names, and the number of further ones: `n1, n2 and 3 more`.
pub fn names<S: AsRef<str>>(shown: impl IntoIterator<Item = S>, count: usize) -> String {
    let shown: Vec<S> = shown.into_iter().collect();
    let list = shown.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match count.saturating_sub(shown.len()) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// The text, cut to so many characters, the last of which is then an ellipsis.
pub fn truncated(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_is_counted() {
        assert_eq!(names(["n1", "n2"], 5), "n1, n2 and 3 more");
        assert_eq!(names(["n1"], 1), "n1");
        assert_eq!(names(["n1", "n2"], 0), "n1, n2");
        assert_eq!(names::<&str>([], 0), "");
    }
}
