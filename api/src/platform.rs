//! Platforms of machines, and the choice of an image from an index.

use std::collections::BTreeMap;
use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::keys;

/// Prefix of node-feature-discovery's labels for CPU features of amd64 nodes.
const NFD: &str = "feature.node.kubernetes.io/cpu-cpuid.";
/// Levels of x86-64, each with the CPU features that identify it. node-feature-discovery reports these features by
/// default. A CPU with all listed features of a level also has the features of the level that are not listed.
const LEVELS: [(&str, &[&str]); 2] = [
    ("v4", &["AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"]),
    ("v3", &["AVX2", "FMA3"]),
];

/// Platform of a machine according to its Node object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Architecture in OCI terms, such as `amd64`; Kubernetes uses the same names. Empty until the kubelet reports it.
    pub architecture: String,
    /// Value of the label [`keys::LABEL_VARIANT`].
    pub label: Option<String>,
    /// x86-64 level of the machine according to the labels of node-feature-discovery.
    pub discovered: Option<&'static str>,
}

/// Most demanding CPU variant that a machine can run, if known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant<'a> {
    /// The machine's agent has not reported yet.
    #[default]
    NotReported,
    /// The agent has reported, but could not determine the variant.
    Unknown,
    /// The variant is known, such as `v3`.
    Known(&'a str),
}

/// Platform of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Platform<'a> {
    /// Architecture in OCI terms, such as `amd64`.
    pub architecture: &'a str,
    /// Most demanding variant that the machine can run.
    pub variant: Variant<'a>,
}

/// An image for one platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlatformDigest {
    /// OCI architecture, such as `amd64`.
    #[schemars(length(max = 32))]
    pub architecture: String,
    /// Variant of the architecture that the image needs, such as `v3`; absent if the image runs on every machine of the
    /// architecture. If an index lists an amd64 image for `v2` and an amd64 image without a variant, the image without
    /// a variant is recorded as `v3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub variant: Option<String>,
    /// Digest of the manifest.
    pub digest: Digest,
}

/// Result of choosing an image for a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice<'a> {
    /// The most demanding image that the machine can run.
    Image(&'a PlatformDigest),
    /// There are images for the machine's architecture, but the choice depends on the machine's unknown variant.
    VariantUnknown,
    /// The machine can run none of the images.
    NoSuchPlatform,
}

fn has_feature(labels: &BTreeMap<String, String>, feature: &str) -> bool {
    labels
        .get(&format!("{NFD}{feature}"))
        .is_some_and(|value| value == "true")
}

impl Machine {
    /// Reads `status.nodeInfo.architecture` and the labels of a Node.
    pub fn new(architecture: &str, labels: &BTreeMap<String, String>) -> Self {
        let mut levels = LEVELS.iter().filter(|_| architecture == "amd64");
        let discovered = levels.find(|(_, features)| features.iter().all(|feature| has_feature(labels, feature)));
        Self {
            architecture: architecture.to_owned(),
            label: labels.get(keys::LABEL_VARIANT).cloned(),
            discovered: discovered.map(|(level, _)| *level),
        }
    }

    /// Returns the platform of the machine, given its agent's report.
    ///
    /// An admin's label takes precedence over the report. On amd64, the label can lower the reported level but not
    /// raise it, because the CPU would lack instructions. Without a label, the labels of node-feature-discovery are
    /// used if the agent could not determine the level.
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
    /// Returns the variant in a BootcNode's status. `has_reported`: the agent has written a status for this Node.
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
    /// True if the machine is known to run the image: the architectures are equal, and the image needs the machine's
    /// variant or a less demanding variant.
    pub fn runs(&self, image: &PlatformDigest) -> bool {
        let Some(asked) = &image.variant else {
            return self.architecture == image.architecture;
        };
        let own = self.variant.known();
        let has_variant = own.is_some_and(|own| own == asked || is_above(own, asked));
        self.architecture == image.architecture && has_variant
    }

    /// Returns the most demanding image that the machine is known to run.
    ///
    /// If the agent could not determine the variant, returns the image that every machine of the architecture can run.
    /// Before the agent's first report, returns such an image only if the architecture has no other image.
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
        let runnable = of_architecture.filter(|image| self.runs(image));
        // Take the first of equal images: `max_by_key` returns the last.
        let best = runnable.rev().max_by_key(|image| {
            let variant = image.variant.as_deref();
            (variant.is_some() && variant == own, variant.and_then(level))
        });
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

/// True if `variant` is more demanding than `other`. Both must be variants of the same architecture.
fn is_above(variant: &str, other: &str) -> bool {
    level(other).is_some() && level(variant) > level(other)
}

/// Rank of a variant in its architecture: `v3` ranks above `v2`, and `v8.2` above `v8`. `None` for a name without a
/// version.
pub fn level(variant: &str) -> Option<(u32, u32)> {
    let version = variant.strip_prefix('v')?;
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
