//! Images and indexes: their manifests and configurations.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use berth_api::Digest;
use bytes::Bytes;
use serde_json::{Value, json};

use super::layer::{self, Compression, Entry, Layer};

/// Media type of an image manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an image index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// Label with the version of an OS image.
pub const VERSION_LABEL: &str = "org.opencontainers.image.version";

/// SHA-256 digest of some bytes.
pub fn digest(bytes: &[u8]) -> Result<Digest> {
    layer::to_digest(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// Description of an image to build.
#[derive(Debug, Clone)]
pub struct ImageSpec {
    /// Architecture in Go's names: `amd64`, `arm64`.
    pub architecture: String,
    /// Architecture variant (`v8`), if any.
    pub variant: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Entrypoint of its containers; empty for none.
    pub entrypoint: Vec<String>,
    /// User and group of its containers, `UID:GID`; empty for root.
    pub user: String,
    /// Environment of its containers, `NAME=value`.
    pub environment: Vec<String>,
    /// Layers, lowest first.
    pub layers: Vec<Layer>,
}

impl ImageSpec {
    /// An OS image with the labels that bootc requires.
    pub fn os(version: &str, layers: Vec<Layer>) -> Self {
        let labels = [
            ("containers.bootc", "1"),
            ("ostree.bootable", "true"),
            (VERSION_LABEL, version),
        ];
        Self {
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..Self::plain(layers)
        }
    }

    /// A container image with one static program.
    pub fn program(binary: &Path, arguments: &[&str]) -> Result<Self> {
        let name = binary
            .file_name()
            .and_then(|name| name.to_str())
            .context("the path of the program has no file name")?;
        let content = std::fs::read(binary).with_context(|| format!("reading {}", binary.display()))?;
        let entry = Entry::executable(format!("usr/bin/{name}"), content);
        let mut image = Self::plain(vec![Layer::from_entries(&[entry], Compression::None)?]);
        image.entrypoint.push(format!("/usr/bin/{name}"));
        image.entrypoint.extend(arguments.iter().map(|a| (*a).to_owned()));
        Ok(image)
    }

    /// An image for this machine's architecture, without labels.
    pub fn plain(layers: Vec<Layer>) -> Self {
        Self {
            architecture: go_architecture(std::env::consts::ARCH).to_owned(),
            variant: None,
            labels: BTreeMap::new(),
            entrypoint: Vec::new(),
            user: String::new(),
            environment: Vec::new(),
            layers,
        }
    }

    /// Sets the platform.
    pub fn for_platform(mut self, architecture: &str, variant: Option<&str>) -> Self {
        self.architecture = architecture.to_owned();
        self.variant = variant.map(str::to_owned);
        self
    }

    /// Builds the image.
    pub fn build(self) -> Result<Image> {
        let mut config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Labels": self.labels},
            "rootfs": {
                "type": "layers",
                "diff_ids": self.layers.iter().map(|layer| &layer.diff_id).collect::<Vec<_>>(),
            },
            // An entry per layer: some tools reject an image whose counts differ.
            "history": self.layers.iter().map(|_| json!({"created": "1970-01-01T00:00:00Z"})).collect::<Vec<_>>(),
        });
        if let Some(variant) = &self.variant {
            config["variant"] = json!(variant);
        }
        if !self.entrypoint.is_empty() {
            config["config"]["Entrypoint"] = json!(self.entrypoint);
        }
        if !self.user.is_empty() {
            config["config"]["User"] = json!(self.user);
        }
        if !self.environment.is_empty() {
            config["config"]["Env"] = json!(self.environment);
        }
        let config = Bytes::from(config.to_string());
        let layers: Vec<Value> = self.layers.iter().map(Layer::descriptor).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &digest(&config)?, config.len()),
            "layers": layers,
            // bootc reads the labels; registries show the annotations to users.
            "annotations": self.labels,
        });
        let manifest = Bytes::from(manifest.to_string());
        Ok(Image {
            digest: digest(&manifest)?,
            config_digest: digest(&config)?,
            config,
            manifest,
            spec: self,
        })
    }
}

