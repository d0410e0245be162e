//! Faults of the daemon. All can be changed while it runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::locked::locked;

/// Fault of a key in a deployment's dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The key is missing.
    Missing,
    /// The value has another type.
    Malformed,
}

/// A call that requested a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name of the method.
    pub method: String,
    /// Options by name: the D-Bus type, a space, and the value.
    pub options: BTreeMap<String, String>,
}

/// Properties and faults. Counters (`u32`) decrease each time the fault occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// The daemon exits after this time without a client or a transaction.
    pub idle_exit: Duration,
    /// How long a finished transaction stays active while clients are connected.
    pub linger: Duration,
    /// The daemon dies while the next transactions fetch an image.
    pub dies_in_transaction: u32,
    /// The daemon exits before it answers the next calls, as it may do when idle.
    pub no_reply: u32,
    /// Calls are never answered.
    pub silent: bool,
    /// The service cannot be started.
    pub fails_to_start: bool,
    /// Time that the service takes to start.
    pub slow_start: Duration,
    /// The sockets of the next transactions are removed at once.
    pub no_socket: u32,
    /// The sockets of transactions accept connections but never answer.
    pub mute_sockets: bool,
    /// Methods whose next replies are lost after the work was done.
    pub loses_reply_of: VecDeque<String>,
    /// The next requests to cancel a transaction only close its connections. The work of the transaction continues.
    pub leaves_on_cancel: u32,
    /// Errors of the next transactions, one each.
    pub fails_with: VecDeque<String>,
    /// Keys of deployments that are missing or malformed.
    pub broken: BTreeMap<String, Broken>,
    /// Policy for automatic updates: `none`, `check` or `stage`.
    pub policy: String,
    /// Calls that requested a transaction, over all restarts of the daemon.
    pub calls: Vec<Call>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            idle_exit: Duration::from_secs(2),
            linger: Duration::from_secs(30),
            dies_in_transaction: 0,
            no_reply: 0,
            silent: false,
            fails_to_start: false,
            slow_start: Duration::ZERO,
            no_socket: 0,
            mute_sockets: false,
            loses_reply_of: VecDeque::new(),
            leaves_on_cancel: 0,
            fails_with: VecDeque::new(),
            broken: BTreeMap::new(),
            policy: "none".to_owned(),
            calls: vec![],
        }
    }
}

/// Faults of a daemon, kept over its restarts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedFaults(Arc<Mutex<Faults>>);

impl SharedFaults {
    /// Reads or changes the faults.
    pub fn with<T>(&self, f: impl FnOnce(&mut Faults) -> T) -> T {
        // Poisoned only if a test's closure panicked; plain data stays usable.
        f(&mut locked(&self.0))
    }

    /// True if a counted fault occurs now; decreases its counter.
    pub(super) fn strikes(&self, counter: impl FnOnce(&mut Faults) -> &mut u32) -> bool {
        self.with(|f| {
            let counter = counter(f);
            let strikes = *counter > 0;
            *counter = counter.saturating_sub(1);
            strikes
        })
    }
}
