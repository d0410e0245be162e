use super::*;
use proptest::prelude::*;

const TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

fn hex(c: char) -> String {
    format!("sha256:{}", c.to_string().repeat(64))
}

#[test]
fn an_index_gives_its_linux_platforms_once_each() {
    let entry = |c, arch: &str, os: &str| serde_json::json!({"mediaType": TYPE, "size": 1, "digest": hex(c), "platform": {"architecture": arch, "os": os}});
    let index = serde_json::json!({
        "schemaVersion": 2,
        "annotations": {"org.opencontainers.image.version": "9.4"},
        "manifests": [
            entry('a', "amd64", "linux"), entry('b', "arm64", "linux"), entry('c', "arm64", "linux"),
            entry('d', "amd64", "windows"), entry('e', "unknown", "unknown"), {"mediaType": TYPE, "size": 1, "digest": hex('f')},
        ],
    });
    let Document::Index { platforms, version } = manifest(index.to_string().as_bytes()).unwrap() else {
        panic!()
    };
    let found: Vec<_> = platforms
        .iter()
        .map(|p| (p.architecture.as_str(), p.digest.to_string()))
        .collect();
    assert_eq!(found, [("amd64", hex('a')), ("arm64", hex('b'))]);
    assert_eq!(version.as_deref(), Some("9.4"));
}

#[test]
fn an_index_gives_the_images_of_all_variants() {
    let found = |entries: &[(char, &str, Option<&str>)]| {
        let entry = |(c, arch, variant): &(char, &str, Option<&str>)| {
            let mut platform = serde_json::json!({"architecture": arch, "os": "linux"});
            if let Some(variant) = variant {
                platform["variant"] = (*variant).into();
            }
            serde_json::json!({"mediaType": TYPE, "size": 1, "digest": hex(*c), "platform": platform})
        };
        let entries: Vec<_> = entries.iter().map(entry).collect();
        let index = serde_json::json!({"schemaVersion": 2, "manifests": entries});
        let Ok(Document::Index { platforms, .. }) = manifest(index.to_string().as_bytes()) else {
            panic!()
        };
        let shown: Vec<String> = platforms
            .iter()
            .map(|p| format!("{p} {}", &p.digest.to_string()[7..8]))
            .collect();
        shown.join(", ")
    };
    let (v1, v2, v3) = (Some("v1"), Some("v2"), Some("v3"));
    // The least demanding comes first: its labels are read.
    assert_eq!(
        found(&[('a', "amd64", v3), ('b', "amd64", None)]),
        "amd64 b, amd64/v3 a"
    );
    assert_eq!(found(&[('b', "amd64", v1), ('a', "amd64", v3)]), "amd64 b, amd64/v3 a");
    assert_eq!(
        found(&[('a', "amd64", v3), ('b', "amd64", v2)]),
        "amd64/v2 b, amd64/v3 a"
    );
    assert_eq!(
        found(&[('a', "ppc64le", Some("power9")), ('b', "ppc64le", v2)]),
        "ppc64le/v2 b, ppc64le/power9 a"
    );
    assert_eq!(
        found(&[
            ('a', "amd64", v3),
            ('b', "arm64", Some("v8")),
            ('c', "arm64", Some("v9"))
        ]),
        "arm64 b, amd64/v3 a, arm64/v9 c"
    );
    assert_eq!(found(&[('a', "s390x", Some("z15"))]), "s390x a");
    // Of two images for the same platform, the first counts.
    assert_eq!(found(&[('a', "arm64", None), ('b', "arm64", Some("v8"))]), "arm64 a");
    assert_eq!(found(&[('a', "amd64", v2), ('b', "amd64", v2)]), "amd64/v2 a");
}

