//! Finding or building the programs that the harness runs: etcd, the Kubernetes servers and a registry.
//!
//! A release binary is taken where there is one: from the directory that `KUBEBUILDER_ASSETS` names, or from `PATH` if its
//! version fits. What nobody provides is built from Go modules whose versions are fixed in `tests/controlplane`, once per
//! version, into the cache directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// A program that the harness runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tool {
    /// The API server's store.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// Garbage collection, disruption budgets, service account tokens, node lifecycle.
    KubeControllerManager,
    /// The scheduler.
    KubeScheduler,
    /// The command line client.
    Kubectl,
    /// The node's agent, for real hosts.
    Kubelet,
    /// The image registry (CNCF distribution).
    Registry,
}

impl Tool {
    /// Every tool, cheapest and most needed first.
    pub const ALL: [Self; 7] = [
        Self::Etcd,
        Self::Registry,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubectl,
        Self::Kubelet,
        Self::KubeScheduler,
    ];

    /// The name of its file.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kubelet => "kubelet",
            Self::Registry => "registry",
        }
    }

    /// Version that is built, and that a release binary has to fit.
    fn version(self) -> Result<&'static str> {
        match self {
            Self::Etcd => KUBERNETES.version("go.etcd.io/etcd/server/v3"),
            Self::Registry => REGISTRY.version("github.com/distribution/distribution/v3"),
            _ => KUBERNETES.version("k8s.io/kubernetes"),
        }
    }

    fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".to_owned(),
            Self::Registry => "github.com/distribution/distribution/v3/cmd/registry".to_owned(),
            _ => format!("k8s.io/kubernetes/cmd/{}", self.file_name()),
        }
    }
}

/// A Go module of this repository that fixes the versions of some tools.
struct GoModule {
    go_mod: &'static str,
    go_sum: &'static str,
}

const KUBERNETES: GoModule = GoModule {
    go_mod: include_str!("../controlplane/go.mod"),
    go_sum: include_str!("../controlplane/go.sum"),
};

const REGISTRY: GoModule = GoModule {
    go_mod: include_str!("../controlplane/registry/go.mod"),
    go_sum: include_str!("../controlplane/registry/go.sum"),
};

impl GoModule {
    /// The version (without `v`) that `go.mod` requires of a module.
    fn version(&self, module: &str) -> Result<&'static str> {
        self.go_mod
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '))
            .find(|(name, _)| *name == module)
            .and_then(|(_, rest)| rest.split_whitespace().next()?.strip_prefix('v'))
            .with_context(|| format!("go.mod requires no {module}"))
    }
}

const BUILD_PREFIX: &str = ".build-";

/// Paths of the tools that were asked for.
#[derive(Debug, Clone)]
pub struct Tools {
    paths: BTreeMap<Tool, PathBuf>,
}

impl Tools {
    /// Finds these tools, and builds what is not there. The first build takes minutes, and says so on stderr.
    ///
    /// `KUBEBUILDER_ASSETS` wins if it has all the Kubernetes binaries asked for: a mixture of versions
    /// would break the rule that no component may be newer than its API server. Programs on `PATH` must be of the minor
    /// version that would be built, so that they mix with those.
    pub fn ensure(wanted: &[Tool]) -> Result<Self> {
        let mut paths = BTreeMap::new();
        let kubernetes: Vec<Tool> = wanted.iter().copied().filter(|tool| *tool != Tool::Registry).collect();
        match assets(&kubernetes) {
            Some(directory) => {
                for tool in kubernetes {
                    paths.insert(tool, directory.join(tool.file_name()));
                }
            }
            None => {
                for tool in kubernetes {
                    paths.insert(tool, provided(tool)?);
                }
            }
        }
        if wanted.contains(&Tool::Registry) {
            paths.insert(Tool::Registry, registry()?);
        }
        Ok(Self { paths })
    }

