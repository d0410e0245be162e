//! The machine of a host: its power, firmware and boot loader. Each boot is a new `systemd-nspawn` container.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_api::BootId;

use super::cgroup::Cgroup;
use super::disk::{BootedImage, Disk};
use super::network;
use super::rpm_ostree::is_rpm_ostree_real;
use super::shell::{sha256, tool};
use crate::hosts::{HostChange, HostLog};
use crate::locked::locked;
use crate::process::{spawn_lasting, tail};

/// File with the boot ID: the kernel's, or in a container nspawn's.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
/// Directory where nspawn keeps a directory per container.
const PROPAGATE: &str = "/run/systemd/nspawn/propagate";
/// Number of boots that the boot loader grants a deployment before it starts the next one.
const BOOT_TRIES: u32 = 3;
/// Time until a boot that hangs is reset.
const HANG_TIME: Duration = Duration::from_millis(500);
const INIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts the container in its cgroup, waits for it, and kills the whole cgroup if the harness dies first: the death of
/// `systemd-nspawn` alone does not end the container.
const GUARD: &str = r#"
group=$1; shift
trap 'echo 1 > "$group/cgroup.kill"' TERM INT HUP
sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@" &
child=$!
wait "$child"; status=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
exit "$status"
"#;

/// Runs a command in a mount namespace whose root is this process's root. In a chroot the two roots differ, and
/// `setns(2)`, which `runc exec` uses, would enter the root of the namespace.
const ROOTED: &str = r#"
mount --no-canonicalize --namespace "$$" --rbind "/proc/$$/root" / && exec nsenter --mount="/proc/$$/ns/mnt" -- "$@"
"#;

#[derive(Debug)]
pub(super) struct Hardware {
    pub(super) host: String,
    /// Name of the machine, unique on this computer.
    pub(super) machine: String,
    pub(super) bridge: String,
    pub(super) disk: Disk,
    pub(super) directory: PathBuf,
    pub(super) log: HostLog,
}

/// A boot of a host.
#[derive(Debug, Clone)]
pub struct Boot {
    /// Boot ID.
    pub boot_id: String,
    /// Manifest digest of the booted image.
    pub digest: String,
    /// Version label of that image.
    pub version: String,
    /// PID of the host's PID 1 on this computer.
    pub init: u32,
}

pub(super) fn sweep(machines: &str) {
    for entry in fs::read_dir(PROPAGATE).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(machines) {
            remove_propagation(&entry.path());
        }
    }
}

