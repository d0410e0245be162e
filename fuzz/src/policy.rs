//! Fuzzes the check of a host's signature policy.

use berth_api::node::DesiredImage;
use berth_api::pool::SignatureRule;
use berth_core::agent::host_policy::signatures::{PLACES, Policy};
use serde_json::Value;

use crate::input::reference_and_file;

/// Checks a `policy.json` for an image that must be signed. Panics if Berth accepts a policy whose default, or whose
/// scope for the image, has no requirement other than `insecureAcceptAnything`.
pub fn policy(data: &[u8]) {
    let Some((image, file)) = reference_and_file(data) else {
        return;
    };
    let Some(digest) = image.digest().cloned() else { return };
    let policy = Policy::parse(PLACES[0], file);
    let scope = format!("{}/{}@{digest}", image.registry(), image.repository());
    let mut image = DesiredImage {
        reference: image.into(),
        index_digest: digest.clone(),
        digest,
        version: None,
        signature: SignatureRule::Required,
    };
    if policy.objection(&image).is_none() {
        let json: Value = serde_json::from_slice(file).unwrap_or_default();
        assert!(restricts(&json["default"]), "a default that accepts anything passes");
        let scopes = json["transports"]["docker"].as_object();
        let own = scopes.and_then(|scopes| scopes.get(&scope));
        // On Docker Hub the scope may differ: official images are in `library`.
        assert!(
            scope.starts_with("docker.io/") || own.is_none_or(restricts),
            "a scope that accepts anything passes"
        );
    }
    image.signature = SignatureRule::AsBooted;
    assert_eq!(policy.objection(&image), None, "no signature is required");
}

/// True if the list has a requirement other than `insecureAcceptAnything`.
fn restricts(requirements: &Value) -> bool {
    let list = requirements.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().any(|one| one["type"] != "insecureAcceptAnything")
}
