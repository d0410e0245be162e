use proptest::prelude::*;

use super::*;

const DIGEST: &str = "sha256:0202020202020202020202020202020202020202020202020202020202020202";
const CHECKSUM: &str = "0303030303030303030303030303030303030303030303030303030303030303";

fn owned(value: Variant<'_>) -> OwnedVariant {
    OwnedVariant::try_from(value).unwrap()
}

fn entry(pairs: &[(&str, Variant<'_>)]) -> Entry {
    let pairs = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), owned(value.try_clone().unwrap())));
    pairs.collect()
}

fn container(image: &str) -> Entry {
    entry(&[
        ("checksum", Variant::new(CHECKSUM)),
        ("container-image-reference", Variant::new(image)),
        ("container-image-reference-digest", Variant::new(DIGEST)),
        ("osname", Variant::new("os")),
        ("serial", Variant::new(1i32)),
        ("version", Variant::new("42.1")),
        ("timestamp", Variant::new(1_700_000_000u64)),
    ])
}

fn with(mut entry: Entry, key: &str, value: Variant<'_>) -> Entry {
    entry.insert(key.to_owned(), owned(value));
    entry
}

fn booted() -> Entry {
    with(
        container("ostree-unverified-registry:quay.io/os:1"),
        "booted",
        Variant::new(true),
    )
}

fn staged() -> Entry {
    with(
        container("ostree-image-signed:docker://quay.io/os:2"),
        "staged",
        Variant::new(true),
    )
}

#[test]
fn finds_booted_staged_and_rollback() {
    let rollback = container("ostree-unverified-image:docker://quay.io/os:0");
    let rollback = with(rollback, "pinned", Variant::new(true));
    let status = parse(&[staged(), booted(), rollback.clone()], Lock::Locked).unwrap();
    assert_eq!(status.booted.image, "quay.io/os:1");
    assert_eq!(status.booted.digest, Some(DIGEST.parse().unwrap()));
    assert_eq!(status.booted.version.as_deref(), Some("42.1"));
    let timestamp = status.booted.timestamp.map(|time| time.0.as_second());
    assert_eq!(timestamp, Some(1_700_000_000));
    assert!(!status.signature_enforced && !status.rollback_queued);
    let files = status.staged_files.unwrap();
    assert_eq!(
        files.to_str().unwrap(),
        format!("/sysroot/ostree/deploy/os/deploy/{CHECKSUM}.1")
    );
    let found = status.staged.unwrap();
    assert_eq!(
        (found.image.as_str(), found.locked, status.staged_signed),
        ("quay.io/os:2", true, true)
    );
    assert!(!found.pinned && !status.booted.pinned);
    let found = status.rollback.unwrap();
    assert_eq!((found.image.as_str(), found.pinned), ("quay.io/os:0", true));
    // `rpm-ostree rollback` moves the rollback deployment before the booted one.
    assert!(parse(&[rollback, booted()], Lock::Unlocked).unwrap().rollback_queued);
}

#[test]
fn the_daemon_or_the_files_lock() {
    fn unreadable() -> Lock {
        Lock::Unreadable("no such file".to_owned())
    }
    for (word, files, expected) in [
        (None, Lock::Unlocked, Some(false)),
        (None, Lock::Locked, Some(true)),
        (Some(true), Lock::Unlocked, Some(true)),
        (Some(false), Lock::Locked, Some(true)),
        (Some(true), unreadable(), Some(true)),
        (Some(false), unreadable(), None),
        (None, unreadable(), None),
    ] {
        let entry = match word {
            Some(word) => with(staged(), "finalization-locked", Variant::new(word)),
            None => staged(),
        };
        let status = parse(&[entry, booted()], files.clone()).unwrap();
        let is_locked = status.staged.unwrap().locked;
        let found = status.unreadable_lock.is_none().then_some(is_locked);
        assert_eq!(found, expected, "{word:?} {files:?}");
        let nothing_staged = parse(&[booted()], files).unwrap();
        assert_eq!((nothing_staged.staged, nothing_staged.unreadable_lock), (None, None));
    }
}

fn texts(texts: &[&str]) -> Variant<'static> {
    Variant::new(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
}

fn changed(entry: Entry, key: &str, value: &Variant<'_>) -> Entry {
    with(entry, key, value.try_clone().unwrap())
}

fn differs(staged: Entry, booted: Entry) -> HostStatus {
    parse(&[staged, booted], Lock::Unlocked).unwrap()
}

