//! The host's signature policy, `policy.json`, as skopeo and bootc read it: whether it would take an image that nobody signed.

use berth_api::image_ref::ImageRef;
use berth_api::node::DesiredImage;
use berth_api::pool::SignatureRule;
use serde_json::{Map, Value};

use super::objection::Objection;
use crate::agent::reason::Reason;

/// Places of the policy, as the host sees them. The first that exists is read, and no other.
pub const PLACES: [&str; 2] = ["/etc/containers/policy.json", "/usr/share/containers/policy.json"];
/// Longest policy that is read, in bytes.
pub const MAX_LENGTH: usize = 1 << 20;

/// The host's policy, as it was read last.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Policy {
    /// Not read: nobody has asked for signatures.
    #[default]
    Unread,
    /// There is none.
    Missing,
    /// A file of this path and content.
    File(&'static str, Map<String, Value>),
    /// No sense in it, or it cannot be read.
    Unusable(String),
}

impl Policy {
    /// The policy in a file's text.
    pub fn parse(path: &'static str, text: &[u8]) -> Self {
        if text.len() > MAX_LENGTH {
            return Self::Unusable(format!("{path} has more than {MAX_LENGTH} bytes"));
        }
        match serde_json::from_slice(text) {
            Ok(map) => Self::File(path, map),
            Err(error) => Self::Unusable(format!("{path} cannot be understood: {error}")),
        }
    }

    /// Objection to an image that the pool wants signed, on a host that would take it unsigned. That `default` accepts
    /// everything is one as well, whatever else the policy says: bootc enforces no such policy.
    pub fn objection(&self, image: &DesiredImage) -> Option<Objection> {
        if image.signature != SignatureRule::Required {
            return None;
        }
        let why = match self {
            Self::Unread => "the host's policy was not read yet".to_owned(),
            Self::Missing => format!("the host has no signature policy, in none of {}", PLACES.join(", ")),
            Self::Unusable(why) => why.clone(),
            Self::File(path, policy) => format!("{path} {}", weakness(policy, &image.reference)?),
        };
        let advice =
            "the pool has signature: Required, and nothing is staged until the policy asks for a signature there";
        Some(Objection::new(Reason::SignatureNotEnforced, format!("{why}; {advice}")))
    }
}

/// Weakness of the policy for this image; `None` where it asks for a signature, or takes nothing.
fn weakness(policy: &Map<String, Value>, reference: &str) -> Option<String> {
    let Ok(reference) = reference.parse::<ImageRef>() else {
        return Some(format!("cannot be asked about {reference}, which is no reference"));
    };
    let Some(default) = policy.get("default") else {
        return Some("has no default".to_owned());
    };
    if let Some(why) = too_weak(default) {
        return Some(format!("has a default that {why}, which bootc does not enforce"));
    }
    let transports = match policy.get("transports") {
        None | Some(Value::Null) => return None,
        Some(Value::Object(transports)) => transports,
        Some(_) => return Some("has transports that are no object".to_owned()),
    };
    let docker = match transports.get("docker") {
        None => return None,
        Some(Value::Object(docker)) => docker,
        Some(_) => return Some("has a transport docker that is no object".to_owned()),
    };
    let scope = scopes(&reference)
        .into_iter()
        .find(|scope| docker.contains_key(scope))?;
    let why = too_weak(docker.get(&scope)?)?;
    Some(format!(
        "has for the scope {scope:?} of the transport docker what {why}"
    ))
}

/// Says what is wrong with a list of requirements that asks for nothing. All of a list must be met.
fn too_weak(requirements: &Value) -> Option<&'static str> {
    let Some(list) = requirements.as_array().filter(|list| !list.is_empty()) else {
        return Some("is no list of requirements");
    };
    let kinds: Option<Vec<_>> = list.iter().map(|one| one.get("type").and_then(Value::as_str)).collect();
    let Some(kinds) = kinds else {
        return Some("has a requirement without a type");
    };
    let accepts = kinds.iter().all(|kind| *kind == "insecureAcceptAnything");
    accepts.then_some("accepts anything (insecureAcceptAnything)")
}

