//! The service manager of a simulated host: its units, their jobs, and the references that keep them loaded.
//!
//! Follows systemd's rules for transient services of Type=oneshot; [`super::systemd`] is its bus interface.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use nix::fcntl::OFlag;
use tokio::task::AbortHandle;
use zbus::Connection;

use super::credentials;
use super::process::{Os, Stdio};
use super::transient::{Exec, Transient};
use crate::locked::locked;
use crate::named_error::NamedError;

/// Exit status that systemd reports if an output file cannot be opened.
const EXIT_STDOUT: i32 = 209;
const EXIT_STDERR: i32 = 222;
/// How a main process ended: `CLD_EXITED` or `CLD_KILLED`.
const EXITED: i32 = 1;
const KILLED: i32 = 2;

/// A unit, with the properties that clients see.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) description: String,
    pub(super) loaded: bool,
    pub(super) active: &'static str,
    pub(super) sub: &'static str,
    pub(super) result: &'static str,
    pub(super) main_code: i32,
    pub(super) main_status: i32,
    pub(super) job: Option<u32>,
    /// True for one of the host's own units, which is never unloaded.
    fixed: bool,
    collect_failed: bool,
    refs: BTreeSet<String>,
    task: Option<AbortHandle>,
}

impl Unit {
    /// Properties of a unit that does not exist.
    fn absent(name: &str) -> Self {
        Self {
            description: name.to_owned(),
            loaded: false,
            active: "inactive",
            sub: "dead",
            result: "success",
            main_code: 0,
            main_status: 0,
            job: None,
            fixed: false,
            collect_failed: false,
            refs: BTreeSet::new(),
            task: None,
        }
    }

