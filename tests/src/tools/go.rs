//! Builds the tools from Go modules with the versions pinned in `tests/controlplane` and `tests/helm`.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::cache::{SCRATCH, cache_dir};
use super::modules::{GoModule, HELM, KUBERNETES, REGISTRY};
use super::progress::{Progress, time_left};
use super::tool::Tool;
use crate::process;

/// Flags for a faster build. Debug information is off, because these programs are not debugged. Inlining stays on only
/// in the libraries below Kubernetes, where servers spend most of their time.
const COMPILER_FLAGS: [&str; 4] = [
    "-gcflags=all=-dwarf=false",
    "-gcflags=k8s.io/kubernetes/...=-dwarf=false -l",
    "-gcflags=k8s.io/client-go/...=-dwarf=false -l",
    "-gcflags=k8s.io/api/...=-dwarf=false -l",
];

/// Go package of a tool, and the file name of its program.
fn package(tool: Tool) -> (&'static str, &'static str) {
    match tool {
        Tool::Etcd => ("go.etcd.io/etcd/server/v3", "server"),
        Tool::Registry => ("./registry", "registry"),
        Tool::KubeApiserver | Tool::KubeControllerManager | Tool::KubeScheduler => ("./servers", "servers"),
        Tool::Kubectl => ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
        Tool::Kubelet => ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        Tool::Helm => ("helm.sh/helm/v4/cmd/helm", "helm"),
    }
}

/// Builds these tools into the cache. The caller holds the tools' lock.
pub(super) fn build(tools: &[Tool]) -> Result<()> {
    if tools.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = tools.iter().map(|tool| tool.file_name()).collect();
    let names = names.join(", ");
    build_all(tools, &names).with_context(|| {
        format!(
            "cannot build {names}: install Go 1.26 or newer, or get release binaries: put them on PATH, or into the directory \
             that KUBEBUILDER_ASSETS names"
        )
    })
}

fn build_all(tools: &[Tool], names: &str) -> Result<()> {
    let mut builds = vec![];
    for module in [&KUBERNETES, &REGISTRY, &HELM] {
        let wanted: Vec<Tool> = tools
            .iter()
            .copied()
            .filter(|tool| std::ptr::eq(tool.module(), module))
            .collect();
        if !wanted.is_empty() {
            builds.push(Build::prepare(module, wanted)?);
        }
    }
    let progress = Progress::begin(&format!("building {names} from Go modules, once; it takes minutes"));
    let ends = run(&builds, progress);
    let mut all_well = Ok(());
    for (build, end) in builds.iter().zip(ends) {
        match end {
            Ok(()) => build.install()?,
            Err(error) => all_well = Err(error),
        }
    }
    all_well
}

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
        if let Some((directory, source)) = module.program {
            fs::create_dir(scratch.path().join(directory))?;
            fs::write(scratch.path().join(directory).join("main.go"), source)?;
        }
        fs::write(scratch.path().join("go.mod"), module.go_mod)?;
        fs::write(scratch.path().join("go.sum"), module.go_sum)?;
        let flags = match tools.iter().find(|tool| !matches!(tool, Tool::Etcd | Tool::Registry)) {
            Some(Tool::Helm) => helm_version(Tool::Helm.version()?),
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

    /// Downloads the sources; returns the number of packages to compile.
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

    /// Downloads the sources, compiles and links.
    fn run(&self, events: &mpsc::Sender<BuildEvent>) -> Result<()> {
        // The receiver outlives the builds.
        let _ = events.send(BuildEvent::Packages(self.count_packages()?));
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
        for line in BufReader::new(child.stderr.take().context("go has no standard error")?).lines() {
            let line = line.context("cannot read the output of go")?;
            // With -v Go prints the name of each package on its own line. Other lines are errors.
            if line.contains(char::is_whitespace) {
                errors.push(line);
            } else {
                let _ = events.send(BuildEvent::Compiled);
            }
        }
        if !child.wait().context("cannot wait for go")?.success() {
            bail!("go build failed\n{}", process::last_lines(&errors.join("\n"), 20));
        }
        Ok(())
    }

    fn programs(&self) -> PathBuf {
        self.scratch.path().join("bin")
    }

    /// Moves the programs to the cache atomically, so that other processes never find a partial program.
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

enum BuildEvent {
    /// The sources are downloaded; this many packages are to be compiled.
    Packages(u64),
    /// A package is compiled.
    Compiled,
}

/// Runs the builds in parallel, so that one links while the other compiles. Returns the result of each.
fn run(builds: &[Build], mut progress: Progress) -> Vec<Result<()>> {
    let (events, received) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut running = vec![];
        for build in builds {
            let events = events.clone();
            running.push(scope.spawn(move || build.run(&events)));
        }
        drop(events);
        let (mut compiled, mut total) = (0, 0);
        loop {
            match received.recv_timeout(Duration::from_secs(1)) {
                Ok(BuildEvent::Packages(packages)) => total += packages,
                Ok(BuildEvent::Compiled) => compiled += 1,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            progress.show(|elapsed| line(compiled, total, elapsed));
        }
        let mut ends = vec![];
        for build in running {
            ends.push(build.join().unwrap_or_else(|_| bail!("a build panicked")));
        }
        progress.end(&format!("{compiled} Go packages compiled, programs linked"));
        ends
    })
}

fn line(compiled: u64, total: u64, elapsed: Duration) -> String {
    if total == 0 {
        return "fetching the sources".to_owned();
    }
    format!(
        "{compiled} of {total} Go packages compiled{}",
        time_left(elapsed, compiled, total)
    )
}

/// Linker flags that set the version of a Kubernetes server. Without them, the server reports v0.0.0 and version checks
/// fail.
fn kubernetes_version(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
    let variable = "-X k8s.io/component-base/version.git";
    format!("{variable}Version=v{version} {variable}Major={major} {variable}Minor={minor} {variable}TreeState=clean")
}

/// Linker flag that sets the version that Helm reports.
fn helm_version(version: &str) -> String {
    format!("-X helm.sh/helm/v4/internal/version.version=v{version}")
}
