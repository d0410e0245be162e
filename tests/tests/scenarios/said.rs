//! Output of the shipped programs.

use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{LONG, Site};
use berth_tests::controlplane::ControlPlane;
use berth_tests::programs;
use tokio::process::Command;

#[derive(Debug)]
pub struct Said {
    code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Fails unless the exit status is 0 and standard output contains each of these texts.
    pub fn well(self, texts: &[&str]) -> Result<Self> {
        ensure!(self.is_well(), "exit status 0: {self:?}");
        for text in texts {
            ensure!(self.out.contains(text), "no {text:?} in:\n{}", self.out);
        }
        Ok(self)
    }

    pub fn says(&self, texts: &[&str]) -> Result<()> {
        for text in texts {
            let said = self.out.contains(text) || self.err.contains(text);
            ensure!(said, "no {text:?} in: {self:?}");
        }
        Ok(())
    }

    pub fn is_well(&self) -> bool {
        self.code == Some(0)
    }

    /// Fails unless the program failed and the output contains each of these texts.
    pub fn fails(&self, texts: &[&str]) -> Result<()> {
        ensure!(!self.is_well(), "it should fail: {self:?}");
        self.says(texts)
    }

    /// Fails unless the exit status is this one and the output contains each of these texts.
    pub fn ends(&self, code: i32, texts: &[&str]) -> Result<()> {
        ensure!(self.code == Some(code), "exit status {code}: {self:?}");
        self.says(texts)
    }
}

/// Runs `kubectl berth` as the admin tom, without a terminal for questions.
pub async fn berth(site: &Site, arguments: &[&str]) -> Result<Said> {
    berth_on(&site.control_plane, arguments).await
}

/// Like [`berth`], on a cluster without hosts.
pub async fn berth_on(plane: &ControlPlane, arguments: &[&str]) -> Result<Said> {
    let program = tokio::task::spawn_blocking(programs::kubectl).await??;
    let config = plane.kubeconfig_for("tom", &["system:masters"])?;
    let mut command = Command::new(program);
    command.args(arguments).arg("--kubeconfig").arg(&config.path);
    run(command).await
}

pub async fn run(mut command: Command) -> Result<Said> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONG, command.output()).await;
    Ok(Said::of(&output.context("the program does not end")??))
}
