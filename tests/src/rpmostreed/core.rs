//! The state of one life of the daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use zbus::Connection;

use super::beneath::{Beneath, Deployment, SysrootLock, Tell};
use super::faults::SharedFaults;
use super::order::Order;
use super::transaction::Transaction;
use crate::named_error::NamedError;

/// Time after which the daemon looks again whether it is idle.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the message bus.
    pub bus: String,
    /// The host's `/run`, as this process sees it.
    pub run: PathBuf,
    /// The stateroot.
    pub osname: String,
    /// The deployments.
    pub beneath: Arc<dyn Beneath>,
    /// Faults.
    pub faults: SharedFaults,
}

/// The way in which a life of the daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nobody needed it any more.
    Idle,
    /// A fault killed it.
    Died,
}

/// Everything that lives and dies with the process.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) conn: Mutex<Option<Connection>>,
    pub(super) end: watch::Sender<Option<End>>,
    /// The deployments as they were read last.
    deployments: Mutex<Vec<Deployment>>,
    /// Registered clients: the name on the bus, and the name that they gave.
    clients: Mutex<BTreeMap<String, String>>,
    pub(super) active: Mutex<Option<Arc<Transaction>>>,
    /// The transactions whose clients may still be there.
    pub(super) open: Mutex<Vec<Arc<Transaction>>>,
    tasks: Mutex<Vec<AbortHandle>>,
    busy_until: Mutex<Instant>,
    pub(super) rebooting: AtomicBool,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
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

    /// Every call comes through here: it may find a daemon that does not answer, or is about to exit.
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

    /// Kills the daemon.
    pub(super) async fn die(&self) {
        self.end.send_replace(Some(End::Died));
        std::future::pending::<()>().await;
    }

    /// Reads the deployments anew.
    pub(super) async fn read(&self) -> Result<(), String> {
        let read = self.config.beneath.deployments().await?;
        *locked(&self.deployments) = read;
        Ok(())
    }

    /// The deployments as they were read last.
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
        let unstarted = |t: &mut Arc<Transaction>| t.names.sender == client && !t.is_started();
        let abandoned = locked(&self.active).take_if(unstarted);
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
        exit.max(Instant::now() + LOOK_AGAIN)
    }

    pub(super) fn is_idle(&self) -> bool {
        let idle_exit = self.config.faults.with(|f| f.idle_exit);
        let long = locked(&self.busy_until).elapsed() >= idle_exit;
        long && locked(&self.clients).is_empty() && locked(&self.active).is_none()
    }

    /// Lets a transaction that a client started do its work.
    pub(super) fn launch(self: &Arc<Self>, transaction: &Arc<Transaction>, order: Order, lock: SysrootLock) {
        let (core, running) = (self.clone(), transaction.clone());
        let task = tokio::spawn(async move { core.work(running, order, lock).await });
        transaction.keep(task.abort_handle());
    }

    async fn work(self: Arc<Self>, transaction: Arc<Transaction>, order: Order, lock: SysrootLock) {
        let (teller, mut told) = mpsc::unbounded_channel();
        let faults = &self.config.faults;
        let words = faults.with(|f| f.fails_with.pop_front());
        let beneath = self.config.beneath.clone();
        let doing = async move {
            match words {
                Some(words) => Err(words),
                None => order.execute(&*beneath, &teller).await,
            }
        };
        tokio::pin!(doing);
        let result = loop {
            tokio::select! {
                biased;
                Some(tell) = told.recv() => {
                    let fetches = matches!(tell, Tell::Percent(_, percent) if percent >= 50);
                    if fetches && faults.strikes(|f| &mut f.dies_in_transaction) {
                        self.die().await;
                    }
                    transaction.tell(&tell).await;
                }
                () = transaction.is_cancelled() => break Err("Operation was cancelled".to_owned()),
                result = &mut doing => break result,
            }
        };
        while let Ok(tell) = told.try_recv() {
            transaction.tell(&tell).await;
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
        if reboots && let Err(words) = self.config.beneath.reboot().await {
            tracing::warn!(words, "no reboot");
            self.rebooting.store(false, Ordering::SeqCst);
        }
        let (core, old) = (self.clone(), transaction.clone());
        let linger = self.config.faults.with(|f| f.linger);
        let closing = tokio::spawn(async move {
            // An error means that they stay.
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
        // Without a runtime all of the process is going down.
        if let (Some(conn), Ok(runtime)) = (conn, tokio::runtime::Handle::try_current()) {
            runtime.spawn(conn.close());
        }
    }
}

/// An error of GLib's I/O library, by its number: such errors have no name of their own on the bus.
pub(super) fn gio(code: u32, message: &str) -> NamedError {
    let name = format!("org.gtk.GDBus.UnmappedGError.Quark._g_2dio_2derror_2dquark.Code{code}");
    NamedError::new(&name, message)
}

pub(super) fn busy(message: &str) -> NamedError {
    gio(26, message)
}
