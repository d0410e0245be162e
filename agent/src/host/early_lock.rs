//! The lock on what is staged that does not wait until bootc has ended.
//!
//! bootc up to 1.16.9 stages an image unlocked, then pulls the images that are bound to it and cleans up, and keeps the lock
//! on the sysroot all the while: `ostree admin lock-finalization` would wait for its end, and a reboot meanwhile would apply
//! the image. ostree also heeds a file beside the staged deployment, by which the tools before that command locked. Whoever
//! finalizes looks for it; ostree makes it when it locks, and removes it when it unlocks and together with the deployment.

use std::time::Duration;

use super::bus::Bus;
use super::units::{self, Spec};

/// State of the staged deployment.
const STAGED: &str = "/run/ostree/staged-deployment";
/// The file that locks it. A link to the state cannot be made where nothing is staged.
const LOCK: &str = "/run/ostree/staged-deployment-locked";
/// The command takes no time.
const DEADLINE: Duration = Duration::from_secs(10);

/// Locks what a pull has just staged, while it goes on. One that fails leaves what there was without it: the unit of the pull
/// locks at its end.
pub(super) async fn lock(bus: &Bus) {
    let spec = Spec {
        name: "berth-early-lock.service".to_owned(),
        description: "Berth: lock what bootc has staged, while bootc still runs",
        first: vec![],
        command: ["/usr/bin/ln", STAGED, LOCK].map(str::to_owned).into(),
        after: vec![],
        then: None,
        deadline: DEADLINE,
        stdout: None,
        stderr: None,
        fd3: None,
        background: false,
        expendable: false,
    };
    match units::run(bus, &spec).await {
        Ok(None) => tracing::debug!("what bootc has staged is locked, while it goes on"),
        Ok(Some(defeat)) => tracing::warn!(?defeat, "what is staged is not locked before bootc ends"),
        Err(error) => tracing::warn!(%error, "what is staged is not locked before bootc ends"),
    }
}
