//! The host's signature policy, `policy.json`, as skopeo and bootc read it. This module checks if the policy would
//! accept an unsigned image.

use berth_api::node::DesiredImage;
use berth_api::pool::SignatureRule;
use berth_api::{ImageRef, Written};
use serde_json::{Map, Value};

use super::objection::Objection;
use crate::agent::reason::Reason;

/// Paths of the policy, as the host sees them. Only the first that exists is read.
pub const PLACES: [&str; 2] = ["/etc/containers/policy.json", "/usr/share/containers/policy.json"];
/// Longest policy that is read, in bytes.
pub const MAX_LENGTH: usize = 1 << 20;

/// The host's signature policy as last read.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Policy {
    /// The agent has not read the policy. It reads the policy only if the pool requires signatures.
    #[default]
    Unread,
    /// No policy file exists.
    Missing,
    /// Path of the policy file, and its content.
    File(&'static str, Map<String, Value>),
    /// The policy file is invalid or unreadable. Holds the error.
    Unusable(String),
}

impl Policy {
    /// Parses the text of a policy file.
    pub fn parse(path: &'static str, text: &[u8]) -> Self {
        if text.len() > MAX_LENGTH {
            return Self::Unusable(format!("{path} has more than {MAX_LENGTH} bytes"));
        }
        match serde_json::from_slice(text) {
            Ok(map) => Self::File(path, map),
            Err(error) => Self::Unusable(format!("{path} is not valid: {error}")),
        }
    }

    /// Returns a problem if the pool requires signatures, but the host would accept this image unsigned. A policy whose
    /// `default` accepts everything always counts as a problem, because bootc then enforces no part of the policy.
    pub fn objection(&self, image: &DesiredImage) -> Option<Objection> {
        if image.signature != SignatureRule::Required {
            return None;
        }
        let why = match self {
            Self::Unread => "the host's signature policy was not read yet".to_owned(),
            Self::Missing => format!("the host has no signature policy: there is no {}", PLACES.join(" or ")),
            Self::Unusable(why) => why.clone(),
            Self::File(path, policy) => format!("{path} {}", weakness(policy, &image.reference)?),
        };
        let advice =
            "the pool has signature: Required, so nothing is staged until the host's policy.json requires a signature";
        Some(Objection::new(Reason::SignatureNotEnforced, format!("{why}; {advice}")))
    }
}

/// Returns a clause that says why the policy would accept this image unsigned. `None` if the policy requires a
/// signature or rejects the image.
fn weakness(policy: &Map<String, Value>, reference: &Written<ImageRef>) -> Option<String> {
    let Ok(reference) = reference.get() else {
        return Some(format!("cannot be checked: {reference} is not an image reference"));
    };
    let Some(default) = policy.get("default") else {
        return Some("has no default".to_owned());
    };
    if let Some(why) = too_weak(default) {
        return Some(format!(
            "has a default that {why}; bootc does not enforce such a policy"
        ));
    }
    let transports = match policy.get("transports") {
        None | Some(Value::Null) => return None,
        Some(Value::Object(transports)) => transports,
        Some(_) => return Some("has transports that are not an object".to_owned()),
    };
    let docker = match transports.get("docker") {
        None => return None,
        Some(Value::Object(docker)) => docker,
        Some(_) => return Some("has a transport docker that is not an object".to_owned()),
    };
    let scope = scopes(reference).into_iter().find(|scope| docker.contains_key(scope))?;
    let why = too_weak(docker.get(&scope)?)?;
    Some(format!(
        "has an entry for scope {scope:?} of transport docker that {why}"
    ))
}

/// Returns a clause that says why these requirements accept unsigned images; `None` if at least one requirement rejects
/// such images.
fn too_weak(requirements: &Value) -> Option<&'static str> {
    let Some(list) = requirements.as_array().filter(|list| !list.is_empty()) else {
        return Some("is not a list of requirements");
    };
    let kinds: Option<Vec<_>> = list.iter().map(|one| one.get("type").and_then(Value::as_str)).collect();
    let Some(kinds) = kinds else {
        return Some("has a requirement without a type");
    };
    let accepts = kinds.iter().all(|kind| *kind == "insecureAcceptAnything");
    accepts.then_some("accepts anything (insecureAcceptAnything)")
}