#[test]
fn an_amd64_image_beside_a_lesser_one_needs_more() {
    const UNNAMED: char = 'f';
    for (named, taken_for) in [
        (&[][..], "amd64"),
        // AlmaLinux 10.
        (&["v2"], "amd64/v3"),
        (&["v1"], "amd64/v3"),
        (&["v1", "v2"], "amd64/v3"),
        (&["v2", "v4"], "amd64/v3"),
        (&["v1", "v3"], "amd64/v2"),
        (&["v3"], "amd64"),
        (&["v4"], "amd64"),
        (&["v2", "v3"], "amd64"),
    ] {
        let entry = |digest: String, platform: serde_json::Value| serde_json::json!({"mediaType": TYPE, "size": 1, "digest": digest, "platform": platform});
        let mut entries = vec![
            entry(
                hex(UNNAMED),
                serde_json::json!({"architecture": "amd64", "os": "linux"}),
            ),
            entry(hex('a'), serde_json::json!({"architecture": "arm64", "os": "linux"})),
            // Other architectures and systems do not matter.
            entry(
                hex('b'),
                serde_json::json!({"architecture": "arm", "os": "linux", "variant": "v2"}),
            ),
            entry(
                hex('c'),
                serde_json::json!({"architecture": "amd64", "os": "windows", "variant": "v2"}),
            ),
        ];
        for (variant, c) in named.iter().zip('1'..) {
            let platform = serde_json::json!({"architecture": "amd64", "os": "linux", "variant": variant});
            entries.push(entry(hex(c), platform));
        }
        for _ in 0..entries.len() {
            entries.rotate_left(1);
            let index = serde_json::json!({"schemaVersion": 2, "manifests": entries});
            let Document::Index { platforms, .. } = manifest(index.to_string().as_bytes()).unwrap() else {
                panic!()
            };
            let unnamed = platforms.iter().find(|p| p.digest.to_string() == hex(UNNAMED)).unwrap();
            assert_eq!(unnamed.to_string(), taken_for, "beside {named:?}");
            assert_eq!(platforms.len(), named.len() + 3);
        }
    }
}

#[test]
fn an_image_names_its_config() {
    let json = serde_json::json!({
        "schemaVersion": 2, "config": {"mediaType": TYPE, "digest": hex('a'), "size": 7}, "layers": []
    });
    let document = manifest(json.to_string().as_bytes()).unwrap();
    assert!(matches!(document, Document::Image { config, size: 7, .. } if config.to_string() == hex('a')));
    let json = r#"{"architecture":"arm64","os":"linux","config":{"Labels":{"org.opencontainers.image.version":"2","containers.bootc":"1"}}}"#;
    let digest = digest(&hex('a')).unwrap();
    let read = |json: &str| config(json.as_bytes(), &digest).map(|c| (c.platform.to_string(), c.version));
    assert_eq!(read(json).unwrap(), ("arm64".into(), Some("2".into())));
    let bare = r#"{"os":"linux","architecture":"amd64","variant":"v3","config":{"Labels":{"ostree.bootable":"true"}}}"#;
    assert_eq!(read(bare).unwrap(), ("amd64/v3".into(), None));
}

