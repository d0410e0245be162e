//! Layers of OS images: tar archives with their digests, compressed once and cached.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cache;
use super::shell::{run, sha256_file, tool};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Layer {
    /// Digest of the compressed blob, in hex digits.
    pub(super) blob: String,
    /// Digest of the archive, in hex digits.
    pub(super) diff: String,
    /// Size of the compressed blob in bytes.
    pub(super) size: u64,
    #[serde(skip)]
    pub(super) path: PathBuf,
}

/// Returns a layer; creates it if it is missing. `fill` returns the tree to archive and the arguments for `tar`.
pub(super) fn ensure(key: &str, fill: impl FnOnce(&Path) -> Result<(PathBuf, Vec<String>)>) -> Result<Layer> {
    let directory = cache::directory(&format!("oslayer-{key}"), |to| {
        let work = to.join("work");
        fs::create_dir(&work)?;
        let (tree, arguments) = fill(&work)?;
        archive(to, &tree, &arguments)?;
        fs::remove_dir_all(&work).context("removing the layer's tree")
    })?;
    let text = fs::read_to_string(directory.join("layer.json")).context("reading layer.json")?;
    let mut layer: Layer = serde_json::from_str(&text).context("parsing layer.json")?;
    layer.path = directory.join("blob.tar.gz");
    Ok(layer)
}

fn archive(to: &Path, tree: &Path, arguments: &[String]) -> Result<()> {
    let tar = to.join("layer.tar");
    let mut command = Command::new("tar");
    command.arg("-C").arg(tree).arg("-cf").arg(&tar);
    command.args(["--numeric-owner", "--sort=name", "--mtime=@0", "--format=gnu"]);
    command.args(arguments).arg(".");
    run(&mut command)?;
    let diff = sha256_file(&tar)?;
    tool("gzip", &["-n".as_ref(), "-1".as_ref(), tar.as_os_str()])?;
    let blob = to.join("blob.tar.gz");
    fs::rename(to.join("layer.tar.gz"), &blob)?;
    let layer = Layer {
        blob: sha256_file(&blob)?,
        diff,
        size: fs::metadata(&blob)?.len(),
        path: PathBuf::new(),
    };
    fs::write(to.join("layer.json"), serde_json::to_string(&layer)?)?;
    Ok(())
}
