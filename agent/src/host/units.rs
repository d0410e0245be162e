//! Runs host commands as transient units of the host's systemd.
//!
//! A unit runs in the host's namespaces, with the SELinux transition of its program, and outlives the agent. Its fixed
//! name is a mutex: systemd does not start a second unit of that name.
//!
//! The agent starts units without `AddRef`. So a failed unit stays loaded until `ResetFailedUnit`, and systemd unloads
//! a unit that succeeded. Even the next agent process can read the result from that. With `AddRef`, a forgotten
//! reference would keep its unit loaded.

use std::time::Duration;

use berth_api::node::BootSafeguard;
use berth_core::agent::facts::BootComplete;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use zbus::{OwnedObjectPath, Variant};

use super::bus::{Bus, BusError, JobEnd, SYSTEMD, Target};

/// Reply of `ListUnitsByNames` for one unit.
type Listed = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);

/// Time between two checks of a unit's state, in case the agent missed the signal of its end.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two checks whether stopped units have ended.
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// How long systemd may take to free the name of an ended unit.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Extra time that the agent waits for a unit's end after the unit's timeout. Then the agent stops the unit.
const GRACE: Duration = Duration::from_secs(15);
/// Time from the stop of a contained unit until systemd kills its processes.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Size limit of a file that a contained unit writes, its output files included.
const MAX_FILE: u64 = 16 << 20;
/// File mode mask of a private unit.
const PRIVATE_UMASK: u32 = 0o077;

#[derive(Debug, Clone, Default)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) description: &'static str,
    /// `ExecStartPre` commands; their failures are ignored.
    pub(super) before: Vec<Vec<String>>,
    pub(super) command: Vec<String>,
    /// `ExecStartPost` commands, run after success; their failures are ignored.
    pub(super) on_success: Vec<Vec<String>>,
    /// Last `ExecStartPost` command, run after success. Its failure fails the unit.
    pub(super) last: Option<Vec<String>>,
    pub(super) deadline: Duration,
    pub(super) stdout: Option<String>,
    pub(super) stderr: Option<String>,
    /// FIFO that systemd opens as file descriptor 3 of the command.
    pub(super) fd3: Option<String>,
    /// True to run with low priority for disk and CPU.
    pub(super) background: bool,
    /// True if the output and the result are not needed and are discarded.
    pub(super) expendable: bool,
    /// True to kill the command [`KILL_AFTER`] after its time limit, and to limit the size of each file that it writes.
    pub(super) contained: bool,
    /// File with more environment variables, which only root can read. Every user can read other properties of a unit.
    pub(super) environment_file: Option<String>,
    /// True if only root may read the files that the command writes, its output files included.
    pub(super) private: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The unit is not loaded: it succeeded, was stopped, or was never started.
    Gone,
    Running,
    /// The unit ended and is about to be unloaded.
    Ended,
    Failed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UnitFailure {
    /// systemd's result of the unit: `exit-code`, `timeout`, `signal`, …
    pub(super) result: String,
    /// Exit status or signal of the main process; 0 if the main process succeeded and a command after it failed.
    pub(super) status: i32,
}

impl UnitFailure {
    fn of(result: &str) -> Self {
        Self {
            result: result.to_owned(),
            status: 0,
        }
    }
}

/// Exit status of a unit whose program systemd could not execute.
pub(super) const EXIT_EXEC: i32 = 203;

/// Converts commands to systemd's format: program, arguments, and whether a failure is ignored.
fn exec(commands: &[Vec<String>], ignored: bool) -> Vec<(String, Vec<String>, bool)> {
    commands
        .iter()
        .map(|command| {
            let program = command.first().cloned().unwrap_or_default();
            (program, command.clone(), ignored)
        })
        .collect()
}

