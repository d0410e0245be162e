//! Checks the English of comments, messages and pages: rejects phrases that readers have to read twice.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::sources;

/// Patterns of phrases to avoid, each with advice. Only the text in a pattern's group is reported. A match without the
/// group is allowed.
const PHRASES: [(&str, &str); 10] = [
    (
        r"(?i)\b((?:in|on|at|by|for|from|of|with|under|after|before|to|through|during|within|without|into|over|upon|behind|beside|between|among|against|about|until|since|as) which)\b",
        "turn the clause round, with its subject first",
    ),
    (
        r"(?i)\b(what (?:is|was|are|were|it|they|has|had|have|he|does|did))\b",
        "name the thing",
    ),
    (
        r"(?i)\b(nobody|somebody|whoever|whomever|no one|anybody|everybody)\b",
        "name the actor",
    ),
    (r"\b(Says (?:whether|if|how|what|which|that))\b", "True if, Returns"),
    (r"(?i)\b(tell|tells|told|telling)\b", "report, write, log, show"),
    (
        r"(?i)\b(anew|go on|goes on|went on|gone on|going on|in force|until now|by itself|by themselves|let go|lets go|in vain|of its own accord)\b",
        "again, continue, current, so far, automatically, release",
    ),
    (
        r"(?i)\bthere (?:is|are|was|were) (?:no|none)\b|\b(?:is|are|was|were) (?:no|none) (?:longer|more|later|earlier|older|newer|less|fewer)\b|\b((?:is|are|was|were) (?:no|none))\b",
        "is not a",
    ),
    (r"(?i), (and not)\b", "a sentence of its own for the exception"),
    (
        r"(?i)\b(that of|those of|such as are|so long)\b",
        "repeat the noun; that long",
    ),
    (OPENER, "begin with the noun"),
];

/// Matches a pronoun at the beginning of a comment. Strings and pages are not checked for it.
const OPENER: &str = r"^(It|They|The same|One|What|Who|Whose)\b";

/// Matches a string literal in Rust. The group is the text between the quotes.
static LITERAL: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#""((?:[^"\\]|\\.)*)""#).unwrap());

/// A comment, string or paragraph, joined into one line of text. `line` is the number of its first line in the file.
struct Passage {
    line: usize,
    is_comment: bool,
    text: String,
}

impl Passage {
    fn comment(line: usize, text: &str) -> Self {
        let is_comment = true;
        Self {
            line,
            is_comment,
            text: text.to_owned(),
        }
    }

    fn text(line: usize, text: &str) -> Self {
        let is_comment = false;
        Self {
            line,
            is_comment,
            text: text.to_owned(),
        }
    }
}

/// Splits a comment line into its marker (`///`, `//!` or `//`) and its text. `None` if the line is not a comment.
fn comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let marker = ["///", "//!", "//"]
        .into_iter()
        .find(|marker| line.starts_with(marker))?;
    Some((marker, line[marker.len()..].trim()))
}

/// Returns the comments and strings of a Rust source. Consecutive lines of a comment are one passage.
fn of_rust(text: &str) -> Vec<Passage> {
    let mut passages: Vec<Passage> = vec![];
    let mut open: Option<&str> = None;
    let mut code = String::new();
    let mut code_line = 0;
    for (index, line) in text.lines().enumerate() {
        if let Some((marker, words)) = comment(line) {
            match passages.last_mut() {
                Some(last) if open == Some(marker) => last.text.push_str(&format!(" {words}")),
                _ => passages.push(Passage::comment(index + 1, words)),
            }
            open = Some(marker);
            continue;
        }
        open = None;
        if code.is_empty() {
            code_line = index + 1;
        }
        // A backslash at the end of a line continues the string in the next line.
        if let Some(begun) = line.strip_suffix('\\') {
            code.push_str(begun.trim());
            code.push(' ');
            continue;
        }
        code.push_str(line.trim());
        // Skip strings of a single word: they are names or keys.
        let literals = LITERAL.captures_iter(&code).filter(|found| found[1].contains(' '));
        for found in literals {
            passages.push(Passage::text(code_line, &found[1]));
        }
        if let Some((_, words)) = code.split_once(" // ") {
            passages.push(Passage::comment(code_line, words));
        }
        code.clear();
    }
    passages
}

