//! Gives a process outside a host access to the host's files and to the socket of rpm-ostree's transactions.
//!
//! rpm-ostreed rejects clients outside its PID namespace, because it cannot see their processes. A relay inside passes their
//! messages on.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::host::RealHost;
use super::programs::stand_in;
use crate::rpmostreed::SOCKET;
use crate::rpmostreed::client::Client;
use crate::scratch::Scratch;

/// Directories that must exist in the host's `/run`, because a client may need them.
const RUN_DIRECTORIES: [&str; 2] = ["berth", "ostree"];
/// Shell script that runs its arguments as a child, because only child processes enter the PID namespace. nsenter
/// itself must not fork. Otherwise, when systemd stops and kills the child at shutdown, nsenter would stop too and
/// never reap the child, and the host would wait forever.
const CHILD: &str = r#""$@"; exit "$?""#;
const RELAY_TIMEOUT: Duration = Duration::from_secs(20);

/// Access to a host from outside during one boot: its files, and a relay of rpm-ostree's transactions. A reboot of the
/// host ends the relay.
#[derive(Debug)]
pub struct FromOutside {
    root: Scratch,
    bus: String,
    relay: Child,
}

impl FromOutside {
    /// Links to all files of a running host and starts the relay on it.
    pub fn of(host: &RealHost) -> Result<Self> {
        let there = host.path("/")?;
        let root = Scratch::new("berth-outside-")?;
        link_all(&there, root.path(), "run")?;
        let run = root.path().join("run");
        fs::create_dir(&run)?;
        for name in RUN_DIRECTORIES {
            fs::create_dir_all(there.join("run").join(name))?;
        }
        link_all(&there.join("run"), &run, SOCKET)?;
        let init = host.boot().context("the host is down")?.init;
        let relay = Command::new("nsenter")
            .args(["--target", &init.to_string(), "--pid", "--no-fork", "--"])
            .args(["sh", "-c", CHILD, "sh"])
            .arg(stand_in("standin-rpm-ostree")?)
            .arg("relay")
            .args([run.join(SOCKET), there.join("run").join(SOCKET)])
            // The relay ends with its standard input.
            .stdin(Stdio::piped())
            .spawn()
            .context("starting the relay of rpm-ostree's transactions")?;
        let outside = Self {
            root,
            bus: host.bus_address()?,
            relay,
        };
        outside.wait()?;
        Ok(outside)
    }

    fn wait(&self) -> Result<()> {
        let begin = Instant::now();
        while !self.run().join(SOCKET).exists() {
            ensure!(begin.elapsed() < RELAY_TIMEOUT, "the relay does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Root of the host's files.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    fn run(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// Returns a client of the host's rpm-ostree.
    pub async fn client(&self) -> Result<Client> {
        Client::connect(&self.bus, &self.run()).await
    }
}

impl Drop for FromOutside {
    fn drop(&mut self) {
        drop(self.relay.stdin.take());
        // An error means that it has ended.
        let _ = self.relay.wait();
    }
}

/// Links to each entry of a directory except one.
fn link_all(from: &Path, to: &Path, except: &str) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        if entry.file_name() != except {
            symlink(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
