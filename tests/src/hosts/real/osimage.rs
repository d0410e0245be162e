//! Bootable OS images in many cheap versions.
//!
//! All versions share the layers below: Debian, the kubelet, bootc, and the files of a test host. Each version adds a
//! file with its name and some megabytes of random bytes, so that there is something to pull.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::layers::{self, Layer};
use super::root::{self, Root};
use super::shell::{sha256, sha256_file, tool};
use super::{content, guest, programs};

/// Packages that this computer needs in addition to Debian's base.
const PACKAGES: [&str; 7] = [
    "mmdebstrap",
    "systemd-container",
    "skopeo",
    "ostree",
    "iproute2",
    "util-linux",
    "e2fsprogs",
];

/// Layers shared by all OS images of a run.
#[derive(Debug, Clone)]
pub struct OsImages {
    pub(super) root: Root,
    pub(super) bootc: PathBuf,
    base: Vec<Layer>,
}

/// An OS image of one version.
#[derive(Debug, Clone)]
pub struct OsImage {
    /// Its label `org.opencontainers.image.version`.
    pub version: String,
    /// Manifest digest, `sha256:…`.
    pub digest: String,
    pub(super) layout: PathBuf,
}

/// Content that distinguishes a version from other versions.
#[derive(Debug, Clone)]
pub struct OsVersion {
    /// Name of the version, such as `1.0.0`.
    pub version: String,
    /// Sizes of the version's own layers, which contain random bytes.
    pub payload: Vec<u64>,
    /// Files of this version only: path, permissions, content.
    pub files: Vec<(String, u32, Vec<u8>)>,
    /// Links of this version only: path, target.
    pub links: Vec<(String, String)>,
    /// Additional labels.
    pub labels: Vec<(String, String)>,
}

impl OsVersion {
    /// A version with one layer of 2 MB.
    pub fn new(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            payload: vec![2 << 20],
            files: Vec::new(),
            links: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Binds another image to the version. bootc then pulls both images.
    pub fn bound_to(mut self, image: &str) -> Self {
        let quadlet = "usr/share/containers/systemd/bound.image";
        let text = format!("[Image]\nImage={image}\n");
        self.files.push((quadlet.to_owned(), 0o644, text.into_bytes()));
        let link = "usr/lib/bootc/bound-images.d/bound.image";
        self.links.push((link.to_owned(), format!("/{quadlet}")));
        self
    }
}

impl OsImages {
    /// Returns the shared layers; creates them if they are missing. `kubelet` is the program for hosts that are nodes.
    ///
    /// The first run takes a minute or two, later ones milliseconds. `BERTH_TEST_BOOTC` may be the path of a real bootc,
    /// `BERTH_TEST_RPM_OSTREE` a directory with a real rpm-ostree.
    pub fn ensure(kubelet: Option<&Path>) -> Result<Self> {
        crate::tools::ensure_packages(&PACKAGES)?;
        let real = std::env::var_os("BERTH_TEST_BOOTC").map(PathBuf::from);
        let rpm_ostree = super::rpm_ostree::real();
        let root = root::ensure(real.is_some(), rpm_ostree.is_some())?;
        let stand_in = programs::stand_in("standin-bootc")?;
        let mut base = vec![debian(&root)?];
        if let Some(kubelet) = kubelet {
            base.push(binary_layer("usr/bin/kubelet", kubelet)?);
        }
        let bootc = real.unwrap_or_else(|| stand_in.clone());
        base.push(binary_layer("usr/bin/bootc", &bootc)?);
        if let Some(tree) = &rpm_ostree {
            base.push(tree_layer("rpm-ostree", tree)?);
        }
        base.push(host_layer()?);
        Ok(Self {
            root,
            bootc: stand_in,
            base,
        })
    }

    /// Returns the image of a version; builds it if it is missing.
    pub fn version(&self, version: &OsVersion) -> Result<OsImage> {
        let mut layers = self.base.clone();
        for (number, bytes) in version.payload.iter().enumerate() {
            layers.push(payload_layer(&version.version, number, *bytes)?);
        }
        layers.push(version_layer(version)?);
        self.layout(version, &layers)
    }

    fn layout(&self, version: &OsVersion, layers: &[Layer]) -> Result<OsImage> {
        let config = config(version, layers).to_string();
        let manifest = manifest(&config, layers).to_string();
        let digest = sha256(manifest.as_bytes());
        let name = format!("osimage-{}", digest.get(..16).unwrap_or(&digest));
        let layout = super::cache::directory(&name, |to| {
            super::cache::prune("osimage-", 50)?;
            super::cache::prune("oslayer-", 100)?;
            let blobs = to.join("blobs/sha256");
            fs::create_dir_all(&blobs)?;
            fs::write(blobs.join(sha256(config.as_bytes())), &config)?;
            fs::write(blobs.join(&digest), &manifest)?;
            for layer in layers {
                fs::hard_link(&layer.path, blobs.join(&layer.blob))?;
            }
            let index = json!({
                "schemaVersion": 2,
                "manifests": [{
                    "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "digest": format!("sha256:{digest}"),
                    "size": manifest.len(),
                }],
            });
            fs::write(to.join("index.json"), index.to_string())?;
            fs::write(to.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
            Ok(())
        })?;
        Ok(OsImage {
            version: version.version.clone(),
            digest: format!("sha256:{digest}"),
            layout,
        })
    }
}

impl OsImage {
    /// Pushes the image as `HOST/REPOSITORY:TAG`; returns the reference by digest, `HOST/REPOSITORY@sha256:…`.
    pub fn push(&self, registry: &str, repository: &str, tag: &str) -> Result<String> {
        let to = format!("docker://{registry}/{repository}:{tag}");
        let from = format!("oci:{}", self.layout.display());
        let policy = "--insecure-policy";
        tool(
            "skopeo",
            &[policy, "copy", "--quiet", "--dest-tls-verify=false", &from, &to],
        )
        .with_context(|| format!("pushing {to}"))?;
        Ok(self.reference(registry, repository))
    }

