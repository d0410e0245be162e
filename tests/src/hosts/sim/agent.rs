//! The agents of a simulated host: the real program as child processes, started again when they die.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::settings::SharedSettings;

/// Command and settings for the agent of a host.
#[derive(Debug, Clone, Default)]
pub struct AgentConfig {
    /// The program.
    pub binary: PathBuf,
    /// Kubeconfig with the agent's own identity.
    pub kubeconfig: PathBuf,
    /// Kubeconfig with the node's kubelet identity.
    pub kubelet_kubeconfig: PathBuf,
    /// More arguments, after the usual ones.
    pub args: Vec<String>,
    /// More environment.
    pub env: Vec<(String, String)>,
}

/// Everything an agent process needs, complete.
#[derive(Debug, Clone)]
pub(super) struct AgentCommand {
    pub(super) node: String,
    pub(super) bus: String,
    pub(super) root: PathBuf,
    pub(super) config: AgentConfig,
}

impl AgentCommand {
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: &Path| arguments.extend([OsString::from(name), value.into()]);
        option("--node-name", Path::new(&self.node));
        option("--kubeconfig", &self.config.kubeconfig);
        option("--kubelet-kubeconfig", &self.config.kubelet_kubeconfig);
        option("--bus", Path::new(&self.bus));
        option("--host-root", &self.root);
        option("--namespace", Path::new("berth-system"));
        option("--log-format", Path::new("human"));
        arguments.extend(self.config.args.iter().map(OsString::from));
        arguments
    }

    fn spawn(&self, log: &Path) -> Result<Child> {
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.config.binary)
            .args(self.arguments())
            .envs(self.config.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot share the agent's log")?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {} under setpriv", self.config.binary.display()))
    }
}

/// Order to a supervisor about its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// Keep one running.
    Run,
    /// Let it end, and start no other.
    Last,
    /// Kill it.
    Kill,
}

/// One place for an agent on a host. The process in it changes.
#[derive(Debug)]
struct Slot {
    log: PathBuf,
    pid: Arc<Mutex<Option<u32>>>,
    order: watch::Sender<Order>,
    supervisor: JoinHandle<()>,
}

