//! Manifests, indexes and image configurations as a registry sends them. Parsing only: bytes in, facts out. No input
//! makes it panic.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::boot_image::{BootImageLimit, MAX_SKEW};
use berth_api::condition::one_line;
use berth_api::platform::level;
use berth_api::pool::{ImageMetadata, PlatformDigest};
use berth_api::{Digest, keys};
use berth_core::skew::version::MAX_LENGTH;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use oci_client::manifest::{ImageIndexEntry, OciDescriptor, OciManifest};
use serde::Deserialize;

use super::{ResolveError, ResolveReason};

/// Label and annotation that carries an image's version, and an older one that bootc knows as well.
const VERSION: &str = "org.opencontainers.image.version";
const OLD_VERSION: &str = "version";
/// Labels with what else its builder says of it.
const CREATED: &str = "org.opencontainers.image.created";
const REVISION: &str = "org.opencontainers.image.revision";
const SOURCE: &str = "org.opencontainers.image.source";
/// Labels of a bootable OS image. `bootc` asks for one of them, with any value.
const BOOTABLE: [&str; 2] = ["containers.bootc", "ostree.bootable"];
/// Most platforms that a pool's status holds.
const MAX_PLATFORMS: usize = 32;
/// Longest variant that a pool's status holds.
const MAX_VARIANT: usize = 32;
/// Longest version, revision and source that a pool's status holds.
const MAX_VERSION: usize = 256;
const MAX_REVISION: usize = 128;
const MAX_SOURCE: usize = 256;
/// Times that a pool's status can hold, in seconds: those before are of images that were built without one.
const TIMES: std::ops::Range<i64> = 1..253_402_300_800;

/// Kind of a manifest that was read.
#[derive(Debug)]
pub(super) enum Document {
    /// An index, with the platforms that run Linux.
    Index {
        platforms: Vec<PlatformDigest>,
        version: Option<String>,
    },
    /// One image, and where its configuration is.
    Image {
        config: OciDescriptor,
        version: Option<String>,
    },
}

/// What matters of an image configuration. `oci_client` has a type for all of it, which would refuse an image for fields
/// that nobody looks at here.
#[derive(Deserialize)]
struct RawConfig {
    architecture: Option<String>,
    variant: Option<String>,
    os: Option<String>,
    // Of any type: it is for people only.
    created: Option<serde_json::Value>,
    config: Option<RawSettings>,
}

#[derive(Deserialize)]
struct RawSettings {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

/// What the configuration of an image says.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) platform: PlatformDigest,
    pub(super) version: Option<String>,
    pub(super) metadata: Option<ImageMetadata>,
}

fn invalid(what: &str, detail: impl std::fmt::Display) -> ResolveError {
    ResolveError::new(ResolveReason::InvalidAnswer, format!("the registry's {what}: {detail}"))
}

/// A text for people: in one line, and no longer than this.
fn text(map: &BTreeMap<String, String>, key: &str, most: usize) -> Option<String> {
    let words = one_line(map.get(key)?);
    (!words.is_empty()).then(|| words.chars().take(most).collect())
}

fn version(map: &BTreeMap<String, String>) -> Option<String> {
    text(map, VERSION, MAX_VERSION).or_else(|| text(map, OLD_VERSION, MAX_VERSION))
}

/// Reads a manifest or an index.
pub(super) fn manifest(bytes: &[u8]) -> Result<Document, ResolveError> {
    let manifest = serde_json::from_slice(bytes).map_err(|error| match error.is_data() {
        true => invalid("manifest", "it is neither an image nor an index"),
        false => invalid("manifest", error),
    })?;
    Ok(match manifest {
        OciManifest::ImageIndex(index) => Document::Index {
            version: index.annotations.as_ref().and_then(version),
            platforms: platforms(index.manifests)?,
        },
        OciManifest::Image(image) => Document::Image {
            version: image.annotations.as_ref().and_then(version),
            config: image.config,
        },
    })
}

/// The Linux images of an index, one for each architecture: the first that all machines of it run, else the least demanding
/// one. Other entries of builders, such as attestations with the platform `unknown`, are left out.
fn platforms(entries: Vec<ImageIndexEntry>) -> Result<Vec<PlatformDigest>, ResolveError> {
    let mut platforms: Vec<PlatformDigest> = vec![];
    for entry in entries {
        let Some(of) = entry.platform.filter(|p| p.os.to_string() == "linux") else {
            continue;
        };
        let architecture = of.architecture.to_string();
        if !is_architecture(&architecture) {
            continue;
        }
        platforms.push(platform(architecture, of.variant, digest(&entry.digest)?));
    }
    platforms.sort_by_key(demands);
    let mut known = BTreeSet::new();
    platforms.retain(|p| known.insert(p.architecture.clone()));
    platforms.truncate(MAX_PLATFORMS);
    if platforms.is_empty() {
        return Err(ResolveError::new(
            ResolveReason::NoSuchPlatform,
            "the index names no image for linux",
        ));
    }
    Ok(platforms)
}

