//! The agents of a simulated host: child processes of the real program, restarted when they exit.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::settings::SharedSettings;
use crate::locked::locked;
use crate::process::with_parent;

/// Program and settings of a host's agent.
#[derive(Debug, Clone, Default)]
pub struct AgentConfig {
    /// Path of the program.
    pub binary: PathBuf,
    /// Kubeconfig with the agent's identity.
    pub kubeconfig: PathBuf,
    /// Kubeconfig with the kubelet's identity.
    pub kubelet_kubeconfig: PathBuf,
    /// Additional arguments, after the default ones.
    pub args: Vec<String>,
    /// Additional environment.
    pub env: Vec<(String, String)>,
}

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
        for (name, value) in [
            ("--node-name", Path::new(&self.node)),
            ("--kubeconfig", &self.config.kubeconfig),
            ("--kubelet-kubeconfig", &self.config.kubelet_kubeconfig),
            ("--bus", Path::new(&self.bus)),
            ("--host-root", &self.root),
            ("--namespace", Path::new("berth-system")),
            ("--log-format", Path::new("human")),
        ] {
            arguments.extend([OsString::from(name), value.into()]);
        }
        arguments.extend(self.config.args.iter().map(OsString::from));
        arguments
    }

    fn spawn(&self, log: &Path) -> Result<Child> {
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = std::process::Command::new(&self.config.binary);
        command.args(self.arguments()).envs(self.config.env.iter().cloned());
        Command::from(with_parent(&command))
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot share the agent's log")?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {} under setpriv", self.config.binary.display()))
    }
}

/// Command for the supervisor of an agent, from lenient to strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// Keep an agent running.
    Run,
    /// Start no other agent after the exit of the current agent.
    Last,
    /// Kill the current agent.
    Kill,
}

/// A supervised agent of a host. Its process may be replaced.
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
            // An error means that it has already exited.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

/// Waits for a command at least as strict as `order`. Also returns if the sender is gone, so that the supervisor kills
/// its agent.
async fn reached(orders: &mut watch::Receiver<Order>, order: Order) {
    let _ = orders.wait_for(|o| *o >= order).await;
}

/// Keeps one agent running until the command changes. Returns after the process has exited.
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
            Err(error) => tracing::error!(
                node = command.node,
                error = format!("{error:#}"),
                "cannot start the agent"
            ),
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

/// All agents of a host: usually one; two during a surging DaemonSet update.
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

    /// Sets the number of agents while the host is up.
    pub(super) fn want(&self, count: usize) {
        *locked(&self.wanted) = count;
    }

    pub(super) fn start(&self) {
        let Some(command) = &self.command else { return };
        let wanted = *locked(&self.wanted);
        let mut slots = locked(&self.slots);
        for index in 0..wanted {
            let log = self.log(index);
            if slots.get(index).is_some_and(|slot| !slot.supervisor.is_finished()) {
                continue;
            }
            let slot = Slot::start(command.clone(), self.settings.clone(), log);
            match slots.get_mut(index) {
                Some(old) => *old = slot,
                None => slots.push(slot),
            }
        }
    }

    /// Stops all agents except the first `keep`, and waits until they have exited.
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

    /// Sends SIGKILL to all agents. They restart if `agent_restart` is set.
    pub(super) fn kill(&self) {
        for slot in locked(&self.slots).iter() {
            slot.signal(Signal::SIGKILL);
        }
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        locked(&self.slots).iter().filter_map(|s| *locked(&s.pid)).collect()
    }

    pub(super) fn log(&self, index: usize) -> PathBuf {
        self.dir.join(format!("agent-{index}.log"))
    }

    /// Kills everything without waiting, for use in Drop.
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

    /// Agents that print their arguments and then wait.
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

    /// Waits until `count` agents run whose PIDs are not in `not`.
    async fn wait(agents: &Agents, count: usize, not: &[u32]) -> Vec<u32> {
        for _ in 0..500 {
            let pids = agents.pids();
            if pids.len() == count && pids.iter().all(|p| !not.contains(p)) {
                return pids;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} agents never ran; running: {:?}", agents.pids());
    }

    #[tokio::test]
    async fn a_killed_agent_restarts_if_allowed() {
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
        for index in 0..2 {
            let mut log = String::new();
            for _ in 0..500 {
                log = std::fs::read_to_string(agents.log(index)).unwrap_or_default();
                if log.ends_with("--more\n") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(log.contains("--node-name node-1") && log.ends_with("--more\n"), "{log}");
        }
        agents.stop(1, Some(Duration::from_millis(10))).await;
        assert_eq!(agents.pids().len(), 1);
    }
}
