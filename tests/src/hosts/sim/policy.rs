//! The signature policy of a simulated host, `policy.json`, as bootc and skopeo apply it. Only its `default` counts.

use std::path::Path;

use serde_json::Value;

use super::catalog::CatalogImage;

/// Words of bootc when it is asked to enforce a policy whose default accepts anything.
pub(super) const REFUSING_USAGE: &str = "Preparing import: Fetching manifest: containers-policy.json specifies a default of \
     `insecureAcceptAnything`; refusing usage";

/// The type of the first requirement of the policy's default. A host without a policy accepts anything: unlike skopeo, so that not
/// every test has to write one.
#[derive(Debug)]
pub(super) struct Policy(String);

impl Policy {
    /// The policy in the files of a host.
    pub(super) fn of_host(root: &Path) -> Self {
        let text = ["etc", "usr/share"]
            .iter()
            .find_map(|place| std::fs::read(root.join(place).join("containers/policy.json")).ok());
        let policy: Value = text
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let kind = policy["default"][0]["type"].as_str();
        Self(kind.unwrap_or("insecureAcceptAnything").to_owned())
    }

    pub(super) fn accepts_anything(&self) -> bool {
        self.0 == "insecureAcceptAnything"
    }

    /// The words with which skopeo refuses an image; `None` if the policy takes it.
    pub(super) fn refusal(&self, target: &str, image: &CatalogImage) -> Option<String> {
        match self.0.as_str() {
            "insecureAcceptAnything" => None,
            "reject" => Some(format!("Running image docker://{target} is rejected by policy.")),
            _ if image.signed => None,
            _ => Some("A signature was required, but no signature exists".to_owned()),
        }
    }
}
