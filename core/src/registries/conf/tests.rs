use proptest::prelude::*;

use super::*;

fn pin() -> String {
    format!("sha256:{}", "0".repeat(64))
}

fn sources(conf: &str, reference: &str) -> Result<Vec<String>, SourceError> {
    let sources = RegistriesConf::parse(conf)
        .unwrap()
        .sources(&reference.parse().unwrap())?;
    let mut lines = vec![];
    for source in sources {
        let insecure = if source.insecure { " insecure" } else { "" };
        lines.push(format!("{}{insecure}", source.reference));
    }
    Ok(lines)
}

#[test]
fn without_a_table_the_reference_is_unchanged() {
    for conf in [
        "",
        "unqualified-search-registries = [\"docker.io\"]\n[aliases]\na = \"b\"",
        "[[registry]]\nlocation = \"other.io\"\nnew-key = 7",
    ] {
        assert_eq!(sources(conf, "quay.io/a/os:1").unwrap(), ["quay.io/a/os:1"], "{conf}");
    }
}

#[test]
fn matching_mirrors_come_first() {
    let conf = r#"
        [[registry]]
        prefix = "quay.io/a"
        location = "origin.example/b"
        [[registry.mirror]]
        location = "m1.example:5000/"
        insecure = true
        [[registry.mirror]]
        location = "m2.example/x"
        pull-from-mirror = "digest-only"
        [[registry.mirror]]
        location = "m3.example"
        pull-from-mirror = "tag-only"
    "#;
    assert_eq!(
        sources(conf, "quay.io/a/os:1").unwrap(),
        [
            "m1.example:5000/os:1 insecure",
            "m3.example/os:1",
            "origin.example/b/os:1"
        ]
    );
    let pin = pin();
    assert_eq!(
        sources(conf, &format!("quay.io/a/os:1@{pin}")).unwrap(),
        [
            format!("m1.example:5000/os:1@{pin} insecure"),
            format!("m2.example/x/os:1@{pin}"),
            format!("origin.example/b/os:1@{pin}")
        ]
    );
    let conf = "[[registry]]\nlocation = \"quay.io\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"m.example/q\"";
    assert_eq!(sources(conf, "quay.io/os:1").unwrap(), ["quay.io/os:1"]);
    assert_eq!(sources(conf, &format!("quay.io/os@{pin}")).unwrap().len(), 2);
}

#[test]
fn the_longest_prefix_wins_and_covers_whole_segments() {
    let pinned = format!("quay.io/a/os@{}", pin());
    for (prefixes, reference, expected) in [
        (&["quay.io", "quay.io/a"][..], "quay.io/a/os:1", "x.example/9/os:1"),
        (&["quay.io/a/os"], "quay.io/a/os:1", "x.example/12:1"),
        (&["quay.io/a/os:1", "quay.io/a"], "quay.io/a/os:1", "quay.io/a/os"),
        (&["quay.io/a/o"], "quay.io/a/os:1", "quay.io/a/os:1"),
        (&["quay.io"], "quay.io:443/os:1", "quay.io:443/os:1"),
        (&["*.example.com"], "eu.r.example.com/os:1", "x.example/13/os:1"),
        (&["*.example.com"], "example.com/os:1", "example.com/os:1"),
        (
            &["*.example.com"],
            "registry.elsewhere.org/os:1",
            "registry.elsewhere.org/os:1",
        ),
        (
            &["*.example.com:5000/a"],
            "r.example.com:5000/a/os:1",
            "x.example/20/os:1",
        ),
        (&["*.example.com/a"], "r.example.com/ab/os:1", "r.example.com/ab/os:1"),
        (
            &["*.example.com", "r.example.com"],
            "r.example.com/os:1",
            "x.example/13/os:1",
        ),
        (&["quay.io/a/os"], &pinned, "x.example/12@sha256:"),
    ] {
        let mut conf = String::new();
        for prefix in prefixes {
            let location = format!("x.example/{}", prefix.len());
            conf += &format!("[[registry]]\nprefix = \"{prefix}\"\nlocation = \"{location}\"\n");
        }
        match sources(&conf, reference) {
            Ok(found) => assert!(found[0].starts_with(expected), "{prefixes:?} {reference}: {found:?}"),
            // If the prefix includes the tag, only the location is left, which is not an image reference.
            Err(error) => assert!(
                matches!(error, SourceError::NoReference(_)) && prefixes[0].ends_with(":1"),
                "{error}"
            ),
        }
    }
    // A table with a wildcard prefix and without a location does not change the reference.
    let conf = "[[registry]]\nprefix = \"*.example.com\"\ninsecure = true";
    assert_eq!(
        sources(conf, "r.example.com/os:1").unwrap(),
        ["r.example.com/os:1 insecure"]
    );
}

