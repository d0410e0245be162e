//! A chromedriver process, and the Chromium that it starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::install::Programs;
use crate::ports::Port;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::eventually;

/// Timeout until chromedriver answers, and until Chromium has ended.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running chromedriver. Dropping it ends Chromium too.
#[derive(Debug)]
pub(super) struct Driver {
    process: Process,
    port: Port,
    directory: Scratch,
}

impl Driver {
    /// Starts chromedriver, and waits until it answers.
    pub(super) async fn start() -> Result<Self> {
        crate::install_crypto();
        let programs = tokio::task::spawn_blocking(Programs::ensure).await??;
        let directory = Scratch::new("berth-browser-")?;
        write_launcher(directory.path(), &programs.chromium)?;
        let port = Port::reserve()?;
        let mut command = Command::new(&programs.driver);
        command.arg(format!("--port={}", port.number()));
        // Chromium keeps its files below these directories, even with a profile of its own.
        for name in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            command.env(name, directory.path());
        }
        let mut driver = Self {
            process: Process::start("chromedriver", &command, &directory.path().join("chromedriver.log"))?,
            port,
            directory,
        };
        let status = format!("{}/status", driver.url());
        eventually("chromedriver answers", TIMEOUT, async || {
            driver.process.check()?;
            Ok(reqwest::get(&status).await?.status().is_success())
        })
        .await?;
        Ok(driver)
    }

    /// Address of chromedriver.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// Program that starts Chromium.
    pub(super) fn launcher(&self) -> PathBuf {
        launcher(self.directory.path())
    }

    /// Directory of Chromium's profile.
    pub(super) fn profile(&self) -> PathBuf {
        self.directory.path().join("profile")
    }

    fn chromium(&self) -> Option<i32> {
        let text = fs::read_to_string(self.directory.path().join(PID_FILE)).ok()?;
        text.trim().parse().ok()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let chromium = self.chromium();
        self.process.kill();
        let Some(group) = chromium else {
            return;
        };
        // The kernel has killed the first process of Chromium. The others may still write to the profile, so they must end before the
        // directory is removed.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        let deadline = Instant::now() + TIMEOUT;
        while is_group_alive(group) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

const PID_FILE: &str = "chromium.pid";

fn launcher(directory: &Path) -> PathBuf {
    directory.join("chromium")
}

/// Writes a script that starts Chromium so that the kernel kills it when chromedriver ends. Chromium's other processes end
/// with it, and belong to its process group.
fn write_launcher(directory: &Path, chromium: &Path) -> Result<()> {
    let text = format!(
        "#!/bin/sh\necho $$ >'{}'\nexec setpriv --pdeathsig KILL -- setsid '{}' \"$@\"\n",
        directory.join(PID_FILE).display(),
        chromium.display()
    );
    let path = launcher(directory);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// True if a process of the group runs. A process that waits for its parent to read its exit status counts as ended.
fn is_group_alive(group: i32) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut states = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    states.any(|stat| is_running_in(group, &stat))
}

/// Reads a line such as `4711 (name) S parent group …`, where the name may contain anything.
fn is_running_in(group: i32, stat: &str) -> bool {
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let [state, _, of, ..] = fields.as_slice() else {
        return false;
    };
    *state != "Z" && of.parse() == Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ended_is_not_running() {
        assert!(is_running_in(42, "4711 (chromium) S) S 1 42 42 0"));
        assert!(!is_running_in(42, "4711 (chromium) Z 1 42 42 0"));
        assert!(!is_running_in(42, "4711 (chromium) S 42 43 42 0"));
        assert!(!is_running_in(42, ""));
    }
}
