//! Berth's own programs, built in the profile of the tests or as shipped. Cargo reports their paths.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use anyhow::{Context, Result, bail};

/// Paths of the programs under test.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `berth-agent`.
    pub agent: PathBuf,
    /// `berth-controller`.
    pub controller: PathBuf,
}

/// All shipped programs. Built together: any other selection would rebuild the libraries with other features.
const SHIPPED: [&str; 6] = ["-p", "berth-agent", "-p", "berth-controller", "-p", "kubectl-berth"];

/// Root of the checkout. A program that cargo runs gets the path of its package from the environment. This has priority over the
/// path that was compiled in: checkouts with a common target directory share their programs.
pub fn workspace_root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().unwrap_or(Path::new("/")).to_owned()
}

static BUILT: Mutex<Option<Programs>> = Mutex::new(None);

/// Builds the programs, once per process.
///
/// # Errors
/// If they do not build; the error has the compiler's output.
pub fn programs() -> Result<Programs> {
    let mut built = BUILT.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(programs) = &*built {
        return Ok(programs.clone());
    }
    let found = build(&SHIPPED)?;
    let programs = Programs {
        agent: take(&found, "berth-agent")?,
        controller: take(&found, "berth-controller")?,
    };
    *built = Some(programs.clone());
    Ok(programs)
}

/// Builds `kubectl-berth`, once per process.
///
/// # Errors
/// If it does not build.
pub fn kubectl() -> Result<PathBuf> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = BUILT.get() {
        return Ok(path.clone());
    }
    let path = take(&build(&SHIPPED)?, "kubectl-berth")?;
    Ok(BUILT.get_or_init(|| path).clone())
}

/// Builds the programs as shipped: static, with the release profile.
///
/// # Errors
/// If they do not build; they need musl's C compiler.
pub fn shipped() -> Result<Programs> {
    let one = |name: &str| {
        let found = build(&["--release", "--target", "x86_64-unknown-linux-musl", "-p", name])?;
        take(&found, name)
    };
    Ok(Programs {
        agent: one("berth-agent")?,
        controller: one("berth-controller")?,
    })
}

/// Builds the benchmark of the controller's decisions with the shipped settings.
///
/// # Errors
/// If it does not build.
pub fn planner() -> Result<PathBuf> {
    take(
        &build(&[
            "--release",
            "--target",
            STATIC,
            "-p",
            "berth-core",
            "--features",
            "controller",
            "--example",
            "plan",
        ])?,
        "plan",
    )
}

/// Builds `kubectl-berth` and the benchmark of its text output with the shipped settings.
///
/// # Errors
/// If they do not build.
pub fn shipped_kubectl() -> Result<(PathBuf, PathBuf)> {
    let args = ["--release", "--target", STATIC, "-p", "kubectl-berth"];
    let found = build(&[&args[..], &["--bins", "--example", "status"]].concat())?;
    Ok((take(&found, "kubectl-berth")?, take(&found, "status")?))
}

/// Makes [`programs`] return these, for measurements.
pub fn choose(programs: &Programs) {
    *BUILT.lock().unwrap_or_else(|e| e.into_inner()) = Some(programs.clone());
}

/// Builds agent and controller with deliberate bugs compiled in, each disabled unless `BERTH_SEEDED_BUG` names it. They have
/// their own target directory, so that they never replace the real ones.
///
/// # Errors
/// If they do not build.
pub fn seeded() -> Result<Programs> {
    static BUILT: OnceLock<Programs> = OnceLock::new();
    if let Some(programs) = BUILT.get() {
        return Ok(programs.clone());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from);
    let features = "berth-agent/seeded-bugs,berth-controller/seeded-bugs";
    let args = [
        "-p",
        "berth-agent",
        "-p",
        "berth-controller",
        "--features",
        features,
        "--target-dir",
    ];
    let mut args: Vec<OsString> = args.map(OsString::from).into();
    args.push(target.join("seeded").into_os_string());
    let found = build(&args)?;
    let programs = Programs {
        agent: take(&found, "berth-agent")?,
        controller: take(&found, "berth-controller")?,
    };
    Ok(BUILT.get_or_init(|| programs).clone())
}

/// Builds the agent of [`seeded`].
///
/// # Errors
/// If it does not build.
pub fn seeded_agent() -> Result<PathBuf> {
    Ok(seeded()?.agent)
}

/// Target of the shipped agent.
const STATIC: &str = "x86_64-unknown-linux-musl";

/// Builds the agent as its container image has it: static. In the profile of the tests, which builds much faster than the shipped
/// one; `BERTH_TEST_RELEASE=1` selects the shipped one.
///
/// # Errors
/// If it does not build; the error has the compiler's output.
pub fn static_agent() -> Result<PathBuf> {
    crate::tools::ensure_packages(&["musl-tools"])?;
    let mut args = vec!["-p", "berth-agent", "--target", STATIC];
    if std::env::var_os("BERTH_TEST_RELEASE").is_some() {
        args.push("--release");
    }
    take(&build(&args)?, "berth-agent")
}

fn take(found: &BTreeMap<String, PathBuf>, name: &str) -> Result<PathBuf> {
    found
        .get(name)
        .cloned()
        .with_context(|| format!("cargo built no program named {name}"))
}

/// Directory where the test processes of one run share cargo's answers. Without it, each process runs cargo.
const ANSWERS_VARIABLE: &str = "BERTH_TEST_BUILT";

/// Builds these programs; returns their paths by name.
fn build<S: AsRef<OsStr>>(args: &[S]) -> Result<BTreeMap<String, PathBuf>> {
    let Some(directory) = std::env::var_os(ANSWERS_VARIABLE) else {
        return ask_cargo(args);
    };
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut hasher = DefaultHasher::new();
    args.iter().for_each(|arg| arg.as_ref().hash(&mut hasher));
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

fn ask_cargo<S: AsRef<OsStr>>(args: &[S]) -> Result<BTreeMap<String, PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace_root())
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(args);
    // The first build takes minutes: cargo's own progress goes to the terminal.
    match std::io::stderr().is_terminal() {
        true => command.stderr(Stdio::inherit()),
        false => command.arg("--quiet"),
    };
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
