//! The guard's files, and its script on a host whose programs are stand-ins.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::Duration;

use berth_api::Digest;
use berth_api::backend::Backend;
use berth_core::agent::rollback_guard::{Fire, Order, fires};
use tempfile::TempDir;

use super::*;

fn digest(n: u8) -> Digest {
    format!("sha256:{}", commit(n)).parse().unwrap()
}

fn commit(n: u8) -> String {
    format!("{n:02x}").repeat(32)
}

/// A host with the guard's script and stand-ins for the programs that the script runs.
struct Host {
    scratch: TempDir,
    guard: GuardFiles,
}

impl Host {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let root = HostRoot::new(scratch.path());
        let boot_id = root.path("/proc/sys/kernel/random/boot_id");
        fs::create_dir_all(boot_id.parent().unwrap()).unwrap();
        fs::write(boot_id, "b2\n").unwrap();
        fs::create_dir_all(scratch.path().join("bin")).unwrap();
        let host = Self {
            guard: GuardFiles::new(&root),
            scratch,
        };
        let systemctl = "case $1 in show) cat \"$BERTH_ROOT/soft\" 2>/dev/null ;; *) echo \"systemctl $*\" >>\"$BERTH_ROOT/calls\" ;; esac";
        host.program("systemctl", systemctl);
        host
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.scratch.path().join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Creates two stand-ins: `ostree` prints these deployments, and `bootc rollback` swaps the first two deployments
    /// that are not staged.
    fn ostree(&self, status: &str) {
        fs::write(self.scratch.path().join("status"), status).unwrap();
        self.program(
            "ostree",
            "echo \"ostree $*\" >>\"$BERTH_ROOT/calls\"; cat \"$BERTH_ROOT/status\"",
        );
        let text = "echo \"bootc $*\" >>\"$BERTH_ROOT/calls\"\n\
                    grep -ve staged -e locked \"$BERTH_ROOT/status\" >\"$BERTH_ROOT/old\"\n\
                    { sed -n 2p \"$BERTH_ROOT/old\"; sed -n 1p \"$BERTH_ROOT/old\"; } >\"$BERTH_ROOT/status\"";
        self.program("bootc", text);
    }

    /// Writes a neighbor table (ARP) with this address, and returns its path.
    fn neighbours(&self, address: &str) -> String {
        let path = self.scratch.path().join("arp");
        fs::write(&path, format!("{address} 0x1 0x2 00:00:00:00:00:01 * eth0\n")).unwrap();
        path.display().to_string()
    }

    fn run(&self) -> Output {
        self.run_text(SCRIPT)
    }

    fn run_text(&self, script: &str) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.scratch.path().join("bin").display());
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).env("BERTH_ROOT", self.scratch.path());
        sh.env("PATH", path).output().unwrap()
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.scratch.path().join("calls")).unwrap_or_default()
    }

    fn arm(&self, limit: u64, commits: bool) {
        let order = Order {
            backend: Backend::Bootc,
            target: digest(2),
            previous: digest(1),
            commits: commits.then(|| (commit(2), commit(1))),
            boot_id: BootId::from("b1"),
            limit: Duration::from_secs(limit),
        };
        self.guard.arm(&order.text(Some(("127.0.0.1", 1)))).unwrap();
    }
}

/// Returns the output of `ostree admin status` for these deployments in boot order. Each has an image number and a
/// state.
fn status(lines: &[(u8, &str)]) -> String {
    let mut text = String::new();
    for (n, is) in lines {
        let (mark, is) = match *is {
            "booted" => ("*", String::new()),
            "" => (" ", String::new()),
            is => (" ", format!(" ({is})")),
        };
        text.push_str(&format!("{mark} default {}.0{is}\n", commit(*n)));
    }
    text
}

#[test]
fn an_order_is_read_back_by_the_agent() {
    let host = Host::new();
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Disarmed);
    assert_eq!(host.guard.disarm(&"b2".into()).unwrap(), Disarmed::Done);
    host.guard.show_agent(&"b2".into()).unwrap();
    assert!(!host.guard.path("agent").exists(), "no guard waits for an agent");
    host.arm(9, true);
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Armed);
    host.guard.show_agent(&"b2".into()).unwrap();
    assert_eq!(fs::read_to_string(host.guard.path("agent")).unwrap(), "b2\n");
    assert_eq!(host.guard.disarm(&"b2".into()).unwrap(), Disarmed::Done);
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Disarmed);
    assert!(host.run().status.success());
    assert_eq!(host.calls(), "", "a guard without an order does nothing");
}