fn properties(spec: &Spec) -> Vec<(&'static str, Variant<'static>)> {
    fn microseconds(time: Duration) -> Variant<'static> {
        Variant::new(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }
    let mut properties = vec![
        ("Description", Variant::new(spec.description)),
        ("Type", Variant::new("oneshot")),
        (
            "ExecStart",
            Variant::new(exec(std::slice::from_ref(&spec.command), false)),
        ),
        ("TimeoutStartUSec", microseconds(spec.deadline)),
    ];
    if !spec.before.is_empty() {
        properties.push(("ExecStartPre", Variant::new(exec(&spec.before, true))));
    }
    // Each command truncates the error file, so the command whose errors matter comes last.
    let then: Vec<_> = exec(&spec.on_success, true)
        .into_iter()
        .chain(exec(spec.last.as_slice(), false))
        .collect();
    if !then.is_empty() {
        properties.push(("ExecStartPost", Variant::new(then)));
    }
    if let Some(path) = &spec.stdout {
        properties.push(("StandardOutputFileToTruncate", Variant::new(path.clone())));
    }
    if let Some(path) = &spec.stderr {
        properties.push(("StandardErrorFileToTruncate", Variant::new(path.clone())));
    }
    if let Some(path) = &spec.fd3 {
        let file = (path.clone(), "progress".to_owned(), 0u64);
        properties.push(("OpenFile", Variant::new(vec![file])));
    }
    if spec.expendable {
        properties.push(("StandardOutput", Variant::new("null")));
        properties.push(("CollectMode", Variant::new("inactive-or-failed")));
    }
    if spec.contained {
        properties.push(("TimeoutStopUSec", microseconds(KILL_AFTER)));
        properties.push(("LimitFSIZE", Variant::new(MAX_FILE)));
    }
    if let Some(path) = &spec.environment_file {
        let is_optional = false;
        properties.push(("EnvironmentFiles", Variant::new(vec![(path.clone(), is_optional)])));
    }
    if spec.private {
        properties.push(("UMask", Variant::new(PRIVATE_UMASK)));
    }
    if spec.background {
        properties.push(("IOWeight", Variant::new(20u64)));
        properties.push(("CPUWeight", Variant::new(20u64)));
    }
    properties
}