impl Slot {
    fn start(command: AgentCommand, settings: SharedSettings, log: PathBuf) -> Self {
        let pid = Arc::<Mutex<Option<u32>>>::default();
        let (order, orders) = watch::channel(Order::Run);
        let supervisor = tokio::spawn(supervise(command, settings, log.clone(), pid.clone(), orders));
        Self {
            log,
            pid,
            order,
            supervisor,
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = *locked(&self.pid);
        if let Some(pid) = pid.and_then(|p| i32::try_from(p).ok()) {
            // An error means that it is dead already.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Waits for an order at least as strict as this one. A supervisor that nobody owns any more is to kill.
async fn reached(orders: &mut watch::Receiver<Order>, order: Order) {
    let _ = orders.wait_for(|o| *o >= order).await;
}

/// Keeps one agent running until it is told to stop. The process is dead when this returns.
async fn supervise(
    command: AgentCommand,
    settings: SharedSettings,
    log: PathBuf,
    pid: Arc<Mutex<Option<u32>>>,
    mut orders: watch::Receiver<Order>,
) {
    loop {
        match command.spawn(&log) {
            Ok(mut child) => {
                *locked(&pid) = child.id();
                let killed = tokio::select! {
                    _ = child.wait() => false,
                    () = reached(&mut orders, Order::Kill) => true,
                };
                if killed {
                    let _ = child.kill().await;
                }
                *locked(&pid) = None;
            }
            Err(error) => tracing::error!(node = command.node, error = format!("{error:#}"), "no agent"),
        }
        let Some(delay) = settings.with(|s| s.agent_restart) else {
            return;
        };
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = reached(&mut orders, Order::Last) => return,
        }
    }
}

/// All agents of one host: normally one, two while an update of the DaemonSet surges.
#[derive(Debug)]
pub(super) struct Agents {
    command: Option<AgentCommand>,
    settings: SharedSettings,
    dir: PathBuf,
    wanted: Mutex<usize>,
    slots: Mutex<Vec<Slot>>,
}

impl Agents {
    pub(super) fn new(command: Option<AgentCommand>, settings: SharedSettings, dir: PathBuf) -> Self {
        Self {
            wanted: Mutex::new(usize::from(command.is_some())),
            command,
            settings,
            dir,
            slots: Mutex::default(),
        }
    }

    /// Sets the number of agents that the host has while it is up.
    pub(super) fn want(&self, count: usize) {
        *locked(&self.wanted) = count;
    }

    /// Starts the agents that are wanted and not running.
    pub(super) fn start(&self) {
        let Some(command) = &self.command else { return };
        let wanted = *locked(&self.wanted);
        let mut slots = locked(&self.slots);
        for index in 0..wanted {
            let log = self.log(index);
            let slot = || Slot::start(command.clone(), self.settings.clone(), log);
            match slots.get_mut(index) {
                Some(old) if old.supervisor.is_finished() => *old = slot(),
                Some(_) => {}
                None => slots.push(slot()),
            }
        }
    }

    /// Ends all agents but the first `keep` ones, and waits until they are dead.
    pub(super) async fn stop(&self, keep: usize, grace: Option<Duration>) {
        let slots = {
            let mut slots = locked(&self.slots);
            let at = keep.min(slots.len());
            slots.split_off(at)
        };
        if let Some(grace) = grace {
            for slot in &slots {
                slot.order.send_replace(Order::Last);
                slot.signal(Signal::SIGTERM);
            }
            tokio::time::sleep(grace).await;
        }
        for slot in slots {
            slot.order.send_replace(Order::Kill);
            let _ = slot.supervisor.await;
        }
    }

    /// SIGKILL for all of them; whether they come back is a setting.
    pub(super) fn kill(&self) {
        for slot in locked(&self.slots).iter() {
            slot.signal(Signal::SIGKILL);
        }
    }

    /// Process IDs of the agents that run now.
    pub(super) fn pids(&self) -> Vec<u32> {
        locked(&self.slots).iter().filter_map(|s| *locked(&s.pid)).collect()
    }

    /// The log of one agent.
    pub(super) fn log(&self, index: usize) -> PathBuf {
        self.dir.join(format!("agent-{index}.log"))
    }

    /// Ends all of it without waiting, for use while dropping.
    pub(super) fn abandon(&self) {
        for slot in locked(&self.slots).drain(..) {
            slot.signal(Signal::SIGKILL);
            slot.supervisor.abort();
            tracing::trace!(log = %slot.log.display(), "agent abandoned");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Agents that say how they were started and then wait.
    fn agents(dir: &Path) -> Agents {
        let binary = dir.join("agent");
        std::fs::write(&binary, "#!/bin/sh\necho \"$@\" >&2\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = AgentConfig {
            binary,
            args: vec!["--more".to_owned()],
            ..AgentConfig::default()
        };
        let command = AgentCommand {
            node: "node-1".to_owned(),
            bus: "unix:path=/nowhere".to_owned(),
            root: dir.to_owned(),
            config,
        };
        Agents::new(Some(command), SharedSettings::default(), dir.to_owned())
    }

    /// Waits until so many agents run, other than these.
    async fn wait(agents: &Agents, count: usize, not: &[u32]) -> Vec<u32> {
        for _ in 0..500 {
            let pids = agents.pids();
            if pids.len() == count && pids.iter().all(|p| !not.contains(p)) {
                return pids;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} agents never ran, {:?} do", agents.pids());
    }

    #[tokio::test]
    async fn a_killed_agent_comes_back_unless_it_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let agents = agents(dir.path());
        agents.start();
        let first = wait(&agents, 1, &[]).await;
        agents.kill();
        let second = wait(&agents, 1, &first).await;
        agents.settings.with(|s| s.agent_restart = None);
        agents.kill();
        wait(&agents, 0, &[]).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(agents.pids().is_empty());
        agents.start();
        wait(&agents, 1, &second).await;
        agents.stop(0, None).await;
        assert!(agents.pids().is_empty());
    }

    #[tokio::test]
    async fn two_agents_have_two_logs() {
        let dir = tempfile::tempdir().unwrap();
        let agents = agents(dir.path());
        agents.want(2);
        agents.start();
        wait(&agents, 2, &[]).await;
        let is_written = |index| std::fs::read_to_string(agents.log(index)).is_ok_and(|log| log.ends_with("--more\n"));
        for _ in 0..500 {
            if (0..2).all(is_written) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for index in 0..2 {
            let log = std::fs::read_to_string(agents.log(index)).unwrap();
            assert!(log.contains("--node-name node-1") && log.ends_with("--more\n"), "{log}");
        }
        agents.stop(1, Some(Duration::from_millis(10))).await;
        assert_eq!(agents.pids().len(), 1);
    }
}
