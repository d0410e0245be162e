//! Fetches an image into the repository, layer by layer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use berth_tests::bootc::document::ImageReference;
use berth_tests::bootc::progress::{self as events, Pull};

use crate::image::{BLOBS, IMAGES, Image, Layer, image_ref};
use crate::origin::Origin;
use crate::ostree::{META_CONFIG, META_DIGEST, META_MANIFEST, layer_ref};
use crate::progress::Progress;
use crate::proxy::Proxy;
use crate::sysroot::Sysroot;
use crate::throttle::Throttle;

/// Layers are from a container's root file system: their `/etc` becomes `/usr/etc` in ostree.
const ETC: &str = "--tar-pathname-filter=^(\\./)?etc(/|$),usr/etc/";

#[derive(Debug)]
pub(crate) struct Pulled {
    pub(crate) commit: String,
    pub(crate) image: Image,
}

#[derive(Debug)]
pub(crate) struct Prepared {
    proxy: Proxy,
    number: u64,
    pub(crate) image: Image,
}

/// Returns an image that was pulled before by digest, so that no registry is needed.
pub(crate) fn present(sysroot: &Sysroot, reference: &ImageReference) -> Result<Option<Pulled>> {
    let Ok(commit) = sysroot.ostree(&["rev-parse", &image_ref(reference)]) else {
        return Ok(None);
    };
    let commit = commit.trim().to_owned();
    let pinned = reference.image.split_once('@').map(|(_, digest)| digest);
    Ok(Image::of_commit(sysroot, &commit)?
        .filter(|image| pinned == Some(image.digest.as_str()))
        .map(|image| Pulled { commit, image }))
}

pub(crate) fn prepare(source: &str) -> Result<Prepared> {
    fetch_image(source)
        .context("Fetching manifest")
        .context("Preparing import")
}

fn fetch_image(source: &str) -> Result<Prepared> {
    let proxy = Proxy::start()?;
    let number = proxy.open(source)?;
    let (digest, manifest) = proxy.manifest(number)?;
    let config = proxy.config(number)?;
    let image = Image {
        digest,
        manifest,
        config,
    };
    Ok(Prepared { proxy, number, image })
}

pub(crate) fn import(
    sysroot: &Sysroot,
    reference: &ImageReference,
    prepared: Prepared,
    progress: &mut Progress,
) -> Result<Pulled> {
    let image = prepared.image.clone();
    image.check()?;
    let layers = image.layers()?;
    let known = refs(sysroot, BLOBS)?;
    let (cached, missing): (Vec<&Layer>, Vec<&Layer>) = layers
        .iter()
        .partition(|layer| known.contains(&layer_ref(&layer.digest)));
    let mut count = Pull::new(&image.digest, &sizes(&cached), &sizes(&missing));
    let scratch = scratch(sysroot)?;
    let mut throttle = Throttle::from_host();
    for layer in missing {
        count.begin(&layer.digest, layer.size);
        progress.send(&count.event());
        let file = scratch.join(layer.digest.replace(':', "-"));
        fetch(&prepared, layer, &file, &mut throttle, &mut |bytes| {
            count.add(bytes);
            progress.send_lossy(|| count.event());
        })
        .context("Importing")
        .context("Pulling")?;
        commit_layer(sysroot, layer, &file)
            .context("Importing")
            .context("Pulling")?;
        std::fs::remove_file(&file).context("removing a fetched layer")?;
        count.end();
        progress.send(&count.event());
    }
    drop(prepared);
    progress.send(&events::importing(&image.digest, 0));
    let commit = merge(sysroot, reference, &image, &layers)?;
    progress.send(&events::importing(&image.digest, 1));
    Ok(Pulled { commit, image })
}

fn sizes(layers: &[&Layer]) -> Vec<u64> {
    layers.iter().map(|layer| layer.size).collect()
}

fn fetch(
    prepared: &Prepared,
    layer: &Layer,
    to: &Path,
    throttle: &mut Throttle,
    seen: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut data = prepared.proxy.blob(prepared.number, &layer.digest, layer.size)?;
    let mut file = File::create(to).with_context(|| format!("making {}", to.display()))?;
    let mut buffer = vec![0u8; throttle.chunk()];
    loop {
        let length = data.read(&mut buffer).context("reading a layer")?;
        let Some(bytes) = buffer.get(..length).filter(|b| !b.is_empty()) else {
            break;
        };
        file.write_all(bytes).context("writing a layer")?;
        throttle.pass(bytes.len() as u64);
        seen(bytes.len() as u64);
    }
    prepared.proxy.finish(data)
}

fn commit_layer(sysroot: &Sysroot, layer: &Layer, file: &Path) -> Result<()> {
    let branch = format!("--branch={}", layer_ref(&layer.digest));
    let tree = format!("--tree=tar={}", file.display());
    let common = ["--parent=none", "--no-bindings", "--tar-autocreate-parents", ETC];
    let mut args = vec!["commit", branch.as_str(), tree.as_str()];
    args.extend(common);
    sysroot.ostree(&args).map(drop)
}

/// Merges the layers into a commit. Layers that delete files of lower layers are not supported (test images have none).
fn merge(sysroot: &Sysroot, reference: &ImageReference, image: &Image, layers: &[Layer]) -> Result<String> {
    let mut args = vec![
        "commit".to_owned(),
        format!("--branch={}", image_ref(reference)),
        "--parent=none".to_owned(),
        "--no-bindings".to_owned(),
        format!("--add-metadata-string={META_DIGEST}={}", image.digest),
        format!("--add-metadata-string={META_MANIFEST}={}", image.manifest),
        format!("--add-metadata-string={META_CONFIG}={}", image.config),
    ];
    args.extend(
        layers
            .iter()
            .map(|layer| format!("--tree=ref={}", layer_ref(&layer.digest))),
    );
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Ok(sysroot.ostree(&args)?.trim().to_owned())
}

pub(crate) fn forget_unused(sysroot: &Sysroot) -> Result<()> {
    let (mut images, mut layers) = (BTreeSet::new(), BTreeSet::new());
    for deployment in sysroot.deployments()? {
        let reference = Origin::parse(&sysroot.origin(&deployment)?)?.image;
        if let Some((reference, image)) = reference.zip(Image::of_commit(sysroot, &deployment.checksum)?) {
            images.insert(image_ref(&reference));
            layers.extend(image.layers()?.iter().map(|layer| layer_ref(&layer.digest)));
        }
    }
    let mut unused: Vec<String> = refs(sysroot, IMAGES)?.difference(&images).cloned().collect();
    unused.extend(refs(sysroot, BLOBS)?.difference(&layers).cloned());
    for name in &unused {
        sysroot.ostree(&["refs", "--delete", name])?;
    }
    if !unused.is_empty() {
        sysroot.admin(&["cleanup"])?;
    }
    Ok(())
}

fn refs(sysroot: &Sysroot, prefix: &str) -> Result<BTreeSet<String>> {
    let text = sysroot.ostree(&["refs", "--list", prefix])?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Creates an empty directory for partial layers; removes leftovers of a killed pull.
fn scratch(sysroot: &Sysroot) -> Result<PathBuf> {
    let path = sysroot.repo().join("tmp/standin-bootc");
    if path.exists() {
        std::fs::remove_dir_all(&path).context("emptying the scratch directory")?;
    }
    std::fs::create_dir_all(&path).context("making the scratch directory")?;
    Ok(path)
}