    /// The absolute path of a tool that was asked for.
    pub fn path(&self, tool: Tool) -> Result<&Path> {
        self.paths
            .get(&tool)
            .map(PathBuf::as_path)
            .with_context(|| format!("{} was not asked for", tool.file_name()))
    }

    /// Every tool with its path.
    pub fn iter(&self) -> impl Iterator<Item = (Tool, &Path)> {
        self.paths.iter().map(|(tool, path)| (*tool, path.as_path()))
    }
}

/// The harness's cache: `$XDG_CACHE_HOME/berth`, else `~/.cache/berth`. Made if it is not there.
pub fn cache_dir() -> Result<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME names a directory for the cache")?;
    let directory = base.join("berth");
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory)
}

/// The directory that `KUBEBUILDER_ASSETS` names, if it has all of these.
fn assets(wanted: &[Tool]) -> Option<PathBuf> {
    let directory = fs::canonicalize(std::env::var_os("KUBEBUILDER_ASSETS")?).ok()?;
    wanted
        .iter()
        .all(|tool| directory.join(tool.file_name()).is_file())
        .then_some(directory)
}

/// The tool from the cache, else from `PATH`, else built into the cache.
fn provided(tool: Tool) -> Result<PathBuf> {
    let version = tool.version()?;
    let (module, name) = match tool {
        Tool::Registry => (REGISTRY, format!("registry-{version}")),
        _ => {
            let (kubernetes, etcd) = (Tool::KubeApiserver.version()?, Tool::Etcd.version()?);
            (KUBERNETES, format!("controlplane-k8s-{kubernetes}-etcd-{etcd}"))
        }
    };
    let directory = cache_dir()?.join(name);
    let path = directory.join(tool.file_name());
    if path.is_file() {
        return Ok(path);
    }
    if let Some(found) = find_program(tool.file_name()) {
        match fits(version, &version_of(tool, &found)) {
            true => return Ok(found),
            false => eprintln!(
                "berth-tools: {} does not say that it is {version} or another patch of it: not used",
                found.display()
            ),
        }
    }
    fs::create_dir_all(&directory)?;
    // Two test processes must not both build it; the second finds it when the lock is free.
    let lock = File::create(directory.join(".lock"))?;
    if lock.try_lock().is_err() {
        eprintln!(
            "berth-tools: waiting for another process that builds {name}",
            name = tool.file_name()
        );
        lock.lock().context("waiting for the build lock")?;
    }
    if !path.is_file() {
        build(tool, &module, &directory, &path)?;
    }
    Ok(path)
}