/// Returns the scopes that match an image, most specific first: the image, its repository, the paths above the
/// repository, the registry, the domains above the registry, and the empty scope for everything.
fn scopes(reference: &ImageRef) -> Vec<String> {
    let (registry, mut path) = (reference.registry(), reference.repository().to_owned());
    if registry == "docker.io" && !path.contains('/') {
        path = format!("library/{path}");
    }
    let whole = format!("{registry}/{path}");
    // skopeo ignores the tag of a reference that has a digest.
    let mut scopes = vec![match (reference.digest(), reference.tag()) {
        (Some(digest), _) => format!("{whole}@{digest}"),
        (None, tag) => format!("{whole}:{}", tag.unwrap_or_default()),
    }];
    let mut rest = whole.as_str();
    loop {
        scopes.push(rest.to_owned());
        match rest.rsplit_once('/') {
            Some((above, _)) => rest = above,
            None => break,
        }
    }
    let mut domain = registry;
    while let Some((_, above)) = domain.split_once('.') {
        scopes.push(format!("*.{above}"));
        domain = above;
    }
    scopes.push(String::new());
    scopes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const DIGEST: &str = "sha256:0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f";

    fn image(name: &str) -> DesiredImage {
        DesiredImage {
            reference: format!("{name}@{DIGEST}").into(),
            digest: DIGEST.parse().unwrap(),
            index_digest: DIGEST.parse().unwrap(),
            version: None,
            signature: SignatureRule::Required,
        }
    }

    fn objection(policy: &Value, name: &str) -> Option<String> {
        let policy = Policy::parse(PLACES[0], policy.to_string().as_bytes());
        let found = policy.objection(&image(name));
        found.map(|o| o.message)
    }

    fn docker(default: &Value, scopes: Value) -> Value {
        json!({ "default": default, "transports": { "docker": scopes } })
    }

    #[test]
    fn the_nearest_scope_decides_unless_the_default_is_open() {
        let (any, reject) = (
            json!([{ "type": "insecureAcceptAnything" }]),
            json!([{ "type": "reject" }]),
        );
        let signed = json!([{ "type": "sigstoreSigned", "keyPath": "/k" }]);
        let both = json!([{ "type": "insecureAcceptAnything" }, { "type": "signedBy" }]);
        let exact = format!("quay.io/a/os@{DIGEST}");
        for (policy, accepts) in [
            (json!({ "default": reject }), false),
            (json!({ "default": signed, "transports": {} }), false),
            (json!({ "default": both }), false),
            (json!({ "default": any }), true),
            // bootc checks only the default.
            (docker(&any, json!({ "quay.io/a": signed })), true),
            (docker(&reject, json!({ "quay.io/a": signed, "": any })), false),
            (
                docker(&reject, json!({ "quay.io/a": any, "quay.io/a/os": signed })),
                false,
            ),
            (
                docker(&reject, json!({ "quay.io/a/os": any, "quay.io/a": signed })),
                true,
            ),
            (
                docker(&reject, json!({ exact.as_str(): any, "quay.io/a/os": signed })),
                true,
            ),
            (docker(&reject, json!({ "quay.io": any })), true),
            (docker(&reject, json!({ "*.io": any })), true),
            (
                docker(&reject, json!({ "*.quay.io": any, "quay.io/ab": any, "io": any })),
                false,
            ),
            (docker(&reject, json!({ "": any })), true),
            (docker(&reject, json!({ "quay.io/a/os": [] })), true),
            (docker(&reject, json!({ "quay.io/a/os": "x" })), true),
            (docker(&reject, json!([])), true),
            (
                json!({ "default": reject, "transports": { "docker-daemon": { "": any } } }),
                false,
            ),
            (json!({ "transports": {} }), true),
            (json!({ "default": [{}] }), true),
            (json!([]), true),
        ] {
            let found = objection(&policy, "quay.io/a/os");
            assert_eq!(found.is_some(), accepts, "{policy} {found:?}");
        }
        let library = docker(&reject, json!({ "docker.io/library": any }));
        assert!(
            objection(&library, "docker.io/os")
                .unwrap()
                .contains("\"docker.io/library\"")
        );
        assert_eq!(objection(&library, "docker.io/a/os"), None);
    }

    #[test]
    fn a_missing_policy_blocks_only_required_signatures() {
        for policy in [Policy::Missing, Policy::Unread, Policy::parse(PLACES[1], b"{")] {
            let mut image = image("quay.io/os");
            assert!(policy.objection(&image).is_some());
            image.signature = SignatureRule::AsBooted;
            assert_eq!(policy.objection(&image), None);
        }
        let mut text = b"{}".to_vec();
        text.resize(MAX_LENGTH, b' ');
        assert!(matches!(Policy::parse(PLACES[0], &text), Policy::File(..)));
        text.push(b' ');
        let long = Policy::parse(PLACES[0], &text);
        assert!(matches!(long, Policy::Unusable(why) if why.contains("bytes")));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Policy::parse(PLACES[0], &text).objection(&image("quay.io/os"));
        }

        /// Whatever scopes a policy has, the most specific scope that matches the image decides.
        #[test]
        fn the_longest_scope_that_fits_decides(
            scopes in proptest::collection::btree_map(
                prop_oneof!["", "\\*\\.c", "b\\.c(/d(/e)?)?", "b\\.c/[de]{1,2}"], any::<bool>(), 0..6),
        ) {
            let mut rules = Map::new();
            // Nearest to the image are the longest path, then the registry, then the domain, then the empty scope.
            let (mut nearest, mut expected) = (0, false);
            for (scope, is_open) in &scopes {
                let type_ = if *is_open { "insecureAcceptAnything" } else { "signedBy" };
                rules.insert(scope.clone(), json!([{ "type": type_ }]));
                let nearness = match scope.as_str() {
                    "" => 1,
                    "*.c" => 2,
                    scope if "b.c/d/e/".starts_with(&format!("{scope}/")) => 2 + scope.len(),
                    _ => continue,
                };
                if nearness > nearest {
                    (nearest, expected) = (nearness, *is_open);
                }
            }
            let policy = docker(&json!([{ "type": "reject" }]), rules.into());
            prop_assert_eq!(objection(&policy, "b.c/d/e").is_some(), expected, "{}", policy);
        }
    }
}
