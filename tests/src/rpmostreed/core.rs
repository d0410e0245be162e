//! State of a running daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use zbus::Connection;

use super::backend::{Backend, Deployment, ProgressEvent, SysrootLock};
use super::faults::SharedFaults;
use super::order::Order;
use super::transaction::Transaction;
use crate::locked::locked;
use crate::named_error::NamedError;

const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Configuration of a daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the message bus.
    pub bus: String,
    /// The host's `/run`, as a path of this process.
    pub run: PathBuf,
    /// Name of the stateroot.
    pub osname: String,
    /// The deployments.
    pub backend: Arc<dyn Backend>,
    /// Faults to inject.
    pub faults: SharedFaults,
}

/// How a daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The daemon was idle.
    Idle,
    /// A fault killed it.
    Died,
}

/// State of the daemon's process.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) conn: Mutex<Option<Connection>>,
    pub(super) end: watch::Sender<Option<End>>,
    /// Deployments at the last read.
    deployments: Mutex<Vec<Deployment>>,
    /// Registered clients: bus name and the ID that they gave.
    clients: Mutex<BTreeMap<String, String>>,
    pub(super) active: Mutex<Option<Arc<Transaction>>>,
    /// Transactions whose clients may still be connected.
    pub(super) open: Mutex<Vec<Arc<Transaction>>>,
    tasks: Mutex<Vec<AbortHandle>>,
    busy_until: Mutex<Instant>,
    pub(super) rebooting: AtomicBool,
}

impl Core {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            conn: Mutex::default(),
            end: watch::Sender::new(None),
            deployments: Mutex::default(),
            clients: Mutex::default(),
            active: Mutex::default(),
            open: Mutex::default(),
            tasks: Mutex::default(),
            busy_until: Mutex::new(Instant::now()),
            rebooting: AtomicBool::new(false),
        }
    }

    pub(super) fn keep(&self, task: AbortHandle) {
        locked(&self.tasks).push(task);
    }

    /// Applies faults to a call: the daemon may exit or never answer.
    pub(super) async fn enter(&self) {
        let faults = &self.config.faults;
        if faults.strikes(|f| &mut f.no_reply) {
            self.end.send_replace(Some(End::Idle));
            std::future::pending::<()>().await;
        }
        if faults.with(|f| f.silent) {
            std::future::pending::<()>().await;
        }
    }

    pub(super) async fn die(&self) {
        self.end.send_replace(Some(End::Died));
        std::future::pending::<()>().await;
    }

    pub(super) async fn read(&self) -> Result<(), String> {
        let read = self.config.backend.deployments().await?;
        *locked(&self.deployments) = read;
        Ok(())
    }

    /// Returns the deployments of the last read.
    pub(super) fn deployments(&self) -> Vec<Deployment> {
        locked(&self.deployments).clone()
    }

    pub(super) fn active(&self) -> Option<Arc<Transaction>> {
        locked(&self.active).clone()
    }

    pub(super) fn register(&self, client: &str, id: &str) {
        locked(&self.clients).insert(client.to_owned(), id.to_owned());
    }

    pub(super) fn unregister(&self, client: &str) {
        if locked(&self.clients).remove(client).is_some() {
            self.was_busy();
        }
    }

    pub(super) fn forget_client(&self, client: &str) {
        self.unregister(client);
        let abandoned = locked(&self.active).take_if(|t| t.names.sender == client && !t.is_started());
        if let Some(transaction) = abandoned {
            self.was_busy();
            transaction.close();
        }
    }

    fn was_busy(&self) {
        *locked(&self.busy_until) = Instant::now();
    }

    pub(super) fn next_look(&self) -> Instant {
        let idle_exit = self.config.faults.with(|f| f.idle_exit);
        let exit = *locked(&self.busy_until) + idle_exit;
        exit.max(Instant::now() + IDLE_CHECK_INTERVAL)
    }

    pub(super) fn is_idle(&self) -> bool {
        let idle_exit = self.config.faults.with(|f| f.idle_exit);
        let long = locked(&self.busy_until).elapsed() >= idle_exit;
        long && locked(&self.clients).is_empty() && locked(&self.active).is_none()
    }

    /// Starts the work of a transaction that a client has started.
    pub(super) fn launch(self: &Arc<Self>, transaction: &Arc<Transaction>, order: Order, lock: SysrootLock) {
        let (core, running) = (self.clone(), transaction.clone());
        let task = tokio::spawn(async move { core.work(running, order, lock).await });
        transaction.keep(task.abort_handle());
    }

    async fn work(self: Arc<Self>, transaction: Arc<Transaction>, order: Order, lock: SysrootLock) {
        let (progress, mut events) = mpsc::unbounded_channel();
        let faults = &self.config.faults;
        let words = faults.with(|f| f.fails_with.pop_front());
        let backend = self.config.backend.clone();
        let doing = async move {
            match words {
                Some(words) => Err(words),
                None => order.execute(&*backend, &progress).await,
            }
        };
        tokio::pin!(doing);
        let result = loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => {
                    let fetches = matches!(event, ProgressEvent::Percent(_, percent) if percent >= 50);
                    if fetches && faults.strikes(|f| &mut f.dies_in_transaction) {
                        self.die().await;
                    }
                    transaction.send(&event).await;
                }
                () = transaction.is_cancelled() => break Err("Operation was cancelled".to_owned()),
                result = &mut doing => break result,
            }
        };
        while let Ok(event) = events.try_recv() {
            transaction.send(&event).await;
        }
        drop(lock);
        let result = match (result, self.read().await) {
            (Ok(_), Err(words)) => Err(words),
            (result, _) => result,
        };
        self.end_of(&transaction, result).await;
    }

    async fn end_of(self: &Arc<Self>, transaction: &Arc<Transaction>, result: Result<bool, String>) {
        let reboots = result == Ok(true);
        self.rebooting.fetch_or(reboots, Ordering::SeqCst);
        transaction
            .finish((result.is_ok(), result.err().unwrap_or_default()))
            .await;
        self.was_busy();
        if reboots && let Err(words) = self.config.backend.reboot().await {
            tracing::warn!(words, "cannot reboot");
            self.rebooting.store(false, Ordering::SeqCst);
        }
        let (core, old) = (self.clone(), transaction.clone());
        let linger = self.config.faults.with(|f| f.linger);
        let closing = tokio::spawn(async move {
            // An error means that clients are still connected.
            let _ = tokio::time::timeout(linger, old.is_left()).await;
            core.was_busy();
            locked(&core.active).take_if(|active| Arc::ptr_eq(active, &old));
            locked(&core.open).retain(|t| !Arc::ptr_eq(t, &old));
            old.close();
        });
        self.keep(closing.abort_handle());
    }

    pub(super) fn close(&self) {
        for task in locked(&self.tasks).drain(..) {
            task.abort();
        }
        locked(&self.active).take();
        for transaction in locked(&self.open).drain(..) {
            transaction.close();
        }
        let conn = locked(&self.conn).take();
        // Without a runtime the whole process is ending.
        if let (Some(conn), Ok(runtime)) = (conn, tokio::runtime::Handle::try_current()) {
            runtime.spawn(conn.close());
        }
    }
}

/// A GLib I/O error with this code. Such errors have no D-Bus names of their own.
pub(super) fn gio(code: u32, message: &str) -> NamedError {
    let name = format!("org.gtk.GDBus.UnmappedGError.Quark._g_2dio_2derror_2dquark.Code{code}");
    NamedError::new(&name, message)
}

pub(super) fn busy(message: &str) -> NamedError {
    gio(26, message)
}