#[test]
fn an_image_is_for_linux_on_a_named_architecture() {
    let (longest, longer) = ("x".repeat(32), "x".repeat(33));
    for (os, architecture, taken) in [
        ("linux", "amd64", true),
        ("linux", longest.as_str(), true),
        ("linux", longer.as_str(), false),
        ("linux", "unknown", false),
        ("linux", "", false),
        ("windows", "amd64", false),
        ("", "amd64", false),
    ] {
        let labels = serde_json::json!({"Labels": {"containers.bootc": "1"}});
        let json = serde_json::json!({"os": os, "architecture": architecture, "config": labels});
        let found = config(json.to_string().as_bytes(), &digest(&hex('a')).unwrap());
        let is_taken = match found {
            Ok(_) => true,
            Err(DocumentError::NotForLinux(_)) => false,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(is_taken, taken, "{os}/{architecture}");
    }
}

fn labelled(labels: serde_json::Value, created: serde_json::Value) -> Result<Config, DocumentError> {
    let settings = serde_json::json!({"Labels": labels});
    let json = serde_json::json!({"os": "linux", "architecture": "amd64", "created": created, "config": settings});
    config(json.to_string().as_bytes(), &digest(&hex('a')).unwrap())
}

#[test]
fn an_image_that_cannot_boot_is_refused() {
    for labels in [
        serde_json::json!({}),
        serde_json::json!(null),
        serde_json::json!({"org.opencontainers.image.version": "2"}),
    ] {
        let error = labelled(labels, "".into()).unwrap_err();
        assert!(matches!(error, DocumentError::NotBootable(_)));
        assert!(error.to_string().contains("LABEL containers.bootc=1"), "{error}");
    }
    for label in BOOTABLE {
        assert!(labelled(serde_json::json!({(label): "1"}), "".into()).is_ok());
    }
}

#[test]
fn a_boot_image_limit_is_read_or_reported_invalid() {
    let (least, most) = (keys::LABEL_MIN_BOOT_IMAGE, keys::LABEL_MAX_BOOT_IMAGE_SKEW);
    let limit = |labels: serde_json::Value| {
        let mut labels = labels;
        labels["containers.bootc"] = "1".into();
        labelled(labels, "".into()).unwrap().metadata.boot_image
    };
    assert_eq!(limit(serde_json::json!({})), None);
    let both = limit(serde_json::json!({(least): " 9.2 ", (most): "2"})).unwrap();
    assert_eq!(
        (both.minimum_version.as_deref(), both.max_major_skew, both.error),
        (Some("9.2"), Some(2), None)
    );
    for nonsense in ["two", "-1", "1001", "99999999999"] {
        let limit = limit(serde_json::json!({(most): nonsense})).unwrap();
        assert!(limit.error.is_some_and(|error| error.contains(nonsense)) && limit.max_major_skew.is_none());
    }
}

#[test]
fn builder_information_is_shortened() {
    let said = |mut labels: serde_json::Value, created: serde_json::Value| {
        labels["containers.bootc"] = "1".into();
        let config = labelled(labels.clone(), created).unwrap();
        let kept = config.metadata.labels.len() + config.metadata.labels_left_out as usize;
        assert_eq!(
            kept,
            labels.as_object().unwrap().len(),
            "each label is kept, or counted"
        );
        let named = ImageMetadata {
            labels: BTreeMap::new(),
            labels_left_out: 0,
            ..config.metadata
        };
        (config.version, named)
    };
    let some = |created: &str, revision: &str, source: &str| {
        let some = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
        let created = some(created).map(|t| Time(t.parse().unwrap()));
        ImageMetadata {
            created,
            revision: some(revision),
            source: some(source),
            ..ImageMetadata::default()
        }
    };
    let (day, later) = ("2026-01-02T03:04:05Z", "2026-02-02T00:00:00Z");
    let labels = serde_json::json!({(VERSION): " 9.4\n", (OLD_VERSION): "1", (REVISION): "abc", (SOURCE): "https://a/b", (CREATED): later});
    assert_eq!(
        said(labels, day.into()),
        (Some("9.4".into()), some(later, "abc", "https://a/b"))
    );
    let long = "x".repeat(1000);
    let labels = serde_json::json!({(OLD_VERSION): "1", (REVISION): long, (SOURCE): long, (CREATED): "yesterday"});
    assert_eq!(
        said(labels, day.into()),
        (Some("1".into()), some(day, &long[..128], &long[..256]))
    );
    for nothing in [
        "1970-01-01T00:00:00Z",
        "-000001-01-01T00:00:00Z",
        "9999-12-31T23:59:60Z x",
        "",
    ] {
        assert_eq!(
            said(serde_json::json!({}), nothing.into()),
            (None, ImageMetadata::default()),
            "{nothing}"
        );
    }
    assert_eq!(said(serde_json::json!({}), 7.into()), (None, ImageMetadata::default()));
}

#[test]
fn rubbish_is_an_answer_too() {
    let is_invalid = |error: DocumentError| match error {
        DocumentError::Invalid(_) => true,
        DocumentError::NotForLinux(_) | DocumentError::NotBootable(_) => false,
    };
    let entry = |digest: &str| format!(r#"{{"digest":"{digest}","platform":{{"os":"linux","architecture":"amd64"}}}}"#);
    let both = format!(
        r#"{{"config":{{"digest":"{0}"}},"manifests":[{1}]}}"#,
        hex('a'),
        entry(&hex('b'))
    );
    for (json, invalid) in [
        ("<html>", true),
        ("{}", true),
        (r#"{"schemaVersion":2,"manifests":[]}"#, false),
        (&format!(r#"{{"manifests":[{}]}}"#, entry("md5:1")), true),
        (&both, true),
        (r#"{"config":{"digest":"md5:1","size":1}}"#, true),
        (&format!(r#"{{"config":{{"digest":"{}","size":-1}}}}"#, hex('a')), true),
    ] {
        assert_eq!(is_invalid(manifest(json.as_bytes()).unwrap_err()), invalid, "{json}");
    }
    let found = |json: &[u8]| is_invalid(config(json, &digest(&hex('a')).unwrap()).unwrap_err());
    assert!(!found(b"{}"));
    assert!(found(b"[]"));
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = manifest(&bytes);
        let _ = config(&bytes, &digest(&hex('a')).unwrap());
    }
}
