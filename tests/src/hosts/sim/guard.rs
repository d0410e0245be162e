//! The rollback guard on a simulated host: the script that the agent has installed, as a process of this computer. The
//! host's programs in its `PATH` pass each call to the simulated host, through files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio as Pipes};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::AbortHandle;

use super::login::Login;
use super::process::{Os, Stdio};
use super::units::Units;
use crate::process::with_parent;

const UNIT: &str = "berth-rollback-guard.service";
const STATE: &str = "var/lib/berth/rollback-guard";
/// Unit directories of the admin and of the host's image.
const ETC: &str = "etc/systemd/system";
const USR: &str = "usr/lib/systemd/system";
/// Path of the link that makes the host start the guard's unit, relative to a unit directory.
const WANTS: &str = "multi-user.target.wants/berth-rollback-guard.service";
/// Programs that the script calls on the host.
const PROGRAMS: [&str; 4] = ["bootc", "ostree", "rpm-ostree", "systemctl"];
/// Script that replaces each of these programs. It writes the words of its command line to a file, one per line, and
/// waits for the simulated host to write the exit status.
const PROGRAM: &str = r#"#!/bin/sh
call=$(mktemp -d "$BERTH_CALLS/XXXXXX") || exit 1
for word in "${0##*/}" "$@"; do echo "$word"; done >"$call/words.new"
mv "$call/words.new" "$call/words"
while [ ! -e "$call/status" ]; do sleep 0.05; done
cat "$call/out"
exit "$(cat "$call/status")"
"#;
/// Poll interval for calls of these programs.
const INTERVAL: Duration = Duration::from_millis(50);

/// Makes the host start this unit at boot, like `EnableUnitFiles` of systemd. Supports only the guard's unit.
pub(super) fn enable(root: &Path, name: &str) -> Result<()> {
    anyhow::ensure!(
        name == UNIT && root.join(ETC).join(UNIT).exists(),
        "Unit file {name} does not exist."
    );
    let link = root.join(ETC).join(WANTS);
    fs::create_dir_all(link.parent().unwrap_or(root)).context("cannot make the directory of wanted units")?;
    fs::write(link, "").context("cannot enable the guard's unit")
}

/// Name of the guard's unit if the host starts it at boot.
pub(super) fn enabled(root: &Path) -> Option<&'static str> {
    let mut directories = [ETC, USR].iter();
    directories
        .any(|directory| root.join(directory).join(WANTS).exists())
        .then_some(UNIT)
}

/// Reads the unit's file again, like `Reload` of systemd: without the file, the host does not have the unit.
pub(super) fn reload(units: &Units) {
    let has_file = [ETC, USR]
        .iter()
        .any(|directory| units.root().join(directory).join(UNIT).exists());
    if !has_file {
        units.fix(UNIT, None);
    }
}

/// Puts the guard's unit into the image of a host, and makes the host start it at boot.
pub(super) fn ship(root: &Path) -> Result<()> {
    let link = root.join(USR).join(WANTS);
    fs::create_dir_all(link.parent().unwrap_or(root)).context("cannot make the image's directory of units")?;
    fs::write(root.join(USR).join(UNIT), "").context("cannot write the guard's unit")?;
    fs::write(link, "").context("cannot enable the guard's unit")
}

/// Path of a unit's file, as systemd shows it.
pub(super) fn fragment(root: &Path, name: &str) -> String {
    let directory = if root.join(ETC).join(name).exists() { ETC } else { USR };
    format!("/{directory}/{name}")
}

/// The parts of the host that answer the guard's calls.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) os: Arc<Os>,
    pub(super) login: Login,
    pub(super) units: Units,
}

/// The guard's process, which is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    process: std::process::Child,
    calls: AbortHandle,
}

impl Guard {
    /// Starts the guard as systemd does at boot: if its unit is enabled and the guard is armed.
    pub(super) fn start(root: &Path, directory: &Path, host: Programs) -> Result<Option<Self>> {
        if enabled(root).is_none() || !root.join(STATE).join("armed").exists() {
            return Ok(None);
        }
        let (programs, calls) = (directory.join("guard-programs"), directory.join("guard-calls"));
        for path in [&programs, &calls] {
            fs::create_dir_all(path).context("cannot make the directories of the guard's programs")?;
        }
        for name in PROGRAMS {
            let path = programs.join(name);
            fs::write(&path, PROGRAM).context("cannot write a program for the guard")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        let mut sh = Command::new("/bin/sh");
        sh.arg(root.join(STATE).join("run"));
        let mut sh = with_parent(&sh);
        sh.env("BERTH_ROOT", root).env("BERTH_CALLS", &calls);
        sh.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(directory.join("guard.log"))?;
        sh.stdin(Pipes::null()).stdout(Pipes::null()).stderr(log);
        let process = sh.spawn().context("cannot start the rollback guard")?;
        let calls = tokio::spawn(serve(calls, host)).abort_handle();
        Ok(Some(Self { process, calls }))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.calls.abort();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn serve(calls: PathBuf, host: Programs) {
    loop {
        for entry in fs::read_dir(&calls).into_iter().flatten().flatten() {
            let Ok(words) = fs::read_to_string(entry.path().join("words")) else {
                continue;
            };
            let _ = fs::remove_file(entry.path().join("words"));
            let words: Vec<String> = words.lines().map(str::to_owned).collect();
            let status = run(&words, &entry.path(), &host).await;
            let new = entry.path().join("status.new");
            let _ = fs::write(&new, status.to_string()).and_then(|()| fs::rename(&new, entry.path().join("status")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn run(words: &[String], call: &Path, host: &Programs) -> i32 {
    let mut io = Stdio {
        out: fs::File::create(call.join("out")).ok(),
        ..Stdio::default()
    };
    let [program, arguments @ ..] = words else { return 1 };
    if program == "systemctl" {
        if arguments == ["show", "--property=SoftRebootsCount", "--value"] {
            io.out(&host.units.soft_reboots().to_string());
            return 0;
        }
        // Root's systemctl ignores inhibitors with -i.
        let done = arguments == ["-i", "reboot"] && host.login.request(0).is_ok();
        return i32::from(!done);
    }
    let path = format!("/usr/bin/{program}");
    let argv: Vec<String> = std::iter::once(path).chain(arguments.iter().cloned()).collect();
    host.os.run(&argv, &mut io).await
}
