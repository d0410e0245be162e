//! Creation of transactions.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::core::{Core, busy, gio};
use super::names::SOCKET;
use super::order::Order;
use super::transaction::{Names, Transaction};
use super::transaction_face::TransactionFace;
use crate::locked::locked;
use crate::named_error::NamedError;

/// Creates a transaction, or joins an identical one; returns its address.
pub(super) fn begin(daemon: &Arc<Core>, names: Names, order: Order) -> Result<String, NamedError> {
    let mut active = locked(&daemon.active);
    if let Some(running) = &*active {
        if running.names.fingerprint == names.fingerprint {
            return Ok(running.address.clone());
        }
        let title = running.title();
        return Err(busy(&format!(
            "Transaction in progress: {title}\n You can cancel the current transaction with `rpm-ostree cancel`"
        )));
    }
    if daemon.rebooting.load(Ordering::SeqCst) {
        return Err(gio(0, "Reboot initiated, cannot start new transaction"));
    }
    let Some(lock) = daemon.config.backend.try_lock() else {
        return Err(busy("System transaction in progress"));
    };
    let work = Arc::new(Mutex::new(Some((order, lock))));
    let core = Arc::downgrade(daemon);
    let shown = format!("/run/{SOCKET}");
    let (socket, faults) = (daemon.config.run.join(SOCKET), daemon.config.faults.clone());
    let opened = Transaction::open(names, &socket, &shown, faults, move |transaction, is_listed| {
        TransactionFace {
            core: core.clone(),
            transaction,
            is_listed,
            work: work.clone(),
        }
    });
    let transaction = opened.map_err(|error| gio(0, &format!("Error binding to address: {error}")))?;
    if daemon.config.faults.strikes(|f| &mut f.no_socket) {
        // An error means that it is already gone.
        let _ = std::fs::remove_file(daemon.config.run.join(SOCKET));
    }
    tracing::info!(method = transaction.names.method, "transaction created");
    let address = transaction.address.clone();
    locked(&daemon.open).push(transaction.clone());
    *active = Some(transaction);
    Ok(address)
}
