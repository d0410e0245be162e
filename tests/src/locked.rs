//! Locks of the harness.

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex. Its data stays usable after a panic of another thread.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
