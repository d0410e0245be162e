//! The lock on what is staged that does not wait until bootc has ended.
//!
//! bootc up to 1.16.9 stages an image unlocked, then pulls the images that are bound to it and cleans up, and keeps the lock
//! on the sysroot all the while: `ostree admin lock-finalization` would wait for its end, and a reboot meanwhile would apply
//! the image. ostree also heeds a file beside the staged deployment, by which the tools before that command locked. Whoever
//! finalizes looks for it; ostree makes it when it locks, and removes it when it unlocks and together with the deployment.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::host::bus::Bus;
use crate::host::files;
use crate::host::root::{HostRoot, RUN_DIR};
use crate::host::units::{self, Spec};

/// State of the staged deployment.
const STAGED: &str = "/run/ostree/staged-deployment";
/// The file that locks it. A link to the state cannot be made where nothing is staged.
const LOCK: &str = "/run/ostree/staged-deployment-locked";
/// The command takes no time.
const DEADLINE: Duration = Duration::from_secs(10);

/// Words of `ln` where the file is there already.
const EXISTS: &str = "File exists";
/// Bytes of its error output that are looked at.
const STDERR_TAIL: u64 = 1 << 10;
/// Time after which a lock that failed is tried again first. It doubles each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A lock on what the running pull stages, which is set in the background.
#[derive(Debug)]
pub(super) struct EarlyLock {
    task: JoinHandle<()>,
    /// Ends the tries when it is dropped.
    pull: oneshot::Sender<()>,
}

impl EarlyLock {
    /// Sets the lock once `staged` says that the image is there, and tries again while the pull runs. In an adopted pull that may
    /// have been said to an agent that is gone, so the first try is made at once: it fails where nothing is staged yet.
    pub(super) fn begin(bus: Arc<Bus>, root: HostRoot, staged: oneshot::Receiver<()>, adopted: bool) -> Self {
        let (pull, ended) = oneshot::channel();
        let task = tokio::spawn(try_until_locked(bus, root, staged, ended, adopted));
        Self { task, pull }
    }

    /// Tries no more. A try that has begun is waited for: nothing may be unlocked before its end.
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
    // An error: its progress is not read any more.
    if !adopted && (&mut staged).await.is_err() {
        return;
    }
    let (mut is_told, mut pause) = (!adopted, FIRST_PAUSE);
    loop {
        match lock(&bus, &root).await {
            Ok(()) => return tracing::debug!("what bootc has staged is locked, while it goes on"),
            Err(why) if is_told => tracing::warn!(why, "what is staged is not locked yet, while bootc goes on"),
            Err(why) => tracing::debug!(why, "nothing is staged, or it cannot be locked"),
        }
        tokio::select! {
            _ = &mut ended => return,
            news = &mut staged, if !is_told => {
                if news.is_err() {
                    return;
                }
                (is_told, pause) = (true, FIRST_PAUSE);
            }
            () = tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())) => {
                pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Locks what is staged now, while bootc goes on. One that fails leaves what there was without it: the unit of the pull locks at
/// its end.
async fn lock(bus: &Bus, root: &HostRoot) -> Result<(), String> {
    let stderr = format!("{RUN_DIR}/early-lock.err");
    let spec = Spec {
        name: "berth-early-lock.service".to_owned(),
        description: "Berth: lock what bootc has staged, while bootc still runs",
        first: vec![],
        command: ["/usr/bin/ln", STAGED, LOCK].map(str::to_owned).into(),
        after: vec![],
        then: None,
        deadline: DEADLINE,
        stdout: None,
        stderr: Some(stderr.clone()),
        fd3: None,
        background: false,
        expendable: false,
    };
    match units::run(bus, &spec).await {
        Ok(None) => Ok(()),
        Ok(Some(defeat)) => {
            let words = files::tail(&root.path(stderr), STDERR_TAIL);
            // Somebody has locked it before.
            match words.contains(EXISTS) {
                true => Ok(()),
                false => Err(format!("{defeat:?} {}", words.trim())),
            }
        }
        Err(error) => Err(error.to_string()),
    }
}
