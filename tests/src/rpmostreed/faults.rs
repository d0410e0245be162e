//! Faults of the daemon. All of them may be changed while it runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Trouble with one key of the dictionary of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The key is missing.
    Missing,
    /// The value has another type.
    Malformed,
}

/// A call that asked for a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Method.
    pub method: String,
    /// Options by name: the D-Bus type, a space, and the value.
    pub options: BTreeMap<String, String>,
}

/// Properties and faults. Counters (`u32`) go down by one each time the fault strikes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Time without a client or a transaction after which the daemon exits.
    pub idle_exit: Duration,
    /// Longest time from the end of a transaction until its clients have left. Until then it is the active one.
    pub linger: Duration,
    /// The daemon dies in the middle of the next transactions that fetch.
    pub dies_in_transaction: u32,
    /// The daemon exits on the next calls without an answer, as at its idle exit.
    pub no_reply: u32,
    /// Calls are taken and never answered.
    pub silent: bool,
    /// The service cannot be started.
    pub fails_to_start: bool,
    /// Time that the service takes to start.
    pub slow_start: Duration,
    /// The sockets of the next transactions are gone at once.
    pub no_socket: u32,
    /// The sockets of transactions take new clients, and do not answer them.
    pub mute_sockets: bool,
    /// Methods whose next replies are lost, after they were carried out.
    pub loses_reply_of: VecDeque<String>,
    /// The next calls to cancel a transaction end its connections, and not its work.
    pub leaves_on_cancel: u32,
    /// Words with which the next transactions fail, one each.
    pub fails_with: VecDeque<String>,
    /// Keys of deployments that are missing or malformed.
    pub broken: BTreeMap<String, Broken>,
    /// The policy for automatic updates: `none`, `check` or `stage`.
    pub policy: String,
    /// Calls that asked for a transaction, in all lives of the daemon.
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

/// The faults of one daemon over all its lives. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedFaults(Arc<Mutex<Faults>>);

impl SharedFaults {
    /// Reads or changes them.
    pub fn with<T>(&self, f: impl FnOnce(&mut Faults) -> T) -> T {
        // Poisoned only when a test's closure panicked; plain data stays usable.
        f(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Says whether a counted fault strikes now, and counts it down.
    pub(super) fn strikes(&self, counter: impl FnOnce(&mut Faults) -> &mut u32) -> bool {
        self.with(|f| {
            let counter = counter(f);
            let strikes = *counter > 0;
            *counter = counter.saturating_sub(1);
            strikes
        })
    }
}
