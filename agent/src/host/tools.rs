//! Runs host tools to their end, one at a time.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_api::BootId;

use super::bus::Bus;
use super::error::HostError;
use super::failure::{self, Failure, Reason};
use super::files;
use super::root::{HostRoot, RUN_DIR};
use super::units::{self, EXIT_EXEC, Spec, UnitFailure};

const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
/// Units that run host tools, started by this agent or an earlier agent process.
const TOOL_UNITS: &[&str] = &[
    "berth-version.service",
    "berth-help.service",
    "berth-boot-image.service",
    "berth-status.service",
    "berth-early-lock.service",
    "berth-lock.service",
    "berth-unlock.service",
    "berth-unstage.service",
    "berth-inspect-manifest.service",
    "berth-inspect-config.service",
    "berth-list-images.service",
    "berth-forget-image.service",
    "berth-install-rollback-guard.service",
    "berth-prepare-soft-reboot.service",
    "berth-reset-soft-reboot.service",
    "berth-rollback.service",
];
/// Limit for a tool's output, in bytes. Longer output is an error, because a cut output could be misread.
const MAX_OUTPUT: usize = 1 << 20;
const STDERR_TAIL: u64 = 16 << 10;

#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) bus: Arc<Bus>,
    pub(super) root: HostRoot,
}

impl Tools {
    pub(super) fn boot(&self) -> Result<BootId, HostError> {
        self.root.boot_id().map_err(|e| HostError::Io(format!("{e:#}")))
    }

    /// Fails while a host tool of this agent or an earlier agent process runs, because the tool may be changing the
    /// deployments.
    async fn refuse_beside_another_tool(&self) -> Result<(), HostError> {
        let running = units::in_states(&self.bus, TOOL_UNITS, &["active", "activating", "deactivating"]).await?;
        if running.is_empty() {
            Ok(())
        } else {
            Err(HostError::Busy(format!("{} still runs", running.join(", "))))
        }
    }

    /// Runs a host tool to its end and returns its standard output.
    pub(super) async fn run(&self, what: &str, command: &[&str]) -> Result<String, HostError> {
        self.run_within(what, command, TOOL_TIMEOUT).await
    }

    pub(super) async fn run_within(
        &self,
        what: &str,
        command: &[&str],
        deadline: Duration,
    ) -> Result<String, HostError> {
        self.refuse_beside_another_tool().await?;
        let (stdout, stderr) = (format!("{RUN_DIR}/{what}.out"), format!("{RUN_DIR}/{what}.err"));
        let spec = Spec {
            name: format!("berth-{what}.service"),
            description: "Berth: query or change the host's deployments",
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            deadline,
            stdout: Some(stdout.clone()),
            stderr: Some(stderr.clone()),
            ..Spec::default()
        };
        self.root.make_run_dir().map_err(|e| HostError::Io(e.to_string()))?;
        match units::run(&self.bus, &spec).await {
            Ok(None) => output(&self.root.path(&stdout), command),
            Ok(Some(unit_failure)) => Err(tool_error(
                command,
                &unit_failure,
                deadline,
                &files::tail(&self.root.path(&stderr), STDERR_TAIL),
            )),
            Err(error) if error.is(".UnitExists") => Err(HostError::Busy(format!(
                "{} still runs; an earlier agent process started it",
                spec.name
            ))),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads the standard output of a tool that succeeded; empty if there is no output.
fn output(path: &Path, command: &[&str]) -> Result<String, HostError> {
    let text = match files::read_bounded(path, MAX_OUTPUT) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => vec![],
        Err(error) => return Err(HostError::Io(format!("cannot read {}: {error}", path.display()))),
    };
    if text.len() > MAX_OUTPUT {
        let words = format!("the output of {} is longer than {MAX_OUTPUT} bytes", command.join(" "));
        return Err(HostError::tool_failed(&words));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn tool_error(command: &[&str], unit_failure: &UnitFailure, deadline: Duration, words: &str) -> HostError {
    let program = command.first().copied().unwrap_or_default();
    let shown = command.join(" ");
    let said = if words.trim().is_empty() {
        format!("{shown} failed: {} {}", unit_failure.result, unit_failure.status)
    } else {
        words.to_owned()
    };
    match (unit_failure.result.as_str(), unit_failure.status) {
        ("timeout", _) => HostError::Timeout(format!("{shown} did not end within {} s", deadline.as_secs())),
        ("exit-code", EXIT_EXEC) => {
            let reason = if program == "/usr/bin/bootc" {
                Reason::BootcMissing
            } else {
                Reason::HostToolMissing
            };
            HostError::Tool(Failure::new(reason, &format!("{program} cannot be executed")))
        }
        _ => HostError::Tool(Failure::new(
            failure::recognise(&said).unwrap_or(Reason::HostToolFailed),
            &said,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_is_an_error() {
        let path = std::env::temp_dir().join(format!("berth-tools-{}", std::process::id()));
        let command = ["/usr/bin/skopeo", "inspect"];
        assert_eq!(output(&path, &command).unwrap(), "", "it wrote nothing");
        std::fs::write(&path, vec![b' '; MAX_OUTPUT]).unwrap();
        assert_eq!(output(&path, &command).unwrap().len(), MAX_OUTPUT);
        std::fs::write(&path, vec![b' '; MAX_OUTPUT + 1]).unwrap();
        let error = output(&path, &command).unwrap_err().to_string();
        assert!(error.contains("skopeo inspect is longer than 1048576 bytes"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_failed_tool_is_reported_with_its_message() {
        let command = ["/usr/bin/ostree", "admin", "undeploy", "0"];
        fn failed(result: &str, status: i32) -> UnitFailure {
            UnitFailure {
                result: result.to_owned(),
                status,
            }
        }
        let error = tool_error(
            &command,
            &failed("exit-code", 1),
            TOOL_TIMEOUT,
            "error: Cannot undeploy\n",
        );
        assert_eq!(
            (error.reason(), error.to_string().as_str()),
            (Reason::HostToolFailed, "error: Cannot undeploy")
        );
        let error = tool_error(&command, &failed("exit-code", 203), TOOL_TIMEOUT, "");
        assert_eq!(error.reason(), Reason::HostToolMissing);
        let error = tool_error(&["/usr/bin/bootc"], &failed("exit-code", 203), TOOL_TIMEOUT, "");
        assert_eq!(error.reason(), Reason::BootcMissing);
        let error = tool_error(&command, &failed("timeout", 15), TOOL_TIMEOUT, "");
        assert_eq!(error.reason(), Reason::HostToolTimedOut);
        assert!(
            tool_error(&command, &failed("signal", 9), TOOL_TIMEOUT, "")
                .to_string()
                .contains("undeploy 0 failed: signal 9")
        );
    }
}
