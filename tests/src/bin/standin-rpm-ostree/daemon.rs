//! The daemon. To read and change the deployments, it runs this program's verbs as child processes.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result};
use berth_tests::hosts::real::sysroot_lock;
use berth_tests::rpmostreed::{
    self, Backend, Config, Deployment, ProgressSender, SharedFaults, StageRequest, SysrootLock, Undeploy,
};
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::verbs::own_lock;

const BUS: &str = "unix:path=/run/dbus/system_bus_socket";
/// File that ostree creates to lock the staged deployment. rpm-ostree reads it, but locks without it.
pub(crate) const STAGED_LOCK: &str = "/run/ostree/staged-deployment-locked";

pub(crate) fn serve() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let host = OnHost {
            program: std::env::current_exe().context("cannot find the path of this program")?,
        };
        let all = host.deployments().await.map_err(anyhow::Error::msg)?;
        let booted = all
            .into_iter()
            .find(|d| d.booted)
            .context("there is no booted deployment")?;
        let config = Config {
            bus: BUS.to_owned(),
            run: "/run".into(),
            osname: booted.osname,
            backend: Arc::new(host),
            faults: SharedFaults::default(),
        };
        let (ready, _) = oneshot::channel();
        let end = rpmostreed::run(config, ready).await?;
        tracing::info!(?end, "ended");
        Ok(())
    })
}

#[derive(Debug)]
struct OnHost {
    program: PathBuf,
}

impl OnHost {
    /// Runs a verb of this program and passes each line of output to `hear`. If it fails, returns the last line of its
    /// errors. Dropping the future ends the process.
    async fn run(&self, verb: &str, argument: &str, mut hear: impl FnMut(&str)) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.args([verb, argument]).kill_on_drop(true);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{verb}: {error}"))?;
        let _own = OwnLock(child.id());
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let listening = async {
            let Some(out) = out else { return };
            let mut lines = BufReader::new(out).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                hear(&line);
            }
        };
        let complaining = async {
            let mut words = String::new();
            if let Some(mut err) = err {
                // After a failed read the message is incomplete.
                let _ = err.read_to_string(&mut words).await;
            }
            words
        };
        let ((), words) = tokio::join!(listening, complaining);
        let status = child.wait().await.map_err(|error| format!("{verb}: {error}"))?;
        if status.success() {
            return Ok(());
        }
        let last = words.trim().lines().next_back();
        Err(last.unwrap_or("no error message").to_owned())
    }

    /// Runs a verb that answers with one line of JSON.
    async fn ask<T: DeserializeOwned>(&self, verb: &str, argument: &str) -> Result<T, String> {
        let mut answer = String::new();
        self.run(verb, argument, |line| line.clone_into(&mut answer)).await?;
        serde_json::from_str(&answer).map_err(|error| format!("{verb} answers {answer:?}: {error}"))
    }
}

/// Lock file of a child process, removed when dropped.
struct OwnLock(Option<u32>);

impl Drop for OwnLock {
    fn drop(&mut self) {
        if let Some(process) = self.0 {
            // A process that failed early has no lock file.
            let _ = std::fs::remove_file(own_lock(process));
        }
    }
}

impl Backend for OnHost {
    fn deployments(&self) -> BoxFuture<'_, Result<Vec<Deployment>, String>> {
        Box::pin(self.ask("list", ""))
    }

    fn try_lock(&self) -> Option<SysrootLock> {
        let lock = sysroot_lock::SysrootLock::take();
        let lock = lock
            .inspect_err(|error| tracing::error!(%error, "cannot lock {}", sysroot_lock::PATH))
            .ok()??;
        Some(SysrootLock::new(lock))
    }

    fn stage(&self, wanted: StageRequest, progress: ProgressSender) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let wanted = serde_json::to_string(&wanted).map_err(|error| error.to_string())?;
            self.run("stage", &wanted, |line| match serde_json::from_str(line) {
                // An error means that the receiver is gone.
                Ok(event) => drop(progress.send(event)),
                Err(_) => tracing::info!("{line}"),
            })
            .await
        })
    }

    fn undeploy(&self, which: Undeploy) -> BoxFuture<'_, Result<bool, String>> {
        let which = match which {
            Undeploy::Pending => "pending",
            Undeploy::Rollback => "rollback",
        };
        Box::pin(self.ask("undeploy", which))
    }

    fn roll_back(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.run("roll-back", "", |_| {}))
    }

    fn unlock(&self) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(self.ask("unlock", ""))
    }

    fn is_inhibited(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            let list = ["--list", "--no-legend", "--no-pager"];
            let out = Command::new("systemd-inhibit").args(list).output().await;
            let text = out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
            let text = text.unwrap_or_default();
            let mut lines = text.lines().filter(|line| line.contains("shutdown"));
            lines.any(|line| line.trim_end().ends_with("block"))
        })
    }

    fn reboot(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            let status = Command::new("systemctl").arg("reboot").status().await;
            match status {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(format!("systemctl reboot: {status}")),
                Err(error) => Err(format!("systemctl reboot: {error}")),
            }
        })
    }
}