    /// True for one of the host's own units; false for a transient one.
    pub(super) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// True if nothing keeps the unit loaded.
    fn is_garbage(&self) -> bool {
        let over = self.active == "inactive" || (self.active == "failed" && self.collect_failed);
        over && !self.fixed && self.refs.is_empty() && self.job.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outcome {
    result: &'static str,
    code: i32,
    status: i32,
}

impl Outcome {
    fn exited(status: i32) -> Self {
        let result = if status == 0 { "success" } else { "exit-code" };
        Self {
            result,
            code: EXITED,
            status,
        }
    }

    fn killed(result: &'static str) -> Self {
        // SIGTERM.
        Self {
            result,
            code: KILLED,
            status: 15,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    Changed(String),
    JobNew(u32, String),
    JobRemoved(u32, String, &'static str),
}

#[derive(Debug, Default)]
struct State {
    units: BTreeMap<String, Unit>,
    subscribers: BTreeSet<String>,
    last_job: u32,
    shutting_down: bool,
    /// Number of soft reboots of this kernel.
    soft_reboots: u32,
    /// Start of this userspace, in microseconds since 1970.
    began: u64,
}

impl State {
    fn collect(&mut self) {
        self.units.retain(|_, unit| !unit.is_garbage());
    }

    fn job(&mut self) -> u32 {
        self.last_job += 1;
        self.last_job
    }
}

/// All units of one host. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Units {
    os: Arc<Os>,
    root: PathBuf,
    state: Arc<Mutex<State>>,
    /// D-Bus connection that sends the units' signals. After a restart of the bus, all units use the new connection.
    bus: Arc<Mutex<Option<Connection>>>,
}

impl Units {
    pub(super) fn new(os: Arc<Os>, root: PathBuf) -> Self {
        Self {
            os,
            root,
            state: Arc::default(),
            bus: Arc::default(),
        }
    }

    /// Records the start of a userspace, and the number of soft reboots before it.
    pub(super) fn begin_userspace(&self, soft_reboots: u32) {
        let now = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
        let mut state = self.state();
        (state.soft_reboots, state.began) = (soft_reboots, now);
    }

    pub(super) fn soft_reboots(&self) -> u32 {
        self.state().soft_reboots
    }

    pub(super) fn began(&self) -> u64 {
        self.state().began
    }

    /// Root directory of the host.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn bus(&self) -> Option<Connection> {
        locked(&self.bus).clone()
    }

    /// Sets the connection for signals. The host sets `None` when it goes down: otherwise, connection and units would
    /// keep each other alive.
    pub(super) fn set_bus(&self, conn: Option<Connection>) {
        *locked(&self.bus) = conn;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Returns the unit with this name, loaded or not.
    pub(super) fn get(&self, name: &str) -> Unit {
        self.state()
            .units
            .get(name)
            .cloned()
            .unwrap_or_else(|| Unit::absent(name))
    }

    pub(super) fn loaded(&self, name: &str) -> Result<Unit, NamedError> {
        self.state().units.get(name).cloned().ok_or_else(|| no_such_unit(name))
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.state().units.keys().cloned().collect()
    }

    /// Adds a unit that no client started, such as a timer of another updater; `None` removes it.
    pub(super) fn fix(&self, name: &str, states: Option<(&'static str, &'static str)>) {
        let mut state = self.state();
        let Some((active, sub)) = states else {
            state.units.remove(name);
            return;
        };
        let failed = active == "failed";
        let unit = Unit {
            loaded: true,
            fixed: true,
            active,
            sub,
            result: if failed { "exit-code" } else { "success" },
            main_code: i32::from(failed),
            main_status: i32::from(failed),
            ..Unit::absent(name)
        };
        state.units.insert(name.to_owned(), unit);
    }

    pub(super) fn new_job(&self) -> u32 {
        self.state().job()
    }

    /// Subscribes a client to signals; `false` if the client was already subscribed.
    pub(super) fn subscribe(&self, client: &str) -> bool {
        self.state().subscribers.insert(client.to_owned())
    }

    /// Unsubscribes a client; `false` if it was not subscribed.
    pub(super) fn unsubscribe(&self, client: &str) -> bool {
        self.state().subscribers.remove(client)
    }

    pub(super) fn has_subscribers(&self) -> bool {
        !self.state().subscribers.is_empty()
    }

    pub(super) fn forget_client(&self, client: &str) {
        let mut state = self.state();
        state.subscribers.remove(client);
        for unit in state.units.values_mut() {
            unit.refs.remove(client);
        }
        state.collect();
    }

    pub(super) fn forget_clients(&self) {
        let mut state = self.state();
        state.subscribers.clear();
        for unit in state.units.values_mut() {
            unit.refs.clear();
        }
        state.collect();
    }

    /// Keeps a unit loaded while the client is on the bus.
    pub(super) fn add_ref(&self, name: &str, client: &str) -> Result<(), NamedError> {
        let mut state = self.state();
        let unit = state.units.get_mut(name).ok_or_else(|| no_such_unit(name))?;
        unit.refs.insert(client.to_owned());
        Ok(())
    }

    /// Removes a reference that [`add_ref`](Self::add_ref) created.
    pub(super) fn drop_ref(&self, name: &str, client: &str) -> Result<(), NamedError> {
        let mut state = self.state();
        let unit = state.units.get_mut(name).ok_or_else(|| no_such_unit(name))?;
        if !unit.refs.remove(client) {
            return Err(NamedError::systemd(
                "NotReferenced",
                "Unit has not been referenced yet.",
            ));
        }
        state.collect();
        Ok(())
    }

    /// Queues a start job for a new transient unit; returns the job's number. The caller must pass this number to
    /// [`run`](Self::run).
    pub(super) fn enqueue(&self, name: &str, unit: &Transient, client: &str) -> Result<u32, NamedError> {
        let mut state = self.state();
        if state.shutting_down {
            let text = format!("Transaction for {name}/start is destructive (reboot.target has 'start' job queued).");
            return Err(NamedError::systemd("TransactionIsDestructive", text));
        }
        if state.units.contains_key(name) {
            let text = format!("Unit {name} was already loaded or has a fragment file.");
            return Err(NamedError::systemd("UnitExists", text));
        }
        let job = state.job();
        let refs = unit.add_ref.then(|| client.to_owned());
        let unit = Unit {
            description: unit.description.clone(),
            loaded: true,
            active: "activating",
            sub: "start",
            job: Some(job),
            collect_failed: unit.collect_failed,
            refs: refs.into_iter().collect(),
            ..Unit::absent(name)
        };
        state.units.insert(name.to_owned(), unit);
        Ok(job)
    }

    /// Runs the commands of a unit with a queued start job. When the unit ends, passes its signals to `notify`.
    pub(super) fn run<F>(
        &self,
        name: &str,
        job: u32,
        spec: Transient,
        notify: impl FnOnce(Vec<Notice>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (units, unit) = (self.clone(), name.to_owned());
        let task = async move {
            let outcome = match spec.timeout {
                None => units.execute(&unit, &spec).await,
                Some(limit) => match tokio::time::timeout(limit, units.execute(&unit, &spec)).await {
                    Ok(outcome) => outcome,
                    Err(_) => Outcome::killed("timeout"),
                },
            };
            if let Some(notices) = units.settle(&unit, job, outcome) {
                notify(notices).await;
                // Only after the signals. A client that needs the result holds a reference, so its unit stays loaded.
                units.collect();
            }
        };
        // Under the lock, so that no client stops the unit between the check of its job and the start.
        if let Some(unit) = self.state().units.get_mut(name).filter(|u| u.job == Some(job)) {
            unit.task = Some(tokio::spawn(task).abort_handle());
        }
    }

    async fn execute(&self, name: &str, spec: &Transient) -> Outcome {
        let Ok(fd3) = self.open_files(spec) else {
            return Outcome {
                result: "resources",
                code: 0,
                status: 0,
            };
        };
        let Ok(out) = self.output(spec, spec.stdout.as_deref()) else {
            return Outcome::exited(EXIT_STDOUT);
        };
        let Ok(err) = self.output(spec, spec.stderr.as_deref()) else {
            return Outcome::exited(EXIT_STDERR);
        };
        let Ok(environment) = self.environment(spec) else {
            return Outcome {
                result: "resources",
                code: 0,
                status: 0,
            };
        };
        let mut io = Stdio {
            out,
            err,
            fd3,
            environment,
        };
        let pre = self.commands(spec, &spec.pre, &mut io).await;
        if pre != 0 {
            return Outcome::exited(pre);
        }
        let status = self.commands(spec, &spec.start, &mut io).await;
        if status != 0 || spec.post.is_empty() {
            return Outcome::exited(status);
        }
        if let Some(unit) = self.state().units.get_mut(name) {
            (unit.sub, unit.main_code) = ("start-post", EXITED);
        }
        let post = self.commands(spec, &spec.post, &mut io).await;
        // The main process succeeded, so its status stays 0 although the unit fails.
        Outcome {
            status: 0,
            ..Outcome::exited(post)
        }
    }

    /// Runs the commands in order. Stops after a failed command, unless its failure is ignored. Truncates the output
    /// files before each command.
    async fn commands(&self, spec: &Transient, commands: &[Exec], io: &mut Stdio) -> i32 {
        for command in commands {
            io.out = self.output(spec, spec.stdout.as_deref()).unwrap_or_default();
            io.err = self.output(spec, spec.stderr.as_deref()).unwrap_or_default();
            let status = self.os.run(&command.argv, io).await;
            if status != 0 && !command.ignore {
                return status;
            }
        }
        0
    }

    /// Opens an output file. An existing file keeps its permissions, as with systemd.
    fn output(&self, spec: &Transient, path: Option<&str>) -> std::io::Result<Option<File>> {
        let Some(path) = path else { return Ok(None) };
        let mode = if spec.private { 0o600 } else { 0o644 };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode);
        options.open(self.on_host(path)).map(Some)
    }

    /// Reads the unit's environment files.
    fn environment(&self, spec: &Transient) -> std::io::Result<BTreeMap<String, String>> {
        let mut variables = BTreeMap::new();
        for path in &spec.environment_files {
            let text = std::fs::read_to_string(self.on_host(path))?;
            variables.extend(credentials::environment(&text));
        }
        Ok(variables)
    }

    /// Opens the first of the unit's files. Opens it read-write, as systemd does, because a FIFO without a reader would
    /// block.
    fn open_files(&self, spec: &Transient) -> std::io::Result<Option<File>> {
        let Some((path, _, flags)) = spec.open_files.first() else {
            return Ok(None);
        };
        let write = !flags.contains("read-only");
        let opened = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(self.on_host(path));
        match opened {
            Err(_) if flags.contains("graceful") => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn on_host(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Records the end of a job, unless it has already ended.
    fn settle(&self, name: &str, job: u32, outcome: Outcome) -> Option<Vec<Notice>> {
        let mut state = self.state();
        let unit = state.units.get_mut(name).filter(|u| u.job == Some(job))?;
        finish(unit, outcome);
        let result = if outcome.result == "success" { "done" } else { "failed" };
        Some(vec![
            Notice::Changed(name.to_owned()),
            Notice::JobRemoved(job, name.to_owned(), result),
        ])
    }

    /// Stops a unit: kills its processes and cancels its job. Returns the number of the stop job.
    pub(super) fn stop(&self, name: &str) -> Result<(u32, Vec<Notice>), NamedError> {
        let mut state = self.state();
        let stop_job = state.job();
        let unit = state.units.get_mut(name).ok_or_else(|| no_such_unit(name))?;
        let mut notices = Vec::new();
        if let Some(job) = unit.job {
            if let Some(task) = unit.task.take() {
                task.abort();
            }
            finish(unit, Outcome::killed("signal"));
            notices.push(Notice::JobRemoved(job, name.to_owned(), "canceled"));
            notices.push(Notice::Changed(name.to_owned()));
        } else if unit.active == "active" {
            (unit.active, unit.sub) = ("inactive", "dead");
            notices.push(Notice::Changed(name.to_owned()));
        }
        notices.push(Notice::JobNew(stop_job, name.to_owned()));
        notices.push(Notice::JobRemoved(stop_job, name.to_owned(), "done"));
        Ok((stop_job, notices))
    }

    /// Unloads units without references, after the signals of [`stop`](Self::stop) were sent.
    pub(super) fn collect(&self) {
        self.state().collect();
    }

    pub(super) fn reset_failed(&self, name: &str) -> Result<Vec<Notice>, NamedError> {
        let mut state = self.state();
        let unit = state.units.get_mut(name).ok_or_else(|| no_such_unit(name))?;
        if unit.active == "failed" {
            (unit.active, unit.sub, unit.result) = ("inactive", "dead", "success");
        }
        state.collect();
        Ok(vec![Notice::Changed(name.to_owned())])
    }

    /// Rejects new jobs, because a shutdown began.
    pub(super) fn shutting_down(&self) {
        self.state().shutting_down = true;
    }

    /// Removes all state, because the host is off.
    pub(super) fn clear(&self) {
        self.set_bus(None);
        let state = std::mem::take(&mut *self.state());
        for task in state.units.into_values().filter_map(|u| u.task) {
            task.abort();
        }
    }
}

fn finish(unit: &mut Unit, outcome: Outcome) {
    let failed = outcome.result != "success";
    (unit.active, unit.sub) = if failed {
        ("failed", "failed")
    } else {
        ("inactive", "dead")
    };
    (unit.result, unit.main_code, unit.main_status) = (outcome.result, outcome.code, outcome.status);
    (unit.job, unit.task) = (None, None);
}

fn no_such_unit(name: &str) -> NamedError {
    NamedError::systemd("NoSuchUnit", format!("Unit {name} not loaded."))
}
