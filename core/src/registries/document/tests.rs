use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

const TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

fn hex(c: char) -> String {
    format!("sha256:{}", c.to_string().repeat(64))
}

/// An entry of an index: its digest, architecture and operating system.
fn entry(c: char, architecture: &str, os: &str) -> Value {
    let platform = json!({"architecture": architecture, "os": os});
    json!({"mediaType": TYPE, "size": 1, "digest": hex(c), "platform": platform})
}

fn with_variant(mut entry: Value, variant: &str) -> Value {
    entry["platform"]["variant"] = variant.into();
    entry
}

fn platforms(entries: &[Value]) -> Vec<PlatformDigest> {
    let index = json!({"schemaVersion": 2, "manifests": entries});
    match manifest(index.to_string().as_bytes()) {
        Ok(Document::Index { platforms, .. }) => platforms,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_index_gives_its_linux_platforms_once_each() {
    let index = json!({
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
    for (images, expected) in [
        // The image that runs on more machines comes first: Berth reads the labels of the first image.
        (&["a amd64/v3", "b amd64"][..], "amd64 b, amd64/v3 a"),
        (&["b amd64/v1", "a amd64/v3"], "amd64 b, amd64/v3 a"),
        (&["a amd64/v3", "b amd64/v2"], "amd64/v2 b, amd64/v3 a"),
        (&["a ppc64le/power9", "b ppc64le/v2"], "ppc64le/v2 b, ppc64le/power9 a"),
        (
            &["a amd64/v3", "b arm64/v8", "c arm64/v9"],
            "arm64 b, amd64/v3 a, arm64/v9 c",
        ),
        (&["a s390x/z15"], "s390x a"),
        // Of two images for the same platform, Berth uses the first.
        (&["a arm64", "b arm64/v8"], "arm64 a"),
        (&["a amd64/v2", "b amd64/v2"], "amd64/v2 a"),
    ] {
        let mut entries = vec![];
        for image in images {
            let (c, platform) = image.split_once(' ').unwrap();
            let c = c.parse().unwrap();
            entries.push(match platform.split_once('/') {
                Some((architecture, variant)) => with_variant(entry(c, architecture, "linux"), variant),
                None => entry(c, platform, "linux"),
            });
        }
        let platforms = platforms(&entries);
        let shown = platforms.iter().map(|p| format!("{p} {}", &p.digest.to_string()[7..8]));
        assert_eq!(shown.collect::<Vec<_>>().join(", "), expected);
    }
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
        let mut entries = vec![
            entry(UNNAMED, "amd64", "linux"),
            entry('a', "arm64", "linux"),
            // Variants of other architectures or systems do not matter.
            with_variant(entry('b', "arm", "linux"), "v2"),
            with_variant(entry('c', "amd64", "windows"), "v2"),
        ];
        for (variant, c) in named.iter().zip('1'..) {
            entries.push(with_variant(entry(c, "amd64", "linux"), variant));
        }
        for _ in 0..entries.len() {
            entries.rotate_left(1);
            let platforms = platforms(&entries);
            let unnamed = platforms.iter().find(|p| p.digest.to_string() == hex(UNNAMED)).unwrap();
            assert_eq!(unnamed.to_string(), taken_for, "beside {named:?}");
            assert_eq!(platforms.len(), named.len() + 3);
        }
    }
}

#[test]
fn an_image_names_its_config() {
    let json = json!({
        "schemaVersion": 2, "config": {"mediaType": TYPE, "digest": hex('a'), "size": 7}, "layers": []
    });
    let document = manifest(json.to_string().as_bytes()).unwrap();
    assert!(matches!(document, Document::Image { config, size: 7, .. } if config.to_string() == hex('a')));
    let json = r#"{"architecture":"arm64","os":"linux","config":{"Labels":{"org.opencontainers.image.version":"2","containers.bootc":"1"}}}"#;
    let digest = digest(&hex('a')).unwrap();
    let bare = r#"{"os":"linux","architecture":"amd64","variant":"v3","config":{"Labels":{"ostree.bootable":"true"}}}"#;
    for (json, platform, version) in [(json, "arm64", Some("2")), (bare, "amd64/v3", None)] {
        let config = config(json.as_bytes(), &digest).unwrap();
        assert_eq!(config.platform.to_string(), platform);
        assert_eq!(config.version.as_deref(), version);
    }
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
        let labels = json!({"Labels": {"containers.bootc": "1"}});
        let json = json!({"os": os, "architecture": architecture, "config": labels});
        let found = config(json.to_string().as_bytes(), &digest(&hex('a')).unwrap());
        let is_taken = match found {
            Ok(_) => true,
            Err(DocumentError::NotForLinux(_)) => false,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(is_taken, taken, "{os}/{architecture}");
    }
}

fn labelled(labels: Value, created: Value) -> Result<Config, DocumentError> {
    let settings = json!({"Labels": labels});
    let json = json!({"os": "linux", "architecture": "amd64", "created": created, "config": settings});
    config(json.to_string().as_bytes(), &digest(&hex('a')).unwrap())
}

#[test]
fn an_image_that_cannot_boot_is_refused() {
    for labels in [json!({}), json!(null), json!({"org.opencontainers.image.version": "2"})] {
        let error = labelled(labels, "".into()).unwrap_err();
        assert!(matches!(error, DocumentError::NotBootable(_)));
        assert!(error.to_string().contains("LABEL containers.bootc=1"), "{error}");
    }
    for label in BOOTABLE {
        assert!(labelled(json!({(label): "1"}), "".into()).is_ok());
    }
}

/// Returns the limit of a bootable image with these labels.
fn limit(mut labels: Value) -> Option<BootImageLimit> {
    labels["containers.bootc"] = "1".into();
    labelled(labels, "".into()).unwrap().metadata.boot_image
}

#[test]
fn a_boot_image_limit_is_read_or_reported_invalid() {
    let (least, most) = (keys::LABEL_MIN_BOOT_IMAGE, keys::LABEL_MAX_BOOT_IMAGE_SKEW);
    assert_eq!(limit(json!({})), None);
    let both = limit(json!({(least): " 9.2 ", (most): "2"})).unwrap();
    assert_eq!(
        (both.minimum_version.as_deref(), both.max_major_skew, both.error),
        (Some("9.2"), Some(2), None)
    );
    for nonsense in ["two", "-1", "1001", "99999999999"] {
        let limit = limit(json!({(most): nonsense})).unwrap();
        assert!(limit.error.is_some_and(|error| error.contains(nonsense)) && limit.max_major_skew.is_none());
    }
}

/// Returns the version and the metadata, without other labels, of a bootable image.
fn builder_info(mut labels: Value, created: Value) -> (Option<String>, ImageMetadata) {
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
}

fn metadata(created: &str, revision: &str, source: &str) -> ImageMetadata {
    ImageMetadata {
        created: Some(Time(created.parse().unwrap())),
        revision: Some(revision.to_owned()),
        source: Some(source.to_owned()),
        ..ImageMetadata::default()
    }
}

#[test]
fn builder_information_is_shortened() {
    let (day, later) = ("2026-01-02T03:04:05Z", "2026-02-02T00:00:00Z");
    let labels =
        json!({(VERSION): " 9.4\n", (OLD_VERSION): "1", (REVISION): "abc", (SOURCE): "https://a/b", (CREATED): later});
    assert_eq!(
        builder_info(labels, day.into()),
        (Some("9.4".into()), metadata(later, "abc", "https://a/b"))
    );
    let long = "x".repeat(1000);
    let labels = json!({(OLD_VERSION): "1", (REVISION): long, (SOURCE): long, (CREATED): "yesterday"});
    assert_eq!(
        builder_info(labels, day.into()),
        (Some("1".into()), metadata(day, &long[..128], &long[..256]))
    );
    for nothing in [
        "1970-01-01T00:00:00Z",
        "-000001-01-01T00:00:00Z",
        "9999-12-31T23:59:60Z x",
        "",
    ] {
        assert_eq!(
            builder_info(json!({}), nothing.into()),
            (None, ImageMetadata::default()),
            "{nothing}"
        );
    }
    assert_eq!(builder_info(json!({}), 7.into()), (None, ImageMetadata::default()));
}

#[test]
fn rubbish_is_an_answer_too() {
    let mut bad_digest = entry('b', "amd64", "linux");
    bad_digest["digest"] = "md5:1".into();
    let both = json!({"config": {"digest": hex('a')}, "manifests": [entry('b', "amd64", "linux")]});
    for (json, is_invalid) in [
        ("<html>", true),
        ("{}", true),
        (r#"{"schemaVersion":2,"manifests":[]}"#, false),
        (&json!({"manifests": [bad_digest]}).to_string(), true),
        (&both.to_string(), true),
        (r#"{"config":{"digest":"md5:1","size":1}}"#, true),
        (&json!({"config": {"digest": hex('a'), "size": -1}}).to_string(), true),
    ] {
        let error = manifest(json.as_bytes()).unwrap_err();
        assert_eq!(matches!(error, DocumentError::Invalid(_)), is_invalid, "{json}");
    }
    for (json, is_invalid) in [("{}", false), ("[]", true)] {
        let error = config(json.as_bytes(), &digest(&hex('a')).unwrap()).unwrap_err();
        assert_eq!(matches!(error, DocumentError::Invalid(_)), is_invalid, "{json}");
    }
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = manifest(&bytes);
        let _ = config(&bytes, &digest(&hex('a')).unwrap());
    }
}
