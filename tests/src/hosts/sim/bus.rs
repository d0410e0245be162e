//! A private message bus for a simulated host.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::locked::locked;
use crate::process::with_parent;

/// A `dbus-daemon` on its own socket, without access control. Killed when dropped.
#[derive(Debug)]
pub struct Bus {
    socket: PathBuf,
    config: PathBuf,
    log: PathBuf,
    daemon: Mutex<Option<Child>>,
}

impl Bus {
    /// Prepares a bus in this directory; [`start`](Self::start) starts it. The path must be short: socket addresses are limited
    /// to 107 bytes.
    pub fn new(dir: &Path) -> Result<Self> {
        let bus = Self {
            socket: dir.join("bus"),
            config: dir.join("bus.conf"),
            log: dir.join("bus.log"),
            daemon: Mutex::new(None),
        };
        let services = services(dir);
        std::fs::create_dir_all(&services).context("cannot make the directory of the bus's services")?;
        let text = configuration(&bus.socket, &services);
        std::fs::write(&bus.config, text).context("cannot write the configuration of the bus")?;
        Ok(bus)
    }

    /// Address for clients; it never changes.
    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    pub(super) async fn connect(&self) -> Result<zbus::Connection> {
        let connection = zbus::connection::Builder::address(self.address().as_str()).build();
        connection
            .await
            .context("cannot connect to the bus of a simulated host")
    }

    /// Starts the daemon and waits until it accepts connections. Replaces a daemon that already runs.
    pub async fn start(&self) -> Result<()> {
        self.stop().await;
        let log = File::create(&self.log).context("cannot write the log of the bus")?;
        let mut command = std::process::Command::new("dbus-daemon");
        command.args(["--nofork", "--nopidfile", "--nosyslog"]);
        command.arg(format!("--config-file={}", self.config.display()));
        let daemon = Command::from(with_parent(&command))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start dbus-daemon (Debian package dbus) under setpriv")?;
        *self.daemon() = Some(daemon);
        for _ in 0..2000 {
            if UnixStream::connect(&self.socket).await.is_ok() {
                return Ok(());
            }
            if let Some(Ok(Some(status))) = self.daemon().as_mut().map(Child::try_wait) {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("dbus-daemon exited at its start: {status}: {log}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("dbus-daemon did not open {} in 10 s", self.socket.display())
    }

    /// Kills the daemon, so that every client loses its connection.
    pub async fn stop(&self) {
        let daemon = self.daemon().take();
        if let Some(mut daemon) = daemon {
            // An error means that it has already exited.
            let _ = daemon.kill().await;
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Kills the daemon without waiting, for use in Drop.
    pub(super) fn kill(&self) {
        if let Some(mut daemon) = self.daemon().take() {
            let _ = daemon.start_kill();
        }
    }

    fn daemon(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        locked(&self.daemon)
    }
}

/// Directory with the activation files of services that this bus starts on demand.
pub(super) fn services(dir: &Path) -> PathBuf {
    dir.join("services")
}

fn configuration(socket: &Path, services: &Path) -> String {
    format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={}</listen>
  <auth>EXTERNAL</auth>
  <servicedir>{}</servicedir>
  <!-- A real bus waits for 25 s, and rpm-ostree may take longer to start: tests of that need not. -->
  <limit name="service_start_timeout">8000</limit>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="*"/>
    <allow receive_type="*"/>
    <allow send_destination="*"/>
  </policy>
</busconfig>
"#,
        socket.display(),
        services.display()
    )
}