fn remove_propagation(path: &Path) {
    if path.exists() {
        // Usually nothing is mounted there.
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
    /// Digests of the images whose boots hang.
    hanging: BTreeSet<String>,
}

#[derive(Debug)]
struct Firmware {
    hardware: Hardware,
    state: Mutex<State>,
    changed: Condvar,
}

/// A machine. It starts powered off; dropping it ends the host.
#[derive(Debug)]
pub(super) struct Machine {
    firmware: Arc<Firmware>,
    loader: Option<JoinHandle<()>>,
}

impl Machine {
    pub(super) fn new(hardware: Hardware) -> Self {
        let firmware = Arc::new(Firmware {
            hardware,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&firmware);
        let loader = std::thread::spawn(move || own.run());
        Self {
            firmware,
            loader: Some(loader),
        }
    }

    pub(super) fn hardware(&self) -> &Hardware {
        &self.firmware.hardware
    }

    /// Turns the power on or off. Off is a power cut.
    pub(super) fn power(&self, on: bool) {
        let mut state = self.firmware.state();
        state.on = on;
        if !on {
            cut(&state);
        }
        self.firmware.changed.notify_all();
    }

    /// Cuts the power; the machine boots again if its power is on.
    pub(super) fn power_cut(&self) {
        cut(&self.firmware.state());
    }

    /// Lets the boots of an image hang from now on.
    pub(super) fn hang(&self, digest: &str) {
        self.firmware.state().hanging.insert(digest.to_owned());
    }

    /// Records a soft reboot, which the container's PID 1 makes without an exit.
    pub(super) fn note_soft_boot(&self, count: u32, digest: &str, version: &str) {
        let hardware = &self.firmware.hardware;
        let mut state = self.firmware.state();
        let Some(boot) = &mut state.boot else { return };
        let before = BootId::new(boot.boot_id.as_str());
        boot.boot_id = BootId::after_soft_reboots(before.kernel(), count).to_string();
        (boot.digest, boot.version) = (digest.to_owned(), version.to_owned());
        let up = HostChange::Up {
            boot_id: boot.boot_id.clone(),
            digest: boot.digest.clone(),
            version: boot.version.clone(),
        };
        hardware.log.record(&hardware.host, HostChange::Down);
        hardware.log.record(&hardware.host, up);
    }

    pub(super) fn boot(&self) -> Option<Boot> {
        self.firmware.state().boot.clone()
    }

    pub(super) fn console(&self) -> String {
        tail(&self.firmware.hardware.console(), 25)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        {
            let mut state = self.firmware.state();
            state.on = false;
            state.quit = true;
            cut(&state);
        }
        self.firmware.changed.notify_all();
        if let Some(loader) = self.loader.take() {
            // This only fails if the thread panicked; then it has ended as well.
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

    /// Hardware ID of the machine; systemd derives the machine ID from it.
    pub(super) fn uuid(&self) -> String {
        let hash = sha256(format!("{} {}", self.machine, self.directory.display()).as_bytes());
        hash.chars().take(32).collect()
    }

    /// The machine's end of the host's network interface, which exists while the host is up.
    pub(super) fn veth(&self) -> String {
        format!("vb-{}", self.machine)
    }

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
            // As on a real ostree host: files shared by deployments are read-only.
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

impl Firmware {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every holder of the lock only reads or sets single fields, so the state is valid after a panic.
        locked(&self.state)
    }

    /// The loop of firmware and boot loader.
    fn run(&self) {
        while self.wait_for_power() {
            let outcome = self.boot_once();
            let mut state = self.state();
            state.boot = None;
            // Dropping the cgroup kills its processes, so that no process survives into the next boot.
            state.cgroup = None;
            drop(state);
            self.hardware.tidy();
            if let Err(error) = outcome {
                tracing::warn!(host = self.hardware.host, "the host failed to boot: {error:#}");
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

    /// Runs one boot, from the boot loader to the end of the host.
    fn boot_once(&self) -> Result<()> {
        self.hardware.tidy();
        let (deployment, image) = self.load()?;
        let cgroup = Cgroup::new(&self.hardware.machine)?;
        let mut child = self.hardware.start(&deployment, &cgroup)?;
        {
            let mut state = self.state();
            state.cgroup = Some(cgroup);
            // The power may have been cut before there was a cgroup to kill.
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

    /// Plays the boot loader with boot counting: a deployment whose boots hang is tried a few times, then the next one is
    /// started. Returns the first that does not hang, or else the last one.
    fn load(&self) -> Result<(PathBuf, BootedImage)> {
        let disk = &self.hardware.disk;
        let mut found = None;
        for deployment in disk.deployments()? {
            let image = disk.image(&deployment)?;
            let hangs = self.state().hanging.contains(&image.digest);
            found = Some((deployment, image));
            if !hangs {
                break;
            }
            std::thread::sleep(HANG_TIME * BOOT_TRIES);
        }
        found.context("the host has no deployment")
    }

    fn appear(&self, child: &mut Child, image: BootedImage) -> Result<()> {
        let begin = Instant::now();
        let (init, boot_id) = loop {
            if let Some(found) = init_of(child.id()) {
                break found;
            }
            if let Some(status) = child.try_wait()? {
                bail!("systemd-nspawn ended: {status}");
            }
            if begin.elapsed() > INIT_TIMEOUT {
                cut(&self.state());
                bail!("the container has no init after {INIT_TIMEOUT:?}");
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

/// PID 1 of the container below this process, and its boot ID as soon as nspawn has set it.
fn init_of(process: u32) -> Option<(u32, String)> {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(children).ok()?;
    let mut children = children.split_whitespace().filter_map(|p| p.parse().ok());
    children.find_map(|child| {
        if is_init(child) {
            return own_boot_id(child).map(|id| (child, id));
        }
        init_of(child)
    })
}

/// True if a process is the first one of a PID namespace below ours.
fn is_init(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .unwrap_or_default()
        .split_whitespace();
    ids.next_back() == Some("1") && ids.next().is_some()
}

/// Boot ID that a process sees; `None` while it still sees this computer's, before its own file systems are mounted.
fn own_boot_id(process: u32) -> Option<String> {
    let ours = fs::read_to_string(Path::new("/").join(BOOT_ID)).ok()?;
    let theirs = fs::read_to_string(format!("/proc/{process}/root/{BOOT_ID}")).ok()?;
    (theirs != ours).then(|| theirs.trim().to_owned())
}
