//! Manifests, indexes and image configurations as a registry sends them. Parsing only: bytes in, facts out. No input
//! makes it panic.

use std::collections::BTreeMap;

use berth_api::Digest;
use berth_api::pool::PlatformDigest;
use oci_client::manifest::{ImageIndexEntry, OciDescriptor, OciManifest};
use serde::Deserialize;

use super::{ResolveError, ResolveReason};

/// Label and annotation that carries an image's version.
const VERSION: &str = "org.opencontainers.image.version";
/// Most platforms that a pool's status holds.
const MAX_PLATFORMS: usize = 32;
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

/// The Linux images of an index, the first for each architecture that all machines of that architecture run. Other entries
/// of builders, such as attestations with the platform `unknown`, are left out.
fn platforms(entries: Vec<ImageIndexEntry>) -> Result<Vec<PlatformDigest>, ResolveError> {
    let mut platforms: Vec<PlatformDigest> = vec![];
    let mut special = vec![];
    for entry in entries {
        let Some(platform) = entry.platform.filter(|p| p.os.to_string() == "linux") else {
            continue;
        };
        let architecture = platform.architecture.to_string();
        let known = platforms.iter().any(|p| p.architecture == architecture);
        if known || !is_architecture(&architecture) || platforms.len() >= MAX_PLATFORMS {
            continue;
        }
        if !is_baseline(&architecture, platform.variant.as_deref()) {
            special.push((architecture, platform.variant.unwrap_or_default()));
            continue;
        }
        platforms.push(PlatformDigest {
            architecture,
            digest: digest(&entry.digest)?,
        });
    }
    special.retain(|(architecture, _)| platforms.iter().all(|p| p.architecture != *architecture));
    let special: Vec<_> = special
        .iter()
        .map(|(architecture, variant)| shown(architecture, variant))
        .collect();
    match (platforms.is_empty(), special.is_empty()) {
        (true, true) => Err(ResolveError::new(
            ResolveReason::NoSuchPlatform,
            "the index names no image for linux",
        )),
        (true, false) => Err(ResolveError::new(
            ResolveReason::NoSuchPlatform,
            format!(
                "the index has images only for {}, which not every machine of that architecture runs; add one without a variant",
                special.join(", ")
            ),
        )),
        (false, some_left_out) => {
            if !some_left_out {
                tracing::warn!(
                    variants = special.join(", "),
                    "not every machine runs these images; nobody is given them"
                );
            }
            Ok(platforms)
        }
    }
}

fn shown(architecture: &str, variant: &str) -> String {
    format!("{architecture}/{variant}").chars().take(80).collect()
}

/// Says whether every machine of that architecture runs an image of that variant.
fn is_baseline(architecture: &str, variant: Option<&str>) -> bool {
    match (architecture, variant) {
        (_, None | Some("")) | ("amd64", Some("v1")) | ("arm64", Some("v8")) => true,
        // Of the others nobody ever built an index with more than one variant for hosts.
        (architecture, Some(_)) => !matches!(architecture, "amd64" | "arm64" | "arm" | "ppc64le" | "riscv64"),
    }
}

fn is_architecture(text: &str) -> bool {
    !text.is_empty() && text != "unknown" && text.len() <= 32
}

/// Reads a digest that a registry sent.
pub(super) fn digest(text: &str) -> Result<Digest, ResolveError> {
    text.parse().map_err(|e| invalid("digest", e))
}

/// Architecture and version of an image, from its configuration.
pub(super) fn config(bytes: &[u8]) -> Result<(String, Option<String>), ResolveError> {
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
    Ok((architecture, version(labels.as_ref())))
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
    fn what_not_every_machine_runs_is_given_to_nobody() {
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
            match manifest(index.to_string().as_bytes()) {
                Ok(Document::Index { platforms, .. }) => {
                    Ok(platforms.into_iter().map(|p| p.digest.to_string()).collect())
                }
                Ok(Document::Image { .. }) => panic!(),
                Err(error) => Err(error.to_string()),
            }
        };
        let baseline: Result<Vec<String>, String> = Ok(vec![hex('b')]);
        assert_eq!(found(&[('a', "amd64", Some("v3")), ('b', "amd64", None)]), baseline);
        assert_eq!(
            found(&[('b', "amd64", Some("v1")), ('a', "amd64", Some("v3"))]),
            baseline
        );
        assert_eq!(found(&[('b', "arm64", Some("v8"))]), baseline);
        assert_eq!(found(&[('a', "amd64", Some("v3")), ('b', "arm64", None)]), baseline);
        let refused = found(&[('a', "amd64", Some("v3"))]).unwrap_err();
        assert!(
            refused.contains("NoSuchPlatform") && refused.contains("amd64/v3"),
            "{refused}"
        );
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
        assert_eq!(config(json.as_bytes()).unwrap(), ("arm64".into(), Some("2".into())));
        assert_eq!(config(br#"{"os":"linux","architecture":"s390x"}"#).unwrap().1, None);
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
        assert_eq!(config(b"{}").unwrap_err().reason, ResolveReason::NoSuchPlatform);
        assert_eq!(config(b"[]").unwrap_err().reason, ResolveReason::InvalidAnswer);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = manifest(&bytes);
            let _ = config(&bytes);
        }
    }
}
