//! Fuzzes registry auth files: the controller's parser, and the check on hosts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_api::ImageRef;
use berth_core::agent::host_policy::credentials::check;
use berth_core::registries::credentials::{AuthFile, Credentials, CredentialsError};
use serde_json::Value;

use crate::input::reference_and_file;

fn shows(secrets: &[String], error: &str) -> bool {
    secrets.iter().any(|secret| error.contains(secret.as_str()))
}

/// Parses an auth file and looks up the credentials for an image. Panics if an error contains a secret, if a host
/// accepts a file that the controller rejects, or if a returned username and password are not in the file.
pub fn auth_file(data: &[u8]) {
    let Some((image, file)) = reference_and_file(data) else {
        return;
    };
    let secrets = secrets(&image, file);
    let checked = check(file);
    if let Err(error) = &checked {
        assert!(!shows(&secrets, error), "{error}");
    }
    let parsed = match AuthFile::parse(file) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(!shows(&secrets, &error.to_string()), "{error}");
            assert!(checked.is_err(), "a host accepts an invalid auth file: {error}");
            return;
        }
    };
    assert!(!shows(
        &secrets,
        &format!("{:?}", parsed.credentials(image.registry(), image.repository()))
    ));
    match parsed.credentials(image.registry(), image.repository()) {
        Ok(Some(Credentials::Basic { username, password })) => {
            let is_there = entries(file).any(|entry| {
                let plain = (text(&entry, "username"), text(&entry, "password"));
                plain == (Some(username.clone()), Some(password.clone()))
                    || text(&entry, "auth").is_some_and(|auth| decodes_to(&auth, &username, &password))
            });
            assert!(is_there, "the credentials of {username:?} are not in the file");
        }
        Ok(Some(Credentials::IdentityToken(token) | Credentials::RegistryToken(token))) => {
            assert!(!token.is_empty());
        }
        Ok(None) => {}
        Err(error) => {
            assert!(!shows(&secrets, &error.to_string()), "{error}");
            let is_helper = matches!(error, CredentialsError::Helper { .. });
            assert!(
                !is_helper || checked.is_err(),
                "a host accepts a file that names a helper"
            );
        }
    }
}

fn entries(file: &[u8]) -> impl Iterator<Item = Value> {
    let file: Value = serde_json::from_slice(file).unwrap_or_default();
    let entries = file.get("auths").and_then(Value::as_object).cloned();
    entries.unwrap_or_default().into_iter().map(|(_, entry)| entry)
}

fn text(entry: &Value, key: &str) -> Option<String> {
    entry.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn decodes_to(auth: &str, username: &str, password: &str) -> bool {
    let auth = auth.trim();
    let missing = (4 - auth.len() % 4) % 4;
    let padded = format!("{auth}{}", "=".repeat(missing));
    let plain = STANDARD
        .decode(padded)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let plain = plain.map(|plain| plain.trim_end_matches('\0').to_owned());
    plain.as_deref() == Some(format!("{username}:{password}").as_str())
}

/// Returns the secrets that an error must not contain. Leaves out short secrets, which an error may contain by chance,
/// and secrets that also occur in a name, such as the image reference.
fn secrets(image: &ImageRef, file: &[u8]) -> Vec<String> {
    let json: Value = serde_json::from_slice(file).unwrap_or_default();
    let [helpers, store] = ["credHelpers", "credsStore"].map(|key| json.get(key));
    let keys: String = json["auths"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| format!("{key} "))
        .collect();
    let shown = format!("{image} {keys} {helpers:?} {store:?}");
    let mut secrets = vec![];
    for entry in entries(file) {
        let keys = ["auth", "password", "identitytoken", "registrytoken"];
        secrets.extend(keys.into_iter().filter_map(|key| text(&entry, key)));
    }
    secrets.retain(|secret| {
        secret.len() > 12 && secret.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !shown.contains(secret)
    });
    secrets
}
