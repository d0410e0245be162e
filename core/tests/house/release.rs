//! Checks that manifests, charts, packaging and pages name the version and the images of the release, as Cargo.toml has them.

use std::path::{Path, PathBuf};

use regex::Regex;

use super::sources;

/// Version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A release or a release candidate. The text after it may continue with `-linux-amd64`.
const ANY_VERSION: &str = r"[0-9]+\.[0-9]+\.[0-9]+(?:-(?:alpha|beta|rc)\.?[0-9]*)?";

/// Directories and pages that name released files. Those that are missing are skipped.
const NAMING: [&str; 6] = ["charts", "docs", "manifests", "packaging", "systemd", "README.md"];

fn read(path: &str) -> String {
    sources::text(Path::new(path)).unwrap()
}

/// Returns the registry and namespace of the images, from Cargo.toml.
fn registry() -> String {
    let images = Regex::new(r#"(?m)^images = "(.*)"$"#).unwrap();
    images.captures(&read("Cargo.toml")).unwrap()[1].to_owned()
}

/// Matches versions of Berth in the files of a directory, or in all files if the directory is `*`.
struct Pattern {
    directory: String,
    /// The group `version` is the version.
    text: Regex,
}

fn patterns() -> Vec<Pattern> {
    let mut patterns = vec![];
    for line in read("scripts/versions.txt").lines() {
        if !line.starts_with('#') {
            let (directory, before) = line.split_once(' ').unwrap();
            let text = format!("(?:{before})(?P<version>{ANY_VERSION})");
            patterns.push(Pattern {
                directory: directory.to_owned(),
                text: Regex::new(&text).unwrap(),
            });
        }
    }
    patterns
}

/// Returns the versions of Berth that a line of this file names, each once.
fn versions_in<'a>(path: &Path, line: &'a str, patterns: &[Pattern]) -> Vec<&'a str> {
    let mut found = vec![];
    for pattern in patterns {
        if pattern.directory != "*" && !path.starts_with(&pattern.directory) {
            continue;
        }
        for captures in pattern.text.captures_iter(line) {
            found.push(captures.name("version").unwrap().as_str());
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the images of Berth that a line names, with registry and tag. Skips templates, which have neither.
fn images_in(line: &str) -> Vec<&str> {
    let image = Regex::new(r"(?:[a-z0-9.-]+(?::[0-9]+)?/)*(?:berth-agent|berth-controller):[a-z0-9][\w.-]*").unwrap();
    image.find_iter(line).map(|found| found.as_str()).collect()
}

fn files() -> Vec<PathBuf> {
    let root = sources::root();
    let mut files = vec![];
    for name in NAMING {
        if root.join(name).is_dir() {
            files.extend(sources::files(name));
        } else if root.join(name).is_file() {
            files.push(PathBuf::from(name));
        }
    }
    files
}

#[test]
fn everything_names_the_version_of_the_release() {
    let patterns = patterns();
    let mut report = vec![];
    let mut named = 0;
    for path in files() {
        let Some(text) = sources::text(&path) else { continue };
        for (index, line) in text.lines().enumerate() {
            for version in versions_in(&path, line, &patterns) {
                named += 1;
                if version != VERSION {
                    report.push(format!("{}:{}: {version}", path.display(), index + 1));
                }
            }
        }
    }
    let report = report.join("\n");
    assert!(
        report.is_empty(),
        "the version is {VERSION}; run `make version VERSION={VERSION}` to write it into:\n{report}"
    );
    assert!(named >= 2, "no file names the version");
}

#[test]
fn manifests_and_charts_name_the_published_images() {
    let registry = registry();
    let mut pods = vec![];
    for path in files() {
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        let Some(text) = sources::text(&path) else { continue };
        for line in text.lines().filter(|_| !is_page) {
            for image in images_in(line) {
                let (name, tag) = image.rsplit_once(':').unwrap();
                let expected =
                    name == format!("{registry}/berth-agent") || name == format!("{registry}/berth-controller");
                assert!(expected && tag == VERSION, "{}: {image}", path.display());
                pods.push(name.to_owned());
            }
        }
    }
    pods.sort();
    pods.dedup();
    assert_eq!(pods.len(), 2, "images of both programs: {pods:?}");
}

#[test]
fn the_changelog_begins_with_the_version() {
    let text = read("CHANGELOG.md");
    let heading = Regex::new(r"(?m)^## \[([^\]]+)\]").unwrap();
    let mut headings = heading.captures_iter(&text).map(|captures| captures[1].to_owned());
    assert_eq!(headings.next().as_deref(), Some("Unreleased"));
    assert_eq!(headings.next().as_deref(), Some(VERSION));
}

#[test]
fn versions_are_found_wherever_they_stand() {
    let patterns = patterns();
    let page = Path::new("docs/testing.md");
    for line in [
        "image: ghcr.io/berth-dev/berth-agent:1.2.3",
        "helm install berth oci://ghcr.io/berth-dev/charts/berth --version 1.2.3",
        "https://github.com/berth-dev/berth/releases/download/v1.2.3/install.yaml",
        "kubectl apply -k 'https://github.com/berth-dev/berth/manifests/overlays/k3s?ref=v1.2.3'",
        "git clone --branch v1.2.3 https://github.com/berth-dev/berth",
        "tar -xzf kubectl-berth-1.2.3-linux-amd64.tar.gz",
        "dpkg -i berth-agent_1.2.3_amd64.deb",
        "  newTag: 1.2.3",
    ] {
        assert_eq!(versions_in(page, line, &patterns), ["1.2.3"], "{line}");
    }
    for line in ["helm --version 1.2.3, bootc-1.16.9", "version: 1.2.3"] {
        assert_eq!(versions_in(page, line, &patterns), Vec::<&str>::new(), "{line}");
    }
    let chart = Path::new("charts/berth/Chart.yaml");
    assert_eq!(versions_in(chart, "appVersion: \"1.2.3\"", &patterns), ["1.2.3"]);
}

#[test]
fn images_are_found_with_registry_and_tag() {
    assert_eq!(
        images_in("a: r.example:5000/x/berth-agent:dev, berth-controller:1"),
        ["r.example:5000/x/berth-agent:dev", "berth-controller:1"]
    );
    assert_eq!(
        images_in("{{ .repository }}/berth-agent:{{ .tag }}"),
        Vec::<&str>::new()
    );
}
