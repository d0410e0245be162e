use proptest::prelude::*;
use serde_json::json;

use super::*;

fn basic(username: &str) -> Credentials {
    Credentials::Basic {
        username: username.into(),
        password: "p:w".into(),
    }
}

fn entry(username: &str) -> Value {
    json!({ "auth": base64::engine::general_purpose::STANDARD.encode(format!("{username}:p:w")) })
}

/// Returns a file with these keys. The user name of each entry is its key.
fn file(keys: &[&str]) -> AuthFile {
    let auths: BTreeMap<_, _> = keys
        .iter()
        .map(|key| (*key, json!({"username": key, "password": "p:w"})))
        .collect();
    AuthFile::parse(json!({ "auths": auths }).to_string().as_bytes()).unwrap()
}

fn found(keys: &[&str], registry: &str, repository: &str) -> Option<String> {
    match file(keys).credentials(registry, repository).unwrap() {
        Some(Credentials::Basic { username, .. }) => Some(username),
        _ => None,
    }
}

#[test]
fn the_longest_matching_entry_is_used() {
    for (keys, registry, repository, expected) in [
        (&["quay.io"][..], "quay.io", "a/os", Some(0)),
        (&["https://quay.io"], "quay.io", "a/os", Some(0)),
        (&["http://quay.io/v2/"], "quay.io", "a/os", Some(0)),
        (&["QUAY.io"], "quay.io", "a/os", Some(0)),
        (&["quay.io", "quay.io/a", "quay.io/a/os"], "quay.io", "a/os", Some(2)),
        (&["quay.io", "quay.io/a", "quay.io/b"], "quay.io", "a/os", Some(1)),
        (&["quay.io/v1/a"], "quay.io", "a/os", Some(0)),
        (&["quay.io/a/"], "quay.io", "a/os", Some(0)),
        (&["quay.io/a"], "quay.io", "ab/os", None),
        (&["quay.io/a/o"], "quay.io", "a/os", None),
        (&["quay.io:443"], "quay.io", "a/os", None),
        (&["quay.io"], "quay.io:443", "a/os", None),
        (&["r:5000/a"], "r:5000", "a/os", Some(0)),
        (&["*.example.com"], "eu.example.com", "os", Some(0)),
        (&["*.example.com", "eu.example.com"], "eu.example.com", "os", Some(1)),
        (
            &["*.example.com/a", "eu.example.com"],
            "eu.example.com",
            "a/os",
            Some(0),
        ),
        (&["*.example.com"], "a.eu.example.com", "os", None),
        (&["*.example.com"], "example.com", "os", None),
        (&["eu*-r.*.com:5000"], "eu1-r.example.com:5000", "os", Some(0)),
        (&["e*u*"], "exuy", "os", Some(0)),
        (&["ab*ba"], "aba", "os", None),
        (&["https://index.docker.io/v1/"], "docker.io", "library/os", Some(0)),
        (&["docker.io/a"], "index.docker.io", "a/os", Some(0)),
        (&["registry-1.docker.io"], "docker.io", "a/os", Some(0)),
        (&[], "quay.io", "os", None),
        (&["", "/", "*"], "quay.io", "os", None),
    ] {
        let expected = expected.map(|index: usize| keys[index]);
        let found = found(keys, registry, repository);
        assert_eq!(found.as_deref(), expected, "{keys:?} {registry}/{repository}");
    }
}

fn parsed(file: Value) -> AuthFile {
    AuthFile::parse(file.to_string().as_bytes()).unwrap()
}

