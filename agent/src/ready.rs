//! The sign by which a kubelet knows that the agent in a pod works: a file that the agent touches at the end of each turn
//! of its loop, as long as the API server answers it. `berth-agent ready` looks at its age. No port need be open for that;
//! where one is, [`Signs`] say the same there.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_shell::pages::Health;

use crate::host::files;

/// Time after which an agent is said to wait for another one: many end at once.
const SETTLED: Duration = Duration::from_secs(2);
/// Time between two signs of an agent that waits for another one to end.
const WAITING: Duration = Duration::from_secs(20);

/// Age of the last sign with which an agent still counts as ready; also what `berth-agent ready` allows unless told otherwise.
pub const READY_WITHIN: Duration = Duration::from_secs(120);
/// Longest turn of the loop of an agent that lives: several host commands, each with its deadline.
const ALIVE_WITHIN: Duration = Duration::from_secs(600);

/// The signs of one process, for those who ask over HTTP. Cheap to clone; the clones are the same signs.
#[derive(Debug, Clone)]
pub struct Signs(Arc<Mutex<Times>>);

#[derive(Debug, Clone, Copy)]
struct Times {
    /// The loop began a turn, or the process did.
    turned: Instant,
    /// The file was touched, or would have been.
    ready: Option<Instant>,
}

impl Signs {
    fn new() -> Self {
        let turned = Instant::now();
        Self(Arc::new(Mutex::new(Times { turned, ready: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Health for Signs {
    fn alive(&self) -> Result<(), String> {
        let age = self.lock().turned.elapsed();
        match age < ALIVE_WITHIN {
            true => Ok(()),
            false => Err(format!("the agent's loop has not turned for {} s", age.as_secs())),
        }
    }

    fn ready(&self) -> Result<(), String> {
        match self.lock().ready.is_some_and(|last| last.elapsed() <= READY_WITHIN) {
            true => Ok(()),
            false => Err(format!(
                "no turn of the agent in which the API server answered has ended within {} s; its log says why",
                READY_WITHIN.as_secs()
            )),
        }
    }
}

/// The file, where there is one.
#[derive(Debug)]
pub struct ReadyFile {
    path: Option<PathBuf>,
    signs: Signs,
    /// The last question to the API server was answered.
    answered: bool,
}

impl ReadyFile {
    /// A file that is not touched yet. The one of a process before is removed: it says nothing of this one.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn new(path: Option<PathBuf>) -> Result<Self> {
        let file = Self {
            path,
            signs: Signs::new(),
            answered: false,
        };
        file.forget()?;
        Ok(file)
    }

    /// The same signs for those who ask over HTTP.
    pub fn signs(&self) -> Signs {
        self.signs.clone()
    }

    /// Removes the file: what it said does not count any more.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn forget(&self) -> Result<()> {
        self.signs.lock().ready = None;
        match &self.path {
            Some(path) => files::remove(path).with_context(|| format!("cannot remove {}", path.display())),
            None => Ok(()),
        }
    }

    /// Takes note of whether the API server has answered.
    pub(crate) fn api_server(&mut self, answered: bool) {
        self.answered = answered;
    }

    /// A turn of the loop begins.
    pub(crate) fn turns(&self) {
        self.signs.lock().turned = Instant::now();
    }

    /// A turn of the loop has ended well.
    pub(crate) fn turned(&self) {
        if self.answered {
            self.touch();
        }
    }

    /// Touches the file for as long as another agent has the host: to wait for that is what this one is for.
    pub async fn while_waiting(&self) -> std::convert::Infallible {
        tokio::time::sleep(SETTLED).await;
        loop {
            self.turns();
            self.touch();
            tokio::time::sleep(WAITING).await;
        }
    }

    fn touch(&self) {
        self.signs.lock().ready = Some(Instant::now());
        if let Some(path) = &self.path
            && let Err(error) = fs::write(path, "\n")
        {
            tracing::warn!(path = %path.display(), %error, "cannot touch the file that says that this agent is ready");
        }
    }
}

/// Looks whether the file was touched within this time.
///
/// # Errors
/// When it is not there, or older.
pub fn check(path: &Path, within: Duration) -> Result<()> {
    let metadata = fs::metadata(path)
        .with_context(|| format!("not ready: the agent has not touched {} since it began", path.display()))?;
    // One of the future was made before the clock was set back.
    let age = metadata.modified()?.elapsed().unwrap_or_default();
    ensure!(
        age <= within,
        "not ready: no turn of the agent in which the API server answered has ended for {} s; its log says why",
        age.as_secs()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_waits_for_another_is_ready_but_not_at_once() {
        let path = std::env::temp_dir().join(format!("berth-waits-{}", std::process::id()));
        let minute = Duration::from_secs(60);
        let ready = ReadyFile::new(Some(path.clone())).unwrap();
        let wait = |time| tokio::time::timeout(time, ready.while_waiting());
        assert!(wait(SETTLED / 10).await.is_err());
        assert!(check(&path, minute).is_err(), "the lock may be free at once");
        assert!(wait(SETTLED + SETTLED / 10).await.is_err());
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
        let signs = ready.signs();
        ready.turned();
        assert!(check(&path, minute).is_err(), "the API server has not answered");
        ready.api_server(true);
        assert!(check(&path, minute).is_err(), "the turn has not ended");
        assert!(signs.ready().is_err() && signs.alive().is_ok());
        ready.turned();
        check(&path, minute).unwrap();
        signs.ready().unwrap();
        signs.lock().ready = Instant::now().checked_sub(2 * READY_WITHIN);
        signs.lock().turned = Instant::now().checked_sub(ALIVE_WITHIN).unwrap();
        assert!(signs.ready().is_err() && signs.alive().is_err());
        ready.turns();
        signs.alive().unwrap();

        let long_ago = std::time::SystemTime::now() - 2 * minute;
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        ready.api_server(false);
        ready.turned();
        let error = check(&path, minute).unwrap_err().to_string();
        assert!(error.contains("for 120 s"), "{error}");
        ready.api_server(true);
        ready.turned();
        check(&path, minute).unwrap();
        fs::remove_file(&path).unwrap();
        ReadyFile::new(None).unwrap().touch();
    }
}
