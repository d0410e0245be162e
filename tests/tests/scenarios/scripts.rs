//! A machine that lacks programs: `make` finds them, installs them or prints the command for that.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_tests::programs::workspace_root;
use berth_tests::tools::find_program;
use tempfile::TempDir;

use crate::said::Said;

/// Programs that every Debian has, which the scripts may rely on.
const ESSENTIAL: [&str; 8] = ["bash", "cat", "chmod", "dirname", "mktemp", "rm", "rmdir", "sed"];

/// A machine without other programs, for a user who is not root.
struct Machine(TempDir);

impl Machine {
    fn new() -> Result<Self> {
        let machine = Self(tempfile::tempdir()?);
        fs::create_dir(machine.path("bin"))?;
        for name in ESSENTIAL {
            let found = find_program(name).with_context(|| format!("{name} is not on PATH"))?;
            symlink(found, machine.path("bin").join(name))?;
        }
        machine.program("bin/id", "echo 1000")?;
        Ok(machine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, script: &str) -> Result<()> {
        let path = self.path(name);
        fs::create_dir_all(path.parent().context("a path without a directory")?)?;
        fs::write(&path, format!("#!/bin/bash\n{script}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    fn unbuilt(&self) -> Result<String> {
        let said = self.run("unbuilt etcd registry kube-apiserver helm")?.well(&[])?;
        Ok(said.out.trim_end().to_owned())
    }

    /// Runs a line of bash with the functions of `scripts/need.sh`.
    fn run(&self, line: &str) -> Result<Said> {
        let root = workspace_root();
        let output = Command::new(self.path("bin/bash"))
            .args(["-c", &format!(". {}/scripts/need.sh; {line}", root.display())])
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.0.path())
            .env("TMPDIR", self.0.path())
            .env("KUBEBUILDER_ASSETS", self.path("assets"))
            .output()?;
        Ok(Said::of(&output))
    }
}

fn is_executable(path: &Path) -> Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o111 != 0)
}

#[test]
fn all_that_is_missing_is_named_at_once() -> Result<()> {
    let machine = Machine::new()?;
    machine
        .run("need cc=gcc libc=libc6-dev git=git dbus-daemon=dbus")?
        .fails(&["apt-get install --no-install-recommends gcc libc6-dev git dbus\n"])
}

/// With only Debian's package gcc, the compiler can compile but not link.
#[test]
fn a_compiler_that_cannot_link_lacks_the_c_library() -> Result<()> {
    let machine = Machine::new()?;
    machine.program("bin/cc", "exit 1")?;
    let said = machine.run("need cc=gcc libc=libc6-dev")?;
    said.says(&["--no-install-recommends libc6-dev\n"])?;
    machine.program("bin/cc", "exit 0")?;
    machine.run("need cc=gcc libc=libc6-dev")?.well(&[]).map(drop)
}

#[test]
fn scenarios_left_to_test_real_are_listed() -> Result<()> {
    let cache = tempfile::tempdir()?;
    let script = r#"
        . scripts/steps.sh
        printf '%s\n' 'a line' 'ONLY IN TEST-REAL: one: too long' 'ONLY IN TEST-REAL: one: too long' >"$logs/log"
        tally "$logs/log" scenarios
        only_real+=('two: as well')
        report_only_real
    "#;
    let output = Command::new("bash")
        .args(["-euc", script])
        .current_dir(workspace_root())
        .env("cache", cache.path())
        .output()?;
    let said = String::from_utf8(output.stdout)?;
    let expected = "\nOnly `make test-real` runs:\n  one: too long\n  two: as well\n";
    ensure!(said == expected, "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn missing_servers_are_built() -> Result<()> {
    let machine = Machine::new()?;
    assert_eq!(machine.unbuilt()?, "etcd registry kube-apiserver helm");
    // Not used, because the other Kubernetes programs are missing.
    machine.program("assets/etcd", "")?;
    assert_eq!(machine.unbuilt()?, "etcd registry kube-apiserver helm");
    machine.program("assets/kube-apiserver", "")?;
    assert_eq!(machine.unbuilt()?, "registry helm");
    machine.program("bin/registry", "")?;
    assert_eq!(machine.unbuilt()?, "helm");
    machine.program("bin/helm", "")?;
    assert_eq!(machine.unbuilt()?, "");
    Ok(())
}

/// Debian 12 has Go 1.19, which cannot even parse the go.mod of the servers.
#[test]
fn an_old_go_fetches_the_one_that_is_needed() -> Result<()> {
    let machine = Machine::new()?;
    let module = machine.path("module");
    machine.program("module/bin/go", "exit 0")?;
    machine.program("module/pkg/tool/linux_amd64/compile", "exit 0")?;
    let new = module.join("bin/go");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o444))?;
    let old = format!(
        "case $1 in env) echo amd64 ;; mod) echo \"$4\" >{0}/asked; printf '{{\\n\\t\"Dir\": \"{0}\",\\n}}\\n' ;; *) exit 1 ;; esac",
        module.display()
    );
    machine.program("bin/go", &old)?;
    let said = machine.run("need_go && command -v go")?;
    ensure!(said.out.trim_end() == new.to_string_lossy(), "{said:?}");
    ensure!(is_executable(&new)?, "the fetched go cannot be run");
    let asked = fs::read_to_string(module.join("asked"))?;
    ensure!(asked == "golang.org/toolchain@v0.0.1-go1.26.0.linux-amd64\n", "{asked}");
    Ok(())
}

