//! `kubectl berth dashboard`, as an admin runs it, without a browser.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;

use crate::cluster::SOON;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::eventually;

/// Timeout until the program ends after Ctrl-C.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// A running dashboard. Dropping it ends the program.
#[derive(Debug)]
pub struct Dashboard {
    process: Process,
    address: String,
    _directory: Scratch,
}

impl Dashboard {
    /// Starts `program dashboard --no-open`, and waits until it prints its address. `arguments` may have a pool.
    pub async fn start(program: &Path, kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let directory = Scratch::new("berth-dashboard-")?;
        let log = directory.path().join("dashboard.log");
        let mut command = Self::command(program, kubeconfig);
        command.args(arguments).arg("--no-open");
        let mut process = Process::start("kubectl berth dashboard", &command, &log)?;
        let mut address = None;
        eventually("the dashboard prints its address", SOON, async || {
            address = address_in(&fs::read_to_string(&log)?);
            if address.is_none() {
                process.check()?;
            }
            Ok(address.is_some())
        })
        .await
        .with_context(|| process.log_tail())?;
        Ok(Self {
            process,
            address: address.context("no address")?,
            _directory: directory,
        })
    }

    /// Returns the command `program dashboard`.
    pub fn command(program: &Path, kubeconfig: &Path) -> Command {
        let mut command = Command::new(program);
        // Not an argument, which each command to copy would repeat.
        command.arg("dashboard").env("KUBECONFIG", kubeconfig);
        command
    }

    /// Address with the token, which works once.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// `http://127.0.0.1:port`
    pub fn origin(&self) -> Result<&str> {
        let (origin, _) = self.address.split_once("/?").context("the address has no token")?;
        Ok(origin)
    }

    /// Process ID, for measurements.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal to the program.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sends SIGINT, as Ctrl-C does. Returns the time until the program has ended.
    ///
    /// # Errors
    /// If it does not end, or its exit status is not 0.
    pub async fn interrupt(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        self.process.signal(Signal::SIGINT);
        while begin.elapsed() < END_TIMEOUT {
            if let Some(status) = self.process.exit_status() {
                ensure!(
                    status.success(),
                    "the dashboard ended: {status}; {}",
                    self.process.log_tail()
                );
                return Ok(begin.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the dashboard does not end after Ctrl-C; {}", self.process.log_tail())
    }
}

/// Returns the address with a token in the program's output, if the line is complete.
fn address_in(output: &str) -> Option<String> {
    let (lines, _) = output.rsplit_once('\n')?;
    let mut words = lines.split_whitespace();
    let found = words.find(|word| word.starts_with("http://127.0.0.1:") && word.contains("/?token="))?;
    Some(found.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_counts_if_its_line_is_complete() {
        let line = "Dashboard of x: http://127.0.0.1:31234/?token=ab12";
        assert_eq!(address_in(line), None);
        let address = address_in(&format!("{line}\nCtrl-C ends it.\n"));
        assert_eq!(address.as_deref(), Some("http://127.0.0.1:31234/?token=ab12"));
    }
}
