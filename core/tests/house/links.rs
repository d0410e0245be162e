//! Checks the links between pages: each leads to a file and a heading that exist, on GitHub and in the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::sources;

/// Addresses of this repository's files. A path follows.
const REPOSITORY: [&str; 2] = [
    "https://github.com/berth-dev/berth/blob/main/",
    "https://github.com/berth-dev/berth/tree/main/",
];

/// Table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Matches code between backticks.
static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new("`[^`]*`").unwrap());
/// Matches a link. The group is its target.
static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\]\(([^)\s]*)\)").unwrap());
/// Matches a picture without a text alternative.
static SILENT_PICTURE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"!\[\s*\]\(").unwrap());
/// Matches the address of a page in a message or a comment, with or without a heading.
static MENTION: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\bdocs/[A-Za-z0-9_/-]+\.md(#[a-z0-9_-]+)?").unwrap());

/// A Markdown page: its text without code, and the anchors of its headings.
struct Page {
    text: String,
    anchors: BTreeSet<String>,
}

impl Page {
    fn new(markdown: &str) -> Self {
        let prose = without_blocks(markdown);
        Self {
            text: CODE.replace_all(&prose, "").into_owned(),
            anchors: anchors(&prose),
        }
    }
}

/// Returns a page with its fenced blocks as empty lines.
fn without_blocks(markdown: &str) -> String {
    let mut prose = String::new();
    let mut is_code = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
        }
        prose.push('\n');
    }
    prose
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(prose: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    for heading in headings {
        let name = anchor(heading.trim_start_matches('#').trim());
        let mut unique = name.clone();
        let mut number = 0;
        while !found.insert(unique) {
            number += 1;
            unique = format!("{name}-{number}");
        }
    }
    found
}

/// Returns the anchor of a heading: lower case, a hyphen for each space, and no punctuation.
fn anchor(heading: &str) -> String {
    let mut name = String::new();
    for letter in heading.to_lowercase().chars() {
        if letter.is_alphanumeric() || letter == '_' || letter == '-' {
            name.push(letter);
        } else if letter.is_whitespace() {
            name.push('-');
        }
    }
    name
}

/// Returns all Markdown pages of the repository, by path.
fn pages() -> BTreeMap<PathBuf, Page> {
    let mut pages = BTreeMap::new();
    for path in sources::files("") {
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = sources::text(&path).unwrap();
            pages.insert(path, Page::new(&text));
        }
    }
    pages
}

/// Removes `.` and `..` from a path.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// Returns the file of the repository that a link leads to, and the anchor. `None` if it leads elsewhere.
fn destination(page: &Path, target: &str) -> Option<(PathBuf, Option<String>)> {
    let (address, anchor) = match target.split_once('#') {
        Some((address, anchor)) => (address, Some(anchor.to_owned())),
        None => (target, None),
    };
    for prefix in REPOSITORY {
        if let Some(path) = address.strip_prefix(prefix) {
            return Some((path.into(), anchor));
        }
    }
    if address.contains("://") || address.starts_with("mailto:") {
        return None;
    }
    if address.is_empty() {
        return Some((page.to_owned(), anchor));
    }
    let directory = page.parent().unwrap();
    Some((plain(&directory.join(address)), anchor))
}

/// Returns the fault of a link; `None` if it leads to a file and a heading that exist.
fn fault(pages: &BTreeMap<PathBuf, Page>, page: &Path, target: &str) -> Option<String> {
    let (file, anchor) = destination(page, target)?;
    if !sources::root().join(&file).exists() {
        return Some(format!("there is no file {}", file.display()));
    }
    let anchor = anchor?;
    let Some(other) = pages.get(&file) else {
        return Some(format!("{} is not a page with headings", file.display()));
    };
    if other.anchors.contains(&anchor) {
        return None;
    }
    Some(format!("{} has no heading #{anchor}", file.display()))
}

