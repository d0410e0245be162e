//! The machine below a host: its power, its firmware and its boot loader. Each boot is a `systemd-nspawn` of its own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cgroup::Cgroup;
use super::disk::{BootedImage, Disk};
use super::network;
use super::rpm_ostree::is_rpm_ostree_real;
use super::shell::{sha256, tool};
use crate::hosts::{HostChange, HostLog};
use crate::process::{last_lines, spawn_lasting};

/// File in which the kernel, or nspawn in its stead, has the boot ID.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
/// Directory in which nspawn keeps one for each container.
const PROPAGATE: &str = "/run/systemd/nspawn/propagate";
/// Longest time until a container has come into being.
const APPEAR: Duration = Duration::from_secs(30);

/// Starts the container in its control group, waits for it, and kills the whole group when the harness dies before it: the
/// death of `systemd-nspawn` alone does not end the container below it.
const GUARD: &str = r#"
group=$1; shift
trap 'echo 1 > "$group/cgroup.kill"' TERM INT HUP
sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@" &
child=$!
wait "$child"; status=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
exit "$status"
"#;

/// Runs a command in a mount namespace of its own, at whose root is what this process has for its root. In a chroot that is another
/// one, and `runc exec` in a container of the host would end up there: `setns(2)` goes to the root of the namespace.
const ROOTED: &str = r#"
mount --no-canonicalize --namespace "$$" --rbind "/proc/$$/root" / && exec nsenter --mount="/proc/$$/ns/mnt" -- "$@"
"#;

/// Parts of a machine.
#[derive(Debug)]
pub(super) struct Hardware {
    /// The host's name (its Node's).
    pub(super) host: String,
    /// The machine's name, unique on this computer.
    pub(super) machine: String,
    pub(super) bridge: String,
    pub(super) disk: Disk,
    /// A private directory.
    pub(super) directory: PathBuf,
    pub(super) log: HostLog,
}

/// One boot.
#[derive(Debug, Clone)]
pub struct Boot {
    /// Its boot ID.
    pub boot_id: String,
    /// Digest of the manifest of the image that was booted.
    pub digest: String,
    /// Version label of that image.
    pub version: String,
    /// The process ID of the host's PID 1, as this computer counts.
    pub init: u32,
}

/// Removes what nspawn leaves behind of machines whose names begin so.
pub(super) fn sweep(machines: &str) {
    for entry in fs::read_dir(PROPAGATE).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(machines) {
            remove_propagation(&entry.path());
        }
    }
}

fn remove_propagation(path: &Path) {
    if path.exists() {
        // Most often nothing is mounted there.
        let _ = tool("umount", &["-l".as_ref(), path.as_os_str()]);
        let _ = fs::remove_dir(path);
    }
}

#[derive(Debug, Default)]
struct State {
    on: bool,
    quit: bool,
    boot: Option<Boot>,
    cgroup: Option<Cgroup>,
}

#[derive(Debug)]
struct Shared {
    hardware: Hardware,
    state: Mutex<State>,
    changed: Condvar,
}

/// A machine. It is off at first; its host ends when it is dropped.
#[derive(Debug)]
pub(super) struct Machine {
    shared: Arc<Shared>,
    loader: Option<JoinHandle<()>>,
}

