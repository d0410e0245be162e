//! The scripts of `berth-agent`: run by dpkg, and as rpm would run them, on a host and in the build of an OS image.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_tests::programs::workspace_root;
use berth_tests::scratch::Scratch;

use super::{Made, UNITS, is_root, need, run};

const TMPFILES: &str = "systemd-tmpfiles --create /usr/lib/tmpfiles.d/berth.conf";
const RELOAD: &str = "systemctl daemon-reload";
const RESTART: &str = "systemctl try-restart berth-agent.service";
const STOP: &str = "systemctl stop berth-agent.service";

/// A link of an earlier version of the unit.
const REQUIRES: &str = "etc/systemd/system/kubelet.service.requires/berth-firstboot.service";
/// Files of the admin and of the agent, which outlive the package.
const KEPT: [&str; 2] = ["etc/berth/agent.token", "var/lib/berth/berth.json"];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Installation,
    Upgrade,
    Removal,
}

/// Changes in the order of a test.
const CHANGES: [Change; 4] = [
    Change::Installation,
    Change::Upgrade,
    Change::Removal,
    Change::Installation,
];

impl Change {
    /// Calls of systemd's programs, on a host or in the build of an image.
    fn calls(self, is_running: bool) -> Vec<String> {
        let units = UNITS.join(" ");
        let preset = format!("systemctl --no-reload preset {units}");
        let disable = format!("systemctl --no-reload disable {units}");
        let calls: &[&str] = match (self, is_running) {
            (Self::Installation, true) => &[&preset, TMPFILES, RELOAD],
            (Self::Installation, false) => &[&preset],
            (Self::Upgrade, true) => &[TMPFILES, RELOAD, RESTART],
            (Self::Upgrade, false) => &[],
            (Self::Removal, true) => &[STOP, &disable],
            (Self::Removal, false) => &[&disable],
        };
        calls.iter().map(|call| (*call).to_owned()).collect()
    }

    fn dpkg(self) -> &'static str {
        if self == Self::Removal { "--remove" } else { "--install" }
    }

    /// Scripts that rpm runs, and their argument: the number of versions that remain installed.
    fn rpm(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Installation => &[("postinstall.sh", "1")],
            Self::Upgrade => &[("postinstall.sh", "2"), ("preremove.sh", "1")],
            Self::Removal => &[("preremove.sh", "0")],
        }
    }
}

/// A root directory. systemd's programs only record their calls, and end with this status.
struct Root {
    scratch: Scratch,
    is_running: bool,
}

impl Root {
    fn new(is_running: bool, status: u8) -> Result<Self> {
        let root = Self {
            scratch: Scratch::new("berth-scripts-")?,
            is_running,
        };
        if is_running {
            fs::create_dir_all(root.path("run/systemd/system"))?;
        }
        for directory in ["etc/berth", "var/lib/berth", "var/lib/dpkg"] {
            fs::create_dir_all(root.path(directory))?;
        }
        for file in KEPT.iter().chain(&["var/lib/dpkg/status"]) {
            fs::write(root.path(file), "")?;
        }
        fs::create_dir(root.programs())?;
        let calls = root.record();
        for name in ["systemctl", "systemd-tmpfiles"] {
            let path = root.programs().join(name);
            let text = format!("#!/bin/sh\necho {name} \"$@\" >>{}\nexit {status}\n", calls.display());
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    fn programs(&self) -> PathBuf {
        self.scratch.path().join("bin")
    }

    fn record(&self) -> PathBuf {
        self.scratch.path().join("calls")
    }

    /// Runs a command, which must succeed, with the stand-ins for systemd's programs. Returns their calls.
    fn run(&self, command: &mut Command) -> Result<Vec<String>> {
        let calls = self.record();
        fs::write(&calls, "")?;
        let path = std::env::var("PATH")?;
        command.env("PATH", format!("{}:{path}", self.programs().display()));
        command.env("BERTH_ROOT", self.root());
        run(command)?;
        let text = fs::read_to_string(&calls)?.replace(&self.root().display().to_string(), "");
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn by_dpkg(&self, made: &Made, change: Change) -> Result<Vec<String>> {
        let mut command = Command::new("dpkg");
        command.arg("--root").arg(self.root());
        // The root has neither a shell nor systemd.
        command.args(["--force-script-chrootless", "--force-depends", change.dpkg()]);
        if change == Change::Removal {
            command.arg("berth-agent");
        } else {
            command.arg(made.deb("berth-agent"));
        }
        let calls = self.run(&mut command)?;
        let unit = self.path("usr/lib/systemd/system/berth-agent.service");
        ensure!(unit.exists() == (change != Change::Removal), "{change:?}");
        Ok(calls)
    }

    fn by_rpm(&self, change: Change) -> Result<Vec<String>> {
        let mut calls = vec![];
        for (script, argument) in change.rpm() {
            let script = workspace_root().join("packaging/agent").join(script);
            calls.extend(self.run(Command::new("sh").arg(script).arg(argument))?);
        }
        Ok(calls)
    }

    /// Compares the calls, and checks the files after a removal.
    fn check(&self, change: Change, calls: &[String]) -> Result<()> {
        let expected = change.calls(self.is_running);
        ensure!(calls == expected, "{calls:?}, not {expected:?}");
        let is_required = self.path(REQUIRES).is_symlink();
        ensure!(
            is_required == (change != Change::Removal),
            "the kubelet requires the unit: {is_required}"
        );
        for file in KEPT {
            ensure!(self.path(file).exists(), "{file} is gone");
        }
        Ok(())
    }

    fn require(&self) -> Result<()> {
        let link = self.path(REQUIRES);
        fs::create_dir_all(link.parent().context("a directory")?)?;
        if !link.is_symlink() {
            symlink("/usr/lib/systemd/system/berth-firstboot.service", &link)?;
        }
        Ok(())
    }
}

/// Makes all changes by a package manager, on a host and in the build of an image. The package manager must succeed even if systemd's
/// programs fail.
fn all_changes(by: impl Fn(&Root, Change) -> Result<Vec<String>>) -> Result<()> {
    for (is_running, status) in [(true, 0), (false, 0), (true, 1), (false, 1)] {
        let root = Root::new(is_running, status)?;
        for change in CHANGES {
            root.require()?;
            let checked = by(&root, change).and_then(|calls| root.check(change, &calls));
            checked.with_context(|| format!("{change:?}; systemd runs: {is_running}; status {status}"))?;
        }
    }
    Ok(())
}

#[test]
fn scripts_follow_dpkg() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    need("dpkg", "dpkg")?;
    let made = Made::new()?;
    all_changes(|root, change| root.by_dpkg(&made, change))
}

#[test]
fn scripts_follow_rpm() -> Result<()> {
    all_changes(Root::by_rpm)
}