/// A program's words about its version; empty if it does not end soon.
fn version_of(tool: Tool, path: &Path) -> String {
    let asked: &[&str] = match tool {
        Tool::Kubectl => &["version", "--client"],
        _ => &["--version"],
    };
    let output = Command::new("timeout").arg("10").arg(path).args(asked).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Compares the first version in what a program said with the wanted one, up to the minor version.
fn fits(wanted: &str, said: &str) -> bool {
    let minor = |version: &str| {
        let mut parts = version.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let found = said
        .split_whitespace()
        .find_map(|word| minor(word.strip_prefix('v').unwrap_or(word)));
    found.is_some() && found == minor(wanted)
}

/// Builds the tool beside `path` and renames it there, so that half a binary is never found.
fn build(tool: Tool, module: &GoModule, directory: &Path, path: &Path) -> Result<()> {
    let name = tool.file_name();
    let started = Instant::now();
    eprintln!("berth-tools: building {name} from its Go module, once; it may take minutes");
    sweep(directory);
    let scratch = tempfile::Builder::new().prefix(BUILD_PREFIX).tempdir_in(directory)?;
    fs::write(scratch.path().join("go.mod"), module.go_mod)?;
    fs::write(scratch.path().join("go.sum"), module.go_sum)?;
    let binary = scratch.path().join(name);
    let mut command = Command::new("go");
    command
        .current_dir(scratch.path())
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly")
        .env_remove("GOWORK")
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags"])
        .arg(linker_flags(tool)?)
        .arg("-o")
        .args([binary.as_os_str(), OsString::from(tool.package()).as_os_str()]);
    let output = process::with_parent(&command).output().with_context(|| missing(tool))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{}\n{}", missing(tool), process::last_lines(&text, 20));
    }
    fs::rename(&binary, path).with_context(|| format!("moving {name} into the cache"))?;
    say(name, "built", started.elapsed());
    Ok(())
}

/// Removes what builds that were killed left. The caller has the build lock, so none of it is in use.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(BUILD_PREFIX) {
            // It is only tidiness: what cannot be removed may stay.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The linker flags. Without a version a Kubernetes server calls itself v0.0.0, and version checks go wrong.
fn linker_flags(tool: Tool) -> Result<String> {
    if matches!(tool, Tool::Etcd | Tool::Registry) {
        return Ok("-s -w".to_owned());
    }
    let version = tool.version()?;
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
    let variable = "-X k8s.io/component-base/version.git";
    Ok(format!(
        "-s -w {variable}Version=v{version} {variable}Major={major} {variable}Minor={minor} \
         {variable}TreeState=clean"
    ))
}

fn missing(tool: Tool) -> String {
    format!(
        "{} is not here and could not be built: install Go 1.26 or newer, or get a release binary of {}: put it on PATH, \
         or into the directory that KUBEBUILDER_ASSETS names",
        tool.file_name(),
        tool.version().unwrap_or("the version in tests/controlplane")
    )
}

/// The registry: as every other tool, else the distribution's package.
fn registry() -> Result<PathBuf> {
    if let Some(directory) = assets(&[Tool::Registry]) {
        return Ok(directory.join(Tool::Registry.file_name()));
    }
    let built = provided(Tool::Registry);
    if built.is_ok() {
        return built;
    }
    let name = "docker-registry";
    if let Some(path) = find_program(name) {
        return Ok(path);
    }
    ensure_packages(&[name])
        .with_context(|| format!("{:#}", built.err().unwrap_or_else(|| anyhow::anyhow!("no registry"))))?;
    find_program(name).context("the package docker-registry has no program of that name")
}

/// Looks a program up on `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Sees to it that these distribution packages are installed.
///
/// As root on Debian and its relatives what is missing gets installed; elsewhere the error says what to run.
pub fn ensure_packages(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let command = format!("apt-get install --no-install-recommends {list}");
    if find_program("apt-get").is_none() {
        bail!(
            "packages are missing ({list}, by their Debian names) and only apt-get is known here; on Debian: {command}"
        );
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("packages are missing; run: sudo {command}");
    }
    let lock = File::create(cache_dir()?.join(".packages.lock"))?;
    lock.lock().context("waiting for another installation")?;
    let started = Instant::now();
    eprintln!("berth-tools: installing {list}");
    apt_get(&missing)
        .or_else(|_| apt(&["update", "-q"]).and_then(|()| apt_get(&missing)))
        .with_context(|| format!("{command} failed"))?;
    say(&list, "installed", started.elapsed());
    Ok(())
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

fn apt_get(packages: &[&str]) -> Result<()> {
    let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .output()
        .context("apt-get")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{}", process::last_lines(&text, 10));
    }
    Ok(())
}

fn say(what: &str, done: &str, time: Duration) {
    eprintln!("berth-tools: {what}: {done} in {:.1} s", time.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        assert_eq!(KUBERNETES.version("k8s.io/kubernetes").unwrap(), "1.36.3");
        assert_eq!(
            REGISTRY.version("github.com/distribution/distribution/v3").unwrap(),
            "3.0.0"
        );
        assert!(KUBERNETES.version("example.com/none").is_err());
    }

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

    #[test]
    fn a_package_that_cannot_be_is_not_installed() {
        assert!(!is_installed("berth-no-such-package"));
        assert!(is_installed("coreutils") || find_program("dpkg-query").is_none());
    }
}
