use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn digest(c: char) -> String {
    format!("sha256:{}", c.to_string().repeat(64))
}

fn entry(c: char) -> Value {
    json!({
        "cachedUpdate": null, "composefs": null, "incompatible": false, "pinned": false,
        "image": {
            "architecture": "arm64", "imageDigest": digest(c), "timestamp": "2026-03-04T05:06:07.08Z",
            "version": "9.1", "image": {"image": format!("registry.example/os@{}", digest(c)), "transport": "registry"},
        },
        "ostree": {"checksum": "ab", "deploySerial": 0, "stateroot": "default"}, "store": "ostreeContainer",
    })
}

fn host(status: Value) -> Value {
    json!({
        "apiVersion": "org.containers.bootc/v1", "kind": "BootcHost", "metadata": {"name": "host"},
        "spec": {"bootOrder": "default", "image": null}, "status": status,
    })
}

fn read(status: Value) -> BootcStatus {
    parse(&host(status).to_string()).unwrap()
}

fn read_host(status: Value) -> HostStatus {
    match read(status) {
        BootcStatus::Host(host) => *host,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_booted_staged_and_rollback() {
    let mut staged = entry('b');
    staged["downloadOnly"] = json!(true);
    staged["somethingNew"] = json!({"x": [1]});
    let (mut booted, mut rollback) = (entry('a'), entry('c'));
    // Older releases lack this field.
    booted.as_object_mut().unwrap().remove("pinned");
    rollback["pinned"] = json!(true);
    let status = read_host(json!({
        "booted": booted, "staged": staged, "rollback": rollback, "rollbackQueued": true, "type": "bootcHost",
    }));
    let booted = status.booted;
    assert_eq!(booted.digest, Some(digest('a').parse().unwrap()));
    assert_eq!(booted.version.as_deref(), Some("9.1"));
    assert_eq!(booted.architecture.as_deref(), Some("arm64"));
    assert!(booted.timestamp.is_some() && !booted.locked && !booted.pinned);
    assert!(status.staged.is_some_and(|staged| staged.locked && !staged.pinned));
    assert!(status.rollback.is_some_and(|rollback| rollback.pinned));
    assert!(status.rollback_queued && !status.signature_enforced);
    assert_eq!((status.storage, status.staged_verity), (Storage::Ostree, None));
}

#[test]
fn a_staged_image_has_a_directory_of_files() {
    let checksum = "0f".repeat(32);
    let mut staged = entry('b');
    fn files(staged: &Value) -> Option<PathBuf> {
        read_host(json!({"booted": entry('a'), "staged": staged})).staged_files
    }
    assert_eq!(files(&staged), None, "the checksum is too short");
    staged["ostree"] = json!({"checksum": checksum, "deploySerial": 2, "stateroot": "default"});
    let expected = format!("/sysroot/ostree/deploy/default/deploy/{checksum}.2");
    assert_eq!(files(&staged), Some(PathBuf::from(expected)));
    assert_eq!(files(&Value::Null), None, "nothing is staged");
}

#[test]
fn an_entry_without_an_image_can_be_locked() {
    let staged = json!({"image": null, "downloadOnly": true});
    let status = read_host(json!({"booted": entry('a'), "staged": staged}));
    assert!(
        status
            .staged
            .is_some_and(|staged| staged.locked && staged.digest.is_none())
    );
}

#[test]
fn only_a_status_of_a_bootc_host_is_read() {
    for (kind, version) in [("BootcHost", "example.com/v1"), ("Other", "org.containers.bootc/v1")] {
        let mut other = host(json!({"booted": entry('a')}));
        (other["kind"], other["apiVersion"]) = (json!(kind), json!(version));
        let error = parse(&other.to_string()).unwrap_err();
        assert!(matches!(error, StatusError::Foreign { .. }), "{error}");
    }
}

/// A deployment of a composefs host. Its name may be a value of any type.
fn composefs(c: char, verity: Value) -> Value {
    let mut entry = entry(c);
    entry["ostree"] = Value::Null;
    entry["store"] = Value::Null;
    entry["composefs"] = json!({
        "verity": verity, "bootType": "Bls", "bootloader": "systemd", "bootDigest": null, "missingVerityAllowed": false,
    });
    entry
}

#[test]
fn reads_composefs_hosts_and_their_deployment_names() {
    let name = "ab".repeat(64);
    for (verity, read) in [
        (json!(name), Some(name.clone())),
        (json!("ab".repeat(32)), Some("ab".repeat(32))),
        (json!(""), None),
        (json!("ab"), None),
        (json!("ab".repeat(65)), None),
        (json!("ab".repeat(100_000)), None),
        (json!(format!("--{}", "ab".repeat(63))), None),
        (json!(format!("v1-sha512-12:{name}")), None),
        // Types that no release has used so far.
        (json!([name, name]), None),
        (json!({ "v1": name }), None),
        (Value::Null, None),
    ] {
        let mut staged = composefs('b', verity.clone());
        staged["downloadOnly"] = json!(true);
        let status = read_host(json!({"booted": composefs('a', json!("cd".repeat(64))), "staged": staged}));
        assert_eq!(
            (status.storage, status.staged_verity),
            (Storage::Composefs, read),
            "{verity}"
        );
        assert!(status.staged.unwrap().locked);
    }
}

/// bootc can deploy the same image twice, with one name for each format of its files. The image digest shows which
/// image is booted, and the name which deployment to remove.
#[test]
fn two_names_of_one_image_are_not_confused() {
    let (v1, v2) = ("11".repeat(64), "22".repeat(64));
    let status = read_host(json!({
        "booted": composefs('a', json!(v2)), "staged": composefs('a', json!(v1)), "rollback": composefs('b', json!(v2)),
        "otherDeployments": [composefs('a', json!("33".repeat(64)))],
    }));
    let digest_of = |deployment: Option<&Deployment>| deployment.and_then(|d| d.digest.clone());
    assert_eq!(digest_of(Some(&status.booted)), digest_of(status.staged.as_ref()));
    assert_ne!(digest_of(Some(&status.booted)), digest_of(status.rollback.as_ref()));
    assert_eq!(status.staged_verity, Some(v1));
}

#[test]
fn ukis_with_boot_loader_entries_are_recognized() {
    for (boot_type, bootloader, expected) in [
        (json!("Uki"), json!("systemd"), true),
        (json!("Uki"), json!("grub-cc"), true),
        (json!("Uki"), json!("grub"), false),
        (json!("Bls"), json!("systemd"), false),
        (json!("Bls"), json!("grub"), false),
        (Value::Null, json!(7), false),
    ] {
        let mut booted = composefs('a', json!("cd".repeat(64)));
        booted["composefs"]["bootType"] = boot_type.clone();
        booted["composefs"]["bootloader"] = bootloader.clone();
        let status = read_host(json!({ "booted": booted }));
        assert_eq!(status.uki_entries, expected, "{boot_type} {bootloader}");
    }
    let mut bare = entry('a');
    bare["composefs"] = json!({});
    let status = read_host(json!({ "booted": bare }));
    assert_eq!((status.storage, status.uki_entries), (Storage::Composefs, false));
    assert!(!read_host(json!({ "booted": entry('a') })).uki_entries);
}

#[test]
fn distinguishes_kinds_of_hosts() {
    let mut layered = entry('a');
    layered["incompatible"] = json!(true);
    layered["image"] = Value::Null;
    let mut plain = entry('a');
    plain["image"] = Value::Null;
    assert_eq!(read(json!({"booted": layered})), BootcStatus::Layered);
    for status in [
        json!({"booted": null}),
        json!({"booted": plain}),
        json!({}),
        Value::Null,
    ] {
        assert_eq!(read(status.clone()), BootcStatus::NotBootc, "{status}");
    }
}

#[test]
fn a_staged_deployment_without_image_is_still_there() {
    let status = read_host(json!({
        "booted": entry('a'),
        "staged": {"image": null, "incompatible": true, "pinned": false, "ostree": null},
    }));
    assert_eq!(status.staged, Some(Deployment::default()));
    assert!(status.staged_layers);
    let status = read_host(json!({"booted": entry('a'), "staged": entry('b')}));
    assert!(!status.staged_layers);
}

#[test]
fn reads_the_signature_in_all_its_forms() {
    for (signature, enforced) in [
        (json!("containerPolicy"), true),
        (json!({"ostreeRemote": "fedora"}), true),
        (json!("insecure"), false),
        (Value::Null, false),
        (json!({"later": 1}), false),
        (json!(7), false),
    ] {
        let mut booted = entry('a');
        booted["image"]["image"]["signature"] = signature.clone();
        let status = read_host(json!({"booted": booted}));
        assert_eq!(status.signature_enforced, enforced, "{signature}");
    }
}

#[test]
fn missing_fields_and_long_texts_are_accepted() {
    let status = read_host(json!({"booted": {"image": {
        "image": {"image": "x".repeat(9999), "transport": "oci"}, "imageDigest": "sha512:1", "timestamp": "soon",
        "version": "ü".repeat(999),
    }, "incompatible": false, "pinned": false}}));
    let booted = status.booted;
    assert_eq!(
        (booted.digest, booted.timestamp, booted.architecture),
        (None, None, None)
    );
    assert_eq!(
        (booted.image.len(), booted.version.unwrap().chars().count()),
        (512, 256)
    );
}

#[test]
fn refuses_other_documents() {
    assert!(matches!(parse("{}"), Err(StatusError::Foreign { .. })));
    assert!(matches!(parse("Staged image:"), Err(StatusError::Malformed(_))));
    assert!(matches!(parse(""), Err(StatusError::Malformed(_))));
}

#[test]
fn a_host_without_bootc_is_seldom_asked_for_it() {
    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }
    let good = |download_only| BootcVersion::Version {
        version: "1.16.9".into(),
        numbers: (1, 16, 9),
        download_only,
    };
    for (version, believed) in [
        (good(Some(false)), [true, true, true]),
        (good(None), [true, true, false]),
        (BootcVersion::Missing, [true, true, false]),
        (BootcVersion::TooOld("1.1".into()), [true, false, false]),
        (BootcVersion::Failed("no answer".into()), [true, false, false]),
    ] {
        let found = [0, 59, 60].map(|age| version.is_fresh(minutes(age), 5));
        assert_eq!(found, believed, "{version:?}");
    }
    assert!(!BootcVersion::Missing.is_fresh(minutes(1), 4), "it may be booting");
    assert!(!good(None).is_fresh(minutes(1), 4), "the help may have failed once");
    assert!(
        !BootcVersion::TooOld("1.1".into()).is_fresh(VERSION_RETRY, 5),
        "asked again when the time is over"
    );
}

#[test]
fn finds_the_flag_in_the_help_of_switch() {
    for (help, found) in [
        (
            "Options:\n      --download-only\n          Stage the image, locked\n",
            true,
        ),
        ("Options:\n      --download-only    Stage the image, locked\n", true),
        (
            "      --from-downloaded  Apply an image staged with --download-only\n",
            false,
        ),
        ("      --download-only-once\n", false),
        ("Options:\n      --quiet\n", false),
        ("", false),
    ] {
        assert_eq!(lists_download_only(help), found, "{help}");
    }
}

#[test]
fn reads_versions() {
    for (text, expected) in [
        ("bootc 1.16.9\n", Some(("1.16.9", (1, 16, 9)))),
        ("bootc 1.12.0", Some(("1.12.0", (1, 12, 0)))),
        ("1.1", Some(("1.1", (1, 1, 0)))),
        ("bootc 2.0.0-rc.1", Some(("2.0.0-rc.1", (2, 0, 0)))),
        ("bootc 202603201", None),
        ("bootc", None),
        ("no such file", None),
        ("", None),
    ] {
        let found = parse_version(text);
        let found = found.as_ref().map(|(t, n)| (t.as_str(), *n));
        assert_eq!(found, expected, "{text:?}");
    }
    assert!((1, 12, 0) < FLOOR && (1, 16, 9) > FLOOR);
}

/// Any JSON, with the parser's field names among the keys.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!(digest('d'))),
        Just(entry('e')),
    ];
    let key = prop_oneof![
        Just("image"),
        Just("staged"),
        Just("booted"),
        Just("incompatible"),
        Just("signature"),
        Just("imageDigest"),
        Just("timestamp"),
        Just("downloadOnly"),
        Just("x"),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(key.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn texts_of_an_image_are_one_line() {
    let mut booted = entry('a');
    booted["image"]["version"] = json!("9\n\u{1b}[2J\u{202e}1");
    booted["image"]["architecture"] = json!("arm64\r\n");
    booted["image"]["image"]["image"] = json!("https://me:hush@registry.example/os\u{2066}:1");
    let status = read_host(json!({"booted": booted}));
    assert_eq!(status.booted.version.as_deref(), Some("9 [2J1"));
    assert_eq!(status.booted.architecture.as_deref(), Some("arm64"));
    assert_eq!(status.booted.image, "https://***@registry.example/os:1");
}

proptest! {
    #[test]
    fn never_panics_on_any_json(status in any_json()) {
        let _ = parse(&host(status).to_string());
    }

    #[test]
    fn never_panics_on_damaged_output(at in 0usize..1200, byte: u8) {
        let mut text = host(json!({"booted": entry('a'), "staged": entry('b')})).to_string().into_bytes();
        let at = at % text.len();
        text[at] = byte;
        let _ = parse(&String::from_utf8_lossy(&text));
        text.truncate(at);
        let _ = parse(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn never_panics_on_any_version(text in ".{0,40}") {
        let _ = parse_version(&text);
    }
}
