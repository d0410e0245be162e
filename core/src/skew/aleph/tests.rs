use proptest::prelude::*;
use serde_json::json;

use super::*;

fn note(value: &Value) -> NodeBootImage {
    let found = read(PLACES[0], Ok(value.to_string().as_bytes()));
    assert_eq!((found.source.as_str(), &found.error), (PLACES[0], &None), "{value}");
    found
}

#[test]
fn every_known_shape_is_read() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (value, version, image, has_digest) in [
        // Files of bootc, from before 1.15 and from later versions.
        (
            json!({"image": "quay.io/example/os:1", "version": "9.6.20251023-0", "timestamp": null, "kernel": "6.1", "selinux": "disabled"}),
            Some("9.6.20251023-0"),
            Some("quay.io/example/os:1"),
            false,
        ),
        (
            json!({"image": "quay.io/example/os:1", "digest": digest, "target-image": "ostree-image-signed:docker://quay.io/example/os:1",
                "labels": {VERSION_LABEL: "42.1"}, "version": null, "timestamp": "2025-01-01T00:00:00Z", "kernel": "6.1", "selinux": "enabled"}),
            Some("42.1"),
            Some("ostree-image-signed:docker://quay.io/example/os:1"),
            true,
        ),
        (
            json!({"version": null, "kernel": "6.1", "selinux": "disabled"}),
            None,
            None,
            false,
        ),
        // Files of CoreOS: the oldest format, an image from an ostree commit, an image from a container.
        (
            json!({"build": "31.20200210.3.0", "ref": "fedora/x86_64/coreos/stable", "ostree-commit": "c", "imgid": "i"}),
            Some("31.20200210.3.0"),
            Some("fedora/x86_64/coreos/stable"),
            false,
        ),
        (
            json!({"osbuild-version": "1", "version": "42.20250901.3.0", "ref": "r"}),
            Some("42.20250901.3.0"),
            Some("r"),
            false,
        ),
        (
            json!({"osbuild-version": "1", "version": "9.6.20251023-0", "ref": "docker://ostree-image-signed:oci-archive:/rhcos.ociarchive",
                "container-image": {"image-name": "quay.io/x/rhcos", "image-digest": digest, "image-labels": {}}}),
            Some("9.6.20251023-0"),
            Some("quay.io/x/rhcos"),
            false,
        ),
    ] {
        let found = note(&value);
        assert_eq!(found.version.as_deref(), version, "{value}");
        assert_eq!(found.image.as_deref(), image, "{value}");
        assert_eq!(found.digest.is_some(), has_digest, "{value}");
    }
}

#[test]
fn an_invalid_record_gives_its_error() {
    let long = vec![b' '; MAX_LENGTH + 1];
    for (text, why) in [
        (&b"{"[..], "not JSON:"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not JSON:"),
        (&long, "longer than"),
    ] {
        let found = read("/x", Ok(text));
        assert!(found.error.is_some_and(|error| error.contains(why)), "{why}");
        assert_eq!(found.source, "/x", "the file is named");
        assert_eq!((found.version, found.image), (None, None));
    }
    let mut longest = br#"{"version": "9.6"}"#.to_vec();
    longest.resize(MAX_LENGTH, b' ');
    assert_eq!(read("/x", Ok(&longest)).version.as_deref(), Some("9.6"));
    let unread = read("/x", Err("permission denied".to_owned()));
    assert_eq!(unread.error.as_deref(), Some("permission denied"));
}

proptest! {
    #[test]
    fn any_text_is_taken(
        keys in proptest::collection::vec(("(version|build|ref|image|digest|labels|target-image|container-image)", "\\PC{0,600}"), 0..6),
        noise in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let object: serde_json::Map<_, _> = keys.into_iter().map(|(key, text)| (key, Value::String(text))).collect();
        let found = note(&Value::Object(object));
        prop_assert!(found.version.is_none_or(|v| v.chars().count() <= MAX_VERSION && !v.contains('\n')));
        prop_assert!(found.image.is_none_or(|i| i.chars().count() <= MAX_IMAGE));
        let _ = read("/x", Ok(&noise));
    }
}
