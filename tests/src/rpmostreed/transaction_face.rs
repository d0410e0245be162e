//! D-Bus interface of a transaction.

use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, interface};

use super::backend::SysrootLock;
use super::core::Core;
use super::order::Order;
use super::transaction::Transaction;

/// Interface `…rpmostree1.Transaction`, on the socket of the transaction.
pub(super) struct TransactionFace {
    pub(super) core: Weak<Core>,
    pub(super) transaction: Arc<Transaction>,
    /// True if this client is in the list that signals go to.
    pub(super) is_listed: watch::Receiver<bool>,
    pub(super) work: Arc<Mutex<Option<(Order, SysrootLock)>>>,
}

#[interface(name = "org.projectatomic.rpmostree1.Transaction")]
impl TransactionFace {
    async fn start(&self, #[zbus(connection)] peer: &Connection) -> bool {
        // Otherwise the client could miss the end of a short transaction. An error means that the client is gone.
        let _ = self.is_listed.clone().wait_for(|listed| *listed).await;
        let work = || self.work.lock().unwrap_or_else(|e| e.into_inner()).take();
        if self.transaction.start() {
            if let (Some((order, lock)), Some(core)) = (work(), self.core.upgrade()) {
                core.launch(&self.transaction, order, lock);
            }
            return true;
        }
        if let Some(result) = self.transaction.finished() {
            Transaction::send_end(peer, &result).await;
        }
        false
    }

    async fn cancel(&self) {
        let leaves = |core: Arc<Core>| core.config.faults.strikes(|f| &mut f.leaves_on_cancel);
        match self.core.upgrade().is_some_and(leaves) {
            true => self.transaction.leave(),
            false => self.transaction.cancel(),
        }
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn title(&self) -> String {
        self.transaction.title().to_owned()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn initiating_client_description(&self) -> String {
        format!("client(id:? dbus:{} uid:0)", self.transaction.names.sender)
    }

    #[zbus(signal)]
    async fn message(emitter: &SignalEmitter<'_>, text: String) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn task_begin(emitter: &SignalEmitter<'_>, text: String) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn task_end(emitter: &SignalEmitter<'_>, text: String) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn percent_progress(emitter: &SignalEmitter<'_>, text: String, percentage: u32) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn progress_end(emitter: &SignalEmitter<'_>) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn finished(emitter: &SignalEmitter<'_>, success: bool, error_message: String) -> zbus::Result<()>;
}
