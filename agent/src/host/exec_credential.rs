//! Runs the program that issues the kubelet's credentials as a unit of the host, as root.
//!
//! The program's environment and output may be secret. They are in files that only root can read, and that are removed
//! when the program has ended.

use std::time::Duration;

use berth_core::agent::exec_credential::answer::{MAX_LENGTH, complaint};
use berth_core::agent::exec_credential::command::{Command, environment_file};

use super::bus::BusError;
use super::files;
use super::root::RUN_DIR;
use super::tools::Tools;
use super::units::{self, EXIT_EXEC, Spec, UnitFailure};

/// Timeout of the program. `aws eks get-token` takes a second, and asks the cloud's metadata server.
const TIMEOUT: Duration = Duration::from_secs(20);
const STDERR_TAIL: u64 = 16 << 10;
/// Exit status of `env` if it does not find the program.
const EXIT_NOT_FOUND: i32 = 127;

/// Runs programs that issue credentials. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CredentialPrograms {
    pub(super) tools: Tools,
}

impl CredentialPrograms {
    /// Runs a program to its end, and returns its standard output. The output may be longer than the limit of an
    /// answer, and is then cut.
    ///
    /// # Errors
    /// Why the program failed, to be read after its name. The text contains no secret.
    pub async fn run(&self, command: &Command) -> Result<Vec<u8>, String> {
        let [environment, stdout, stderr] = ["env", "out", "err"].map(|kind| format!("{RUN_DIR}/credential.{kind}"));
        let spec = Spec {
            name: "berth-kubelet-credential.service".to_owned(),
            description: "Berth: get a credential of the kubelet",
            command: command.argv.iter().map(|word| literal(word)).collect(),
            deadline: TIMEOUT,
            stdout: Some(stdout),
            stderr: Some(stderr),
            environment_file: Some(environment),
            contained: true,
            private: true,
            ..Spec::default()
        };
        let done = self.run_unit(&spec, command).await;
        self.remove_files(&spec);
        done
    }

    async fn run_unit(&self, spec: &Spec, command: &Command) -> Result<Vec<u8>, String> {
        let root = &self.tools.root;
        root.make_run_dir().map_err(|error| format!("cannot run: {error}"))?;
        let mut result = self.start(spec, command).await?;
        if result.as_ref().is_err_and(|error| error.is(".UnitExists")) {
            // An earlier agent process, or a request that timed out, has started it.
            let ended = units::outlast(&self.tools.bus, spec).await;
            ended.map_err(|error| format!("cannot run: {error}"))?;
            result = self.start(spec, command).await?;
        }
        match result {
            Ok(None) => self.output(spec),
            Ok(Some(failure)) => {
                let errors = spec
                    .stderr
                    .as_ref()
                    .map(|path| files::tail(&root.path(path), STDERR_TAIL));
                Err(words(&failure, &complaint(&errors.unwrap_or_default())))
            }
            Err(error) => Err(format!("cannot run: {error}")),
        }
    }

    /// Writes the environment, and runs the unit. Removes old files first: systemd would keep their permissions.
    async fn start(&self, spec: &Spec, command: &Command) -> Result<Result<Option<UnitFailure>, BusError>, String> {
        self.remove_files(spec);
        if let Some(path) = &spec.environment_file {
            let path = self.tools.root.path(path);
            let written = files::replace(&path, environment_file(&command.environment).as_bytes());
            written.map_err(|error| format!("cannot run: cannot write {}: {error}", path.display()))?;
        }
        Ok(units::run(&self.tools.bus, spec).await)
    }

    fn output(&self, spec: &Spec) -> Result<Vec<u8>, String> {
        let Some(path) = &spec.stdout else {
            return Ok(vec![]);
        };
        let path = self.tools.root.path(path);
        files::read_bounded(&path, MAX_LENGTH).map_err(|error| format!("left no output: {}: {error}", path.display()))
    }

    fn remove_files(&self, spec: &Spec) {
        for path in [&spec.environment_file, &spec.stdout, &spec.stderr]
            .into_iter()
            .flatten()
        {
            let path = self.tools.root.path(path);
            if let Err(error) = files::remove(&path) {
                tracing::warn!(%error, path = %path.display(), "cannot remove a file with a credential of the kubelet");
            }
        }
    }
}

/// Returns a word of a command so that systemd passes it on unchanged: systemd replaces variables in commands.
fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

fn words(failure: &UnitFailure, complaint: &str) -> String {
    let how = match (failure.result.as_str(), failure.status) {
        ("timeout", _) => return format!("did not end within {} s", TIMEOUT.as_secs()),
        ("exit-code", EXIT_EXEC) => return "cannot be executed on the host".to_owned(),
        ("exit-code", EXIT_NOT_FOUND) => "was not found on the host".to_owned(),
        ("exit-code", status) => format!("failed with exit status {status}"),
        ("canceled", _) => "was stopped before it ended".to_owned(),
        (result, status) => format!("failed: {result} {status}"),
    };
    if complaint.is_empty() {
        how
    } else {
        format!("{how}: {complaint}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_replaces_nothing_in_an_argument() {
        assert_eq!(literal("--role=${HOME} $$ $(id)"), "--role=$${HOME} $$$$ $$(id)");
    }

    #[test]
    fn a_failure_is_described() {
        for (result, status, complaint, expected) in [
            ("timeout", 15, "", "did not end within 20 s"),
            ("exit-code", 203, "", "cannot be executed on the host"),
            (
                "exit-code",
                127,
                "env: 'aws': No such file",
                "was not found on the host: env: 'aws': No such file",
            ),
            (
                "exit-code",
                255,
                "Unable to locate credentials",
                "failed with exit status 255: Unable to locate credentials",
            ),
            ("signal", 25, "", "failed: signal 25"),
        ] {
            let failure = UnitFailure {
                result: result.to_owned(),
                status,
            };
            assert_eq!(words(&failure, complaint), expected);
        }
    }
}
