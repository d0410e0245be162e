//! Berth's own programs, built in the profile of the tests or as shipped. Cargo reports their paths.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::locked::locked;

/// Paths of the programs under test.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `berth-agent`.
    pub agent: PathBuf,
    /// `berth-controller`.
    pub controller: PathBuf,
}

impl Programs {
    pub(crate) fn of(found: &Paths) -> Result<Self> {
        Ok(Self {
            agent: take(found, "berth-agent")?,
            controller: take(found, "berth-controller")?,
        })
    }
}

pub(crate) type Paths = BTreeMap<String, PathBuf>;

/// Arguments that build all shipped programs together. Any other selection would rebuild the libraries with other
/// features.
const SHIPPED: [&str; 6] = ["-p", "berth-agent", "-p", "berth-controller", "-p", "kubectl-berth"];

/// Root of the checkout. Cargo passes the path of a package in the environment when it runs a program. This path has
/// priority over the compiled-in path, because checkouts with a common target directory share their programs.
pub fn workspace_root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().unwrap_or(Path::new("/")).to_owned()
}

/// Reads a file of the repository.
pub fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace_root().join(path)).with_context(|| format!("reading {path}"))
}

/// Programs that [`choose`] has set.
static CHOSEN: OnceLock<Programs> = OnceLock::new();

/// Builds the programs.
pub fn programs() -> Result<Programs> {
    match CHOSEN.get() {
        Some(programs) => Ok(programs.clone()),
        None => Programs::of(&build(&SHIPPED)?),
    }
}

/// Sets the programs that [`programs`] returns, for measurements.
pub fn choose(programs: &Programs) {
    CHOSEN.get_or_init(|| programs.clone());
}

/// Builds `kubectl-berth`.
pub fn kubectl() -> Result<PathBuf> {
    take(&build(&SHIPPED)?, "kubectl-berth")
}

/// Builds the programs as shipped: static, with the release profile.
pub fn shipped() -> Result<Programs> {
    let mut found = build_shipped(&["berth-agent"])?;
    found.extend(build_shipped(&["berth-controller"])?);
    Programs::of(&found)
}

/// Builds the benchmark of the controller's decisions with the shipped settings.
pub fn planner() -> Result<PathBuf> {
    let found = build_shipped(&["berth-core", "--features", "controller", "--example", "plan"])?;
    take(&found, "plan")
}

/// Builds `kubectl-berth` and the benchmark of its text output with the shipped settings.
pub fn shipped_kubectl() -> Result<(PathBuf, PathBuf)> {
    let found = build_shipped(&["kubectl-berth", "--bins", "--example", "status"])?;
    Ok((take(&found, "kubectl-berth")?, take(&found, "status")?))
}

/// Builds a package as shipped; `package` may be followed by further arguments.
fn build_shipped(package: &[&str]) -> Result<Paths> {
    build(&[&["--release", "--target", STATIC, "-p"], package].concat())
}

/// Builds agent and controller with deliberate bugs. Each bug is disabled unless `BERTH_SEEDED_BUG` names it. The
/// programs have their own target directory, so that they never replace the real programs.
pub fn seeded() -> Result<Programs> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from);
    let target = target.join("seeded").display().to_string();
    let features = "berth-agent/seeded-bugs,berth-controller/seeded-bugs";
    let packages = ["-p", "berth-agent", "-p", "berth-controller"];
    let found = build(&[&packages[..], &["--features", features, "--target-dir", &target]].concat())?;
    Programs::of(&found)
}

/// Builds the agent of [`seeded`].
pub fn seeded_agent() -> Result<PathBuf> {
    Ok(seeded()?.agent)
}

/// Target of the shipped programs.
const STATIC: &str = "x86_64-unknown-linux-musl";

/// Builds a static agent, as in the container image. Uses the test profile, which builds much faster than the release
/// profile. `BERTH_TEST_RELEASE=1` selects the release profile.
pub fn static_agent() -> Result<PathBuf> {
    static_program("berth-agent")
}

/// Builds a static controller, like [`static_agent`].
pub fn static_controller() -> Result<PathBuf> {
    static_program("berth-controller")
}

