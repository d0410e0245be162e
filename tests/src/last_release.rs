//! The last release of Berth, where upgrades start: its programs, built from its commit into the cache, and its manifests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::programs::{self, Programs, workspace_root};
use crate::tools::{SCRATCH, cache_dir, exclusive};

/// Tag and commit of the last release.
const LAST: &str = include_str!("../last-release.txt");

/// A release that was built.
#[derive(Debug, Clone)]
pub struct Release {
    /// Its version, without `v`.
    pub version: String,
    /// Its programs.
    pub programs: Programs,
    /// Its `manifests/`.
    pub manifests: PathBuf,
}

/// Builds the last release, once: the result stays in the cache. `None` if this checkout has no history of git with the
/// commit of the release.
pub fn last_release() -> Result<Option<Release>> {
    let (tag, commit) = parse(LAST)?;
    let directory = cache_dir()?.join(format!("release-{tag}-{}", commit.get(..12).unwrap_or(commit)));
    let release = Release {
        version: tag.trim_start_matches('v').to_owned(),
        programs: Programs {
            agent: directory.join("berth-agent"),
            controller: directory.join("berth-controller"),
        },
        manifests: directory.join("manifests"),
    };
    if directory.is_dir() {
        return Ok(Some(release));
    }
    if !has_commit(commit)? {
        return Ok(None);
    }
    let _lock = exclusive()?;
    if !directory.is_dir() {
        build(commit, &directory).with_context(|| format!("building {tag}, commit {commit}"))?;
    }
    Ok(Some(release))
}

fn parse(text: &str) -> Result<(&str, &str)> {
    let line = text.lines().find(|line| !line.is_empty() && !line.starts_with('#'));
    line.and_then(|line| line.split_once(' '))
        .context("tests/last-release.txt has no line with a tag and a commit")
}

fn git() -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(workspace_root());
    command
}

/// True if the checkout has this commit. False also if it is not a clone, or if git is missing.
fn has_commit(commit: &str) -> Result<bool> {
    let output = git().args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).output();
    match output {
        Ok(output) => Ok(output.status.success()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("cannot run git"),
    }
}

/// Builds the commit into the directory, which exists only if the build is complete.
fn build(commit: &str, directory: &Path) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(cache_dir()?)?;
    let source = scratch.path().join("source");
    unpack(commit, &source)?;
    let target = scratch.path().join("target").display().to_string();
    let packages = ["-p", "berth-agent", "-p", "berth-controller"];
    // These programs are not debugged, and debug information takes a third of the time.
    let settings = ["--locked", "--config", "profile.dev.debug=0", "--target-dir", &target];
    let built = Programs::of(&programs::build_in(&source, &[&packages[..], &settings].concat())?)?;
    let made = scratch.path().join("made");
    fs::create_dir(&made)?;
    fs::copy(&built.agent, made.join("berth-agent"))?;
    fs::copy(&built.controller, made.join("berth-controller"))?;
    fs::rename(source.join("manifests"), made.join("manifests"))?;
    fs::rename(&made, directory).with_context(|| format!("cannot make {}", directory.display()))
}

/// Writes the files of the commit into a new directory.
fn unpack(commit: &str, directory: &Path) -> Result<()> {
    let archive = git()
        .args(["archive", "--format=tar", commit])
        .output()
        .context("cannot run git")?;
    if !archive.status.success() {
        bail!("git archive failed: {}", String::from_utf8_lossy(&archive.stderr));
    }
    fs::create_dir(directory)?;
    tar::Archive::new(archive.stdout.as_slice())
        .unpack(directory)
        .context("cannot unpack the archive of git")
}