#[test]
fn layered_packages_are_named_and_compared() {
    let layered = with(booted(), "requested-packages", texts(&["strace", "", "htop", "htop"]));
    let same = with(staged(), "requested-packages", texts(&["htop", "strace"]));
    let status = parse(&[same, layered.clone()], Lock::Unlocked).unwrap();
    assert_eq!(
        (status.layered_packages, status.staged_layers),
        (vec!["htop".to_owned(), "strace".to_owned()], false)
    );
    let more = with(staged(), "requested-packages", texts(&["htop", "strace", "vim"]));
    assert!(parse(&[more, layered.clone()], Lock::Unlocked).unwrap().staged_layers);
    assert!(
        parse(&[staged(), layered], Lock::Unlocked).unwrap().staged_layers,
        "dropped packages count too"
    );
}

/// Replacements from a repository are `a(sas)` in some releases, and a dictionary in others.
#[test]
fn all_changes_of_an_admin_count() {
    let replaced = HashMap::from([("repo=updates".to_owned(), vec!["kernel".to_owned(), "bash".to_owned()])]);
    let structured = HashMap::from([("repo=updates".to_owned(), vec![("kernel".to_owned(), String::new())])]);
    let listed = vec![("repo=updates".to_owned(), vec!["kernel".to_owned(), "bash".to_owned()])];
    for (key, value, nothing, packages) in [
        (
            REMOTE_REPLACEMENTS,
            Variant::new(replaced),
            Variant::new(HashMap::<String, Vec<String>>::new()),
            &["bash", "kernel"] as &[&str],
        ),
        (
            REMOTE_REPLACEMENTS,
            Variant::new(listed),
            Variant::new(Vec::<(String, Vec<String>)>::new()),
            &["bash", "kernel"],
        ),
        (
            REMOTE_REPLACEMENTS,
            Variant::new(structured),
            Variant::new(HashMap::<String, Vec<(String, String)>>::new()),
            &["kernel"],
        ),
        ("initramfs-etc", texts(&["/etc/crypttab"]), texts(&[]), &[]),
        ("initramfs-args", texts(&["--add=lvm"]), texts(&[]), &[]),
        ("regenerate-initramfs", Variant::new(true), Variant::new(false), &[]),
        ("cliwrap", Variant::new(true), Variant::new(false), &[]),
        ("cliwrap", Variant::new("yes"), Variant::new(""), &[]),
    ] {
        assert!(differs(changed(staged(), key, &value), booted()).staged_layers, "{key}");
        assert!(differs(staged(), changed(booted(), key, &value)).staged_layers, "{key}");
        let both = differs(changed(staged(), key, &value), changed(booted(), key, &value));
        assert_eq!(both.layered_packages, packages, "{key}");
        assert!(!both.staged_layers, "{key}");
        assert!(!differs(with(staged(), key, nothing), booted()).staged_layers, "{key}");
    }
}

#[test]
fn the_name_may_give_the_digest() {
    fn booted(image: &str) -> Option<Digest> {
        let mut entry = with(container(image), "booted", Variant::new(true));
        entry.remove("container-image-reference-digest");
        parse(&[entry], Lock::Unlocked).unwrap().booted.digest
    }
    let pinned = booted(&format!("ostree-unverified-registry:r.io/os@{DIGEST}"));
    assert_eq!(pinned, Some(DIGEST.parse().unwrap()));
    assert_eq!(booted("ostree-unverified-registry:r.io/os:1"), None);
    assert_eq!(booted("ostree-unverified-registry:r.io/os@sha256:1"), None);
}

#[test]
fn references_of_all_kinds_lose_their_prefix() {
    for (reference, image, signed) in [
        ("ostree-unverified-registry:r.io/os@sha256:1", "r.io/os@sha256:1", false),
        ("ostree-unverified-image:registry:r.io/os:1", "r.io/os:1", false),
        ("ostree-unverified-image:docker://r.io/os:1", "r.io/os:1", false),
        (
            "ostree-unverified-image:containers-storage:localhost/os",
            "localhost/os",
            false,
        ),
        ("ostree-image-signed:docker://r.io:5000/os:1", "r.io:5000/os:1", true),
        ("ostree-image-signed:registry:r.io/os:1", "r.io/os:1", true),
        ("ostree-remote-registry:fedora:r.io:5000/os:1", "r.io:5000/os:1", true),
        // `registry` is a host name here, not a transport.
        (
            "ostree-remote-registry:fedora:registry:5000/os:1",
            "registry:5000/os:1",
            true,
        ),
        ("ostree-remote-image:fedora:registry:r.io/os:1", "r.io/os:1", true),
        ("ostree-remote-image:fedora:docker://r.io/os:1", "r.io/os:1", true),
        ("something else", "something else", false),
        ("", "", false),
    ] {
        assert_eq!(origin(reference), (image.to_owned(), signed), "{reference}");
    }
}

