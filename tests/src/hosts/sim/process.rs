//! The programs that units of a simulated host run: `bootc`, `ostree`, `skopeo`, and a few for tests.
//!
//! They take as long as configured, hold the sysroot lock and print the same text as the real ones.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::Mutex as AsyncMutex;

use super::bootc::{Deployment, Deployments, View};
use super::catalog::{Catalog, CatalogImage};
use super::progress::{pulling, staging};
use super::record::PullRecord;
use super::settings::{Settings, SharedSettings};
use super::{policy, skopeo};
use crate::hosts::HostLog;
use crate::hosts::real::ostree;

/// Exit status that systemd reports if the program does not exist.
pub(super) const EXIT_EXEC: i32 = 203;

/// Output files of a program. Failed writes are ignored, because nothing reads the result.
#[derive(Debug, Default)]
pub(super) struct Stdio {
    pub(super) out: Option<File>,
    pub(super) err: Option<File>,
    /// File descriptor 3, if the unit opens a file.
    pub(super) fd3: Option<File>,
}

impl Stdio {
    /// Writes a line of progress. Waits while the pipe is full, as bootc does.
    async fn progress(&mut self, line: &str) {
        let Some(file) = &mut self.fd3 else { return };
        let line = format!("{line}\n");
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(_) => return,
            }
        }
    }

    /// Writes bytes that need not be text.
    fn bytes(&mut self, content: &[u8]) -> i32 {
        match self.out.as_mut().map(|file| file.write_all(content)) {
            Some(Err(_)) => 1,
            _ => 0,
        }
    }

    fn out(&mut self, line: &str) {
        write_line(&mut self.out, line);
    }

    fn fail(&mut self, text: &str) -> i32 {
        write_line(&mut self.err, &format!("error: {text}"));
        1
    }

    fn usage(&mut self, argument: &str, verb: &str) -> i32 {
        let text = format!(
            "error: unexpected argument '{argument}' found\n\nUsage: bootc {verb} [OPTIONS]\n\nFor more information, try '--help'."
        );
        write_line(&mut self.err, &text);
        2
    }
}