/// An image for a platform. A variant that every machine of the architecture runs is none.
fn platform(architecture: String, variant: Option<String>, digest: Digest) -> PlatformDigest {
    let variant = variant.filter(|variant| !is_baseline(&architecture, variant));
    PlatformDigest {
        variant: variant.map(|v| v.chars().take(MAX_VARIANT).collect()),
        architecture,
        digest,
    }
}

/// Rank of an image among others: those that every machine runs, then the variants by level, then those without one.
fn demands(image: &PlatformDigest) -> (bool, bool, Option<(u32, u32)>) {
    let level = image.variant.as_deref().and_then(level);
    (
        image.variant.is_some(),
        image.variant.is_some() && level.is_none(),
        level,
    )
}

/// Says whether every machine of that architecture runs an image of that variant.
fn is_baseline(architecture: &str, variant: &str) -> bool {
    match (architecture, variant) {
        (_, "") | ("amd64", "v1") | ("arm64", "v8") => true,
        // Of the others nobody ever built an index with more than one variant for hosts.
        _ => !matches!(architecture, "amd64" | "arm64" | "arm" | "ppc64le" | "riscv64"),
    }
}

fn is_architecture(text: &str) -> bool {
    !text.is_empty() && text != "unknown" && text.len() <= 32
}

/// Reads a digest that a registry sent.
pub(super) fn digest(text: &str) -> Result<Digest, ResolveError> {
    text.parse().map_err(|e| invalid("digest", e))
}

/// Reads the configuration of an image with that digest. An image that no host can boot is refused.
pub(super) fn config(bytes: &[u8], image: &Digest) -> Result<Config, ResolveError> {
    let raw: RawConfig = serde_json::from_slice(bytes).map_err(|e| invalid("image config", e))?;
    let os = raw.os.unwrap_or_default();
    let architecture = raw.architecture.unwrap_or_default();
    if os != "linux" || !is_architecture(&architecture) {
        let shown: String = format!("{os}/{architecture}").chars().take(80).collect();
        return Err(ResolveError::new(
            ResolveReason::NoSuchPlatform,
            format!("the image is for {shown:?}, not for linux"),
        ));
    }
    let labels = raw.config.and_then(|c| c.labels).unwrap_or_default();
    if !BOOTABLE.iter().any(|label| labels.contains_key(*label)) {
        return Err(ResolveError::new(
            ResolveReason::NotBootable,
            format!(
                "the image {image} is no bootable OS image: it has neither the label {} nor {}; build it from a bootc base \
                 image, or add LABEL containers.bootc=1",
                BOOTABLE[0], BOOTABLE[1]
            ),
        ));
    }
    let created = raw.created.as_ref().and_then(serde_json::Value::as_str);
    Ok(Config {
        platform: platform(architecture, raw.variant, image.clone()),
        version: version(&labels),
        metadata: metadata(&labels, created),
    })
}

fn metadata(labels: &BTreeMap<String, String>, created: Option<&str>) -> Option<ImageMetadata> {
    let time = |text: &str| {
        let time: Timestamp = text.trim().parse().ok()?;
        TIMES.contains(&time.as_second()).then_some(Time(time))
    };
    let label = labels.get(CREATED).and_then(|label| time(label));
    let metadata = ImageMetadata {
        created: label.or_else(|| time(created?)),
        revision: text(labels, REVISION, MAX_REVISION),
        source: text(labels, SOURCE, MAX_SOURCE),
        boot_image: boot_image(labels),
    };
    (metadata != ImageMetadata::default()).then_some(metadata)
}