#[test]
fn a_wildcard_stands_for_at_least_one_label() {
    for (text, length) in [
        ("a.example.com/os", Some(13)),
        ("a.b.example.com/os", Some(15)),
        (".example.com/os", None),
        ("example.com/os", None),
    ] {
        assert_eq!(matched("*.example.com", text), length, "{text}");
    }
}

#[test]
fn what_is_blocked_is_not_asked_for() {
    let conf = "[[registry]]\nprefix = \"quay.io/bad\"\nblocked = true\n[[registry]]\nlocation = \"quay.io\"";
    let error = sources(conf, "quay.io/bad/os:1").unwrap_err();
    assert_eq!(error.to_string(), "quay.io/bad/os:1 is blocked by registries.conf");
    assert!(sources(conf, "quay.io/good/os:1").is_ok());
}

#[test]
fn a_malformed_file_gives_the_remedy() {
    for (conf, expected) in [
        ("[[registry", "TOML parse error"),
        ("registry = 7", "invalid type"),
        ("[[registry]]\nlocation = \"a.io\"\ninsecure = \"yes\"", "invalid type"),
        ("[registries.search]\nregistries = []", "old format"),
        ("[[registry]]\ninsecure = true", "neither a prefix nor a location"),
        ("[[registry]]\nlocation = \"https://a.io\"", "without a scheme"),
        ("[[registry]]\nlocation = \"*.a.io\"", "not a registry"),
        (
            "[[registry]]\nprefix = \"a.io\"\n[[registry.mirror]]\ninsecure = true",
            "not a registry",
        ),
        (
            "[[registry]]\nprefix = \"a.io\"\n[[registry.mirror]]\nlocation = \"b.io\"\npull-from-mirror = \"x\"",
            "write all",
        ),
        (
            "[[registry]]\nprefix = \"a.io\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"b.io\"\npull-from-mirror = \"all\"",
            "keep only one of the two",
        ),
        (
            "[[registry]]\nprefix = \"a.io\"\n[[registry]]\nprefix = \"a.io/\"\nblocked = true",
            "two different [[registry]] tables",
        ),
    ] {
        let error = RegistriesConf::parse(conf).unwrap_err().to_string();
        assert!(error.contains(expected), "{conf}\n{error}");
    }
    assert!(RegistriesConf::parse("[[registry]]\nprefix = \"a.io\"\n[[registry]]\nprefix = \"a.io\"").is_ok());
}

proptest! {
    #[test]
    fn never_panics(text in ".{0,100}", prefix in "\\PC{0,20}", location in "\\PC{0,20}", reference in "[a-z.*:/@]{1,30}") {
        let _ = RegistriesConf::parse(&text);
        let [prefix, location] = [prefix, location].map(|text| text.replace(['"', '\\'], ""));
        let conf = format!("[[registry]]\nprefix = \"{prefix}\"\nlocation = \"{location}\"");
        if let (Ok(conf), Ok(reference)) = (RegistriesConf::parse(&conf), reference.parse()) {
            let _ = conf.sources(&reference);
        }
    }

    /// Every source of an image keeps its tag, its digest, and the path after the prefix.
    #[test]
    fn an_image_keeps_its_tag_and_its_digest(
        depth in 0..3_usize,
        mirrors in proptest::collection::vec("[ab]{1,2}\\.io(:[12])?(/[ab]{1,2}){0,2}", 0..3),
        tag in proptest::option::of("[ab]{1,2}"),
        digest in any::<bool>(),
    ) {
        prop_assume!(tag.is_some() || digest);
        let name = "r.io/a/b/c";
        let prefix: Vec<_> = name.split('/').take(depth + 1).collect();
        let behind = &name[prefix.join("/").len()..];
        let tables: String = mirrors.iter().map(|m| format!("[[registry.mirror]]\nlocation = \"{m}\"\n")).collect();
        let conf = format!("[[registry]]\nprefix = \"{}\"\n{tables}", prefix.join("/"));
        let tail = format!("{}{}", tag.map(|t| format!(":{t}")).unwrap_or_default(), if digest { format!("@{}", pin()) } else { String::new() });
        let found = sources(&conf, &format!("{name}{tail}")).unwrap();
        let expected: Vec<_> = mirrors.iter().map(|m| format!("{m}{behind}{tail}")).chain([format!("{name}{tail}")]).collect();
        prop_assert_eq!(found, expected);
    }
}