/// Asserts that nothing was found.
fn assert_none(faults: &[String], what: &str) {
    assert!(
        faults.is_empty(),
        "{} {what} to repair:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn links_lead_to_a_file_and_a_heading() {
    let pages = pages();
    let mut faults = vec![];
    for (path, page) in &pages {
        for found in LINK.captures_iter(&page.text) {
            if let Some(fault) = fault(&pages, path, &found[1]) {
                faults.push(format!("{}: ]({}): {fault}", path.display(), &found[1]));
            }
        }
    }
    assert_none(&faults, "links");
}

/// The book has only the files of `docs/`. A link to another file of the repository needs its whole address.
#[test]
fn links_of_the_book_stay_in_the_book() {
    let mut faults = vec![];
    for (path, page) in &pages() {
        for found in LINK.captures_iter(&page.text) {
            let target = &found[1];
            let Some((file, _)) = destination(path, target) else {
                continue;
            };
            let is_in_book = file.starts_with("docs") && file != Path::new(SUMMARY);
            if path.starts_with("docs") && path != Path::new(SUMMARY) && !is_in_book && !target.contains("://") {
                faults.push(format!(
                    "{}: ]({target}): write {}{}",
                    path.display(),
                    REPOSITORY[0],
                    file.display()
                ));
            }
        }
    }
    assert_none(&faults, "links");
}

#[test]
fn the_book_has_every_page_once() {
    let pages = pages();
    let summary = &pages[Path::new(SUMMARY)].text;
    let mut faults = vec![];
    let mut listed = BTreeSet::new();
    for found in LINK.captures_iter(summary) {
        // An empty target is a page that is still to come.
        if !found[1].is_empty() && !listed.insert(Path::new("docs").join(&found[1])) {
            faults.push(format!("{SUMMARY} lists {} twice", &found[1]));
        }
    }
    for path in pages.keys() {
        if path.starts_with("docs") && path != Path::new(SUMMARY) && !listed.contains(path) {
            faults.push(format!("{SUMMARY} does not list {}", path.display()));
        }
    }
    assert_none(&faults, "pages of the book");
}

#[test]
fn pages_that_messages_and_comments_name_exist() {
    let pages = pages();
    let mut faults = vec![];
    for path in sources::files("") {
        let is_checked = matches!(
            path.extension().unwrap_or_default().to_str(),
            Some("rs" | "yaml" | "sh" | "txt" | "toml" | "service")
        );
        // Skip this file, because it names pages that do not exist.
        if !is_checked || path.ends_with("house/links.rs") {
            continue;
        }
        let Some(text) = sources::text(&path) else {
            continue;
        };
        for found in MENTION.find_iter(&text) {
            if let Some(fault) = fault(&pages, Path::new("Makefile"), found.as_str()) {
                faults.push(format!("{}: {}: {fault}", path.display(), found.as_str()));
            }
        }
    }
    assert_none(&faults, "mentions of pages");
}

#[test]
fn pictures_have_a_text_alternative() {
    let mut faults = vec![];
    for (path, page) in &pages() {
        if SILENT_PICTURE.is_match(&page.text) {
            faults.push(path.display().to_string());
        }
    }
    assert_none(&faults, "pages with pictures");
}

#[test]
fn faults_of_links_are_found() {
    let text = "# A page\n## `a.b`: it's 1\n## A page\n```\n# no heading\n[no](link)\n```\n`[no](link)` [`x`](b.md)\n";
    let page = Page::new(text);
    let expected = ["a-page", "a-page-1", "ab-its-1"].map(str::to_owned);
    assert_eq!(page.anchors, BTreeSet::from(expected));
    let links: Vec<_> = LINK
        .captures_iter(&page.text)
        .map(|found| found[1].to_owned())
        .collect();
    assert_eq!(links, ["b.md"]);

    let pages = BTreeMap::from([(PathBuf::from("docs/contributing.md"), page)]);
    for (target, expected) in [
        ("#a-page", None),
        ("#b-page", Some("docs/contributing.md has no heading #b-page")),
        ("../docs/contributing.md#ab-its-1", None),
        ("none.md", Some("there is no file docs/none.md")),
        ("../Makefile", None),
        ("../Makefile#x", Some("Makefile is not a page with headings")),
        ("https://example.com/none", None),
        (
            "https://github.com/berth-dev/berth/blob/main/none",
            Some("there is no file none"),
        ),
    ] {
        let found = fault(&pages, Path::new("docs/contributing.md"), target);
        assert_eq!(found.as_deref(), expected, "{target}");
    }
}