#[test]
fn without_an_image_the_commit_identifies_a_deployment() {
    let plain = entry(&[
        ("booted", Variant::new(true)),
        ("checksum", Variant::new(CHECKSUM)),
        ("origin", Variant::new("fedora:os")),
    ]);
    let status = parse(&[plain], Lock::Unlocked).unwrap();
    assert_eq!(
        status.booted.digest,
        Some(format!("sha256:{CHECKSUM}").parse().unwrap())
    );
    assert_eq!(status.booted.image, "fedora:os");
    let mut unknown = booted();
    unknown.remove("container-image-reference-digest");
    let unknown = with(unknown, "version", Variant::new(""));
    let found = parse(&[unknown], Lock::Unlocked).unwrap().booted;
    assert_eq!((found.digest, found.version), (None, None));
    assert!(parse(&[staged()], Lock::Unlocked).is_err_and(|why| why.contains("no booted deployment")));
    assert!(parse(&[], Lock::Unlocked).is_err());
}

#[test]
fn the_architecture_is_read_from_the_commit() {
    const CONFIG: &str = "ostree.container.image-config";
    for (key, text, expected) in [
        (CONFIG, r#"{"architecture": "arm64"}"#, Some("arm64")),
        (CONFIG, "{", None),
        (CONFIG, "[]", None),
        ("another.config", r#"{"architecture": "arm64"}"#, None),
    ] {
        let config = HashMap::from([(key.to_owned(), Variant::new(text.to_owned()))]);
        let entry = with(booted(), "base-commit-meta", Variant::new(config));
        assert_eq!(
            parse(&[entry], Lock::Unlocked).unwrap().booted.architecture.as_deref(),
            expected
        );
    }
}

fn any_value() -> impl Strategy<Value = OwnedVariant> {
    prop_oneof![
        any::<bool>().prop_map(|value| owned(Variant::new(value))),
        any::<u64>().prop_map(|value| owned(Variant::new(value))),
        any::<i32>().prop_map(|value| owned(Variant::new(value))),
        ".{0,40}".prop_map(|value| owned(Variant::new(value.replace('\0', "")))),
        prop::collection::vec("[a-z:/@]{0,20}", 0..4).prop_map(|value| owned(Variant::new(value))),
        prop::collection::vec(any::<u64>(), 0..3).prop_map(|value| owned(Variant::new(value))),
    ]
}

const KEYS: [&str; 12] = [
    "booted",
    "staged",
    "checksum",
    "container-image-reference",
    "container-image-reference-digest",
    "version",
    "timestamp",
    "finalization-locked",
    "requested-packages",
    "requested-base-removals",
    "base-commit-meta",
    "regenerate-initramfs",
];

proptest! {
    #[test]
    fn anything_can_be_parsed(
        entries in prop::collection::vec(prop::collection::hash_map(prop::sample::select(KEYS.to_vec()), any_value(), 0..12), 0..5),
        is_locked: bool,
    ) {
        let entries: Vec<Entry> = entries.into_iter().map(|e| e.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()).collect();
        let lock = if is_locked { Lock::Locked } else { Lock::Unlocked };
        if let Ok(status) = parse(&entries, lock) {
            for found in [Some(&status.booted), status.staged.as_ref(), status.rollback.as_ref()].into_iter().flatten() {
                prop_assert!(found.image.chars().count() <= 512);
            }
        }
    }

    #[test]
    fn one_bad_key_affects_only_itself(key in prop::sample::select(KEYS.to_vec()), value in prop::option::of(any_value())) {
        let whole = parse(&[staged(), booted()], Lock::Locked).unwrap();
        let mut bad = booted();
        match value {
            Some(value) => drop(bad.insert(key.to_owned(), value)),
            None => drop(bad.remove(key)),
        }
        match parse(&[staged(), bad], Lock::Locked) {
            Err(_) => prop_assert_eq!(key, "booted"),
            Ok(found) => {
                prop_assert_eq!(found.staged, whole.staged);
                if key != "version" {
                    prop_assert_eq!(&found.booted.version, &whole.booted.version);
                }
                if key != "timestamp" {
                    prop_assert_eq!(&found.booted.timestamp, &whole.booted.timestamp);
                }
                if !key.starts_with("container-image") {
                    prop_assert_eq!(&found.booted.digest, &whole.booted.digest);
                }
            }
        }
    }
}