/// Starts a unit, and returns the object path of its start job. Resets a failed unit of the same name first. If a unit
/// of this name is running, fails with `org.freedesktop.systemd1.UnitExists`.
pub(super) async fn start(bus: &Bus, spec: &Spec) -> Result<OwnedObjectPath, BusError> {
    let give_up = Instant::now() + COLLECT_TIMEOUT;
    loop {
        let body = (
            spec.name.as_str(),
            "fail",
            properties(spec),
            Vec::<(&str, Vec<(&str, Variant<'_>)>)>::new(),
        );
        let started: Result<OwnedObjectPath, BusError> = bus.call_once(SYSTEMD, "StartTransientUnit", &body).await;
        let error = match started {
            Ok(job) => return Ok(job),
            Err(error) => error,
        };
        if !error.is(".UnitExists") || Instant::now() > give_up {
            return Err(error);
        }
        match state(bus, &spec.name).await? {
            State::Running => return Err(error),
            State::Failed => reset(bus, &spec.name).await?,
            State::Gone | State::Ended => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn list(bus: &Bus, names: &[&str]) -> Result<Vec<Listed>, BusError> {
    bus.call(SYSTEMD, "ListUnitsByNames", &names).await
}

pub(super) async fn state(bus: &Bus, name: &str) -> Result<State, BusError> {
    let listed = list(bus, &[name]).await?;
    let Some((_, _, load, active, ..)) = listed.first() else {
        return Ok(State::Gone);
    };
    Ok(match (load.as_str(), active.as_str()) {
        (_, "failed") => State::Failed,
        (_, "activating" | "active" | "deactivating" | "reloading") => State::Running,
        ("not-found", _) => State::Gone,
        // Field 7 is the ID of the unit's queued job: the unit is about to start.
        _ if listed.first().is_some_and(|unit| unit.7 != 0) => State::Running,
        _ => State::Ended,
    })
}

/// Returns the named units that are in one of these states.
pub(super) async fn in_states(bus: &Bus, names: &[&str], states: &[&str]) -> Result<Vec<String>, BusError> {
    let listed = list(bus, names).await?;
    let wanted = listed.into_iter().filter(|unit| states.contains(&unit.3.as_str()));
    Ok(wanted.map(|unit| unit.0).collect())
}

/// True if the host has a unit of this name, running or not.
pub(super) async fn is_loaded(bus: &Bus, name: &str) -> Result<bool, BusError> {
    Ok(loaded(bus, name).await?.is_some())
}

/// Returns a unit of the host, running or not; `None` if the host does not have it.
async fn loaded(bus: &Bus, name: &str) -> Result<Option<Listed>, BusError> {
    let listed = list(bus, &[name]).await?;
    Ok(listed.into_iter().next().filter(|unit| unit.2 == "loaded"))
}

/// Returns the names of the loaded units that match a pattern such as `berth-*.service`, sorted.
pub(super) async fn matching(bus: &Bus, pattern: &str) -> Result<Vec<String>, BusError> {
    let body: (&[&str], &[&str]) = (&[], &[pattern]);
    let listed: Vec<Listed> = bus.call(SYSTEMD, "ListUnitsByPatterns", &body).await?;
    let mut names: Vec<String> = listed.into_iter().map(|unit| unit.0).collect();
    names.sort();
    Ok(names)
}

/// Returns the names of the units that have failed or wait for an automatic restart, sorted.
pub(super) async fn failed(bus: &Bus) -> Result<Vec<String>, BusError> {
    // systemd compares each word with a unit's state and with its sub-state.
    let body: (&[&str], &[&str]) = (&["failed", "auto-restart", "auto-restart-queued"], &[]);
    let listed: Vec<Listed> = bus.call(SYSTEMD, "ListUnitsByPatterns", &body).await?;
    let mut names: Vec<String> = listed.into_iter().map(|unit| unit.0).collect();
    names.sort();
    Ok(names)
}

/// True until systemd has started all units of the boot. A host with failed units counts as started.
pub(super) async fn is_starting(bus: &Bus) -> Result<bool, BusError> {
    let state: String = bus.property(SYSTEMD, "SystemState").await?;
    Ok(state == "initializing" || state == "starting")
}

/// Units that show the safeguards of a host's boots. The host has a safeguard if another unit wants or requires its
/// unit. greenboot's boot counter has two entries, because greenboot's rewrite renamed its unit.
const SAFEGUARDS: [(&str, BootSafeguard); 5] = [
    ("systemd-bless-boot.service", BootSafeguard::BootCounting),
    ("greenboot-grub2-set-counter.service", BootSafeguard::GrubBootCounter),
    ("greenboot-set-rollback-trigger.service", BootSafeguard::GrubBootCounter),
    ("greenboot-healthcheck.service", BootSafeguard::Greenboot),
    ("boot-complete.target", BootSafeguard::BootComplete),
];

/// Returns the state of `boot-complete.target`. Every host has the target, but on many hosts no unit wants or requires
/// it.
pub(super) async fn boot_complete(bus: &Bus) -> Result<BootComplete, BusError> {
    let Some(unit) = loaded(bus, "boot-complete.target").await? else {
        return Ok(BootComplete::Unused);
    };
    if unit.3 == "active" {
        return Ok(BootComplete::Reached);
    }
    if is_wanted(bus, &unit).await? {
        return Ok(BootComplete::Pending);
    }
    Ok(BootComplete::Unused)
}

fn target_of(unit: &Listed) -> Target<'_> {
    Target {
        service: SYSTEMD.service,
        path: unit.6.as_str(),
        interface: "org.freedesktop.systemd1.Unit",
    }
}

/// True if another unit wants or requires this one.
async fn is_wanted(bus: &Bus, unit: &Listed) -> Result<bool, BusError> {
    for dependents in ["RequiredBy", "WantedBy"] {
        let names: Vec<String> = bus.property(target_of(unit), dependents).await?;
        if !names.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the path of a unit's file if the host has the unit and starts it at boot.
pub(super) async fn enabled_fragment(bus: &Bus, name: &str) -> Result<Option<String>, BusError> {
    let Some(unit) = loaded(bus, name).await? else {
        return Ok(None);
    };
    if !is_wanted(bus, &unit).await? {
        return Ok(None);
    }
    let path: String = bus.property(target_of(&unit), "FragmentPath").await?;
    Ok(Some(path))
}

/// Returns when a unit last became active, in microseconds since 1970 by the host's wall clock; 0 if it never did.
pub(super) async fn active_since(bus: &Bus, name: &str) -> Result<u64, BusError> {
    let listed = list(bus, &[name]).await?;
    match listed.first() {
        Some(unit) => bus.property(target_of(unit), "ActiveEnterTimestamp").await,
        None => Ok(0),
    }
}

/// Makes systemd read its unit files again.
pub(super) async fn reload(bus: &Bus) -> Result<(), BusError> {
    bus.call(SYSTEMD, "Reload", &()).await
}

/// Loads a new unit file, and makes the host start the unit at boot.
pub(super) async fn enable(bus: &Bus, name: &str) -> Result<(), BusError> {
    reload(bus).await?;
    let is_runtime = false;
    let is_forced = true;
    let _: (bool, Vec<(String, String, String)>) = bus
        .call(SYSTEMD, "EnableUnitFiles", &(&[name][..], is_runtime, is_forced))
        .await?;
    reload(bus).await
}

/// Returns the mechanisms that guard the host's boots without the agent. Boot counting is visible only if the current
/// boot is counted. Otherwise systemd does not want the unit that marks a boot as good.
pub(super) async fn boot_safeguards(bus: &Bus) -> Result<Vec<BootSafeguard>, BusError> {
    let mut found = vec![];
    for (name, safeguard) in SAFEGUARDS {
        if let Some(unit) = loaded(bus, name).await?
            && is_wanted(bus, &unit).await?
        {
            found.push(safeguard);
        }
    }
    match bus.property::<u64>(SYSTEMD, "RuntimeWatchdogUSec").await {
        // With 0 or systemd's infinity, the watchdog is off.
        Ok(0 | u64::MAX) | Err(BusError::Refused { .. }) => {}
        Ok(_) => found.push(BootSafeguard::HardwareWatchdog),
        Err(error) => return Err(error),
    }
    found.sort();
    found.dedup();
    Ok(found)
}

async fn is_active(bus: &Bus, name: &str) -> Result<bool, StartError> {
    let active = in_states(bus, &[name], &["active"]).await;
    let active = active.map_err(|error| StartError::of(name, error))?;
    Ok(!active.is_empty())
}

#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum StartError {
    /// systemd did not answer, so the state of the service is unknown.
    #[error("{0}")]
    Silent(BusError),
    /// systemd answered, but the service does not run.
    #[error("{0}; see the service's journal on the host")]
    NotStarted(String),
}

impl StartError {
    fn of(name: &str, error: BusError) -> Self {
        match error {
            BusError::Refused { message, .. } => Self::NotStarted(format!("{name} cannot be started: {message}")),
            error => Self::Silent(error),
        }
    }
}

/// Starts a service of the host if needed, and waits until it runs.
///
/// # Errors
/// When the service does not start in time, or systemd does not answer.
pub(super) async fn activate(bus: &Bus, name: &str, within: Duration) -> Result<(), StartError> {
    if is_active(bus, name).await? {
        return Ok(());
    }
    let mut jobs = bus.jobs();
    bus.ensure().await.map_err(|error| StartError::of(name, error))?;
    let give_up = Instant::now() + within;
    let started: Result<OwnedObjectPath, BusError> = bus.call(SYSTEMD, "StartUnit", &(name, "replace")).await;
    started.map_err(|error| StartError::of(name, error))?;
    loop {
        let look = (Instant::now() + LOOK_INTERVAL).min(give_up);
        tokio::select! {
            job = jobs.recv() => match job {
                Ok(job) if job.unit != name => continue,
                Ok(job) if job.result == "done" => return Ok(()),
                Ok(job) => {
                    let why = format!("{name} cannot be started: the result of its start job is {}", job.result);
                    return Err(StartError::NotStarted(why));
                }
                Err(RecvError::Lagged(_)) => {}
                // Cannot happen: the bus keeps a sender.
                Err(RecvError::Closed) => tokio::time::sleep_until(look).await,
            },
            () = tokio::time::sleep_until(look) => {}
        }
        if is_active(bus, name).await? {
            return Ok(());
        }
        if Instant::now() >= give_up {
            let why = format!("{name} did not start within {} s", within.as_secs());
            return Err(StartError::NotStarted(why));
        }
    }
}

/// Returns the result and status of a unit that failed or was stopped.
pub(super) async fn unit_failure(bus: &Bus, name: &str) -> Result<UnitFailure, BusError> {
    let path: OwnedObjectPath = match bus.call(SYSTEMD, "GetUnit", &name).await {
        Ok(path) => path,
        // systemd unloads a unit that was stopped.
        Err(error) if error.is(".NoSuchUnit") => return Ok(UnitFailure::of("canceled")),
        Err(error) => return Err(error),
    };
    let service = Target {
        service: SYSTEMD.service,
        path: path.as_str(),
        interface: "org.freedesktop.systemd1.Service",
    };
    Ok(UnitFailure {
        result: bus.property(service, "Result").await?,
        status: bus.property(service, "ExecMainStatus").await?,
    })
}

pub(super) async fn reset(bus: &Bus, name: &str) -> Result<(), BusError> {
    match bus.call(SYSTEMD, "ResetFailedUnit", &name).await {
        Err(error) if error.is(".NoSuchUnit") => Ok(()),
        result => result,
    }
}

/// Requests the stop of a unit. A missing unit counts as stopped.
pub(super) async fn stop(bus: &Bus, name: &str) -> Result<(), BusError> {
    let job: Result<OwnedObjectPath, BusError> = bus.call(SYSTEMD, "StopUnit", &(name, "replace")).await;
    match job {
        Err(error) if error.is(".NoSuchUnit") => Ok(()),
        result => result.map(drop),
    }
}

/// Stops these units and waits until none of them runs, at most for the duration `within`. Returns the names of those
/// that still run.
pub(super) async fn stop_all(bus: &Bus, names: &[String], within: Duration) -> Result<Vec<String>, BusError> {
    let give_up = Instant::now() + within;
    for name in names {
        stop(bus, name).await?;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    loop {
        let running = in_states(bus, &names, &["active", "activating", "deactivating", "reloading"]).await?;
        if running.is_empty() || Instant::now() >= give_up {
            return Ok(running);
        }
        tokio::time::sleep(STOP_INTERVAL).await;
    }
}

/// Starts a short unit and waits for its end. Returns `None` if it succeeded.
pub(super) async fn run(bus: &Bus, spec: &Spec) -> Result<Option<UnitFailure>, BusError> {
    let mut jobs = bus.jobs();
    bus.ensure().await?;
    let job = start(bus, spec).await?;
    let give_up = Instant::now() + spec.deadline + GRACE;
    match end(bus, &spec.name, Some(&job), &mut jobs, give_up).await? {
        State::Failed => {
            let unit_failure = unit_failure(bus, &spec.name).await?;
            reset(bus, &spec.name).await?;
            Ok(Some(unit_failure))
        }
        State::Running => {
            stop(bus, &spec.name).await?;
            Ok(Some(UnitFailure::of("timeout")))
        }
        State::Gone | State::Ended => Ok(None),
    }
}

/// Waits for the end of a unit that an earlier agent process started. Stops the unit if it runs past its time limit.
pub(super) async fn outlast(bus: &Bus, spec: &Spec) -> Result<(), BusError> {
    let mut jobs = bus.jobs();
    let give_up = Instant::now() + spec.deadline + GRACE;
    if end(bus, &spec.name, None, &mut jobs, give_up).await? == State::Running {
        stop(bus, &spec.name).await?;
    }
    Ok(())
}

/// Waits for the end of a unit, at most until `give_up`, and returns the unit's state. `job` is the unit's start job,
/// if this agent started the unit. Only the job's result distinguishes a unit that an admin stopped from a unit that
/// succeeded.
pub(super) async fn end(
    bus: &Bus,
    name: &str,
    job: Option<&OwnedObjectPath>,
    jobs: &mut tokio::sync::broadcast::Receiver<JobEnd>,
    give_up: Instant,
) -> Result<State, BusError> {
    loop {
        let look = (Instant::now() + LOOK_INTERVAL).min(give_up);
        tokio::select! {
            end = jobs.recv() => match end {
                Ok(end) if end.unit != name => continue,
                Ok(end) if Some(&end.job) == job && end.result == "done" => return Ok(State::Gone),
                Ok(end) if Some(&end.job) == job && end.result == "canceled" => return Ok(State::Failed),
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                // Cannot happen: the bus keeps a sender.
                Err(RecvError::Closed) => tokio::time::sleep_until(look).await,
            },
            () = tokio::time::sleep_until(look) => {}
        }
        let state = state(bus, name).await?;
        if state != State::Running || Instant::now() >= give_up {
            return Ok(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_asks_for_no_more_than_it_needs() {
        let mut spec = Spec {
            name: "berth-x.service".to_owned(),
            description: "x",
            command: vec!["/usr/bin/bootc".to_owned(), "status".to_owned()],
            deadline: Duration::from_secs(60),
            ..Spec::default()
        };
        let names: Vec<_> = properties(&spec).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["Description", "Type", "ExecStart", "TimeoutStartUSec"]);
        spec.fd3 = Some("/run/berth/x.fifo".to_owned());
        spec.background = true;
        spec.environment_file = Some("/run/berth/x.env".to_owned());
        spec.private = true;
        let found = properties(&spec);
        for (name, expected) in [
            ("ExecStart", "a(sasb)"),
            ("TimeoutStartUSec", "t"),
            ("OpenFile", "a(sst)"),
            ("IOWeight", "t"),
            ("EnvironmentFiles", "a(sb)"),
            ("UMask", "u"),
        ] {
            let value = found.iter().find(|(n, _)| *n == name).map(|(_, v)| v);
            let signature = value.map(|v| v.value_signature().to_string());
            assert_eq!(signature.as_deref(), Some(expected), "{name}");
        }
    }
}
