use super::*;

#[test]
fn messages_are_one_bounded_line() {
    assert_eq!(one_line("error: a\n  b\n"), "error: a b");
    assert_eq!(one_line("\u{7}a\0b\u{1b}[0m\u{9f}"), "a b [0m");
    assert_eq!(one_line("a\u{2028}b\u{2029}c\u{85}d"), "a b c d");
    assert!(one_line(&"ü ".repeat(5000)).chars().count() <= MAX_MESSAGE + 1);
    assert_eq!(bounded("ab\ncd", 4), "ab c");
}

#[test]
fn invisible_characters_are_removed() {
    // The override would print `os` as `so`.
    assert_eq!(line("quay.io/\u{202e}os\u{2066}:1\u{200b}\u{feff}"), "quay.io/os:1");
    assert_eq!(line("a\u{e0041}b\u{ad}"), "ab");
    for text in ["a\nb", "a\u{202e}b", "a\u{2028}b", "a\u{9b}b", "a\u{200f}"] {
        assert!(!is_printable(text), "{text:?}");
        assert!(is_printable(&line(text)), "{text:?}");
    }
    // These characters have a use in some scripts.
    assert!(is_printable("ü — 日本 \u{200d}"));
}

#[test]
fn credentials_of_urls_are_removed() {
    for (text, shown) in [
        (
            "Get \"https://me:hush@r.io/v2/\": EOF",
            "Get \"https://***@r.io/v2/\": EOF",
        ),
        ("http://hush@proxy:3128", "http://***@proxy:3128"),
        ("http://a:hu@sh@proxy:3128/x@y", "http://***@proxy:3128/x@y"),
        (
            "parse \"http://me:hu/sh@proxy\": invalid port",
            "parse \"http://***@proxy\": invalid port",
        ),
        (
            "baseurl=https://t:hush@repo/x,https://hush@b",
            "baseurl=https://***@repo/x,https://***@b",
        ),
        (
            "https://cdn/blob?X-Amz-Date=1&X-Amz-Signature=hush&n=2",
            "https://cdn/blob?X-Amz-Date=1&X-Amz-Signature=***&n=2",
        ),
        ("https://a/?sig=hush\" 5", "https://a/?sig=***\" 5"),
        (r#"\"https://u:hush@h\": x"#, r#"\"https://***@h\": x"#),
    ] {
        assert_eq!(scrubbed(text), shown, "{text}");
        assert_eq!(scrubbed(shown), shown, "a second time: {text}");
    }
}

#[test]
fn tokens_of_headers_are_removed() {
    let token = "abcDEF0123456789+/=";
    for (text, shown) in [
        ("Authorization: Basic dTpw", "Authorization: Basic ***"),
        (
            "\"authorization\": \"Bearer x.y\",",
            "\"authorization\": \"Bearer ***\",",
        ),
        ("authorization: x.y z", "authorization: *** z"),
        ("authorization: https://me:hush@r.io", "authorization: ***://***@r.io"),
    ] {
        assert_eq!(scrubbed(text), shown);
        assert_eq!(scrubbed(shown), shown, "a second time: {text}");
    }
    assert_eq!(
        scrubbed(&format!("sent Bearer {token}, refused")),
        "sent Bearer ***, refused"
    );
    for plain in [
        "Bearer realm=\"https://r.io/token\",service=\"r.io\"",
        "basic authentication is off",
        "unauthorized: authentication required",
        "requesting bearer token: received unexpected status",
    ] {
        assert_eq!(scrubbed(plain), plain);
    }
}

#[test]
fn references_stay() {
    for text in [
        "docker://r.io:5000/os@sha256:0f0f is not there",
        "ostree-unverified-registry:quay.io/os:1@sha256:0f0f",
        "https://[::1]:5000/v2/os/manifests/sha256:0f",
        "https://auth.io/t?scope=repository:os:pull&service=r.io",
        "two  spaces, and mail@example.org",
        "",
    ] {
        assert_eq!(scrubbed(text), text);
    }
}
