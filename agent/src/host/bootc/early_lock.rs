//! Locks a staged image while bootc still runs.
//!
//! bootc before 1.16.10 stages an image unlocked, and then pulls the bound images and cleans up. Meanwhile bootc holds
//! the sysroot's lock: `ostree admin lock-finalization` would wait, and a reboot would apply the image. So the agent
//! creates a lock file beside the state file of the staged deployment. ostree used this lock file before it had that
//! command, and still honors it: finalization checks for the file, a lock creates it, and an unlock or a removal of
//! the deployment removes it.

use std::sync::Arc;
use std::time::Duration;

use berth_api::condition::one_line;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::host::bus::Bus;
use crate::host::files;
use crate::host::root::{HostRoot, RUN_DIR};
use crate::host::units::{self, Spec};

const STAGED: &str = "/run/ostree/staged-deployment";
/// The lock file. The agent creates it as a hard link to the state file, so the creation fails if nothing is staged.
const LOCK: &str = "/run/ostree/staged-deployment-locked";
const TIMEOUT: Duration = Duration::from_secs(10);

const EXISTS: &str = "File exists";
const STDERR_TAIL: u64 = 1 << 10;
/// First delay before a retry, doubled up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Background task that locks the running pull's image.
#[derive(Debug)]
pub(super) struct EarlyLock {
    task: JoinHandle<()>,
    /// Dropping this sender ends the attempts to lock.
    pull: oneshot::Sender<()>,
}

impl EarlyLock {
    /// Locks the image as soon as `staged` reports the image as staged, and retries while the pull runs. If the pull is
    /// `adopted`, an earlier agent may have received that report. The first attempt is then made at once, and fails if
    /// nothing is staged yet.
    pub(super) fn begin(bus: Arc<Bus>, root: HostRoot, staged: oneshot::Receiver<()>, adopted: bool) -> Self {
        let (pull, ended) = oneshot::channel();
        let task = tokio::spawn(try_until_locked(bus, root, staged, ended, adopted));
        Self { task, pull }
    }

    /// Ends the attempts to lock. Waits for a running attempt, which could otherwise lock an image that the agent has
    /// unlocked.
    pub(super) async fn end(self) {
        drop(self.pull);
        let _ = self.task.await;
    }
}

async fn try_until_locked(
    bus: Arc<Bus>,
    root: HostRoot,
    mut staged: oneshot::Receiver<()>,
    mut ended: oneshot::Receiver<()>,
    adopted: bool,
) {
    // An error means that this agent has stopped reading the pull's progress.
    if !adopted && (&mut staged).await.is_err() {
        return;
    }
    let (mut is_reported, mut pause) = (!adopted, RETRY_MIN);
    loop {
        match lock(&bus, &root).await {
            Ok(()) => return tracing::debug!("locked the staged image while bootc still runs"),
            Err(why) if is_reported => {
                tracing::warn!(why, "cannot lock the staged image while bootc still runs; retrying")
            }
            Err(why) => tracing::debug!(
                why,
                "no image is staged yet, or the staged image cannot be locked; retrying"
            ),
        }
        tokio::select! {
            _ = &mut ended => return,
            news = &mut staged, if !is_reported => {
                if news.is_err() {
                    return;
                }
                (is_reported, pause) = (true, RETRY_MIN);
            }
            () = tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())) => {
                pause = pause.saturating_mul(2).min(RETRY_MAX);
            }
        }
    }
}

/// Locks the staged image while bootc still runs. If this fails, a reboot before bootc's end would apply the image.
/// After bootc's end, the pull's unit locks the image.
async fn lock(bus: &Bus, root: &HostRoot) -> Result<(), String> {
    let stderr = format!("{RUN_DIR}/early-lock.err");
    let spec = Spec {
        name: "berth-early-lock.service".to_owned(),
        description: "Berth: lock the staged image while bootc still runs",
        command: ["/usr/bin/ln", STAGED, LOCK].map(str::to_owned).into(),
        deadline: TIMEOUT,
        stderr: Some(stderr.clone()),
        ..Spec::default()
    };
    match units::run(bus, &spec).await {
        Ok(None) => Ok(()),
        Ok(Some(unit_failure)) => {
            let words = files::tail(&root.path(stderr), STDERR_TAIL);
            // An earlier attempt or another tool has created the lock file.
            if words.contains(EXISTS) {
                Ok(())
            } else {
                Err(one_line(&format!("{unit_failure:?} {words}")))
            }
        }
        Err(error) => Err(error.to_string()),
    }
}
