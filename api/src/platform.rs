//! Platforms: the machine that a node is, and the images that it runs.

use std::collections::BTreeMap;
use std::fmt;

use crate::keys;
use crate::pool::PlatformDigest;

/// Labels that node-feature-discovery puts on an amd64 node begin so.
const NFD: &str = "feature.node.kubernetes.io/cpu-cpuid.";
/// Features that only CPUs of a level of x86-64 have, of those that node-feature-discovery tells by default. All CPUs with
/// these have the level's others as well.
const LEVELS: [(&str, &[&str]); 2] = [
    ("v4", &["AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"]),
    ("v3", &["AVX2", "FMA3"]),
];

/// Platform of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Platform {
    /// Architecture in OCI words, such as `amd64`, which are Kubernetes' words too.
    pub architecture: String,
    /// Variant that its labels tell, such as `v3`; without one it runs what every machine of its architecture runs.
    pub variant: Option<String>,
}

impl Platform {
    /// Reads the platform off `status.nodeInfo.architecture` and the labels of a Node. Our own label comes before those of
    /// node-feature-discovery.
    pub fn new(architecture: &str, labels: &BTreeMap<String, String>) -> Self {
        let has = |feature: &&str| {
            labels
                .get(&format!("{NFD}{feature}"))
                .is_some_and(|value| value == "true")
        };
        let level = || {
            let level = LEVELS.iter().find(|(_, features)| features.iter().all(has));
            level.filter(|_| architecture == "amd64").map(|(level, _)| *level)
        };
        let told = labels.get(keys::LABEL_VARIANT).map(String::as_str);
        Self {
            architecture: architecture.to_owned(),
            variant: told.or_else(level).map(str::to_owned),
        }
    }

    /// Says whether the node runs an image: one for its architecture, and for its variant or a lesser one.
    pub fn runs(&self, image: &PlatformDigest) -> bool {
        let variant = || match (&self.variant, &image.variant) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(asked)) => own == asked || level(own) > level(asked) && level(asked).is_some(),
        };
        self.architecture == image.architecture && variant()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.architecture, self.variant.as_deref())
    }
}

impl fmt::Display for PlatformDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.architecture, self.variant.as_deref())
    }
}

fn write(f: &mut fmt::Formatter<'_>, architecture: &str, variant: Option<&str>) -> fmt::Result {
    match variant {
        Some(variant) => write!(f, "{architecture}/{variant}"),
        None => f.write_str(architecture),
    }
}

/// Rank of a variant among those of its architecture: `v3` comes after `v2`, `v8.2` after `v8`. `None` for a name that has
/// no rank.
pub fn level(variant: &str) -> Option<(u32, u32)> {
    let version = variant.strip_prefix('v')?;
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(architecture: &str, labels: &[(&str, &str)]) -> Platform {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Platform::new(architecture, &labels.collect())
    }

    fn image(architecture: &str, variant: Option<&str>) -> PlatformDigest {
        PlatformDigest {
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
            digest: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
        }
    }

    #[test]
    fn a_node_runs_what_its_labels_say_that_it_runs() {
        const OWN: &str = keys::LABEL_VARIANT;
        const AVX2: &str = "feature.node.kubernetes.io/cpu-cpuid.AVX2";
        const FMA3: &str = "feature.node.kubernetes.io/cpu-cpuid.FMA3";
        for (architecture, labels, runs, does_not) in [
            ("amd64", &[][..], vec![None], vec!["v2", "v3"]),
            ("amd64", &[(AVX2, "true")][..], vec![None], vec!["v2", "v3"]),
            (
                "amd64",
                &[(AVX2, "true"), (FMA3, "true")],
                vec![None, Some("v2"), Some("v3")],
                vec!["v4"],
            ),
            (
                "amd64",
                &[(AVX2, "true"), (FMA3, "true"), (OWN, "v2")],
                vec![None, Some("v2")],
                vec!["v3"],
            ),
            (
                "amd64",
                &[(OWN, "nonsense")],
                vec![None, Some("nonsense")],
                vec!["v2", "v3"],
            ),
            ("arm64", &[(AVX2, "true"), (FMA3, "true")], vec![None], vec!["v8.2"]),
            (
                "arm64",
                &[(OWN, "v9")],
                vec![None, Some("v8.2"), Some("v9")],
                vec!["v9.2", "rva22"],
            ),
            (
                "ppc64le",
                &[(OWN, "power9")],
                vec![None, Some("power9")],
                vec!["power10", "v1"],
            ),
        ] {
            let node = node(architecture, labels);
            for variant in runs {
                assert!(node.runs(&image(architecture, variant)), "{node} runs {variant:?}");
                assert!(!node.runs(&image("s390x", variant)), "{node} is no s390x");
            }
            for variant in does_not {
                assert!(
                    !node.runs(&image(architecture, Some(variant))),
                    "{node} does not run {variant}"
                );
            }
        }
        assert_eq!(node("amd64", &[(OWN, "v3")]).to_string(), "amd64/v3");
        assert_eq!(image("arm64", None).to_string(), "arm64");
    }
}
