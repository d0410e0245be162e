//! Child processes that end with the harness, even if it is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::locked::locked;

type Request = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Returns a command that runs the same program. The kernel kills the program when the thread that started it ends.
///
/// Keeps program, arguments, environment and working directory, but not the standard streams.
pub fn with_parent(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped
        .args(["--pdeathsig", "KILL", "--"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        wrapped.current_dir(directory);
    }
    wrapped
}

/// Starts a command from a thread that lives as long as this process.
///
/// The kernel sends the parent-death signal when the parent *thread* ends. A test's thread or a blocking thread of the runtime
/// ends long before the process, so [`with_parent`] only works together with this function.
pub fn spawn_lasting(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Request>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in requests {
                // An error means that the requester is gone. Dropping the child does not end it.
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, answer) = mpsc::channel();
    let program = format!("{:?}", command.get_program());
    let sent = locked(spawner).send((command, reply));
    sent.ok().context("the spawner thread has ended")?;
    answer
        .recv()
        .context("the spawner thread has ended")?
        .with_context(|| format!("starting {program}"))
}

/// A server that writes its output to a file. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command with standard output and error appended to `log`.
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let mut command = with_parent(command);
        command
            .stdin(std::process::Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = spawn_lasting(command).with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Exit status, if the process has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// True until the process has ended.
    pub fn is_running(&mut self) -> bool {
        self.exit_status().is_none()
    }

    /// Last lines of the output, below a line with the process's name; for error messages.
    pub fn log_tail(&self) -> String {
        format!("last lines of {}:\n{}", self.name, tail(&self.log, 15))
    }

    /// Returns an error if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.exit_status() {
            Some(status) => anyhow::bail!("{} ended: {status}; {}", self.name, self.log_tail()),
            None => Ok(()),
        }
    }

    /// Sends SIGTERM, and SIGKILL after `grace`. Returns when the process has ended.
    pub fn stop(&mut self, grace: Duration) {
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + grace;
        while self.exit_status().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Sends SIGKILL. Returns when the process has ended.
    pub fn kill(&mut self) {
        if self.exit_status().is_none() {
            // Both can only fail if it has already ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Sends a signal (SIGSTOP or SIGCONT, for example).
    pub fn signal(&mut self, signal: Signal) {
        // After it is reaped, another process may have its ID.
        if self.exit_status().is_some() {
            return;
        }
        if let Ok(id) = i32::try_from(self.child.id()) {
            // This can only fail if it has already ended.
            let _ = kill(Pid::from_raw(id), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the last `count` lines of a file.
pub(crate) fn tail(path: &Path, count: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    last_lines(&String::from_utf8_lossy(&text), count)
}

/// Runs a command; returns its standard output, or an error with the last lines of its standard error.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program}"))?;
    check(&program, &out)?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

pub(crate) fn check(program: &str, out: &Output) -> Result<()> {
    if !out.status.success() {
        let words = String::from_utf8_lossy(&out.stderr);
        bail!("{program} ({}): {}", out.status, last_lines(&words, 15));
    }
    Ok(())
}

/// Returns the last `count` lines of a text.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    lines.get(from..).unwrap_or_default().join("\n")
}