#[test]
fn the_guard_rolls_back_once() {
    let host = Host::new();
    host.ostree(&status(&[(2, "booted"), (1, "rollback")]));
    host.arm(0, true);
    let ran = host.run();
    assert!(ran.status.success(), "{ran:?}");
    let calls = "ostree admin status\nbootc rollback\nostree admin status\nsystemctl -i reboot\n";
    assert_eq!(host.calls(), calls, "{ran:?}");
    let fired = Fired {
        digest: digest(2),
        boot_id: "b2".into(),
    };
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Fired(fired));
    assert_eq!(host.guard.disarm(&"b2".into()).unwrap(), Disarmed::Fired);
    assert_eq!(
        host.guard.disarm(&"b3".into()).unwrap(),
        Disarmed::Done,
        "that boot is over"
    );
    host.run();
    assert_eq!(host.calls(), calls, "a second start does nothing");
    host.guard.forget_fired().unwrap();
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Disarmed);
}

/// The script makes the same decisions as [`fires`], the rule that the model runs.
#[test]
fn the_script_follows_the_rule_of_the_model() {
    for lines in [
        vec![(2, "booted"), (1, "rollback")],
        vec![(1, "pending"), (2, "booted")],
        vec![(1, "booted"), (2, "rollback")],
        vec![(2, ""), (1, "booted")],
        vec![(2, "booted"), (7, "rollback")],
        vec![(2, "booted")],
        vec![(3, "staged"), (2, "booted"), (1, "rollback")],
        vec![(3, "finalization locked"), (2, "booted"), (1, "rollback")],
        vec![(1, "finalization locked"), (2, "booted"), (1, "rollback")],
        vec![(7, "booted"), (1, "rollback")],
    ] {
        let is_staged = |is: &str| ["staged", "finalization locked"].contains(&is);
        let host = Host::new();
        host.ostree(&status(&lines));
        host.arm(0, true);
        let ran = host.run();
        let booted = lines.iter().find(|(_, is)| *is == "booted").unwrap().0;
        let next = lines.iter().find(|(_, is)| !is_staged(is)).unwrap().0;
        let rollback = lines.iter().find(|(_, is)| !is_staged(is) && *is != "booted");
        let deployed = rollback.is_some_and(|(n, _)| *n == 1);
        let calls = host.calls();
        let did = match (calls.contains("bootc rollback"), calls.contains("reboot")) {
            (true, true) => Fire::Queue,
            (false, true) => Fire::Reboot,
            (false, false) => Fire::No,
            (true, false) => panic!("queued and left: {calls}"),
        };
        assert_eq!(did, fires(&2, &1, &booted, &next, deployed), "{lines:?} {ran:?}");
        assert!(host.guard.state().unwrap() != RollbackGuard::Armed);
    }
}

#[test]
fn a_composefs_host_is_rolled_back_by_bootc() {
    for (queued, calls) in [
        (false, "status\nrollback\nstatus\nsystemctl -i reboot\n"),
        (true, "status\nsystemctl -i reboot\n"),
    ] {
        let host = Host::new();
        let entry = |n: u8| format!(r#"{{"image": {{"image": {{}}, "imageDigest": "{}"}}}}"#, digest(n));
        let status = |queued: bool| {
            let (booted, rollback) = (entry(2), entry(1));
            format!(
                r#"{{"status": {{"staged": null, "booted": {booted}, "rollback": {rollback}, "rollbackQueued": {queued}}}}}"#
            )
        };
        fs::write(host.scratch.path().join("status"), status(queued)).unwrap();
        fs::write(host.scratch.path().join("queued"), status(true)).unwrap();
        let text = "echo \"$1\" >>\"$BERTH_ROOT/calls\"\n\
                    case $1 in status) cat \"$BERTH_ROOT/status\" ;;\n\
                    rollback) cp \"$BERTH_ROOT/queued\" \"$BERTH_ROOT/status\" ;; esac";
        host.program("bootc", text);
        host.arm(0, false);
        let ran = host.run();
        assert_eq!(host.calls(), calls, "{ran:?}");
    }
}

#[test]
fn the_boot_that_armed_the_guard_is_left_alone() {
    let host = Host::new();
    host.ostree(&status(&[(2, "booted"), (1, "rollback")]));
    host.arm(0, true);
    fs::write(host.scratch.path().join("proc/sys/kernel/random/boot_id"), "b1\n").unwrap();
    assert!(host.run().status.success());
    assert_eq!(host.calls(), "");
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Armed);
}