fn write_line(file: &mut Option<File>, line: &str) {
    if let Some(file) = file {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// Software of a host: its deployments and the programs that change them. Survives reboots.
#[derive(Debug)]
pub(super) struct Os {
    pub(super) host: String,
    root: PathBuf,
    architecture: String,
    catalog: Catalog,
    pub(super) settings: SharedSettings,
    pub(super) log: HostLog,
    deployments: Mutex<Deployments>,
    armed: Mutex<Armed>,
    /// Every executed command, one line each.
    commands: Mutex<Vec<String>>,
    /// `/sysroot/ostree/lock`: every bootc and ostree command takes it, a pull for its whole duration.
    pub(super) sysroot: Arc<AsyncMutex<()>>,
    /// Files of the staged deployment and its lock on the disk.
    files: Mutex<StagedFiles>,
}

/// State file of a staged deployment in libostree's format, locked and unlocked.
const STAGED_LOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/locked.bin");
const STAGED_UNLOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/unlocked.bin");

/// Files of a staged deployment in `/run/ostree`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StagedFiles {
    /// State file, if a deployment is staged.
    state: Option<&'static [u8]>,
    /// Lock file.
    lock: Option<&'static [u8]>,
}

/// How long deployments were armed, that is, a shutdown would have applied them.
#[derive(Debug, Default)]
struct Armed {
    since: Option<Instant>,
    times: Vec<Duration>,
}

impl Armed {
    fn set(&mut self, armed: bool) {
        match (armed, self.since) {
            (true, None) => self.since = Some(Instant::now()),
            (false, Some(since)) => {
                self.times.push(since.elapsed());
                self.since = None;
            }
            _ => {}
        }
    }
}

/// Arguments of `bootc switch`.
struct Switch {
    target: String,
    progress: bool,
    download_only: bool,
    signed: bool,
}

impl Os {
    /// Software of the host with this name and these files; `booted` is its first image.
    pub(super) fn new(
        host: &str,
        root: PathBuf,
        booted: Deployment,
        catalog: Catalog,
        settings: SharedSettings,
        log: HostLog,
    ) -> Self {
        Self {
            host: host.to_owned(),
            root,
            architecture: booted.architecture.clone(),
            catalog,
            settings,
            log,
            deployments: Mutex::new(Deployments::new(booted)),
            armed: Mutex::default(),
            commands: Mutex::default(),
            sysroot: Arc::default(),
            files: Mutex::default(),
        }
    }

    /// Reads or changes the deployments at once, ignoring the sysroot lock.
    pub(super) fn deployments<T>(&self, f: impl FnOnce(&mut Deployments) -> T) -> T {
        let mut deployments = self.deployments.lock().unwrap_or_else(|e| e.into_inner());
        let value = f(&mut deployments);
        let mut armed = self.armed.lock().unwrap_or_else(|e| e.into_inner());
        armed.set(deployments.is_armed());
        self.show_files(&deployments);
        value
    }

    /// Updates the files in `/run/ostree` from the deployments. bootc's composefs backend has none.
    fn show_files(&self, deployments: &Deployments) {
        if self.settings.with(|s| s.composefs) {
            return;
        }
        let staged = deployments.staged();
        let state = staged.map(|s| match s.locked && !s.lock_file {
            true => STAGED_LOCKED,
            // Also if ostree locked it again: a real host was seen with the lock file and `false` in the state.
            false => STAGED_UNLOCKED,
        });
        let are = StagedFiles {
            state,
            lock: staged.is_some_and(|s| s.lock_file).then_some(b""),
        };
        let mut files = self.files.lock().unwrap_or_else(|e| e.into_inner());
        if *files == are {
            return;
        }
        let directory = self.on_host("/run/ostree");
        // Errors mean that the host is off and has no `/run`.
        let _ = std::fs::create_dir_all(&directory);
        let show = |name: &str, content: Option<&[u8]>| {
            let file = directory.join(name);
            let Some(content) = content else {
                let _ = std::fs::remove_file(file);
                return;
            };
            // Atomically, like libostree: readers never see a partial file.
            let whole = directory.join(format!(".{name}"));
            let _ = std::fs::write(&whole, content).and_then(|()| std::fs::rename(whole, file));
        };
        // The new lock is written first, so that the deployment is never unlocked in between.
        show("staged-deployment-locked", are.lock.or(files.lock));
        show("staged-deployment", are.state);
        show("staged-deployment-locked", are.lock);
        *files = are;
    }

    /// How long deployments were armed, for each time that has ended.
    pub(super) fn armed_times(&self) -> Vec<Duration> {
        self.armed.lock().unwrap_or_else(|e| e.into_inner()).times.clone()
    }

    /// Every command that was run on the host.
    pub(super) fn commands(&self) -> Vec<String> {
        self.commands.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Changes the deployments while no command runs. Killed commands end first.
    pub(super) async fn quiesced<T>(&self, f: impl FnOnce(&mut Deployments) -> T) -> T {
        let _lock = self.sysroot.lock().await;
        self.deployments(f)
    }

    /// Stages an image at once, unlocked, as another program would. An unknown one has the version "0".
    pub(super) fn stage_image(&self, target: &str, digest: &str) {
        let image = self.catalog.get(digest).unwrap_or_else(|| CatalogImage::new("0"));
        self.stage(target, digest, image, false, false);
    }

    /// Runs a command; returns its exit status. Dropping the future kills it.
    pub(super) async fn run(&self, argv: &[String], io: &mut Stdio) -> i32 {
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        let settings = self.settings.get();
        self.commands
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(words.join(" "));
        let [program, arguments @ ..] = words.as_slice() else {
            return EXIT_EXEC;
        };
        match *program {
            "/usr/bin/bootc" if settings.bootc_missing => EXIT_EXEC,
            "/usr/bin/bootc" => self.bootc(arguments, &settings, io).await,
            "/usr/bin/ostree" if settings.composefs => EXIT_EXEC,
            "/usr/bin/rpm-ostree" if settings.rpm_ostree && arguments == ["--version"] => {
                io.out("rpm-ostree:\n Version: '2026.2'");
                0
            }
            "/usr/bin/ostree" => self.ostree(arguments, &settings, io).await,
            "/usr/bin/ln" => self.link(arguments, io),
            "/usr/bin/skopeo" => self.skopeo(arguments, &settings, io).await,
            "/usr/bin/sh" => self.script(arguments, io).await,
            "/usr/bin/flock" => self.drain(arguments).await,
            "/usr/bin/true" => 0,
            "/usr/bin/false" => 1,
            "/usr/bin/sleep" => {
                let seconds = arguments.first().and_then(|s| s.parse().ok()).unwrap_or(0.0);
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                0
            }
            _ => EXIT_EXEC,
        }
    }

    /// Runs `skopeo`, which only uses credentials from the given file.
    async fn skopeo(&self, arguments: &[&str], settings: &Settings, io: &mut Stdio) -> i32 {
        let file = skopeo::auth_file(arguments).map(|file| self.on_host(file));
        let text = file
            .and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_default();
        let logs_in = settings.login.as_ref().is_none_or(|login| text.contains(login));
        match skopeo::inspect(arguments, settings.registry_down, logs_in).await {
            Ok(found) => io.bytes(&found),
            Err(words) => {
                write_line(&mut io.err, &words);
                1
            }
        }
    }

    pub(super) fn on_host(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Runs a shell script of a unit on the files of the simulated host.
    async fn script(&self, arguments: &[&str], io: &mut Stdio) -> i32 {
        let ["-c", script] = arguments else { return 1 };
        let mut script = (*script).to_owned();
        for directory in ["/run", "/sysroot", "/etc"] {
            let here = format!("{}/", self.on_host(directory).display());
            script = script.replace(&format!("{directory}/"), &here);
        }
        match tokio::process::Command::new("sh").args(["-c", &script]).output().await {
            Ok(done) if done.stderr.is_empty() => {
                if !done.stdout.is_empty() {
                    io.out(String::from_utf8_lossy(&done.stdout).trim_end_matches('\n'));
                }
                done.status.code().unwrap_or(1)
            }
            Ok(done) => {
                io.fail(&String::from_utf8_lossy(&done.stderr));
                done.status.code().unwrap_or(1)
            }
            Err(error) => io.fail(&format!("sh: {error}")),
        }
    }

    /// Runs `flock LOCK cat FIFO`: takes the lock, then reads until the last writer closes.
    async fn drain(&self, arguments: &[&str]) -> i32 {
        let [lock, "/usr/bin/cat", fifo] = arguments else {
            return 1;
        };
        let Ok(lock) = File::create(self.on_host(lock)) else {
            return 66;
        };
        while lock.try_lock().is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let Ok(mut pipe) = pipe::OpenOptions::new().open_receiver(self.on_host(fifo)) else {
            return 1;
        };
        let mut chunk = vec![0; 1 << 16];
        while pipe.read(&mut chunk).await.is_ok_and(|length| length > 0) {}
        0
    }

    /// Records that a reboot is required: bootc does so for every staged image, locked or not.
    fn require_reboot(&self, digest: &str, settings: &Settings) {
        if settings.bootc_numbers() >= (1, 9, 0) {
            let text = format!("bootc: Reboot required for image: {digest}\n");
            let _ = std::fs::write(self.on_host("/run/reboot-required"), text);
        }
    }

    async fn bootc(&self, arguments: &[&str], settings: &Settings, io: &mut Stdio) -> i32 {
        match arguments {
            ["--version"] => {
                io.out(&format!("bootc {}", settings.bootc_version));
                0
            }
            ["status", flags @ ..] => self.status(flags, settings, io).await,
            ["switch", "--help"] if settings.no_help => io.fail("Broken pipe (os error 32)"),
            ["switch", "--help"] => {
                io.out("Usage: bootc switch [OPTIONS] <TARGET>\n\nOptions:\n      --quiet");
                if has_download_only(settings) {
                    io.out("      --download-only\n          Stage the image with finalization locked");
                }
                0
            }
            ["switch", rest @ ..] => match parse_switch(rest, settings) {
                Ok(switch) => self.switch(switch, settings, io).await,
                Err(argument) => io.usage(argument, "switch"),
            },
            ["upgrade", "--from-downloaded"] if settings.bootc_numbers() >= (1, 12, 0) => {
                self.upgrade_from_downloaded(settings, io).await
            }
            ["delete-deployment", verity] if settings.composefs => {
                let _lock = self.local_command(settings).await;
                let deleted = self.deployments(|d| d.delete(verity));
                deleted.map_or_else(|text| io.fail(&text), |()| 0)
            }
            ["upgrade", flag, ..] => io.usage(flag, "upgrade"),
            ["rollback"] => {
                let _lock = self.local_command(settings).await;
                match self.deployments(Deployments::toggle_rollback) {
                    Ok(text) => {
                        io.out(&text);
                        0
                    }
                    Err(text) => io.fail(&format!("Rollback: Rollback (ostree): {text}")),
                }
            }
            [other, ..] => io.usage(other, "<COMMAND>"),
            [] => 2,
        }
    }

    /// Waits for the sysroot lock, then for the duration of a command without network access.
    async fn local_command(&self, settings: &Settings) -> tokio::sync::MutexGuard<'_, ()> {
        let lock = self.sysroot.lock().await;
        tokio::time::sleep(settings.command_time).await;
        lock
    }

    async fn status(&self, flags: &[&str], settings: &Settings, io: &mut Stdio) -> i32 {
        let known = ["--format=json", "--json", "--format-version=1", "--format-version=0"];
        if let Some(flag) = flags.iter().find(|f| !known.contains(f)) {
            return io.usage(flag, "status");
        }
        let _lock = self.local_command(settings).await;
        let view = View {
            not_bootc: settings.not_bootc,
            composefs: settings.composefs,
            old: settings.bootc_numbers() < (1, 12, 0),
        };
        let status = self.deployments(|d| d.status(view));
        io.out(&status.to_string());
        0
    }

    async fn upgrade_from_downloaded(&self, settings: &Settings, io: &mut Stdio) -> i32 {
        if settings.not_bootc {
            return io.fail("Upgrading: Initializing storage: System not booted via bootc");
        }
        let _lock = self.local_command(settings).await;
        match self.deployments(Deployments::unlock) {
            Ok(_) => {
                io.out("Staged deployment will now be applied on reboot");
                0
            }
            Err(_) => io.fail("Upgrading: No staged deployment found"),
        }
    }

    async fn ostree(&self, arguments: &[&str], settings: &Settings, io: &mut Stdio) -> i32 {
        let _lock = self.local_command(settings).await;
        let result = match arguments {
            ["admin", "lock-finalization", ..] if settings.old_ostree => {
                Err("Unknown command 'lock-finalization'".to_owned())
            }
            ["admin", "lock-finalization", "--help"] => Ok(
                "Usage:\n  ostree admin lock-finalization [OPTION…]\n\nApplication Options:\n  -u, --unlock     Unset finalization lock".to_owned(),
            ),
            ["admin", "lock-finalization"] if self.settings.strikes(|s| &mut s.lock_failures) => {
                Err("Failed to lock finalization: Input/output error".to_owned())
            }
            ["admin", "lock-finalization"] => self.deployments(|d| d.lock().map(str::to_owned)),
            ["admin", "lock-finalization", "--unlock" | "-u"] => self.deployments(|d| d.unlock().map(str::to_owned)),
            ["refs", "--repo=/sysroot/ostree/repo", "--list", "ostree/container/image"] => {
                Ok(self.deployments(|d| d.present().map(|digest| image_ref(digest)).collect::<Vec<_>>().join("\n")))
            }
            ["refs", "--repo=/sysroot/ostree/repo", "--delete", name] => {
                self.deployments(|d| {
                    let found = d.present().find(|digest| image_ref(digest) == *name).cloned();
                    // ostree succeeds even if the ref does not exist.
                    found.iter().for_each(|digest| d.forget_image(digest));
                });
                Ok(String::new())
            }
            ["admin", "undeploy", index] => match index.parse() {
                Ok(index) => self.deployments(|d| d.undeploy(index)),
                Err(_) => Err("INDEX must be specified".to_owned()),
            },
            _ => Err(format!("Unknown command '{}'", arguments.join(" "))),
        };
        match result {
            Ok(text) => {
                io.out(&text);
                0
            }
            Err(text) => io.fail(&text),
        }
    }

    /// Runs `ln` with the only arguments that are used for ostree. It does not take the sysroot lock.
    fn link(&self, arguments: &[&str], io: &mut Stdio) -> i32 {
        let made = match arguments {
            ["/run/ostree/staged-deployment", "/run/ostree/staged-deployment-locked"]
                if !self.settings.with(|s| s.composefs) =>
            {
                self.deployments(Deployments::link_lock)
            }
            [
                "--force",
                "/run/ostree/staged-deployment",
                "/run/ostree/staged-deployment-locked",
            ] if !self.settings.with(|s| s.composefs) => self.deployments(|d| {
                d.remove_lock_file();
                d.link_lock()
            }),
            _ => Err("Permission denied".to_owned()),
        };
        made.map_or_else(|text| io.fail(&text), |()| 0)
    }

    async fn switch(&self, switch: Switch, settings: &Settings, io: &mut Stdio) -> i32 {
        if settings.not_bootc {
            return io.fail("Switching: Initializing storage: System not booted via bootc");
        }
        let _lock = self.sysroot.lock().await;
        if self.deployments(|d| d.spec_image() == Some(switch.target.as_str())) {
            io.out("Image specification is unchanged.");
            return 0;
        }
        let digest = switch
            .target
            .rsplit_once('@')
            .map(|(_, digest)| digest)
            .unwrap_or_default();
        if settings.composefs && self.deployments(|d| d.is_finalized(digest)) {
            return io.fail(
                "Switching: Switching (composefs): Target image has the same fs-verity digest as the existing Some(Rollback) deployment",
            );
        }
        let mut record = PullRecord::begin(&self.log, &self.host, digest);
        if let Err(text) = self.pull(&switch, digest, settings, io).await {
            return io.fail(&format!("Switching: Switching (ostree): {text}"));
        }
        record.ok = true;
        io.out(&format!("Queued for next boot: {}", switch.target));
        0
    }

    /// Fetches the image, unless its layers are on the disk, and stages it; the error follows `Switching (ostree): `.
    async fn pull(&self, switch: &Switch, digest: &str, settings: &Settings, io: &mut Stdio) -> Result<(), String> {
        if switch.signed && self.policy().accepts_anything() {
            return Err(policy::REFUSING_USAGE.to_owned());
        }
        let image = self.find(&switch.target, digest, settings)?;
        let cached = self.deployments(|d| d.is_cached(digest));
        let progress = switch.progress && io.fd3.is_some();
        if !cached {
            if settings.disk_full {
                let target = &switch.target;
                let required = image.size;
                return Err(format!(
                    "Pulling: Insufficient free space for {target} (available: 1048576 required: {required})"
                ));
            }
            let fails = self.settings.strikes(|s| &mut s.pull_failures);
            let lines = if progress {
                pulling(digest, image.size, settings.progress_padding)
            } else {
                Vec::new()
            };
            // In steps, so that progress is spread over the time of the pull.
            let steps = if fails { 2 } else { 4 };
            for step in 0..steps {
                for line in lines.iter().filter(|(at, _)| *at == step) {
                    io.progress(&line.1).await;
                }
                tokio::time::sleep(settings.pull_time / 4).await;
            }
            if fails {
                return Err(settings.pull_failure_text.clone());
            }
        }
        tokio::time::sleep(settings.command_time).await;
        self.stage(&switch.target, digest, image, switch.download_only, switch.signed);
        if progress {
            io.progress(&staging(digest, 1)).await;
        }
        tokio::time::sleep(settings.after_staging).await;
        if progress {
            io.progress(&staging(digest, 3)).await;
        }
        if self.settings.strikes(|s| &mut s.staged_then_fails) {
            let words = "Pulling bound images: Pulling bound image registry.test/bound:1: failed to invoke method OpenImage: \
                 reading manifest 1 in registry.test/bound: manifest unknown";
            return Err(words.to_owned());
        }
        self.require_reboot(digest, settings);
        Ok(())
    }

    /// Reads the host's signature policy.
    fn policy(&self) -> policy::Policy {
        policy::Policy::of_host(&self.root)
    }

    /// Returns the manifest from the registry or the repository. As with bootc and rpm-ostree, an image with a ref in the
    /// repository is checked against neither the registry nor the signature policy.
    pub(super) fn find(&self, target: &str, digest: &str, settings: &Settings) -> Result<CatalogImage, String> {
        let cached = self.deployments(|d| d.is_present(digest));
        let open = "Preparing import: Fetching manifest: failed to invoke method OpenImage";
        let name = target.split('@').next().unwrap_or_default();
        let registry = name.split('/').next().unwrap_or_default();
        if !cached && settings.registry_down {
            return Err(format!(
                "{open}: pinging container registry {registry}: Get \"https://{registry}/v2/\": dial tcp 192.0.2.1:443: connect: connection refused"
            ));
        }
        if !cached && settings.login.as_ref().is_some_and(|login| !self.logs_in(login)) {
            return Err(format!(
                "{open}: reading manifest {digest} in {name}: unauthorized: authentication required"
            ));
        }
        let Some(image) = self.catalog.get(digest) else {
            return Err(format!("{open}: reading manifest {digest} in {name}: manifest unknown"));
        };
        if !cached && let Some(refusal) = self.policy().refusal(target, &image) {
            return Err(format!("{open}: {refusal}"));
        }
        if image.architecture != self.architecture {
            let (has, expected) = (&image.architecture, &self.architecture);
            return Err(format!("Image has architecture {has}; expected {expected}"));
        }
        Ok(image)
    }

    /// True if the host's first existing auth file has this text.
    fn logs_in(&self, login: &str) -> bool {
        let places = ["run", "etc", "usr/lib"].map(|place| self.root.join(place).join("ostree/auth.json"));
        let first = places.iter().find(|place| place.exists());
        let text = first.and_then(|place| std::fs::read_to_string(place).ok());
        text.is_some_and(|text| text.contains(login))
    }

    fn stage(&self, target: &str, digest: &str, image: CatalogImage, locked: bool, signed: bool) {
        let deployment = Deployment {
            image: target.to_owned(),
            digest: digest.to_owned(),
            version: image.version,
            timestamp: image.timestamp,
            architecture: image.architecture,
            signed,
            packages: vec![],
            serial: 0,
        };
        self.deployments(|d| d.stage(deployment, locked));
    }
}

/// Ref of an image in the repository. Simulated hosts do not record its real name.
fn image_ref(digest: &str) -> String {
    ostree::image_ref(&format!("docker://registry.test/os@{digest}"))
}

/// True if `bootc switch` has the flag of the first release after 1.16.9.
fn has_download_only(settings: &Settings) -> bool {
    settings.bootc_numbers() > (1, 16, 9)
}

fn parse_switch<'a>(arguments: &[&'a str], settings: &Settings) -> Result<Switch, &'a str> {
    let mut switch = Switch {
        target: String::new(),
        progress: false,
        download_only: false,
        signed: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--progress-fd" if settings.no_progress_fd => return Err("--progress-fd"),
            "--progress-fd" if rest.next() == Some(&"3") => switch.progress = true,
            "--download-only" if has_download_only(settings) => switch.download_only = true,
            "--enforce-container-sigpolicy" => switch.signed = true,
            "--" | "--quiet" | "--retain" => {}
            target if !target.starts_with('-') && switch.target.is_empty() => switch.target = target.to_owned(),
            other => return Err(other),
        }
    }
    if switch.target.is_empty() {
        Err("<TARGET>")
    } else {
        Ok(switch)
    }
}

#[cfg(test)]
mod tests;
