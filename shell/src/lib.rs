//! Code for I/O that all Berth programs share: the client of the API server, timeouts, retries, logs and hashes. The
//! feature `pages` adds the HTTP server for metrics and probes, the feature `man` manual pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod hash;

pub mod client;
pub mod kubeconfig;
pub mod listen;
pub mod log;
#[cfg(feature = "man")]
pub mod man;
pub mod names;
#[cfg(feature = "pages")]
pub mod pages;
mod proxy;
pub mod request;
pub mod retry;

pub use hash::sha256;

/// Locks a mutex. A mutex that a panic poisoned is locked as well: no panic in Berth leaves the value half changed.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Selects the TLS implementation for this process. Must be called before the first client is made; a second call does
/// nothing.
///
/// If two implementations are compiled into a program and none is selected, the first connection panics.
pub fn install_crypto() {
    // An error only means that an implementation is already selected.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