#[test]
fn a_soft_reboot_begins_another_boot() {
    let host = Host::new();
    host.ostree(&status(&[(2, "booted"), (1, "rollback")]));
    host.arm(0, true);
    fs::write(host.scratch.path().join("proc/sys/kernel/random/boot_id"), "b1\n").unwrap();
    fs::write(host.scratch.path().join("soft"), "1\n").unwrap();
    host.run();
    assert!(host.calls().ends_with("systemctl -i reboot\n"), "{}", host.calls());
    match host.guard.state().unwrap() {
        RollbackGuard::Fired(fired) => assert_eq!(fired.boot_id, BootId::from("b1.soft1")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_order_stops_the_guard_of_the_old_one() {
    let host = Host::new();
    let status = status(&[(2, "booted"), (1, "rollback")]);
    host.ostree(&status);
    host.arm(0, true);
    // While the guard checks whether the API server answers, the agent proves the boot and arms the guard for the next
    // boot.
    let order = host.guard.path("armed");
    let text = format!("sed -i s/boot=b1/boot=b2/ {}", order.display());
    host.program(
        "timeout",
        &format!("shift; case $1 in systemctl) \"$@\" ;; bash) {text}; exit 0 ;; *) \"$@\" ;; esac"),
    );
    let far = fs::read_to_string(&order).unwrap().replace("127.0.0.1", "192.0.2.1");
    fs::write(&order, far).unwrap();
    assert!(host.run().status.success());
    assert_eq!(host.calls(), "", "the host reboots into a third image");
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Armed);
}

#[test]
fn an_outage_of_the_api_server_delays_the_guard() {
    for (address, waits) in [("192.0.2.1", true), ("fd00::1", false)] {
        let host = Host::new();
        host.ostree(&status(&[(2, "booted"), (1, "rollback")]));
        host.arm(0, true);
        let order = host.guard.path("armed");
        let far = fs::read_to_string(&order).unwrap().replace("127.0.0.1", address);
        fs::write(&order, far).unwrap();
        // The guard's connection to the API server fails. At that moment, the agent disarms the guard.
        let disarm = format!("rm -f {}; exit 1", order.display());
        host.program(
            "timeout",
            &format!("shift; case $1 in bash) {disarm} ;; *) \"$@\" ;; esac"),
        );
        host.program("grep", "exit 1");
        let script = SCRIPT.replace("/proc/net/arp", &host.neighbours(address));
        let ran = host.run_text(&script);
        assert_eq!(host.calls().is_empty(), waits, "{address}: {ran:?}");
    }
}

#[test]
fn a_broken_order_is_not_followed() {
    for text in ["", "target=x\n", "target=x\nprevious=y\nboot=b1\nlimit=soon\n"] {
        let host = Host::new();
        host.guard.arm(text).unwrap();
        assert!(host.run().status.success());
        assert_eq!(host.calls(), "", "{text:?}");
    }
}

#[test]
fn a_host_that_cannot_roll_back_is_not_rebooted() {
    let host = Host::new();
    host.ostree(&status(&[(2, "booted"), (7, "rollback")]));
    host.arm(0, true);
    let ran = host.run();
    assert_eq!(host.calls(), "ostree admin status\n");
    assert!(
        String::from_utf8_lossy(&ran.stderr).contains("no deployment of"),
        "{ran:?}"
    );
    assert_eq!(host.guard.state().unwrap(), RollbackGuard::Disarmed);
}