#[test]
fn an_unusable_go_is_reported() -> Result<()> {
    let machine = Machine::new()?;
    machine.program("bin/go", "echo go is too old >&2; exit 1")?;
    machine.run("need_go")?.fails(&["https://go.dev/dl"])
}

/// If `main.rs` does not name a file, the tests in this file would silently never run.
#[test]
fn no_file_of_scenarios_is_forgotten() -> Result<()> {
    for program in ["scenarios", "real"] {
        let directory = workspace_root().join("tests/tests").join(program);
        let main = fs::read_to_string(directory.join("main.rs"))?;
        for file in fs::read_dir(&directory)? {
            let path = file?.path();
            let Some(module) = path.file_stem().and_then(|stem| stem.to_str()) else {
                continue;
            };
            if path.is_file() && module != "main" {
                let line = format!("mod {module};");
                ensure!(main.lines().any(|l| l == line), "{program}/main.rs lacks: {line}");
            }
        }
    }
    let loose = fs::read_dir(workspace_root().join("tests/tests"))?.flatten();
    let loose: Vec<_> = loose.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    ensure!(loose.is_empty(), "scripts/run.sh does not run {loose:?}");
    Ok(())
}

#[test]
fn missing_validators_are_reported() -> Result<()> {
    let machine = Machine::new()?;
    machine.program("bin/mkdir", "")?;
    // With butane present, the script does not build it. The build would use a Go that this machine may have at its
    // default path.
    machine.program("bin/butane", "")?;
    for name in ["ksvalidator", "check-jsonschema"] {
        machine.run("need_validators")?.fails(&["python3"]).context(name)?;
        machine.program(&format!("bin/{name}"), "")?;
    }
    machine.run("need_validators")?.fails(&["schema of cloud-init"])
}

/// Debian's package starts a server when it is installed, so the script only extracts it. Since Debian 13, promtool has
/// its own package.
#[test]
fn prometheus_is_extracted_or_asked_for() -> Result<()> {
    for (package, found) in [("prometheus", ""), ("promtool", "promtool - tooling")] {
        are_extracted_from(package, found).context(package)?;
    }
    Ok(())
}

/// `package`: the package that contains promtool. `found`: the answer of `apt-cache` to a search for that package.
fn are_extracted_from(package: &str, found: &str) -> Result<()> {
    let machine = Machine::new()?;
    machine
        .run("need_prometheus")?
        .fails(&["https://prometheus.io/download"])?;
    machine.program(
        "bin/apt-get",
        &format!("case $* in 'download -q prometheus' | 'download -q {package}') echo package >\"${{*: -1}}_2_amd64.deb\" ;; *) exit 1 ;; esac"),
    )?;
    let search = format!("case $* in *promtool*) echo '{found}' ;; *) echo prometheus ;; esac");
    machine.program("bin/apt-cache", &search)?;
    for name in ["mkdir", "mv"] {
        let program = find_program(name).context(name)?;
        machine.program(&format!("bin/{name}"), &format!("{} \"$@\"", program.display()))?;
    }
    let unpack = "[ \"$(cat \"$2\")\" = package ] || exit 1; mkdir -p usr/bin; for name in prometheus promtool; do echo '#!/bin/bash' >usr/bin/$name; chmod 755 usr/bin/$name; done";
    machine.program("bin/dpkg-deb", unpack)?;
    let found = "need_prometheus && for name in prometheus promtool; do command -v $name && $name || exit; done";
    let files = ["prometheus", "promtool"].map(|name| format!(".cache/berth/tools/bin/{name}\n"));
    machine.run(found)?.well(&[&files[0], &files[1]]).map(drop)
}
