//! Builds the tools from Go modules whose versions `tests/controlplane` fixes.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::progress::{Progress, time_left};
use super::{Tool, cache_dir};
use crate::process;

/// Beginning of the names of the directories that builds work in.
const SCRATCH: &str = ".build-";

/// Flags that make the build shorter. Nobody debugs these programs. What is not inlined is compiled sooner; the libraries beneath
/// Kubernetes, where a server spends its time, stay as fast as they are.
const COMPILER_FLAGS: [&str; 4] = [
    "-gcflags=all=-dwarf=false",
    "-gcflags=k8s.io/kubernetes/...=-dwarf=false -l",
    "-gcflags=k8s.io/client-go/...=-dwarf=false -l",
    "-gcflags=k8s.io/api/...=-dwarf=false -l",
];

/// A Go module of this repository.
#[derive(Debug)]
pub(super) struct GoModule {
    go_mod: &'static str,
    go_sum: &'static str,
    /// Its own program: the package's directory, and its source.
    program: (&'static str, &'static str),
}

pub(super) static KUBERNETES: GoModule = GoModule {
    go_mod: include_str!("../../controlplane/go.mod"),
    go_sum: include_str!("../../controlplane/go.sum"),
    program: ("servers", include_str!("../../controlplane/servers/main.go")),
};

pub(super) static REGISTRY: GoModule = GoModule {
    go_mod: include_str!("../../controlplane/registry/go.mod"),
    go_sum: include_str!("../../controlplane/registry/go.sum"),
    program: ("registry", include_str!("../../controlplane/registry/main.go")),
};

impl GoModule {
    /// The version (without `v`) that `go.mod` requires of a module.
    pub(super) fn version(&self, module: &str) -> Result<&'static str> {
        self.go_mod
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '))
            .find(|(name, _)| *name == module)
            .and_then(|(_, rest)| rest.split_whitespace().next()?.strip_prefix('v'))
            .with_context(|| format!("go.mod requires no {module}"))
    }
}

/// The package of a tool, and the name that Go gives to its program.
fn package(tool: Tool) -> (&'static str, &'static str) {
    match tool {
        Tool::Etcd => ("go.etcd.io/etcd/server/v3", "server"),
        Tool::Registry => ("./registry", "registry"),
        Tool::KubeApiserver | Tool::KubeControllerManager | Tool::KubeScheduler => ("./servers", "servers"),
        Tool::Kubectl => ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
        Tool::Kubelet => ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
    }
}

/// Builds these tools into the cache. The caller holds the lock of the tools.
///
/// # Errors
/// When Go is missing or a build fails; the error has the compiler's last words and says how to do without.
pub(super) fn build(tools: &[Tool]) -> Result<()> {
    if tools.is_empty() {
        return Ok(());
    }
    sweep(&cache_dir()?);
    let names: Vec<_> = tools.iter().map(|tool| tool.file_name()).collect();
    let names = names.join(", ");
    let hint = || {
        format!(
            "cannot build {names}: install Go 1.26 or newer, or get release binaries: put them on PATH, or into the directory \
             that KUBEBUILDER_ASSETS names"
        )
    };
    let mut builds = vec![];
    for module in [&KUBERNETES, &REGISTRY] {
        let wanted: Vec<Tool> = tools
            .iter()
            .copied()
            .filter(|tool| std::ptr::eq(tool.module(), module))
            .collect();
        if !wanted.is_empty() {
            builds.push(Build::prepare(module, wanted).with_context(hint)?);
        }
    }
    let progress = Progress::begin(&format!("building {names} from Go modules, once; it takes minutes"));
    run(&builds, progress).with_context(hint)?;
    for build in &builds {
        build.install()?;
    }
    Ok(())
}

/// A build of one module.
struct Build {
    tools: Vec<Tool>,
    packages: Vec<&'static str>,
    scratch: TempDir,
    flags: String,
}