fn go_architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn descriptor(media_type: &str, digest: &Digest, size: usize) -> Value {
    json!({"mediaType": media_type, "digest": digest, "size": size})
}

/// An image for one platform.
#[derive(Debug, Clone)]
pub struct Image {
    /// Digest of the manifest: bootc reports it, and pulls use it.
    pub digest: Digest,
    /// Digest of the configuration (the image ID).
    pub config_digest: Digest,
    /// The pushed manifest.
    pub manifest: Bytes,
    /// The pushed configuration.
    pub config: Bytes,
    /// Description that the image was built from.
    pub spec: ImageSpec,
}

impl Image {
    /// A minimal OS image: labels, and one layer with these bytes in `/usr/lib/berth-test`.
    pub fn tiny_os(version: &str, content: &[u8]) -> Result<Self> {
        Self::tiny_os_for(version, content, "amd64")
    }

    /// A minimal OS image for an architecture.
    pub fn tiny_os_for(version: &str, content: &[u8], architecture: &str) -> Result<Self> {
        let entry = Entry::file("usr/lib/berth-test".to_owned(), content.to_vec());
        let layer = Layer::from_entries(&[entry], Compression::Gzip)?;
        ImageSpec::os(version, vec![layer])
            .for_platform(architecture, None)
            .build()
    }

    /// Writes the image as an OCI layout in a tar file, for `ctr images import` and skopeo's `oci-archive:`. `name` is its full
    /// reference there.
    pub fn write_archive(&self, path: &Path, name: &str) -> Result<()> {
        let mut entry = descriptor(MANIFEST, &self.digest, self.manifest.len());
        entry["platform"] = self.platform();
        entry["annotations"] = json!({
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name,
        });
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
        let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
        let mut archive = tar::Builder::new(std::io::BufWriter::new(file));
        layer::append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        layer::append(&mut archive, "index.json", index.to_string().as_bytes())?;
        layer::append(&mut archive, &blob_path(&self.digest), &self.manifest)?;
        layer::append(&mut archive, &blob_path(&self.config_digest), &self.config)?;
        let mut seen = std::collections::BTreeSet::new();
        for layer in &self.spec.layers {
            if seen.insert(&layer.digest) {
                layer.append_to(&mut archive, &blob_path(&layer.digest))?;
            }
        }
        archive.into_inner()?.into_inner().context("writing the archive")?;
        Ok(())
    }

    fn platform(&self) -> Value {
        let mut platform = json!({"architecture": self.spec.architecture, "os": "linux"});
        if let Some(variant) = &self.spec.variant {
            platform["variant"] = json!(variant);
        }
        platform
    }
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/{}", digest.to_string().replace(':', "/"))
}

/// An index of images for several platforms.
#[derive(Debug, Clone)]
pub struct Index {
    /// Digest of the index: users pin it; hosts report the image's digest instead.
    pub digest: Digest,
    /// The pushed index.
    pub manifest: Bytes,
    /// Images of the index.
    pub images: Vec<Image>,
}

impl Index {
    /// An index of these images.
    pub fn new(images: Vec<Image>) -> Result<Self> {
        let manifests: Vec<Value> = images
            .iter()
            .map(|image| {
                let mut entry = descriptor(MANIFEST, &image.digest, image.manifest.len());
                entry["platform"] = image.platform();
                entry
            })
            .collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
        let manifest = Bytes::from(manifest.to_string());
        Ok(Self {
            digest: digest(&manifest)?,
            manifest,
            images,
        })
    }

    /// A minimal index of OS images for amd64 and arm64.
    pub fn tiny_os(version: &str, content: &[u8]) -> Result<Self> {
        Self::new(vec![
            Image::tiny_os_for(version, content, "amd64")?,
            Image::tiny_os_for(version, content, "arm64")?,
        ])
    }

    /// Returns the image for an architecture.
    pub fn image(&self, architecture: &str) -> Option<&Image> {
        self.images.iter().find(|image| image.spec.architecture == architecture)
    }
}