fn static_program(package: &str) -> Result<PathBuf> {
    crate::tools::ensure_packages(&["musl-tools"])?;
    let mut args = vec!["-p", package, "--target", STATIC];
    if std::env::var_os("BERTH_TEST_RELEASE").is_some() {
        args.push("--release");
    }
    take(&build(&args)?, package)
}

/// Runs a program that prints lines of JSON.
pub async fn lines_of<T: DeserializeOwned>(program: &Path) -> Result<Vec<T>> {
    let output = tokio::process::Command::new(program).output().await;
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let lines = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    lines.collect::<Result<_, _>>().context("the output is not JSON")
}

fn take(found: &Paths, name: &str) -> Result<PathBuf> {
    found
        .get(name)
        .cloned()
        .with_context(|| format!("cargo built no program named {name}"))
}

/// Variable with the directory where the test processes of one run share the results of cargo builds. If unset, each
/// process runs cargo.
const ANSWERS_VARIABLE: &str = "BERTH_TEST_BUILT";

/// Builds these programs, once per process.
fn build(args: &[&str]) -> Result<Paths> {
    static BUILT: Mutex<BTreeMap<String, Paths>> = Mutex::new(BTreeMap::new());
    let mut built = locked(&BUILT);
    let key = args.join(" ");
    if let Some(found) = built.get(&key) {
        return Ok(found.clone());
    }
    let found = build_shared(args)?;
    built.insert(key, found.clone());
    Ok(found)
}

/// Builds these programs, unless another process of this run has already built them.
fn build_shared(args: &[&str]) -> Result<Paths> {
    let Some(directory) = std::env::var_os(ANSWERS_VARIABLE) else {
        return ask_cargo(args);
    };
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut hasher = DefaultHasher::new();
    args.hash(&mut hasher);
    let name = format!("{:x}", hasher.finish());
    let answer = directory.join(format!("{name}.json"));
    let lock = File::create(directory.join(format!("{name}.lock")))?;
    lock.lock().context("cannot wait for another process that builds")?;
    if let Ok(text) = fs::read(&answer) {
        return serde_json::from_slice(&text).with_context(|| format!("cannot read {}", answer.display()));
    }
    // Copied, because other builds may overwrite cargo's files.
    let kept = directory.join(&name);
    fs::create_dir_all(&kept).with_context(|| format!("cannot create {}", kept.display()))?;
    let mut found = ask_cargo(args)?;
    for (name, path) in &mut found {
        let copy = kept.join(name);
        if fs::hard_link(&*path, &copy).is_err() {
            fs::copy(&*path, &copy).with_context(|| format!("cannot copy {}", path.display()))?;
        }
        *path = copy;
    }
    let half = directory.join(format!("{name}.new"));
    fs::write(&half, serde_json::to_vec(&found)?).with_context(|| format!("cannot write {}", half.display()))?;
    fs::rename(&half, &answer).with_context(|| format!("cannot write {}", answer.display()))?;
    Ok(found)
}

fn ask_cargo(args: &[&str]) -> Result<Paths> {
    build_in(&workspace_root(), args)
}

/// Builds programs of a checkout with `cargo build`. Returns their paths by name.
pub(crate) fn build_in(checkout: &Path, args: &[&str]) -> Result<Paths> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(checkout)
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(args);
    // The first build takes minutes: cargo's own progress goes to the terminal.
    if std::io::stderr().is_terminal() {
        command.stderr(Stdio::inherit());
    } else {
        command.arg("--quiet");
    }
    // Cargo's variables for a test would make build scripts that read them run again, and rebuild everything that depends on
    // them, each time.
    let set_by_cargo = [
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_CRATE_",
        "CARGO_BIN_",
        "CARGO_PRIMARY_",
    ];
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| set_by_cargo.iter().any(|prefix| name.starts_with(prefix)))
        {
            command.env_remove(name);
        }
    }
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo build failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let executables = text.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let path = message.get("executable")?.as_str()?;
        let name = message.pointer("/target/name")?.as_str()?;
        Some((name.to_owned(), PathBuf::from(path)))
    });
    Ok(executables.collect())
}