/// Scopes that may name an image, the nearest first: the very image, its repository, what lies above it, its registry, and the
/// domains above that.
fn scopes(reference: &ImageRef) -> Vec<String> {
    let (registry, mut path) = (reference.registry(), reference.repository().to_owned());
    if registry == "docker.io" && !path.contains('/') {
        path = format!("library/{path}");
    }
    let whole = format!("{registry}/{path}");
    // skopeo asks for what it was given: the digest, and no tag beside it.
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
            reference: format!("{name}@{DIGEST}"),
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

    #[test]
    fn the_nearest_scope_decides_and_the_default_must_be_no_open_door() {
        let (any, reject) = (
            json!([{ "type": "insecureAcceptAnything" }]),
            json!([{ "type": "reject" }]),
        );
        let signed = json!([{ "type": "sigstoreSigned", "keyPath": "/k" }]);
        let both = json!([{ "type": "insecureAcceptAnything" }, { "type": "signedBy" }]);
        let docker = |default: &Value, scopes: Value| json!({ "default": default, "transports": { "docker": scopes } });
        let exact = format!("quay.io/a/os@{DIGEST}");
        for (policy, accepts) in [
            (json!({ "default": reject }), false),
            (json!({ "default": signed, "transports": {} }), false),
            (json!({ "default": both }), false),
            (json!({ "default": any }), true),
            // bootc looks at the default alone.
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
    fn only_who_asks_for_signatures_is_refused_without() {
        for policy in [Policy::Missing, Policy::Unread, Policy::parse(PLACES[1], b"{")] {
            let mut image = image("quay.io/os");
            assert!(policy.objection(&image).is_some());
            image.signature = SignatureRule::AsBooted;
            assert_eq!(policy.objection(&image), None);
        }
        let padded = |length: usize| {
            let mut text = b"{}".to_vec();
            text.resize(length, b' ');
            Policy::parse(PLACES[0], &text)
        };
        assert!(matches!(padded(MAX_LENGTH), Policy::File(..)));
        let long = padded(MAX_LENGTH + 1);
        assert!(matches!(long, Policy::Unusable(why) if why.contains("bytes")));
    }

    proptest! {
        #[test]
        fn any_text_is_a_policy_or_none(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Policy::parse(PLACES[0], &text).objection(&image("quay.io/os"));
        }

        /// Whichever scopes a policy has: the one that is nearest to the image decides.
        #[test]
        fn the_longest_scope_that_fits_decides(
            scopes in proptest::collection::btree_map(
                prop_oneof!["", "\\*\\.c", "b\\.c(/d(/e)?)?", "b\\.c/[de]{1,2}"], any::<bool>(), 0..6),
        ) {
            let list = |open: &bool| json!([{ "type": if *open { "insecureAcceptAnything" } else { "signedBy" } }]);
            let docker: Map<String, Value> = scopes.iter().map(|(k, open)| (k.clone(), list(open))).collect();
            let policy = json!({ "default": [{ "type": "reject" }], "transports": { "docker": docker } });
            let fits = |scope: &str| scope.is_empty() || scope == "*.c" || "b.c/d/e/".starts_with(&format!("{scope}/"));
            // The transport's own comes after the domain, and the domain after the registry.
            let nearest = scopes.iter().filter(|(scope, _)| fits(scope)).max_by_key(|(scope, _)| match scope.as_str() {
                "" => 0,
                "*.c" => 1,
                scope => 1 + scope.len(),
            });
            let expected = nearest.is_some_and(|(_, open)| *open);
            prop_assert_eq!(objection(&policy, "b.c/d/e").is_some(), expected, "{}", policy);
        }
    }
}
