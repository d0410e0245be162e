//! Manifests and image configurations, and the refs that the repository keeps for them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use berth_tests::bootc::document::{ImageReference, ImageStatus};
use serde::Deserialize;

use crate::ostree::{self, META_CONFIG, META_DIGEST, META_MANIFEST, unquote};
use crate::sysroot::Sysroot;

/// Refs of layers, shared by all images.
pub(crate) const BLOBS: &str = "ostree/container/blob";
pub(crate) const IMAGES: &str = "ostree/container/image";

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Layer {
    pub(crate) digest: String,
    pub(crate) size: u64,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    architecture: String,
    created: Option<String>,
    #[serde(default)]
    config: Option<Execution>,
}

#[derive(Debug, Default, Deserialize)]
struct Execution {
    #[serde(rename = "Labels", default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) digest: String,
    pub(crate) manifest: String,
    pub(crate) config: String,
}

impl Image {
    /// The layers, lowest first.
    pub(crate) fn layers(&self) -> Result<Vec<Layer>> {
        let manifest: Manifest = serde_json::from_str(&self.manifest).context("Parsing manifest")?;
        Ok(manifest.layers)
    }

    /// Fails if the image cannot boot on this host.
    pub(crate) fn check(&self) -> Result<()> {
        let config = self.parsed()?;
        let labels = config.config.unwrap_or_default().labels.unwrap_or_default();
        if !labels.contains_key("ostree.bootable") && !labels.contains_key("containers.bootc") {
            bail!("Target image does not have ostree.bootable label");
        }
        let expected = architecture();
        if config.architecture != expected {
            bail!("Image has architecture {}; expected {expected}", config.architecture);
        }
        Ok(())
    }

    pub(crate) fn status(&self, reference: &ImageReference) -> Result<ImageStatus> {
        let config = self.parsed()?;
        let labels = config.config.unwrap_or_default().labels.unwrap_or_default();
        Ok(ImageStatus {
            architecture: config.architecture,
            image: reference.clone(),
            image_digest: self.digest.clone(),
            timestamp: first(&["org.opencontainers.image.created"], &labels).or(config.created),
            version: first(&["org.opencontainers.image.version", "version"], &labels),
        })
    }

    fn parsed(&self) -> Result<Config> {
        serde_json::from_str(&self.config).context("Parsing image configuration")
    }

    /// Reads the image that a merge commit was made from, from the commit's metadata; `None` for other commits.
    pub(crate) fn of_commit(sysroot: &Sysroot, commit: &str) -> Result<Option<Self>> {
        // A commit with layered packages has no image metadata; its parent is the commit of the image.
        for commit in [commit.to_owned(), format!("{commit}^")] {
            let Ok(digest) = metadata(sysroot, &commit, META_DIGEST) else {
                continue;
            };
            return Ok(Some(Self {
                digest,
                manifest: metadata(sysroot, &commit, META_MANIFEST)?,
                config: metadata(sysroot, &commit, META_CONFIG)?,
            }));
        }
        Ok(None)
    }
}

fn first(names: &[&str], labels: &BTreeMap<String, String>) -> Option<String> {
    names.iter().find_map(|name| labels.get(*name).cloned())
}

fn metadata(sysroot: &Sysroot, commit: &str, key: &str) -> Result<String> {
    unquote(&sysroot.ostree(&["show", &format!("--print-metadata-key={key}"), commit])?)
}

/// Architecture of this machine in OCI's terms.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

pub(crate) fn image_ref(image: &ImageReference) -> String {
    ostree::image_ref(&image.skopeo())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_prefers_labels() {
        let image = Image {
            digest: "sha256:1".into(),
            manifest: r#"{"layers":[{"digest":"sha256:2","size":3,"mediaType":"x"}]}"#.into(),
            config: format!(
                r#"{{"architecture":"{}","created":"2026-01-01T00:00:00Z","config":{{"Labels":{{"containers.bootc":"1","org.opencontainers.image.version":"7"}}}}}}"#,
                architecture()
            ),
        };
        let status = image.status(&ImageReference::registry("q.io/os:v1", false)).unwrap();
        assert_eq!(status.version.as_deref(), Some("7"));
        assert_eq!(status.timestamp.as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!(image.layers().unwrap()[0].size, 3);
        image.check().unwrap();
        let other = Image {
            config: r#"{"architecture":"amd64"}"#.into(),
            ..image
        };
        assert_eq!(
            other.check().unwrap_err().to_string(),
            "Target image does not have ostree.bootable label"
        );
    }
}
