//! Code of all Berth programs that do I/O: the client of the API server, timeouts, retries, logs and hashes, and with
//! the feature `pages` the server of metrics and probes.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod hash;

pub mod client;
pub mod listen;
pub mod log;
#[cfg(feature = "pages")]
pub mod pages;
mod proxy;
pub mod request;
pub mod retry;

pub use hash::sha256;

/// Locks a mutex, even a poisoned one, because no panic in Berth leaves its value half changed.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Selects the TLS implementation for this process. Must be called before the first client is made, and may be called
/// again.
///
/// A program with two compiled-in implementations panics at its first connection unless it has selected one.
pub fn install_crypto() {
    // An error means that an implementation is already selected.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