impl Build {
    fn prepare(module: &GoModule, tools: Vec<Tool>) -> Result<Self> {
        let mut packages: Vec<_> = tools.iter().map(|tool| package(*tool).0).collect();
        packages.sort_unstable();
        packages.dedup();
        let scratch = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(cache_dir()?)?;
        let (directory, source) = module.program;
        fs::create_dir(scratch.path().join(directory))?;
        fs::write(scratch.path().join(directory).join("main.go"), source)?;
        fs::write(scratch.path().join("go.mod"), module.go_mod)?;
        fs::write(scratch.path().join("go.sum"), module.go_sum)?;
        let flags = match tools.iter().find(|tool| !matches!(tool, Tool::Etcd | Tool::Registry)) {
            Some(tool) => kubernetes_version(tool.version()?),
            None => String::new(),
        };
        Ok(Self {
            tools,
            packages,
            scratch,
            flags,
        })
    }

    fn go(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("go");
        command
            .current_dir(self.scratch.path())
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly")
            .env_remove("GOWORK")
            .args(arguments);
        command
    }

    /// Fetches the sources, and returns the number of packages to compile.
    fn count_packages(&self) -> Result<u64> {
        let mut command = self.go(&["list", "-deps"]);
        command.args(&self.packages);
        let output = process::with_parent(&command).output().context("cannot run go")?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("go list failed\n{}", process::last_lines(&text, 20));
        }
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        Ok(u64::try_from(lines)?)
    }

    /// Compiles and links. Gives each line of Go to `tell`: with `-v` a package, else an error.
    fn compile(&self, tell: &mpsc::Sender<String>) -> Result<()> {
        let mut command = self.go(&["build", "-v", "-trimpath", "-buildvcs=false"]);
        command
            .args(COMPILER_FLAGS)
            .arg(format!("-ldflags=-s -w {}", self.flags))
            .arg("-o")
            .arg(OsString::from(self.programs()))
            .args(&self.packages);
        fs::create_dir(self.programs())?;
        let mut child = process::with_parent(&command)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run go")?;
        let mut errors = vec![];
        for line in BufReader::new(child.stderr.take().context("go without standard error")?).lines() {
            let line = line.context("cannot read what go says")?;
            if line.contains(char::is_whitespace) {
                errors.push(line.clone());
            }
            // The receiver outlives the builds.
            let _ = tell.send(line);
        }
        if !child.wait().context("cannot wait for go")?.success() {
            bail!("go build failed\n{}", process::last_lines(&errors.join("\n"), 20));
        }
        Ok(())
    }

    fn programs(&self) -> PathBuf {
        self.scratch.path().join("bin")
    }

    /// Puts the programs into the cache, each at once, so that half a program is never found.
    fn install(&self) -> Result<()> {
        for tool in &self.tools {
            let program = self.programs().join(package(*tool).1);
            let link = self.scratch.path().join("link");
            fs::hard_link(&program, &link).with_context(|| format!("cannot link {}", program.display()))?;
            let path = tool.cached()?;
            fs::rename(&link, &path).with_context(|| format!("cannot move {} into the cache", path.display()))?;
        }
        Ok(())
    }
}

/// Runs the builds side by side, so that one links while the other compiles.
fn run(builds: &[Build], mut progress: Progress) -> Result<()> {
    let mut total = 0;
    for build in builds {
        total += build.count_packages()?;
    }
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let running: Vec<_> = builds
            .iter()
            .map(|build| {
                let tell = tell.clone();
                scope.spawn(move || build.compile(&tell))
            })
            .collect();
        drop(tell);
        let mut compiled = 0;
        loop {
            match told.recv_timeout(Duration::from_secs(1)) {
                Ok(line) if line.contains(char::is_whitespace) => {}
                Ok(_) => compiled += 1,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            progress.show(|elapsed| {
                let left = time_left(elapsed, compiled, total);
                format!("{compiled} of {total} Go packages are compiled{left}")
            });
        }
        for build in running {
            build
                .join()
                .map_err(|_| anyhow::anyhow!("a build ended unexpectedly"))??;
        }
        progress.end(&format!("{compiled} Go packages compiled, programs linked"));
        Ok(())
    })
}

/// Linker flags. Without a version a Kubernetes server calls itself v0.0.0, and version checks go wrong.
fn kubernetes_version(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
    let variable = "-X k8s.io/component-base/version.git";
    format!("{variable}Version=v{version} {variable}Major={major} {variable}Minor={minor} {variable}TreeState=clean")
}

/// Removes what builds that were killed left. The caller holds the lock of the tools, so none of it is in use.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            // It is only tidiness: what cannot be removed may stay.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
