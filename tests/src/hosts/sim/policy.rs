//! The signature policy of a simulated host, `policy.json`, as bootc and skopeo apply it. Only its `default` is used.

use std::path::Path;

use serde_json::Value;

use super::catalog::CatalogImage;

/// Error of bootc when it must enforce a policy, but the default of the policy accepts any image.
pub(super) const REFUSING_USAGE: &str = "Preparing import: Fetching manifest: containers-policy.json specifies a default of \
     `insecureAcceptAnything`; refusing usage";

/// Type of the first requirement in the policy's default. A simulated host without a policy accepts any image, so that
/// tests need not write a policy. Skopeo would reject the image.
#[derive(Debug)]
pub(super) struct Policy(String);

impl Policy {
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

    /// Returns skopeo's error if the policy rejects the image; `None` if the policy accepts it.
    pub(super) fn refusal(&self, target: &str, image: &CatalogImage) -> Option<String> {
        match self.0.as_str() {
            "insecureAcceptAnything" => None,
            "reject" => Some(format!("Running image docker://{target} is rejected by policy.")),
            _ if image.signed => None,
            _ => Some("A signature was required, but no signature exists".to_owned()),
        }
    }
}