#[test]
fn each_form_of_an_entry_is_read() {
    let trimmed = Credentials::Basic {
        username: "a".into(),
        password: "b".into(),
    };
    for (entry, expected) in [
        (entry("me"), basic("me")),
        (json!({"auth": "bWU6cDp3"}), basic("me")),
        (json!({"auth": "YTpi\n", "username": "other"}), trimmed),
        (
            json!({"auth": "YQ", "identitytoken": "t"}),
            Credentials::IdentityToken("t".into()),
        ),
        (
            json!({"registrytoken": "t", "auth": null}),
            Credentials::RegistryToken("t".into()),
        ),
    ] {
        let file = parsed(json!({"auths": {"r.io": entry}}));
        assert_eq!(file.credentials("r.io", "os"), Ok(Some(expected)), "{entry}");
    }
    for bad in [
        json!({"auth": "not base64!"}),
        json!({"auth": "/////w=="}),
        json!({"auth": "bm9jb2xvbg=="}),
        json!({"username": "me"}),
        json!({"password": "secret"}),
        json!({"auth": 7}),
        json!("secret"),
        json!({}),
    ] {
        let file = parsed(json!({"auths": {"r.io": bad}}));
        let error = file.credentials("r.io", "os").unwrap_err();
        assert!(
            matches!(&error, CredentialsError::Entry { key, .. } if key == "r.io"),
            "{bad} {error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn a_bad_entry_affects_only_its_registry() {
    let file = json!({"auths": {"bad.io": {"auth": "!"}, "r.io": entry("me")}});
    let file = AuthFile::parse(file.to_string().as_bytes()).unwrap();
    assert_eq!(file.credentials("r.io", "os"), Ok(Some(basic("me"))));
    assert_eq!(file.credentials("other.io", "os"), Ok(None));
    assert!(file.credentials("bad.io", "os").is_err());
}

#[test]
fn helpers_are_refused_with_a_remedy() {
    let store = parsed(json!({"auths": {"r.io": {}, "in.io": entry("me")}, "credsStore": "desktop"}));
    for registry in ["r.io", "other.io"] {
        let error = store.credentials(registry, "os").unwrap_err().to_string();
        assert!(
            error.contains("desktop") && error.contains(registry) && error.contains("kubectl create secret"),
            "{error}"
        );
    }
    assert_eq!(store.credentials("in.io", "os"), Ok(Some(basic("me"))));
    let helpers = parsed(json!({"auths": {}, "credHelpers": {"https://gcr.io": "gcloud"}}));
    assert!(
        matches!(helpers.credentials("gcr.io", "os"), Err(CredentialsError::Helper { helper, .. }) if helper == "gcloud")
    );
    assert_eq!(helpers.credentials("quay.io", "os"), Ok(None));
}

#[test]
fn an_invalid_file_is_refused_without_quoting_it() {
    for text in [
        "",
        "secret",
        "[\"secret\"]",
        "{}",
        r#"{"quay.io":{"auth":"secret"}}"#,
        r#"{"auths":"secret"}"#,
        r#"{"auths":{"a":{}},"credsStore":["secret"]}"#,
    ] {
        let error = AuthFile::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains("kubectl create secret") && !error.contains("\"secret"),
            "{text}: {error}"
        );
    }
    assert!(AuthFile::parse(br#"{"auths":{}}"#).is_ok());
}

#[test]
fn secrets_are_not_shown() {
    let all = json!({"auths": {"a": entry("hush"), "b": {"identitytoken": "hush"}, "c": {"registrytoken": "hush"}}});
    let shown = format!("{:?}", AuthFile::parse(all.to_string().as_bytes()).unwrap());
    assert!(shown.contains("IdentityToken") && !shown.contains("hush"), "{shown}");
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), registry in ".{0,20}", key in ".{0,20}", value in ".{0,20}") {
        let _ = AuthFile::parse(&bytes);
        let json = json!({"auths": {(&*key): {"auth": value}}, "credHelpers": {(&*registry): value}});
        if let Ok(file) = AuthFile::parse(json.to_string().as_bytes()) {
            let _ = file.credentials(&registry, &key);
        }
    }

    /// An entry is not used for a host with another name or port, or for a path that does not begin with the entry's
    /// path.
    #[test]
    fn nothing_goes_to_another_registry(
        keys in proptest::collection::btree_set("(https://)?[ab*]{1,2}(\\.[ab*]{1,2})?(:[12])?(/[ab]{1,2}){0,2}", 1..5),
        host in "[ab]{1,2}(\\.[ab]{1,2})?(:[12])?",
        path in "[ab]{1,2}(/[ab]{1,2}){0,2}",
    ) {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let fitting = keys.iter().filter(|key| fits(key, &host, &path));
        let longest = fitting.map(|key| key.matches('/').count() - 2 * key.matches("//").count()).max();
        match found(&keys, &host, &path) {
            Some(key) => {
                prop_assert!(fits(&key, &host, &path));
                prop_assert_eq!(Some(key.matches('/').count() - 2 * key.matches("//").count()), longest);
            }
            None => prop_assert_eq!(longest, None),
        }
    }
}

/// True if the entry with this key is for this image.
fn fits(key: &str, host: &str, path: &str) -> bool {
    let key = key.strip_prefix("https://").unwrap_or(key);
    let (pattern, prefix) = key.split_once('/').unwrap_or((key, ""));
    let prefix: Vec<_> = prefix.split('/').filter(|s| !s.is_empty()).collect();
    let path: Vec<_> = path.split('/').collect();
    path.starts_with(&prefix) && glob(pattern.as_bytes(), host.as_bytes())
}

/// Reference implementation of the match: a star stands for any characters except dot and colon.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), next) => {
            glob(rest, text) || next.is_some_and(|(c, behind)| !b".:".contains(c) && glob(pattern, behind))
        }
        (Some((a, rest)), Some((b, behind))) => a == b && glob(rest, behind),
        _ => false,
    }
}
