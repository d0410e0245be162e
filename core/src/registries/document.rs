//! Parsers for manifests, indexes and image configurations from a registry. They skip the fields that Berth does not
//! need. So invalid content in such a field does not make an image unusable.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::boot_image::{BootImageLimit, MAX_SKEW};
use berth_api::foreign::{self, bounded, one_line};
use berth_api::platform::level;
use berth_api::pool::{ImageMetadata, PlatformDigest};
use berth_api::{Digest, keys};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use super::labels::{Labels, readable};
use crate::skew::version::MAX_LENGTH;

/// Label and annotation with an image's version. `OLD_VERSION` is an older name for it, which bootc also accepts.
const VERSION: &str = "org.opencontainers.image.version";
const OLD_VERSION: &str = "version";
/// Labels that the image's builder sets: creation time, source revision and source repository.
const CREATED: &str = "org.opencontainers.image.created";
const REVISION: &str = "org.opencontainers.image.revision";
const SOURCE: &str = "org.opencontainers.image.source";
/// Labels of bootable OS images. bootc requires one of the two, with any value.
const BOOTABLE: [&str; 2] = ["containers.bootc", "ostree.bootable"];
const MAX_PLATFORMS: usize = 32;
/// Maximum length of a variant in a pool's status, in characters. Longer variants are cut off.
const MAX_VARIANT: usize = 32;
/// Maximum lengths of version, revision and source in a pool's status, in characters. Longer texts are cut off.
const MAX_VERSION: usize = 256;
const MAX_REVISION: usize = 128;
const MAX_SOURCE: usize = 256;
/// Maximum length of an error about a label in a pool's status, in characters. Longer errors are cut off.
const MAX_ERROR: usize = 256;
/// Range of times that a pool's status may contain, in Unix seconds. Excludes 0, because builders that record no time
/// write 0.
const TIMES: std::ops::Range<i64> = 1..253_402_300_800;

/// A parsed manifest or index.
#[derive(Debug, Clone, PartialEq)]
pub enum Document {
    /// An index, which lists images for several platforms.
    Index {
        /// Images for Linux: at least one, and at most one per architecture and variant.
        platforms: Vec<PlatformDigest>,
        /// Version of the image, from the annotations of the index.
        version: Option<String>,
    },
    /// The manifest of one image.
    Image {
        /// Digest of the image's configuration.
        config: Digest,
        /// Size of the image's configuration, in bytes.
        size: u64,
        /// Version of the image, from the annotations of its manifest.
        version: Option<String>,
    },
}

/// Why a pool cannot use a document from a registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The document is malformed. Contains the error.
    #[error("the registry sent an invalid {0}")]
    Invalid(String),
    /// The document has no image for Linux. Contains the error message.
    #[error("{0}")]
    NotForLinux(String),
    /// The image with this digest is not a bootable OS image.
    #[error(
        "the image {0} is not a bootable OS image: it has neither the label {label} nor {other}; build it from a bootc base \
         image, or add LABEL {label}=1",
        label = BOOTABLE[0], other = BOOTABLE[1]
    )]
    NotBootable(Digest),
}

/// A manifest or an index. A manifest has the field `config`, an index the field `manifests`.
#[derive(Deserialize)]
struct RawManifest {
    config: Option<RawDescriptor>,
    manifests: Option<Vec<RawDescriptor>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct RawDescriptor {
    digest: String,
    #[serde(default)]
    size: u64,
    platform: Option<RawPlatform>,
}

#[derive(Deserialize)]
struct RawPlatform {
    architecture: String,
    os: String,
    variant: Option<String>,
}

#[derive(Deserialize)]
struct RawConfig {
    architecture: Option<String>,
    variant: Option<String>,
    os: Option<String>,
    // May have any JSON type: a value that is not a time is ignored.
    created: Option<serde_json::Value>,
    config: Option<RawSettings>,
}

#[derive(Deserialize)]
struct RawSettings {
    #[serde(rename = "Labels")]
    labels: Option<Labels>,
}

/// Parsed configuration of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Platform and digest of the image.
    pub platform: PlatformDigest,
    /// Version of the image.
    pub version: Option<String>,
    /// Information that the image's builder set.
    pub metadata: ImageMetadata,
}

fn invalid(what: &str, detail: impl std::fmt::Display) -> DocumentError {
    DocumentError::Invalid(one_line(&format!("{what}: {detail}")))
}

