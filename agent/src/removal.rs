//! `berth-agent remove`: removes Berth from this host, and then keeps its pod ready, so that `kubectl berth uninstall`
//! sees the success on each host. It needs no API server.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::host::{Host, HostRoot};
use crate::ready::ReadyFile;

/// Where to remove Berth.
#[derive(Debug)]
pub struct Setup {
    /// The host's root, as this program sees it.
    pub root: HostRoot,
    /// D-Bus address of the host's system bus; `None` for its socket under the root.
    pub bus: Option<String>,
    /// File that shows the pod's readiness; `None` outside a pod.
    pub ready_file: Option<PathBuf>,
}

/// Removes Berth from the host. In a pod, then stays ready forever. Otherwise, returns.
pub async fn run(setup: &Setup) -> Result<()> {
    let ready = ReadyFile::new(setup.ready_file.clone())?;
    let host = Host::connect(setup.bus.as_deref(), setup.root.clone())
        .await
        .context("cannot reach the host's system bus")?;
    host.stop_service()
        .await
        .context("cannot stop the agent of this host")?;
    host.claim().await.context("cannot take the host's lock")?;
    let kept = host.remove_all().await.context(
        "cannot remove Berth from this host; repair the cause, and this program tries again when it restarts",
    )?;
    for path in kept {
        tracing::info!(path, "this stays, because an admin of the host wrote it");
    }
    tracing::info!("Berth is removed from this host");
    if setup.ready_file.is_some() {
        ready.stay_ready().await;
    }
    Ok(())
}
