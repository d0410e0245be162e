//! Readiness of the agent in a pod: a file that the agent touches after each pass of its loop, as long as the API
//! server answers. `berth-agent ready` checks the file's age, so no port needs to be open. With --health-address,
//! [`LoopHealth`] serves the same result over HTTP.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_shell::pages::Health;

use crate::host::files;

/// Delay before an agent that waits for another agent's end counts as ready. Most waits are shorter.
const WAITING_DELAY: Duration = Duration::from_secs(2);
/// Time between two touches of the file while the agent waits for another agent to end.
const WAITING_INTERVAL: Duration = Duration::from_secs(20);

/// An agent is ready if it touched the file within this time. Default of `berth-agent ready`.
pub const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for one pass of the loop: several host commands, each with a timeout. After this time, the liveness probe
/// fails.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(600);

/// Health of one process, served over HTTP. Cheap to clone; clones share their state.
#[derive(Debug, Clone)]
pub struct LoopHealth(Arc<Mutex<Times>>);

#[derive(Debug, Clone, Copy)]
struct Times {
    /// Start of the loop's last pass. Before the first pass, start of the process.
    turned: Instant,
    ready: Option<Instant>,
}

impl LoopHealth {
    fn new() -> Self {
        let turned = Instant::now();
        Self(Arc::new(Mutex::new(Times { turned, ready: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Health for LoopHealth {
    fn alive(&self) -> Result<(), String> {
        let age = self.lock().turned.elapsed();
        if age >= LIVENESS_TIMEOUT {
            return Err(format!(
                "the agent's loop has begun no pass for {} s, so the agent hangs",
                age.as_secs()
            ));
        }
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        let is_ready = self.lock().ready.is_some_and(|last| last.elapsed() <= READY_TIMEOUT);
        if !is_ready {
            return Err(format!(
                "the agent has completed no pass in the last {} s, or the API server did not answer; see the agent's log",
                READY_TIMEOUT.as_secs()
            ));
        }
        Ok(())
    }
}

/// File whose age shows whether the agent is ready. If no path is configured, no file is written.
#[derive(Debug)]
pub struct ReadyFile {
    path: Option<PathBuf>,
    health: LoopHealth,
    /// True if the API server answered the last request.
    answered: bool,
}

impl ReadyFile {
    /// Creates a value that is not ready yet. Removes a file that an earlier process left.
    pub fn new(path: Option<PathBuf>) -> Result<Self> {
        let file = Self {
            path,
            health: LoopHealth::new(),
            answered: false,
        };
        file.forget()?;
        Ok(file)
    }

    /// Returns the health for the HTTP server.
    pub fn health(&self) -> LoopHealth {
        self.health.clone()
    }

    /// Removes the file: the agent is not ready any more.
    pub fn forget(&self) -> Result<()> {
        self.health.lock().ready = None;
        match &self.path {
            Some(path) => files::remove(path).with_context(|| format!("cannot remove {}", path.display())),
            None => Ok(()),
        }
    }

    pub(crate) fn api_server(&mut self, answered: bool) {
        self.answered = answered;
    }

    pub(crate) fn turn_begins(&self) {
        self.health.lock().turned = Instant::now();
    }

    pub(crate) fn turn_ended(&self) {
        if self.answered {
            self.touch();
        }
    }

    /// Touches the file while another agent has the host's lock, because an agent that waits for the lock counts as
    /// ready. The first touch comes after a delay of 2 s.
    pub async fn while_waiting(&self) -> std::convert::Infallible {
        tokio::time::sleep(WAITING_DELAY).await;
        self.stay_ready().await
    }

    /// Touches the file forever.
    pub async fn stay_ready(&self) -> std::convert::Infallible {
        loop {
            self.turn_begins();
            self.touch();
            tokio::time::sleep(WAITING_INTERVAL).await;
        }
    }

    fn touch(&self) {
        self.health.lock().ready = Some(Instant::now());
        if let Some(path) = &self.path
            && let Err(error) = fs::write(path, "\n")
        {
            tracing::warn!(path = %path.display(), %error, "cannot touch the ready file, so this agent will count as not ready");
        }
    }
}

/// Checks that the file was touched within this time.
pub fn check(path: &Path, within: Duration) -> Result<()> {
    let metadata = fs::metadata(path).with_context(|| {
        format!(
            "not ready: the agent has not touched {} since it started",
            path.display()
        )
    })?;
    // A time in the future means that the clock was set back after the file was touched.
    let age = metadata.modified()?.elapsed().unwrap_or_default();
    ensure!(
        age <= within,
        "not ready: the agent has completed no pass for {} s, or the API server did not answer; see the agent's log",
        age.as_secs()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_waiting_agent_is_ready_after_a_delay() {
        let path = std::env::temp_dir().join(format!("berth-waits-{}", std::process::id()));
        let minute = Duration::from_secs(60);
        let ready = ReadyFile::new(Some(path.clone())).unwrap();
        let wait = timeout(WAITING_DELAY / 10, ready.while_waiting());
        assert!(wait.await.is_err());
        assert!(check(&path, minute).is_err(), "the lock may be free at once");
        let wait = timeout(WAITING_DELAY + WAITING_DELAY / 10, ready.while_waiting());
        assert!(wait.await.is_err());
        check(&path, minute).unwrap();
        ready.forget().unwrap();
        assert!(
            check(&path, minute).is_err(),
            "the wait is over, and nothing else is shown"
        );
    }

    #[test]
    fn an_agent_is_ready_after_a_turn_with_an_answer() {
        let path = std::env::temp_dir().join(format!("berth-ready-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        let minute = Duration::from_secs(60);
        let mut ready = ReadyFile::new(Some(path.clone())).unwrap();
        assert!(check(&path, minute).is_err(), "a former process's file says nothing");
        let health = ready.health();
        ready.turn_ended();
        assert!(check(&path, minute).is_err(), "the API server has not answered");
        ready.api_server(true);
        assert!(check(&path, minute).is_err(), "the turn has not ended");
        assert!(health.ready().is_err() && health.alive().is_ok());
        ready.turn_ended();
        check(&path, minute).unwrap();
        health.ready().unwrap();
        health.lock().ready = Instant::now().checked_sub(2 * READY_TIMEOUT);
        health.lock().turned = Instant::now().checked_sub(LIVENESS_TIMEOUT).unwrap();
        assert!(health.ready().is_err() && health.alive().is_err());
        ready.turn_begins();
        health.alive().unwrap();

        let long_ago = std::time::SystemTime::now() - 2 * minute;
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        ready.api_server(false);
        ready.turn_ended();
        let error = check(&path, minute).unwrap_err().to_string();
        assert!(error.contains("for 120 s"), "{error}");
        ready.api_server(true);
        ready.turn_ended();
        check(&path, minute).unwrap();
        fs::remove_file(&path).unwrap();
        ReadyFile::new(None).unwrap().touch();
    }
}
