//! Finds, downloads or builds the programs of the harness: etcd, the Kubernetes servers, a registry and Helm.
//!
//! In this order: the directory `KUBEBUILDER_ASSETS`; the cache; `PATH`, if the version matches; release binaries from the sites
//! in `tests/controlplane/releases.txt`; a build from the Go modules in `tests/controlplane` and `tests/helm`. Downloads and
//! builds go to the cache, by version.

mod cache;
mod find;
mod go;
mod modules;
mod packages;
mod progress;
mod release;
mod tool;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

pub use cache::cache_dir;
pub use find::find_program;
pub use packages::ensure_packages;
pub use tool::Tool;

pub(crate) use cache::{SCRATCH, exclusive};

/// Paths of the requested tools.
#[derive(Debug, Clone)]
pub struct Tools {
    paths: BTreeMap<Tool, PathBuf>,
}

impl Tools {
    /// Finds these tools; downloads or builds missing ones. The first build takes minutes and prints its progress to
    /// stderr.
    ///
    /// `KUBEBUILDER_ASSETS` has priority if it contains all requested Kubernetes binaries. It is not mixed with other
    /// versions, because a component must not be newer than its API server. Programs on `PATH` must have the minor
    /// version that would be built, so that they work with built programs.
    pub fn ensure(wanted: &[Tool]) -> Result<Self> {
        let (kubernetes, others): (Vec<Tool>, Vec<Tool>) = wanted.iter().partition(|tool| tool.is_of_kubernetes());
        let mut groups = vec![kubernetes];
        groups.extend(others.into_iter().map(|tool| vec![tool]));
        let mut paths = BTreeMap::new();
        let mut missing = vec![];
        for group in groups {
            if let Some(directory) = assets(&group) {
                paths.extend(group.iter().map(|tool| (*tool, directory.join(tool.file_name()))));
                continue;
            }
            for tool in group {
                match found(tool)? {
                    Some(path) => drop(paths.insert(tool, path)),
                    None => missing.push(tool),
                }
            }
        }
        if !missing.is_empty() {
            paths.extend(provide(&missing)?);
        }
        Ok(Self { paths })
    }

    /// Absolute path of a requested tool.
    pub fn path(&self, tool: Tool) -> Result<&Path> {
        self.paths
            .get(&tool)
            .map(PathBuf::as_path)
            .with_context(|| format!("{} was not requested", tool.file_name()))
    }

    /// All requested tools with their paths.
    pub fn iter(&self) -> impl Iterator<Item = (Tool, &Path)> {
        self.paths.iter().map(|(tool, path)| (*tool, path.as_path()))
    }
}

/// The directory `KUBEBUILDER_ASSETS`, if it has all of these.
fn assets(wanted: &[Tool]) -> Option<PathBuf> {
    let directory = fs::canonicalize(std::env::var_os("KUBEBUILDER_ASSETS")?).ok()?;
    wanted
        .iter()
        .all(|tool| directory.join(tool.file_name()).is_file())
        .then_some(directory)
}

/// Path of the tool in the cache, or of a matching one on `PATH`.
fn found(tool: Tool) -> Result<Option<PathBuf>> {
    let cached = tool.cached()?;
    if cached.is_file() {
        return Ok(Some(cached));
    }
    let Some(path) = find_program(tool.file_name()) else {
        return Ok(None);
    };
    let version = tool.version()?;
    if fits(version, &version_of(tool, &path)) {
        return Ok(Some(path));
    }
    eprintln!(
        "berth-tools: ignoring {}: it does not report version {version} or another patch release of it",
        path.display()
    );
    Ok(None)
}

/// Downloads or builds these tools into the cache.
fn provide(tools: &[Tool]) -> Result<Vec<(Tool, PathBuf)>> {
    // A second process finds the tools when it gets the lock.
    let _lock = exclusive()?;
    let mut missing = vec![];
    for tool in tools {
        let path = tool.cached()?;
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        if !path.is_file() {
            missing.push(*tool);
        }
    }
    let missing = release::fetch(&missing)?;
    let built = go::build(&missing);
    let mut paths = vec![];
    for tool in tools {
        let path = tool.cached()?;
        match &built {
            Err(error) if !path.is_file() => paths.push((*tool, packaged(*tool, error)?)),
            _ => paths.push((*tool, path)),
        }
    }
    Ok(paths)
}

/// Installs a tool from the distribution's package, after its build has failed with `error`. In Debian, only the
/// registry has a package.
fn packaged(tool: Tool, error: &anyhow::Error) -> Result<PathBuf> {
    if tool != Tool::Registry {
        bail!("{error:#}");
    }
    let name = "docker-registry";
    if let Some(path) = find_program(name) {
        return Ok(path);
    }
    ensure_packages(&[name]).with_context(|| format!("{error:#}"))?;
    find_program(name).context("the package docker-registry has no program docker-registry")
}

/// Version output of a program; empty if it does not exit soon.
fn version_of(tool: Tool, path: &Path) -> String {
    let asked: &[&str] = match tool {
        Tool::Kubectl => &["version", "--client"],
        Tool::Helm => &["version", "--short"],
        _ => &["--version"],
    };
    let output = Command::new("timeout").arg("10").arg(path).args(asked).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// True if the first version in a program's output has the wanted major and minor version.
fn fits(wanted: &str, said: &str) -> bool {
    let found = said
        .split_whitespace()
        .find_map(|word| minor(word.strip_prefix('v').unwrap_or(word)));
    found.is_some() && found == minor(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_binary_fits_by_its_minor_version() {
        for (wanted, said, expected) in [
            ("1.36.3", "Kubernetes v1.36.3", true),
            ("1.36.3", "Kubernetes v1.36.11", true),
            ("1.36.3", "Client Version: v1.36.0\nKustomize Version: v5.8.0\n", true),
            (
                "3.6.8",
                "etcd Version: 3.6.9\nGit SHA: 1a2b3c4\nGo Version: go1.25.1\n",
                true,
            ),
            ("3.0.0", "registry github.com/distribution/distribution/v3 v3.0.0", true),
            ("1.36.3", "Kubernetes v1.35.3", false),
            ("1.36.3", "Kubernetes v1.3.36", false),
            ("1.36.3", "Kubernetes v0.0.0-master+$Format:%H$", false),
            ("3.0.0", "Usage of registry:", false),
            ("3.0.0", "", false),
        ] {
            assert_eq!(fits(wanted, said), expected, "{wanted}: {said}");
        }
    }

    #[test]
    fn a_program_is_asked_for_its_version() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etcd");
        fs::write(&path, "#!/bin/sh\n[ $1 = --version ] && echo etcd Version: 3.6.1\n").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(fits("3.6.8", &version_of(Tool::Etcd, &path)));
        assert_eq!(version_of(Tool::Etcd, Path::new("/nowhere")), "");
    }
}
