//! Signature policies of hosts.

use berth_api::node::DesiredImage;
use berth_api::pool::SignatureRule;
use berth_core::agent::host_policy::signatures::{PLACES, Policy};
use serde_json::Value;

use crate::reference_and_file;

/// Reads a `policy.json` for an image that must be signed: one that is let pass names no scope with an open door for it, and
/// its default is none.
pub fn policy(data: &[u8]) {
    let Some((image, file)) = reference_and_file(data) else {
        return;
    };
    let Some(digest) = image.digest().cloned() else { return };
    let policy = Policy::parse(PLACES[0], file);
    let scope = format!("{}/{}@{digest}", image.registry(), image.repository());
    let mut image = DesiredImage {
        reference: image.to_string(),
        index_digest: digest.clone(),
        digest,
        version: None,
        signature: SignatureRule::Required,
    };
    if policy.objection(&image).is_none() {
        let json: Value = serde_json::from_slice(file).unwrap_or_default();
        assert!(asks(&json["default"]), "a default that asks for nothing passes");
        let scopes = json["transports"]["docker"].as_object();
        let own = scopes.and_then(|scopes| scopes.get(&scope));
        // Of Docker Hub the scope may be another one: its official images are in `library`.
        assert!(
            scope.starts_with("docker.io/") || own.is_none_or(asks),
            "a scope that asks for nothing passes"
        );
    }
    image.signature = SignatureRule::AsBooted;
    assert_eq!(policy.objection(&image), None, "nobody asked for signatures");
}

/// Says whether some requirement of a list is more than to accept anything.
fn asks(requirements: &Value) -> bool {
    let list = requirements.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().any(|one| one["type"] != "insecureAcceptAnything")
}
