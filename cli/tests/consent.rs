//! Commands that ask for consent, run without a terminal to ask on. These tests need no cluster.

use std::process::{Command, Output, Stdio};

use anyhow::{Result, ensure};

fn berth(arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-berth"));
    command
        .args(arguments)
        .args(["--kubeconfig", "/nonexistent/kubeconfig"])
        .stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output()?;
    ensure!(
        stdout.is_empty(),
        "nothing goes to standard output: {}",
        String::from_utf8_lossy(&stdout)
    );
    Ok((status.code(), String::from_utf8_lossy(&stderr).into_owned()))
}

const COMMANDS: [&[&str]; 16] = [
    &["exclude", "n3"],
    &["exclude", "n3", "--undo"],
    &["include", "n3"],
    &["release", "n3"],
    &["hold", "n3"],
    &["unhold", "n3"],
    &["dismiss", "m7"],
    &["pause", "workers"],
    &["pause", "--all"],
    &["resume", "workers"],
    &["resume", "--all"],
    &["retry", "workers"],
    &["retry", "--all"],
    &["approve", "workers"],
    &["approve", "--all"],
    &["uninstall"],
];

#[test]
fn without_a_terminal_every_command_needs_yes() -> Result<()> {
    for words in COMMANDS {
        let (code, error) = berth(words)?;
        ensure!(code == Some(2), "{words:?}: {code:?} {error}");
        ensure!(
            error.contains("--yes") && error.contains("--dry-run"),
            "{words:?} names both flags: {error}"
        );
    }
    Ok(())
}

#[test]
fn with_yes_or_dry_run_the_cluster_is_read() -> Result<()> {
    for words in COMMANDS {
        for more in ["--yes", "-y", "--dry-run"] {
            let (code, error) = berth(&[words, &[more]].concat())?;
            ensure!(code == Some(1), "{words:?} {more}: {code:?} {error}");
            ensure!(error.contains("/nonexistent/kubeconfig"), "{words:?} {more}: {error}");
        }
    }
    Ok(())
}

#[test]
fn yes_and_dry_run_exclude_each_other() -> Result<()> {
    for words in COMMANDS {
        let (code, error) = berth(&[words, &["--yes", "--dry-run"]].concat())?;
        ensure!(
            code == Some(2) && error.contains("--dry-run"),
            "{words:?}: {code:?} {error}"
        );
    }
    Ok(())
}
