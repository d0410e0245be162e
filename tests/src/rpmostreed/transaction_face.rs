//! D-Bus interface of a transaction.

use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;
use zbus::{Connection, interface};

use super::backend::SysrootLock;
use super::core::Core;
use super::order::Order;
use super::transaction::Transaction;

use crate::locked::locked;

/// Interface `…rpmostree1.Transaction`, on the socket of the transaction.
pub(super) struct TransactionFace {
    pub(super) core: Weak<Core>,
    pub(super) transaction: Arc<Transaction>,
    /// True if this client already receives signals.
    pub(super) is_listed: watch::Receiver<bool>,
    pub(super) work: Arc<Mutex<Option<(Order, SysrootLock)>>>,
}

#[interface(name = "org.projectatomic.rpmostree1.Transaction")]
impl TransactionFace {
    async fn start(&self, #[zbus(connection)] peer: &Connection) -> bool {
        // Waits until the client gets signals: otherwise it could miss the end of a short transaction. An error means
        // that the client is gone.
        let _ = self.is_listed.clone().wait_for(|listed| *listed).await;
        if self.transaction.start() {
            let work = locked(&self.work).take();
            if let (Some((order, lock)), Some(core)) = (work, self.core.upgrade()) {
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
        if let Some(core) = self.core.upgrade()
            && core.config.faults.strikes(|f| &mut f.leaves_on_cancel)
        {
            return self.transaction.leave();
        }
        self.transaction.cancel();
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn title(&self) -> String {
        self.transaction.title().to_owned()
    }
}