/// Returns the value of a label as one line of at most `most` characters; `None` if the label is missing or empty.
fn text(map: &BTreeMap<String, String>, key: &str, most: usize) -> Option<String> {
    let words = bounded(map.get(key)?, most);
    (!words.is_empty()).then_some(words)
}

fn version(map: &BTreeMap<String, String>) -> Option<String> {
    text(map, VERSION, MAX_VERSION).or_else(|| text(map, OLD_VERSION, MAX_VERSION))
}

/// Parses a manifest or an index.
///
/// # Errors
/// If the document is neither a manifest nor an index, is both, or is an index without an image for Linux.
pub fn manifest(bytes: &[u8]) -> Result<Document, DocumentError> {
    const NEITHER: &str = "it is neither an image nor an index";
    let raw: RawManifest = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            invalid("manifest", NEITHER)
        } else {
            invalid("manifest", error)
        }
    })?;
    let version = raw.annotations.as_ref().and_then(version);
    match (raw.config, raw.manifests) {
        (None, Some(manifests)) => Ok(Document::Index {
            platforms: platforms(manifests)?,
            version,
        }),
        (Some(config), None) => Ok(Document::Image {
            config: digest(&config.digest)?,
            size: config.size,
            version,
        }),
        // Reject such a document: another program may read it as a manifest, while Berth reads it as an index.
        (Some(_), Some(_)) => Err(invalid("manifest", "it is an image and an index at once")),
        (None, None) => Err(invalid("manifest", NEITHER)),
    }
}

/// Returns the Linux images of an index, one per architecture and variant. Images that run on more machines come
/// first. Skips all other entries, for example attestations, whose platform is `unknown`.
fn platforms(entries: Vec<RawDescriptor>) -> Result<Vec<PlatformDigest>, DocumentError> {
    let mut found: Vec<(RawPlatform, Digest)> = vec![];
    for entry in entries {
        let Some(of) = entry.platform.filter(|p| p.os == "linux") else {
            continue;
        };
        if is_architecture(&of.architecture) {
            found.push((of, digest(&entry.digest)?));
        }
    }
    let unnamed = unnamed_amd64(found.iter().map(|(of, _)| of));
    let mut platforms: Vec<PlatformDigest> = vec![];
    for (of, digest) in found {
        let variant = of.variant.filter(|variant| !variant.is_empty());
        let variant = match of.architecture.as_str() {
            "amd64" => variant.or_else(|| unnamed.map(str::to_owned)),
            _ => variant,
        };
        platforms.push(platform(of.architecture, variant, digest));
    }
    platforms.sort_by_key(demands);
    let mut known = BTreeSet::new();
    platforms.retain(|p| known.insert((p.architecture.clone(), p.variant.clone())));
    platforms.truncate(MAX_PLATFORMS);
    if platforms.is_empty() {
        return Err(DocumentError::NotForLinux(
            "the index has no image for linux".to_owned(),
        ));
    }
    Ok(platforms)
}

/// Returns the CPU variant that an index's amd64 image without a variant really needs. `None` if the image runs on
/// every amd64 machine.
///
/// Usually such an image runs everywhere: it is the only amd64 image, or all other amd64 images need newer CPUs.
/// AlmaLinux breaks this rule: its index lists `amd64/v2`, and its `amd64` without a variant needs v3. So this function
/// finds the highest of the variants v1 to v3 that the index does not list. The image needs that variant if the index
/// lists a lower variant. No distribution's default image needs more than v3.
fn unnamed_amd64<'a>(platforms: impl Iterator<Item = &'a RawPlatform>) -> Option<&'static str> {
    let amd64 = platforms.filter(|of| of.architecture == "amd64");
    let named: BTreeSet<(u32, u32)> = amd64.filter_map(|of| level(of.variant.as_deref()?)).collect();
    let (missing, variant) = [((3, 0), "v3"), ((2, 0), "v2"), ((1, 0), "v1")]
        .into_iter()
        .find(|(level, _)| !named.contains(level))?;
    named.iter().any(|level| *level < missing).then_some(variant)
}

/// Returns the entry of a pool's status for an image. A variant that every machine of the architecture can run is left
/// out.
fn platform(architecture: String, variant: Option<String>, digest: Digest) -> PlatformDigest {
    let variant = variant.map(|variant| bounded(&variant, MAX_VARIANT));
    let variant = variant.filter(|variant| !is_baseline(&architecture, variant));
    PlatformDigest {
        variant,
        architecture,
        digest,
    }
}