/// The limit that an image sets for boot images.
fn boot_image(labels: &BTreeMap<String, String>) -> Option<BootImageLimit> {
    let most = labels.get(keys::LABEL_MAX_BOOT_IMAGE_SKEW).map(|most| most.trim());
    let number = most.and_then(|most| most.parse().ok());
    let limit = BootImageLimit {
        minimum_version: text(labels, keys::LABEL_MIN_BOOT_IMAGE, MAX_LENGTH),
        max_major_skew: number.filter(|n| *n <= MAX_SKEW),
        error: None,
    };
    let error = most.filter(|_| limit.max_major_skew.is_none()).map(|most| {
        let shown: String = one_line(most).chars().take(40).collect();
        let label = keys::LABEL_MAX_BOOT_IMAGE_SKEW;
        format!("the image's label {label} is {shown:?}; a number of major versions up to {MAX_SKEW} is meant")
    });
    let limit = BootImageLimit { error, ..limit };
    (!limit.is_none()).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

    fn hex(c: char) -> String {
        format!("sha256:{}", c.to_string().repeat(64))
    }

    #[test]
    fn an_index_gives_its_linux_platforms_once_each() {
        let entry = |c, arch: &str, os: &str| serde_json::json!({"mediaType": TYPE, "size": 1, "digest": hex(c), "platform": {"architecture": arch, "os": os}});
        let index = serde_json::json!({
            "schemaVersion": 2,
            "annotations": {"org.opencontainers.image.version": "9.4"},
            "manifests": [
                entry('a', "amd64", "linux"), entry('b', "arm64", "linux"), entry('c', "arm64", "linux"),
                entry('d', "amd64", "windows"), entry('e', "unknown", "unknown"), {"mediaType": TYPE, "size": 1, "digest": hex('f')},
            ],
        });
        let Document::Index { platforms, version } = manifest(index.to_string().as_bytes()).unwrap() else {
            panic!()
        };
        let found: Vec<_> = platforms
            .iter()
            .map(|p| (p.architecture.as_str(), p.digest.to_string()))
            .collect();
        assert_eq!(found, [("amd64", hex('a')), ("arm64", hex('b'))]);
        assert_eq!(version.as_deref(), Some("9.4"));
    }

    #[test]
    fn each_architecture_has_the_image_that_most_machines_run() {
        let found = |entries: &[(char, &str, Option<&str>)]| {
            let entry = |(c, arch, variant): &(char, &str, Option<&str>)| {
                let mut platform = serde_json::json!({"architecture": arch, "os": "linux"});
                if let Some(variant) = variant {
                    platform["variant"] = (*variant).into();
                }
                serde_json::json!({"mediaType": TYPE, "size": 1, "digest": hex(*c), "platform": platform})
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            let index = serde_json::json!({"schemaVersion": 2, "manifests": entries});
            let Ok(Document::Index { platforms, .. }) = manifest(index.to_string().as_bytes()) else {
                panic!()
            };
            let shown: Vec<String> = platforms
                .iter()
                .map(|p| format!("{p} {}", &p.digest.to_string()[7..8]))
                .collect();
            shown.join(", ")
        };
        let (v1, v2, v3) = (Some("v1"), Some("v2"), Some("v3"));
        assert_eq!(found(&[('a', "amd64", v3), ('b', "amd64", None)]), "amd64 b");
        assert_eq!(found(&[('b', "amd64", v1), ('a', "amd64", v3)]), "amd64 b");
        assert_eq!(found(&[('a', "amd64", None), ('b', "amd64", v1)]), "amd64 a");
        assert_eq!(found(&[('a', "amd64", v3), ('b', "amd64", v2)]), "amd64/v2 b");
        assert_eq!(
            found(&[('a', "ppc64le", Some("power9")), ('b', "ppc64le", v2)]),
            "ppc64le/v2 b"
        );
        assert_eq!(
            found(&[('a', "amd64", v3), ('b', "arm64", Some("v8"))]),
            "arm64 b, amd64/v3 a"
        );
        assert_eq!(found(&[('a', "s390x", Some("z15"))]), "s390x a");
    }

    #[test]
    fn an_image_names_its_config() {
        let json = serde_json::json!({
            "schemaVersion": 2, "config": {"mediaType": TYPE, "digest": hex('a'), "size": 7}, "layers": []
        });
        let document = manifest(json.to_string().as_bytes()).unwrap();
        assert!(matches!(document, Document::Image { config, .. } if config.size == 7 && config.digest == hex('a')));
        let json = r#"{"architecture":"arm64","os":"linux","config":{"Labels":{"org.opencontainers.image.version":"2","containers.bootc":"1"}}}"#;
        let digest = digest(&hex('a')).unwrap();
        let read = |json: &str| config(json.as_bytes(), &digest).map(|c| (c.platform.to_string(), c.version));
        assert_eq!(read(json).unwrap(), ("arm64".into(), Some("2".into())));
        let bare =
            r#"{"os":"linux","architecture":"amd64","variant":"v3","config":{"Labels":{"ostree.bootable":"true"}}}"#;
        assert_eq!(read(bare).unwrap(), ("amd64/v3".into(), None));
    }

    fn labelled(labels: serde_json::Value, created: serde_json::Value) -> Result<Config, ResolveError> {
        let settings = serde_json::json!({"Labels": labels});
        let json = serde_json::json!({"os": "linux", "architecture": "amd64", "created": created, "config": settings});
        config(json.to_string().as_bytes(), &digest(&hex('a')).unwrap())
    }

    #[test]
    fn what_no_host_can_boot_is_refused() {
        for labels in [
            serde_json::json!({}),
            serde_json::json!(null),
            serde_json::json!({"org.opencontainers.image.version": "2"}),
        ] {
            let error = labelled(labels, "".into()).unwrap_err();
            assert_eq!(error.reason, ResolveReason::NotBootable);
            assert!(error.message.contains("LABEL containers.bootc=1"), "{error}");
        }
        for label in BOOTABLE {
            assert!(labelled(serde_json::json!({(label): "1"}), "".into()).is_ok());
        }
    }

    #[test]
    fn a_limit_for_boot_images_is_read_or_said_to_make_no_sense() {
        let (least, most) = (keys::LABEL_MIN_BOOT_IMAGE, keys::LABEL_MAX_BOOT_IMAGE_SKEW);
        let limit = |labels: serde_json::Value| {
            let mut labels = labels;
            labels["containers.bootc"] = "1".into();
            labelled(labels, "".into())
                .unwrap()
                .metadata
                .and_then(|metadata| metadata.boot_image)
        };
        assert_eq!(limit(serde_json::json!({})), None);
        let both = limit(serde_json::json!({(least): " 9.2 ", (most): "2"})).unwrap();
        assert_eq!(
            (both.minimum_version.as_deref(), both.max_major_skew, both.error),
            (Some("9.2"), Some(2), None)
        );
        for nonsense in ["two", "-1", "1001", "99999999999"] {
            let limit = limit(serde_json::json!({(most): nonsense})).unwrap();
            assert!(limit.error.is_some_and(|error| error.contains(nonsense)) && limit.max_major_skew.is_none());
        }
    }

    #[test]
    fn what_the_builder_says_is_shown_within_bounds() {
        let said = |mut labels: serde_json::Value, created: serde_json::Value| {
            labels["containers.bootc"] = "1".into();
            let config = labelled(labels, created).unwrap();
            (config.version, config.metadata)
        };
        let some = |created: &str, revision: &str, source: &str| {
            let some = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
            let created = some(created).map(|t| Time(t.parse().unwrap()));
            Some(ImageMetadata {
                created,
                revision: some(revision),
                source: some(source),
                boot_image: None,
            })
        };
        let (day, later) = ("2026-01-02T03:04:05Z", "2026-02-02T00:00:00Z");
        let labels = serde_json::json!({(VERSION): " 9.4\n", (OLD_VERSION): "1", (REVISION): "abc", (SOURCE): "https://a/b", (CREATED): later});
        assert_eq!(
            said(labels, day.into()),
            (Some("9.4".into()), some(later, "abc", "https://a/b"))
        );
        let long = "x".repeat(1000);
        let labels = serde_json::json!({(OLD_VERSION): "1", (REVISION): long, (SOURCE): long, (CREATED): "yesterday"});
        assert_eq!(
            said(labels, day.into()),
            (Some("1".into()), some(day, &long[..128], &long[..256]))
        );
        for nothing in [
            "1970-01-01T00:00:00Z",
            "-000001-01-01T00:00:00Z",
            "9999-12-31T23:59:60Z x",
            "",
        ] {
            assert_eq!(said(serde_json::json!({}), nothing.into()), (None, None), "{nothing}");
        }
        assert_eq!(said(serde_json::json!({}), 7.into()), (None, None));
    }

    #[test]
    fn rubbish_is_an_answer_too() {
        let reason = |json: &str| manifest(json.as_bytes()).unwrap_err().reason;
        assert_eq!(reason("<html>"), ResolveReason::InvalidAnswer);
        assert_eq!(reason("{}"), ResolveReason::InvalidAnswer);
        assert_eq!(
            reason(r#"{"schemaVersion":2,"manifests":[]}"#),
            ResolveReason::NoSuchPlatform
        );
        assert_eq!(
            reason(
                r#"{"schemaVersion":2,"manifests":[{"mediaType":"a/b","size":1,"digest":"md5:1",
                    "platform":{"os":"linux","architecture":"amd64"}}]}"#
            ),
            ResolveReason::InvalidAnswer
        );
        let reason = |json: &[u8]| config(json, &digest(&hex('a')).unwrap()).unwrap_err().reason;
        assert_eq!(reason(b"{}"), ResolveReason::NoSuchPlatform);
        assert_eq!(reason(b"[]"), ResolveReason::InvalidAnswer);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = manifest(&bytes);
            let _ = config(&bytes, &digest(&hex('a')).unwrap());
        }
    }
}
