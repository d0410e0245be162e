//! Platforms: the machine that a node is, and the image of an index that it gets.

use std::collections::BTreeMap;
use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::keys;

/// Prefix of the labels for CPU features that node-feature-discovery puts on amd64 nodes.
const NFD: &str = "feature.node.kubernetes.io/cpu-cpuid.";
/// Features that stand for a level of x86-64, of those that node-feature-discovery reports by default. All CPUs with
/// these have the other features of the level too.
const LEVELS: [(&str, &[&str]); 2] = [
    ("v4", &["AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"]),
    ("v3", &["AVX2", "FMA3"]),
];

/// Platform of a machine as its Node object describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Architecture in OCI words, such as `amd64`. Kubernetes uses the same words. Empty until the kubelet reports it.
    pub architecture: String,
    /// Value of the label [`keys::LABEL_VARIANT`].
    pub label: Option<String>,
    /// Level of x86-64 by the labels of node-feature-discovery.
    pub discovered: Option<&'static str>,
}

/// Most demanding variant of its architecture that a machine runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant<'a> {
    /// The machine's agent has not reported yet.
    #[default]
    NotReported,
    /// The agent has reported, and does not know it.
    Unknown,
    /// This variant, such as `v3`.
    Known(&'a str),
}

/// Platform of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Platform<'a> {
    /// Architecture in OCI words, such as `amd64`.
    pub architecture: &'a str,
    /// Most demanding variant that the machine runs.
    pub variant: Variant<'a>,
}

/// The manifest of one platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlatformDigest {
    /// OCI architecture, such as `amd64`.
    #[schemars(length(max = 32))]
    pub architecture: String,
    /// Variant of the architecture that the image needs, such as `v3`; absent if every machine of the architecture runs
    /// it. An amd64 image that the index lists without a variant, beside one for a lesser variant, is recorded as the
    /// variant that the index leaves out: beside `v2` as `v3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub variant: Option<String>,
    /// Digest of that platform's manifest.
    pub digest: Digest,
}

/// Image of an index for one machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice<'a> {
    /// The most demanding image that the machine runs.
    Image(&'a PlatformDigest),
    /// The index has images for the machine's architecture. Which of them the machine runs depends on its variant, which
    /// is not known.
    VariantUnknown,
    /// The machine runs no image of the index.
    NoSuchPlatform,
}

impl Machine {
    /// Reads `status.nodeInfo.architecture` and the labels of a Node.
    pub fn new(architecture: &str, labels: &BTreeMap<String, String>) -> Self {
        let has = |feature: &&str| {
            labels
                .get(&format!("{NFD}{feature}"))
                .is_some_and(|value| value == "true")
        };
        let mut levels = LEVELS.iter().filter(|_| architecture == "amd64");
        let discovered = levels.find(|(_, features)| features.iter().all(has));
        Self {
            architecture: architecture.to_owned(),
            label: labels.get(keys::LABEL_VARIANT).cloned(),
            discovered: discovered.map(|(level, _)| *level),
        }
    }

    /// Platform of the machine, given its agent's report.
    ///
    /// The label comes first. On amd64 it can lower the reported level and not raise it: a CPU that lacks an instruction
    /// cannot run the image. Node-feature-discovery counts only where the agent reports no level.
    pub fn platform<'a>(&'a self, reported: Variant<'a>) -> Platform<'a> {
        let variant = match (self.label.as_deref(), reported) {
            (Some(label), Variant::Known(level)) if self.architecture == "amd64" && is_above(label, level) => reported,
            (Some(label), _) => Variant::Known(label),
            (None, Variant::Unknown) => self.discovered.map_or(reported, Variant::Known),
            (None, _) => reported,
        };
        Platform {
            architecture: &self.architecture,
            variant,
        }
    }
}

impl<'a> Variant<'a> {
    /// Variant by the status of a BootcNode. `has_reported`: its agent has written a status for this very Node.
    pub fn reported(has_reported: bool, variant: Option<&'a str>) -> Self {
        match variant {
            _ if !has_reported => Self::NotReported,
            Some(variant) => Self::Known(variant),
            None => Self::Unknown,
        }
    }

    /// The variant, if it is known.
    pub fn known(self) -> Option<&'a str> {
        match self {
            Self::Known(variant) => Some(variant),
            Self::NotReported | Self::Unknown => None,
        }
    }
}

impl Platform<'_> {
    /// True if the machine is known to run an image: one for its architecture, and for its variant or a lesser one.
    pub fn runs(&self, image: &PlatformDigest) -> bool {
        let Some(asked) = &image.variant else {
            return self.architecture == image.architecture;
        };
        let own = self.variant.known();
        let has_variant = own.is_some_and(|own| own == asked || is_above(own, asked));
        self.architecture == image.architecture && has_variant
    }

    /// Chooses the most demanding of these images that the machine is known to run.
    ///
    /// A machine whose agent does not report its variant gets the image that every machine of the architecture runs. Before
    /// the first report it gets an image only where the report could not change the choice.
    pub fn choose<'a>(&self, images: &'a [PlatformDigest]) -> Choice<'a> {
        let of_architecture = images.iter().filter(|image| image.architecture == self.architecture);
        let count = of_architecture.clone().count();
        if count == 0 {
            return Choice::NoSuchPlatform;
        }
        if count > 1 && self.variant == Variant::NotReported {
            return Choice::VariantUnknown;
        }
        let own = self.variant.known();
        let demands = |image: &&PlatformDigest| {
            let variant = image.variant.as_deref();
            (variant.is_some() && variant == own, variant.and_then(level))
        };
        // Of equal images the first: `max_by_key` takes the last one.
        let best = of_architecture
            .rev()
            .filter(|image| self.runs(image))
            .max_by_key(demands);
        match best {
            Some(image) => Choice::Image(image),
            None if own.is_none() => Choice::VariantUnknown,
            None => Choice::NoSuchPlatform,
        }
    }
}

impl fmt::Display for Platform<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.architecture, self.variant.known())
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

/// True if a variant demands more than another one of its architecture.
fn is_above(variant: &str, other: &str) -> bool {
    level(other).is_some() && level(variant) > level(other)
}

/// Rank of a variant among those of its architecture: `v3` comes after `v2`, `v8.2` after `v8`. `None` for a name that has
/// no rank.
pub fn level(variant: &str) -> Option<(u32, u32)> {
    let version = variant.strip_prefix('v')?;
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