impl Machine {
    pub(super) fn new(hardware: Hardware) -> Self {
        let shared = Arc::new(Shared {
            hardware,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let loader = std::thread::spawn(move || own.run());
        Self {
            shared,
            loader: Some(loader),
        }
    }

    pub(super) fn hardware(&self) -> &Hardware {
        &self.shared.hardware
    }

    /// Turns the power on or off. Off is a power cut.
    pub(super) fn power(&self, on: bool) {
        let mut state = self.shared.state();
        state.on = on;
        if !on {
            cut(&state);
        }
        self.shared.changed.notify_all();
    }

    /// A power cut, after which it boots again if it is meant to run.
    pub(super) fn power_cut(&self) {
        cut(&self.shared.state());
    }

    /// The boot that is running, if one is.
    pub(super) fn boot(&self) -> Option<Boot> {
        self.shared.state().boot.clone()
    }

    /// The last lines that the host wrote on its console.
    pub(super) fn console(&self) -> String {
        let text = fs::read(self.shared.hardware.console()).unwrap_or_default();
        last_lines(&String::from_utf8_lossy(&text), 25)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.on = false;
            state.quit = true;
            cut(&state);
        }
        self.shared.changed.notify_all();
        if let Some(loader) = self.loader.take() {
            // It only fails when the thread panicked, and then there is nothing left to wait for.
            let _ = loader.join();
        }
    }
}

fn cut(state: &State) {
    if let Some(cgroup) = &state.cgroup {
        cgroup.kill();
    }
}

impl Hardware {
    fn console(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    /// A machine's hardware ID, from which systemd makes the machine ID.
    pub(super) fn uuid(&self) -> String {
        let hash = sha256(format!("{} {}", self.machine, self.directory.display()).as_bytes());
        hash.chars().take(32).collect()
    }

    /// The machine's side of the host's network interface, which is there while the host runs.
    pub(super) fn veth(&self) -> String {
        format!("vb-{}", self.machine)
    }

    /// Removes what a boot leaves behind.
    fn tidy(&self) {
        remove_propagation(&Path::new(PROPAGATE).join(&self.machine));
        let veth = self.veth();
        if Path::new("/sys/class/net").join(&veth).exists() {
            network::delete(&veth);
        }
    }

    fn start(&self, deployment: &Path, cgroup: &Cgroup) -> Result<Child> {
        let booted = self.directory.join("ostree-booted");
        File::create(&booted)?;
        let mut console = File::options().create(true).append(true).open(self.console())?;
        writeln!(console, "boot loader: {}", deployment.display())?;
        let sysroot = self.disk.sysroot.display();
        let mut nspawn = Command::new("setpriv");
        nspawn.args(["--pdeathsig", "TERM", "--", "sh", "-c", GUARD, "guard"]);
        nspawn.arg(cgroup.path());
        nspawn.args(["unshare", "--mount", "sh", "-c", ROOTED, "rooted"]);
        nspawn.args([
            "systemd-nspawn",
            "--quiet",
            "--settings=no",
            "--register=no",
            "--keep-unit",
        ]);
        nspawn.arg("--directory").arg(deployment);
        nspawn.args([
            format!("--machine={}", self.machine),
            format!("--hostname={}", self.host),
            format!("--uuid={}", self.uuid()),
            format!("--network-bridge={}", self.bridge),
            // As on a real ostree host: nothing writes into what deployments share.
            format!("--bind-ro={}/usr:/usr", deployment.display()),
            format!("--bind={sysroot}:/sysroot"),
            format!("--bind={sysroot}/boot:/boot"),
            format!("--bind={sysroot}/ostree/deploy/default/var:/var"),
            format!("--bind-ro={}:/run/ostree-booted", booted.display()),
        ]);
        nspawn.args([
            "--network-veth",
            "--capability=all",
            "--system-call-filter=add_key keyctl bpf perf_event_open",
            "--bind=/dev/kmsg",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=pipe",
            "--boot",
        ]);
        if is_rpm_ostree_real() {
            nspawn.arg("--bind=/dev/fuse");
        }
        nspawn.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        nspawn.env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "1");
        nspawn.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        spawn_lasting(nspawn)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with it only read or set single fields.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The loop of firmware and boot loader.
    fn run(&self) {
        while self.wait_for_power() {
            let outcome = self.boot_once();
            let mut state = self.state();
            state.boot = None;
            // It empties the group: whatever outlived the supervisor must not meet the next boot.
            state.cgroup = None;
            drop(state);
            self.hardware.tidy();
            if let Err(error) = outcome {
                tracing::warn!(host = self.hardware.host, "does not boot: {error:#}");
                std::thread::sleep(Duration::from_millis(500));
            }
        }
    }

    fn wait_for_power(&self) -> bool {
        let mut state = self.state();
        while !state.on && !state.quit {
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        !state.quit
    }

    /// One boot, from the boot loader to the end.
    fn boot_once(&self) -> Result<()> {
        self.hardware.tidy();
        let deployment = self.hardware.disk.next()?;
        let image = self.hardware.disk.image(&deployment)?;
        let cgroup = Cgroup::new(&self.hardware.machine)?;
        let mut child = self.hardware.start(&deployment, &cgroup)?;
        {
            let mut state = self.state();
            state.cgroup = Some(cgroup);
            // The power may have gone before there was a group to kill.
            if !state.on {
                cut(&state);
            }
        }
        let appeared = self.appear(&mut child, image);
        let status = child.wait().context("waiting for systemd-nspawn");
        if appeared.is_ok() {
            self.hardware.log.record(&self.hardware.host, HostChange::Down);
        }
        appeared?;
        tracing::debug!(host = self.hardware.host, status = ?status?, "ended");
        Ok(())
    }

    /// Waits until the host has its boot ID, and records it.
    fn appear(&self, child: &mut Child, image: BootedImage) -> Result<()> {
        let begin = Instant::now();
        let (init, boot_id) = loop {
            if let Some(found) = init_of(child.id()) {
                break found;
            }
            if let Some(status) = child.try_wait()? {
                bail!("systemd-nspawn ended: {status}");
            }
            if begin.elapsed() > APPEAR {
                cut(&self.state());
                bail!("no init after {APPEAR:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let boot = Boot {
            boot_id,
            digest: image.digest,
            version: image.version,
            init,
        };
        let change = HostChange::Up {
            boot_id: boot.boot_id.clone(),
            digest: boot.digest.clone(),
            version: boot.version.clone(),
        };
        self.hardware.log.record(&self.hardware.host, change);
        self.state().boot = Some(boot);
        Ok(())
    }
}

/// The container's PID 1 below this process and its boot ID, once nspawn has given it one of its own.
fn init_of(process: u32) -> Option<(u32, String)> {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(children).ok()?;
    let mut children = children.split_whitespace().filter_map(|p| p.parse().ok());
    children.find_map(|child| match is_init(child) {
        true => own_boot_id(child).map(|id| (child, id)),
        false => init_of(child),
    })
}

/// Says whether a process is the first one of a PID namespace below ours.
fn is_init(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .unwrap_or_default()
        .split_whitespace();
    ids.next_back() == Some("1") && ids.next().is_some()
}

/// The boot ID that a process sees, if it is not this computer's (as it is until its file systems are in place).
fn own_boot_id(process: u32) -> Option<String> {
    let ours = fs::read_to_string(Path::new("/").join(BOOT_ID)).ok()?;
    let theirs = fs::read_to_string(format!("/proc/{process}/root/{BOOT_ID}")).ok()?;
    (theirs != ours).then(|| theirs.trim().to_owned())
}