/// Returns the paragraphs of a Markdown page. Each heading, list item and table row is a paragraph.
fn of_markdown(text: &str) -> Vec<Passage> {
    let mut passages: Vec<Passage> = vec![];
    let mut is_open = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let begins = line.starts_with("- ") || line.starts_with("* ") || line.starts_with(['|', '#']);
        match passages.last_mut() {
            _ if line.is_empty() => is_open = false,
            Some(last) if is_open && !begins => last.text.push_str(&format!(" {line}")),
            _ => {
                passages.push(Passage::text(index + 1, line));
                is_open = true;
            }
        }
    }
    passages
}

/// Returns each line of a file as a passage.
fn of_lines(text: &str) -> Vec<Passage> {
    let mut passages = vec![];
    for (index, line) in text.lines().enumerate() {
        passages.push(Passage {
            line: index + 1,
            is_comment: false,
            text: line.to_owned(),
        });
    }
    passages
}

fn passages(path: &Path, text: &str) -> Vec<Passage> {
    match path.extension().unwrap_or_default().to_str() {
        Some("rs") => of_rust(text),
        Some("md") => of_markdown(text),
        Some("yaml" | "sh" | "txt" | "toml" | "service") => of_lines(text),
        None if path.ends_with("Makefile") => of_lines(text),
        _ => vec![],
    }
}

/// Returns the phrases to avoid in a passage, each with its advice.
fn faults(passage: &Passage, phrases: &[(Regex, &'static str)]) -> Vec<(String, &'static str)> {
    let mut found = vec![];
    for (pattern, instead) in phrases {
        if pattern.as_str() == OPENER && !passage.is_comment {
            continue;
        }
        for captures in pattern.captures_iter(&passage.text) {
            if let Some(phrase) = captures.get(1) {
                found.push((phrase.as_str().to_owned(), *instead));
            }
        }
    }
    found
}

fn phrases() -> Vec<(Regex, &'static str)> {
    PHRASES
        .map(|(pattern, instead)| (Regex::new(pattern).unwrap(), instead))
        .to_vec()
}

#[test]
fn prose_is_read_once() {
    let phrases = phrases();
    let mut report = vec![];
    for path in sources::files("") {
        // Skip this file, because it contains the phrases.
        if path.ends_with("house/prose.rs") {
            continue;
        }
        let Some(text) = sources::text(&path) else {
            continue;
        };
        for passage in passages(&path, &text) {
            for (phrase, instead) in faults(&passage, &phrases) {
                report.push(format!("{}:{}: \"{phrase}\": {instead}", path.display(), passage.line));
            }
        }
    }
    assert!(
        report.is_empty(),
        "{} phrases to rewrite:\n{}",
        report.len(),
        report.join("\n")
    );
}

#[test]
fn phrases_are_found_where_they_stand() {
    let phrases = phrases();
    let page = "There is no node.\nIt is no longer one.\n\n- The node\n  is no host.\n";
    for (path, text, expected) in [
        (
            "a.rs",
            "\n/// A rule under\n/// which it falls.",
            Some((2, "under which")),
        ),
        ("a.rs", "// It is here.", Some((1, "It"))),
        ("a.rs", "let it = \"It is here\";", None),
        ("a.rs", "let a = 1; // nobody knows", Some((1, "nobody"))),
        ("a.rs", "f(\"the node \\\n   was told\");", Some((1, "told"))),
        ("a.md", page, Some((4, "is no"))),
        ("a.yaml", "# made anew", Some((1, "anew"))),
    ] {
        let mut found = vec![];
        for passage in passages(Path::new(path), text) {
            let faults = faults(&passage, &phrases);
            found.extend(faults.into_iter().map(|(phrase, _)| (passage.line, phrase)));
        }
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(line, phrase)| (line, phrase.to_owned()))
            .collect();
        assert_eq!(found, expected, "{text}");
    }
}
