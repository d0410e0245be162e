//! Files and unit of the host's rollback guard: see [`berth_core::agent::rollback_guard`].

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Context;
use berth_api::BootId;
use berth_core::agent::facts::{Fired, RollbackGuard};
use berth_core::agent::report::GuardUnit;

use super::error::HostError;
use super::root::{HostRoot, STATE_DIR};
use super::tools::Tools;
use super::{files, units};

const UNIT: &str = "berth-rollback-guard.service";
const UNIT_TEXT: &str = include_str!("../../../systemd/berth-rollback-guard.service");
const SCRIPT: &str = include_str!("../../../systemd/berth-rollback-guard.sh");
/// Size limit for reading the guard's `fired` file, in bytes.
const MAX_FILE: usize = 4096;

/// Result of an attempt to disarm the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disarmed {
    /// The guard has no order, so it will not act.
    Done,
    /// The guard has already begun to roll the host back.
    Fired,
}

/// The guard's directory, which both the agent and the script use.
#[derive(Debug, Clone)]
pub(super) struct GuardFiles {
    directory: PathBuf,
}

impl GuardFiles {
    pub(super) fn new(root: &HostRoot) -> Self {
        Self {
            directory: root.path(STATE_DIR).join("rollback-guard"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes an order, durably. Does nothing if the guard has the same order already.
    pub(super) fn arm(&self, order: &str) -> anyhow::Result<()> {
        let armed = self.path("armed");
        if has_text(&armed, order) {
            return Ok(());
        }
        self.write("armed", order)?;
        for old in ["fired", "claimed", "given-up", "agent"] {
            files::remove(&self.path(old)).with_context(|| format!("cannot remove {}", self.path(old).display()))?;
        }
        Ok(())
    }

    /// Withdraws the guard's order. Returns `Fired` if the guard has already acted on the order under this boot.
    pub(super) fn disarm(&self, boot_id: &BootId) -> anyhow::Result<Disarmed> {
        let armed = self.path("armed");
        match fs::rename(&armed, self.path("disarmed")) {
            Ok(()) => {
                // The script writes `fired` before it claims the order. So the file may exist although the guard did
                // not fire.
                files::remove(&self.path("fired"))?;
                File::open(&self.directory)?.sync_all()?;
                Ok(Disarmed::Done)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => match self.state()? {
                RollbackGuard::Fired(fired) if fired.boot_id == *boot_id => Ok(Disarmed::Fired),
                _ => Ok(Disarmed::Done),
            },
            Err(error) => Err(error).with_context(|| format!("cannot rename {}", armed.display())),
        }
    }

    /// Reads the guard's state. A `fired` file that cannot be parsed counts as missing.
    pub(super) fn state(&self) -> io::Result<RollbackGuard> {
        if self.path("armed").try_exists()? {
            return Ok(RollbackGuard::Armed);
        }
        let text = match files::read_bounded(&self.path("fired"), MAX_FILE) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(RollbackGuard::Disarmed),
            Err(error) => return Err(error),
        };
        let fired = Fired::parse(&String::from_utf8_lossy(&text));
        Ok(fired.map_or(RollbackGuard::Disarmed, RollbackGuard::Fired))
    }

    /// Removes the file that shows that the guard has fired.
    pub(super) fn forget_fired(&self) -> io::Result<()> {
        files::remove(&self.path("fired"))
    }

    /// Informs the guard that an agent runs in this boot. The guard then restarts its time limit, once per boot. Does
    /// nothing if the guard is not armed.
    pub(super) fn show_agent(&self, boot_id: &BootId) -> anyhow::Result<()> {
        let line = format!("{boot_id}\n");
        if !self.path("armed").exists() {
            return Ok(());
        }
        self.write("agent", &line)
    }

    /// Writes a file, durably, unless it has this text already.
    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        if has_text(&path, text) {
            return Ok(());
        }
        fs::create_dir_all(&self.directory)
            .and_then(|()| files::replace(&path, text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

fn has_text(path: &Path, text: &str) -> bool {
    files::read_bounded(path, text.len()).is_ok_and(|found| found == text.as_bytes())
}

/// Makes sure that the guard runs at the host's next boot: writes the script, and installs the unit unless the image
/// contains it. Replaces a unit in `/etc` that an older agent installed.
pub(super) async fn install(tools: &Tools, guard: &GuardFiles) -> Result<GuardUnit, HostError> {
    write(guard, "run", SCRIPT)?;
    let fragment = units::enabled_fragment(&tools.bus, UNIT).await?;
    if fragment.as_deref().is_some_and(|path| path.starts_with("/usr/")) {
        return Ok(GuardUnit::InImage);
    }
    if fragment.is_some() && has_text(&guard.path("installed"), UNIT_TEXT) {
        return Ok(GuardUnit::Installed);
    }
    write(guard, UNIT, UNIT_TEXT)?;
    // The host copies the file, so that it gets the SELinux label of a unit. A link to /var would not be found at a
    // boot that mounts /var later.
    let source = format!("{STATE_DIR}/rollback-guard/{UNIT}");
    let target = format!("/etc/systemd/system/{UNIT}");
    let copy = ["/usr/bin/install", "-m", "0644", &source, &target];
    tools.run("install-rollback-guard", &copy).await?;
    units::enable(&tools.bus, UNIT).await?;
    write(guard, "installed", UNIT_TEXT)?;
    Ok(GuardUnit::Installed)
}

fn write(guard: &GuardFiles, name: &str, text: &str) -> Result<(), HostError> {
    guard
        .write(name, text)
        .map_err(|error| HostError::Io(format!("{error:#}")))
}

#[cfg(test)]
mod tests;