/// Returns a sort key for images. Images that run on every machine come first, then variants with a level, by level,
/// then variants without a level.
fn demands(image: &PlatformDigest) -> (bool, bool, Option<(u32, u32)>) {
    let level = image.variant.as_deref().and_then(level);
    (
        image.variant.is_some(),
        image.variant.is_some() && level.is_none(),
        level,
    )
}

/// True if every machine of the architecture can run images of this variant.
fn is_baseline(architecture: &str, variant: &str) -> bool {
    match (architecture, variant) {
        (_, "") | ("amd64", "v1") | ("arm64", "v8") => true,
        // Images for other architectures have no variants, so every machine of the architecture can run them.
        _ => !matches!(architecture, "amd64" | "arm64" | "arm" | "ppc64le" | "riscv64"),
    }
}

fn is_architecture(text: &str) -> bool {
    !text.is_empty() && text != "unknown" && text.len() <= 32 && foreign::is_printable(text)
}

/// Parses a digest from a registry.
///
/// # Errors
/// If the text is not a valid digest.
pub fn digest(text: &str) -> Result<Digest, DocumentError> {
    text.parse().map_err(|e| invalid("digest", e))
}

/// Parses the configuration of the image with this digest.
///
/// # Errors
/// If the configuration is malformed, or the image is not for Linux or not bootable.
pub fn config(bytes: &[u8], image: &Digest) -> Result<Config, DocumentError> {
    let raw: RawConfig = serde_json::from_str(&readable(bytes)).map_err(|e| invalid("image config", e))?;
    let os = raw.os.unwrap_or_default();
    let architecture = raw.architecture.unwrap_or_default();
    if os != "linux" || !is_architecture(&architecture) {
        let shown = bounded(&format!("{os}/{architecture}"), 80);
        return Err(DocumentError::NotForLinux(format!(
            "the image is for {shown:?}, not for linux"
        )));
    }
    let all = raw.config.and_then(|c| c.labels).unwrap_or_default();
    let labels = &all.texts;
    if !BOOTABLE.iter().any(|label| labels.contains_key(*label)) {
        return Err(DocumentError::NotBootable(image.clone()));
    }
    let created = raw.created.as_ref().and_then(serde_json::Value::as_str);
    Ok(Config {
        platform: platform(architecture, raw.variant, image.clone()),
        version: version(labels),
        metadata: metadata(&all, created),
    })
}

fn metadata(all: &Labels, created: Option<&str>) -> ImageMetadata {
    let labels = &all.texts;
    let label = labels.get(CREATED).and_then(|label| time(label));
    let (kept, left_out) = all.kept();
    ImageMetadata {
        created: label.or_else(|| time(created?)),
        revision: text(labels, REVISION, MAX_REVISION),
        source: text(labels, SOURCE, MAX_SOURCE),
        boot_image: boot_image(labels),
        labels: kept,
        labels_left_out: left_out,
    }
}

/// Parses a time; `None` if it is invalid or outside [`TIMES`].
fn time(text: &str) -> Option<Time> {
    let time: Timestamp = text.trim().parse().ok()?;
    TIMES.contains(&time.as_second()).then_some(Time(time))
}

/// Returns the limit for boot images that an image's labels set; `None` if they set none.
fn boot_image(labels: &BTreeMap<String, String>) -> Option<BootImageLimit> {
    let most = labels.get(keys::LABEL_MAX_BOOT_IMAGE_SKEW).map(|most| most.trim());
    let number = most.and_then(|most| most.parse().ok());
    let limit = BootImageLimit {
        minimum_version: text(labels, keys::LABEL_MIN_BOOT_IMAGE, MAX_LENGTH),
        max_major_skew: number.filter(|n| *n <= MAX_SKEW),
        error: None,
    };
    let error = most.filter(|_| limit.max_major_skew.is_none()).map(|most| {
        let shown = bounded(most, 40);
        let label = keys::LABEL_MAX_BOOT_IMAGE_SKEW;
        let message = format!(
            "the image's label {label} is {shown:?}; the value must be a number of major versions up to {MAX_SKEW}"
        );
        message.chars().take(MAX_ERROR).collect()
    });
    let limit = BootImageLimit { error, ..limit };
    (!limit.is_none()).then_some(limit)
}

#[cfg(test)]
mod tests;