    /// Returns the reference by digest.
    pub fn reference(&self, registry: &str, repository: &str) -> String {
        format!("{registry}/{repository}@{}", self.digest)
    }
}

fn config(version: &OsVersion, layers: &[Layer]) -> Value {
    let mut labels = serde_json::Map::new();
    labels.insert("containers.bootc".into(), json!("1"));
    labels.insert("ostree.bootable".into(), json!("true"));
    labels.insert("org.opencontainers.image.version".into(), json!(version.version));
    for (name, value) in &version.labels {
        labels.insert(name.clone(), json!(value));
    }
    let diffs: Vec<String> = layers.iter().map(|l| format!("sha256:{}", l.diff)).collect();
    json!({
        "created": "2026-01-01T00:00:00Z",
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": diffs},
        "history": layers.iter().map(|_| json!({"created_by": "berth-tests"})).collect::<Vec<_>>(),
    })
}

fn manifest(config: &str, layers: &[Layer]) -> Value {
    let mut described = vec![];
    for layer in layers {
        described.push(json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": format!("sha256:{}", layer.blob),
            "size": layer.size,
        }));
    }
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": format!("sha256:{}", sha256(config.as_bytes())),
            "size": config.len(),
        },
        "layers": described,
    })
}

/// A layer with Debian, without unused files and without files that differ between machines.
fn debian(root: &Root) -> Result<Layer> {
    let left_out = [
        "var/*",
        "boot/*",
        "dev/*",
        "run/*",
        "tmp/*",
        "proc/*",
        "sys/*",
        "etc/machine-id",
        "etc/hostname",
        "etc/resolv.conf",
        "usr/share/doc/*",
        "usr/share/man/*",
        "usr/share/locale/*",
    ];
    layers::ensure(&format!("root-{}", root.key), |_| {
        let exclude = left_out.iter().map(|path| format!("--exclude=./{path}"));
        let mut arguments: Vec<String> = vec!["--anchored".to_owned()];
        arguments.extend(exclude);
        Ok((root.path.clone(), arguments))
    })
}

fn binary_layer(path: &str, binary: &Path) -> Result<Layer> {
    let hash = sha256_file(binary).with_context(|| format!("reading {}", binary.display()))?;
    let name = path.rsplit('/').next().unwrap_or(path);
    layers::ensure(&format!("{name}-{}", short(&hash)), |work| {
        content::put(work, path, 0o755, &fs::read(binary)?)?;
        Ok((work.to_owned(), owned()))
    })
}

fn tree_layer(name: &str, tree: &Path) -> Result<Layer> {
    let list = ["-printf", r"%P %y %m %s %T@ %l\n"];
    let mut lines: Vec<String> = tool("find", &[tree.as_os_str(), list[0].as_ref(), list[1].as_ref()])?
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort_unstable();
    let hash = sha256(lines.join("\n").as_bytes());
    layers::ensure(&format!("{name}-{}", short(&hash)), |_| Ok((tree.to_owned(), owned())))
}

/// A layer with the files that a test host needs in addition to Debian.
fn host_layer() -> Result<Layer> {
    let guest = guest::ensure()?;
    let hash = sha256(format!("{}{}", content::hash(), guest.digest).as_bytes());
    layers::ensure(&format!("host-{}", short(&hash)), |work| {
        content::write(work)?;
        content::put(
            work,
            "usr/lib/guest-images/guest.tar",
            0o644,
            &fs::read(&guest.archive)?,
        )?;
        Ok((work.to_owned(), owned()))
    })
}

/// A layer of random bytes, the same for the same version in every run.
fn payload_layer(version: &str, number: usize, bytes: u64) -> Result<Layer> {
    let name = format!("{version}-{number}");
    let hash = sha256(format!("{name} {bytes}").as_bytes());
    layers::ensure(&format!("payload-{}", short(&hash)), |work| {
        let mut data = vec![0; usize::try_from(bytes)?];
        // gzip cannot compress it.
        fastrand::Rng::with_seed(u64::from_str_radix(short(&hash), 16)?).fill(&mut data);
        content::put(work, &format!("usr/lib/os-payload/{number}"), 0o644, &data)?;
        Ok((work.to_owned(), owned()))
    })
}

fn version_layer(version: &OsVersion) -> Result<Layer> {
    let hash = sha256(format!("{} {:?} {:?}", version.version, version.files, version.links).as_bytes());
    layers::ensure(&format!("version-{}", short(&hash)), |work| {
        let text = format!("{}\n", version.version);
        content::put(work, "usr/lib/os-version", 0o644, text.as_bytes())?;
        for (path, mode, bytes) in &version.files {
            content::put(work, path, *mode, bytes)?;
        }
        for (path, target) in &version.links {
            content::link(work, path, target)?;
        }
        Ok((work.to_owned(), owned()))
    })
}

fn owned() -> Vec<String> {
    vec!["--owner=0".to_owned(), "--group=0".to_owned()]
}

fn short(hash: &str) -> &str {
    hash.get(..16).unwrap_or(hash)
}
