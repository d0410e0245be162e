//! A run of the daemon: from its start until it is idle or dies.

use std::sync::Arc;

use futures::StreamExt;
use tokio::sync::oneshot;
use tokio::time::sleep_until;
use zbus::fdo::{DBusProxy, NameOwnerChangedStream};

use super::core::{Config, Core, End};
use super::faces::{OsFace, SysrootFace};
use super::names::{NAME, SYSROOT_PATH, os_path};
use crate::locked::locked;

/// Runs the daemon until it is idle or dies; dropping the future kills it. Sends to `ready` when it has its bus name.
pub async fn run(config: Config, ready: oneshot::Sender<()>) -> zbus::Result<End> {
    let conn = zbus::connection::Builder::address(config.bus.as_str()).build().await?;
    let core = Arc::new(Core::new(config));
    let _life = Life(core.clone());
    core.read().await.map_err(zbus::Error::Failure)?;
    *locked(&core.conn) = Some(conn.clone());
    let server = conn.object_server();
    server.at(SYSROOT_PATH, SysrootFace { core: core.clone() }).await?;
    let path = os_path(&core.config.osname);
    server.at(path, OsFace { core: core.clone() }).await?;
    let changes = DBusProxy::new(&conn).await?.receive_name_owner_changed().await?;
    core.keep(tokio::spawn(watch_clients(changes, core.clone())).abort_handle());
    conn.request_name(NAME).await?;
    // An error means that the receiver is gone.
    let _ = ready.send(());
    let mut end = core.end.subscribe();
    loop {
        tokio::select! {
            ended = end.wait_for(Option::is_some) => {
                // The sender is in `core`.
                return Ok(ended.ok().and_then(|end| *end).unwrap_or(End::Died));
            }
            () = sleep_until(core.next_look()) => {
                if core.is_idle() {
                    return Ok(End::Idle);
                }
            }
        }
    }
}

struct Life(Arc<Core>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Removes clients that left the bus, and the transactions that they created but did not start.
async fn watch_clients(mut changes: NameOwnerChangedStream, core: Arc<Core>) {
    while let Some(change) = changes.next().await {
        let Ok(args) = change.args() else { continue };
        if args.new_owner().is_none() {
            core.forget_client(args.name().as_str());
        }
    }
}
