//! One life of the daemon: from its start until it has nothing to do, or dies.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use zbus::Connection;
use zbus::fdo::{DBusProxy, NameOwnerChangedStream};

use super::beneath::{Beneath, Deployment, SysrootLock, Tell};
use super::faces::{OsFace, SysrootFace, TransactionFace};
use super::faults::SharedFaults;
use super::order::Order;
use super::transaction::{Names, Transaction};
use super::{NAME, SOCKET, SYSROOT_PATH, os_path};
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

/// Runs until the daemon has nothing to do or dies; dropping the future kills it. `ready` is told when it has its name.
///
/// # Errors
/// The bus cannot be reached, the name is taken, or the deployments cannot be read.
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
    // An error means that nobody waits.
    let _ = ready.send(());
    let mut end = core.end.subscribe();
    loop {
        tokio::select! {
            ended = end.wait_for(Option::is_some) => {
                // The sender lives in `core`.
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

/// Ends everything of a life, however that ends.
struct Life(Arc<Core>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A client that left cannot start its transaction any more.
async fn watch_clients(mut changes: NameOwnerChangedStream, core: Arc<Core>) {
    while let Some(change) = changes.next().await {
        let Ok(args) = change.args() else { continue };
        if args.new_owner().is_none() {
            core.forget_client(args.name().as_str());
        }
    }
}

/// Everything that lives and dies with the process.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    conn: Mutex<Option<Connection>>,
    end: watch::Sender<Option<End>>,
    /// The deployments as they were read last.
    deployments: Mutex<Vec<Deployment>>,
    /// Registered clients: the name on the bus, and the name that they gave.
    clients: Mutex<BTreeMap<String, String>>,
    active: Mutex<Option<Arc<Transaction>>>,
    /// The transactions whose clients may still be there.
    open: Mutex<Vec<Arc<Transaction>>>,
    tasks: Mutex<Vec<AbortHandle>>,
    busy_until: Mutex<Instant>,
    rebooting: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Core {
    fn new(config: Config) -> Self {
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

    fn keep(&self, task: AbortHandle) {
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

    fn forget_client(&self, client: &str) {
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

    fn next_look(&self) -> Instant {
        let idle_exit = self.config.faults.with(|f| f.idle_exit);
        let exit = *locked(&self.busy_until) + idle_exit;
        exit.max(Instant::now() + LOOK_AGAIN)
    }

    fn is_idle(&self) -> bool {
        let idle_exit = self.config.faults.with(|f| f.idle_exit);
        let long = locked(&self.busy_until).elapsed() >= idle_exit;
        long && locked(&self.clients).is_empty() && locked(&self.active).is_none()
    }

    /// Makes a transaction, or joins an identical one. Answers its address.
    pub(super) fn begin(self: &Arc<Self>, names: Names, order: Order) -> Result<String, NamedError> {
        let mut active = locked(&self.active);
        if let Some(running) = &*active {
            if running.names.fingerprint == names.fingerprint {
                return Ok(running.address.clone());
            }
            let title = running.title();
            return Err(busy(&format!(
                "Transaction in progress: {title}\n You can cancel the current transaction with `rpm-ostree cancel`"
            )));
        }
        if self.rebooting.load(Ordering::SeqCst) {
            return Err(gio(0, "Reboot initiated, cannot start new transaction"));
        }
        let Some(lock) = self.config.beneath.try_lock() else {
            return Err(busy("System transaction in progress"));
        };
        let work = Arc::new(Mutex::new(Some((order, lock))));
        let core = Arc::downgrade(self);
        let face = move |transaction: Arc<Transaction>, is_met| TransactionFace {
            core: core.clone(),
            transaction,
            is_met,
            work: work.clone(),
        };
        let shown = format!("/run/{SOCKET}");
        let (socket, faults) = (self.config.run.join(SOCKET), self.config.faults.clone());
        let transaction = Transaction::open(names, &socket, &shown, faults, face)
            .map_err(|error| gio(0, &format!("Error binding to address: {error}")))?;
        if self.config.faults.strikes(|f| &mut f.no_socket) {
            // An error means that it is gone already.
            let _ = std::fs::remove_file(self.config.run.join(SOCKET));
        }
        tracing::info!(method = transaction.names.method, "a transaction is made");
        let address = transaction.address.clone();
        locked(&self.open).push(transaction.clone());
        *active = Some(transaction);
        Ok(address)
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

    fn close(&self) {
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

fn busy(message: &str) -> NamedError {
    gio(26, message)
}
