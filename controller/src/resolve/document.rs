//! Manifests, indexes and image configurations as a registry sends them. Parsing only: bytes in, facts out. No input
//! makes it panic.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Digest;
use berth_api::platform::level;
use berth_api::pool::PlatformDigest;
use oci_client::manifest::{ImageIndexEntry, OciDescriptor, OciManifest};
use serde::Deserialize;

use super::{ResolveError, ResolveReason};

/// Label and annotation that carries an image's version.
const VERSION: &str = "org.opencontainers.image.version";
/// Most platforms that a pool's status holds.
const MAX_PLATFORMS: usize = 32;
/// Longest variant that a pool's status holds.
const MAX_VARIANT: usize = 32;
/// Longest version that a pool's status holds.
const MAX_VERSION: usize = 256;

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
    config: Option<RawSettings>,
}

#[derive(Deserialize)]
struct RawSettings {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

fn invalid(what: &str, detail: impl std::fmt::Display) -> ResolveError {
    ResolveError::new(ResolveReason::InvalidAnswer, format!("the registry's {what}: {detail}"))
}

fn version(map: Option<&BTreeMap<String, String>>) -> Option<String> {
    let version = map?.get(VERSION)?.trim();
    (!version.is_empty()).then(|| version.chars().take(MAX_VERSION).collect())
}

/// Reads a manifest or an index.
pub(super) fn manifest(bytes: &[u8]) -> Result<Document, ResolveError> {
    let manifest = serde_json::from_slice(bytes).map_err(|error| match error.is_data() {
        true => invalid("manifest", "it is neither an image nor an index"),
        false => invalid("manifest", error),
    })?;
    Ok(match manifest {
        OciManifest::ImageIndex(index) => Document::Index {
            version: version(index.annotations.as_ref()),
            platforms: platforms(index.manifests)?,
        },
        OciManifest::Image(image) => Document::Image {
            version: version(image.annotations.as_ref()),
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

/// Platform and version of an image with that digest, from its configuration.
pub(super) fn config(bytes: &[u8], image: &Digest) -> Result<(PlatformDigest, Option<String>), ResolveError> {
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
    let labels = raw.config.and_then(|c| c.labels);
    let platform = platform(architecture, raw.variant, image.clone());
    Ok((platform, version(labels.as_ref())))
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
        let json =
            r#"{"architecture":"arm64","os":"linux","config":{"Labels":{"org.opencontainers.image.version":"2"}}}"#;
        let digest = digest(&hex('a')).unwrap();
        let read = |json: &str| config(json.as_bytes(), &digest).map(|(p, version)| (p.to_string(), version));
        assert_eq!(read(json).unwrap(), ("arm64".into(), Some("2".into())));
        let bare = r#"{"os":"linux","architecture":"amd64","variant":"v3"}"#;
        assert_eq!(read(bare).unwrap(), ("amd64/v3".into(), None));
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
