//! `org.freedesktop.login1` on the bus of a simulated host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use zbus::{Connection, interface};

use super::settings::{RebootFault, SharedSettings};
use crate::named_error::NamedError;

const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
/// Flag of `RebootWithFlags` that makes logind respect inhibitors, even if root requests the reboot.
const CHECK_INHIBITORS: u64 = 1;
/// Flags of `RebootWithFlags` for special kinds of reboots.
const KEXEC: u64 = 2;
const SOFT_REBOOT: u64 = 4;

/// logind of a host. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Login {
    settings: SharedSettings,
    preparing: Arc<AtomicBool>,
    /// Accepted requests.
    reboots: UnboundedSender<Request>,
}

/// An accepted request for a reboot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// Extra time that the shutdown takes.
    pub(super) delay: Duration,
    /// True for a soft reboot, which keeps the kernel.
    pub(super) is_soft: bool,
}

impl Login {
    pub(super) fn new(settings: SharedSettings, reboots: UnboundedSender<Request>) -> Self {
        Self {
            settings,
            preparing: Arc::default(),
            reboots,
        }
    }

    pub(super) async fn serve(&self, conn: &Connection) -> zbus::Result<()> {
        conn.object_server().at(PATH, Manager { login: self.clone() }).await?;
        conn.request_name("org.freedesktop.login1").await
    }

    pub(super) fn set_preparing(&self, preparing: bool) -> bool {
        self.preparing.swap(preparing, Ordering::SeqCst)
    }

    pub(super) async fn announce(&self, conn: &Connection) -> zbus::Result<()> {
        conn.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &(true,))
            .await
    }

    pub(super) fn request(&self, flags: u64) -> Result<(), NamedError> {
        if flags & KEXEC != 0 {
            let text = "the simulated host has no kexec";
            return Err(NamedError::new("org.freedesktop.DBus.Error.NotSupported", text));
        }
        let settings = self.settings.get();
        if let RebootFault::Refused { name, message } = settings.reboot {
            return Err(NamedError::new(&name, message));
        }
        if flags & CHECK_INHIBITORS != 0 && settings.inhibitors.iter().any(|i| i.blocks_shutdown()) {
            let text = "Operation denied due to active block inhibitor";
            return Err(NamedError::new("org.freedesktop.login1.BlockedByInhibitorLock", text));
        }
        if self.settings.strikes(|s| &mut s.reboots_lost) {
            return Ok(());
        }
        let delay = match settings.reboot {
            RebootFault::Lost => return Ok(()),
            RebootFault::Delayed(delay) => delay,
            RebootFault::Works | RebootFault::Refused { .. } => Duration::ZERO,
        };
        if self.set_preparing(true) {
            let text = "There's already a shutdown or sleep operation in progress";
            return Err(NamedError::new("org.freedesktop.login1.OperationInProgress", text));
        }
        // The receiver is gone if the whole host is being dropped.
        let is_soft = flags & SOFT_REBOOT != 0;
        let _ = self.reboots.send(Request { delay, is_soft });
        Ok(())
    }
}

struct Manager {
    login: Login,
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Manager {
    async fn list_inhibitors(&self) -> Vec<(String, String, String, String, u32, u32)> {
        let mut listed = vec![];
        for i in self.login.settings.with(|s| s.inhibitors.clone()) {
            listed.push((i.what, i.who, i.why, i.mode, i.uid, i.pid));
        }
        listed
    }

    async fn reboot(&self, _interactive: bool) -> Result<(), NamedError> {
        self.login.request(0)
    }

    async fn reboot_with_flags(&self, flags: u64) -> Result<(), NamedError> {
        self.login.request(flags)
    }

    // As with the real one, changes emit no PropertiesChanged.
    #[zbus(property(emits_changed_signal = "false"))]
    async fn preparing_for_shutdown(&self) -> bool {
        if self.login.settings.with(|s| s.logind_silent) {
            std::future::pending::<()>().await;
        }
        self.login.preparing.load(Ordering::SeqCst)
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn scheduled_shutdown(&self) -> (String, u64) {
        (String::new(), u64::MAX)
    }
}
