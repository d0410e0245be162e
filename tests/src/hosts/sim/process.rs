//! The programs that units of a simulated host run: `bootc`, `ostree`, `skopeo`, and a few for tests.
//!
//! They take as long as configured, hold the sysroot lock and print the same text as the real ones.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::Mutex as AsyncMutex;

use super::bootc::{Deployment, Deployments};
use super::catalog::{Catalog, CatalogImage};
use super::record::PullRecord;
use super::settings::{Settings, SharedSettings, Unhealthy};
use super::{policy, skopeo};
use crate::bootc::cli::Verb;
use crate::bootc::document::ImageReference;
use crate::bootc::{Change, NOT_BOOTED, announcement, decide, progress, reboot_required};
use crate::hosts::HostLog;
use crate::hosts::real::ostree;
use crate::locked::locked;

/// Exit status that systemd reports if the program does not exist.
pub(super) const EXIT_EXEC: i32 = 203;

/// Output files and environment of a program. Failed writes are ignored, because nothing reads the result.
#[derive(Debug, Default)]
pub(super) struct Stdio {
    pub(super) out: Option<File>,
    pub(super) err: Option<File>,
    /// File descriptor 3, if the unit opens a file.
    pub(super) fd3: Option<File>,
    /// Variables from the unit's environment files.
    pub(super) environment: BTreeMap<String, String>,
}

impl Stdio {
    /// Writes a progress event. Waits while the pipe is full, as bootc does.
    async fn progress(&mut self, event: &Value) {
        let Some(file) = &mut self.fd3 else { return };
        let line = format!("{event}\n");
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

    /// Writes bytes, which may be binary. Returns the exit status.
    fn bytes(&mut self, content: &[u8]) -> i32 {
        match self.out.as_mut().map(|file| file.write_all(content)) {
            Some(Err(_)) => 1,
            _ => 0,
        }
    }

    pub(super) fn out(&mut self, line: &str) {
        write_line(&mut self.out, line);
    }

    fn fail(&mut self, text: &str) -> i32 {
        write_line(&mut self.err, &format!("error: {text}"));
        1
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
    /// Lock of `/sysroot/ostree/lock`. Every bootc and ostree command takes the lock, and a pull holds it until the
    /// end.
    pub(super) sysroot: Arc<AsyncMutex<()>>,
    files: Mutex<StagedFiles>,
}

/// State file of a staged deployment in libostree's format, locked and unlocked.
const STAGED_LOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/locked.bin");
const STAGED_UNLOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/unlocked.bin");

/// Files of a staged deployment in `/run/ostree`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StagedFiles {
    state: Option<&'static [u8]>,
    lock: Option<&'static [u8]>,
}

/// Periods with an armed staged deployment, which a shutdown would have applied.
#[derive(Debug, Default)]
struct Armed {
    since: Option<Instant>,
    times: Vec<Duration>,
}

impl Armed {
    fn set(&mut self, armed: bool) {
        if armed {
            self.since.get_or_insert_with(Instant::now);
        } else if let Some(since) = self.since.take() {
            self.times.push(since.elapsed());
        }
    }
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
        let mut deployments = locked(&self.deployments);
        let value = f(&mut deployments);
        let mut armed = locked(&self.armed);
        armed.set(deployments.is_armed());
        self.show_files(&deployments);
        value
    }

    /// Updates the files in `/run/ostree` from the deployments. With composefs, bootc has no such files.
    fn show_files(&self, deployments: &Deployments) {
        if self.settings.with(|s| s.composefs) {
            return;
        }
        let staged = deployments.staged();
        // As seen on a real host: if ostree locks a deployment again, the lock file exists and the state has `false`.
        let is_locked = staged.is_some_and(|s| s.locked && !s.lock_file);
        let state = if is_locked { STAGED_LOCKED } else { STAGED_UNLOCKED };
        let are = StagedFiles {
            state: staged.map(|_| state),
            lock: staged.is_some_and(|s| s.lock_file).then_some(b""),
        };
        let mut files = locked(&self.files);
        if *files == are {
            return;
        }
        let directory = self.on_host("/run/ostree");
        // Errors mean that the host is off and has no `/run`.
        let _ = std::fs::create_dir_all(&directory);
        // The new lock is written first, so that the deployment is never unlocked in between.
        for (name, content) in [
            ("staged-deployment-locked", are.lock.or(files.lock)),
            ("staged-deployment", are.state),
            ("staged-deployment-locked", are.lock),
        ] {
            let file = directory.join(name);
            // Atomically, like libostree: readers never see a partial file.
            let whole = directory.join(format!(".{name}"));
            let _ = match content {
                None => std::fs::remove_file(file),
                Some(content) => std::fs::write(&whole, content).and_then(|()| std::fs::rename(whole, file)),
            };
        }
        *files = are;
    }

    pub(super) fn armed_times(&self) -> Vec<Duration> {
        locked(&self.armed).times.clone()
    }

    pub(super) fn commands(&self) -> Vec<String> {
        locked(&self.commands).clone()
    }

    /// Waits until all running and killed commands have ended, then changes the deployments.
    pub(super) async fn quiesced<T>(&self, f: impl FnOnce(&mut Deployments) -> T) -> T {
        let _lock = self.sysroot.lock().await;
        self.deployments(f)
    }

    /// Stages an image at once, unlocked, as another program would. An image that is not in the catalog has the version
    /// "0".
    pub(super) fn stage_image(&self, target: &str, digest: &str) {
        let image = self.catalog.get(digest).unwrap_or_else(|| CatalogImage::new("0"));
        self.stage(target, digest, image, false, false);
    }

    /// Runs a command; returns its exit status. Dropping the future kills the command.
    pub(super) async fn run(&self, argv: &[String], io: &mut Stdio) -> i32 {
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        let settings = self.settings.get();
        locked(&self.commands).push(words.join(" "));
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
            "/usr/bin/env" => self.issue_credential(arguments, &settings, io).await,
            "/usr/bin/ln" => self.link(arguments, io),
            "/usr/bin/install" => self.install(arguments, io),
            "/usr/bin/rm" => self.remove(arguments, io),
            "/usr/bin/rpm-ostree" if settings.rpm_ostree && arguments == ["rollback"] => {
                let done = self.deployments(Deployments::toggle_rollback);
                done.map_or_else(|text| io.fail(&text), |()| 0)
            }
            "/usr/bin/ostree" if arguments.starts_with(&["admin", "prepare-soft-reboot"]) => {
                self.prepare_soft_reboot(arguments, io)
            }
            "/usr/bin/ostree" if arguments == ["admin", "status"] => {
                io.out(&self.deployments(|d| d.listed()));
                0
            }
            "/usr/bin/ostree" => self.ostree(arguments, &settings, io).await,
            "/usr/bin/skopeo" => self.skopeo(arguments, &settings, io).await,
            "/usr/bin/sh" => self.script(arguments, io).await,
            "/usr/bin/flock" => self.drain(arguments).await,
            check if check.starts_with("/usr/lib/berth/health.d/") => self.check(&settings, io),
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

    /// Runs the program that issues tokens of the kubelet.
    async fn issue_credential(&self, arguments: &[&str], settings: &Settings, io: &mut Stdio) -> i32 {
        let program = &settings.credentials;
        match program.run(&self.host, arguments, &io.environment).await {
            Ok(answer) => {
                io.out(&answer);
                0
            }
            Err((status, words)) => {
                write_line(&mut io.err, &words);
                status
            }
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
        for directory in ["/run", "/sysroot", "/etc", "/var"] {
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

    /// Runs a health check of the host.
    fn check(&self, settings: &Settings, io: &mut Stdio) -> i32 {
        let booted = self.deployments(|d| d.booted().map(|booted| booted.digest.clone()));
        let fault = booted.and_then(|digest| settings.unhealthy.get(&digest));
        if fault != Some(&Unhealthy::FailedCheck) {
            return 0;
        }
        io.fail("the disk is degraded")
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

    /// Records that a reboot is required: bootc does so for every staged image, locked or not, but not on composefs.
    fn require_reboot(&self, digest: &str, settings: &Settings) {
        if settings.bootc().numbers >= [1, 9, 0] && !settings.composefs {
            let _ = std::fs::write(self.on_host("/run/reboot-required"), reboot_required(digest));
        }
    }

    async fn bootc(&self, arguments: &[&str], settings: &Settings, io: &mut Stdio) -> i32 {
        match arguments {
            ["--version"] => {
                io.out(&format!("bootc {}", settings.bootc_version));
                return 0;
            }
            ["switch", "--help"] if settings.no_help => return io.fail("Broken pipe (os error 32)"),
            ["delete-deployment", verity] if settings.composefs => {
                let _lock = self.local_command(settings).await;
                let deleted = self.deployments(|d| d.delete(verity));
                return deleted.map_or_else(|text| io.fail(&text), |()| 0);
            }
            _ => {}
        }
        let words = std::iter::once("bootc").chain(arguments.iter().copied());
        match settings.bootc().parse(words) {
            Ok(Verb::Status(_)) => {
                let _lock = self.local_command(settings).await;
                let status = self.deployments(|d| d.status(settings.view()));
                io.out(&status.to_string());
                0
            }
            Ok(verb) => match self.change(&verb, settings, io).await {
                Ok(words) => {
                    io.out(&words);
                    0
                }
                Err(text) => io.fail(&format!("{}: {text}", verb.title())),
            },
            Err(error) if error.use_stderr() => {
                write_line(&mut io.err, &error.to_string());
                error.exit_code()
            }
            Err(help) => {
                io.out(&help.to_string());
                0
            }
        }
    }

    /// Waits for the sysroot lock, then for the duration of a command without network access.
    async fn local_command(&self, settings: &Settings) -> tokio::sync::MutexGuard<'_, ()> {
        let lock = self.sysroot.lock().await;
        tokio::time::sleep(settings.command_time).await;
        lock
    }

    /// Applies the change that bootc's rules prescribe for a command. Returns the command's output.
    async fn change(&self, verb: &Verb, settings: &Settings, io: &mut Stdio) -> Result<String, String> {
        if settings.not_bootc {
            return Err(NOT_BOOTED.to_owned());
        }
        let _lock = self.sysroot.lock().await;
        let host = self.deployments(|d| d.host(settings.view()));
        let words = match decide(verb, &host)? {
            Change::Stage { target, lock } => {
                let has_progress = matches!(verb, Verb::Switch(switch) if switch.progress_fd.is_some());
                return self.switch(&target, lock, has_progress, settings, io).await;
            }
            Change::Nothing { words } => words,
            Change::Unlock { words } => {
                tokio::time::sleep(settings.command_time).await;
                self.deployments(Deployments::unlock)?;
                words
            }
            Change::Reorder { words, .. } => {
                tokio::time::sleep(settings.command_time).await;
                self.deployments(Deployments::toggle_rollback)?;
                words
            }
        };
        Ok(words.to_owned())
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

    /// Runs `ln`, only with the arguments that lock a staged deployment. Like the real program, it ignores the sysroot
    /// lock.
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

    /// Runs `rm -rf` for a directory.
    fn remove(&self, arguments: &[&str], io: &mut Stdio) -> i32 {
        let ["-rf", directory] = arguments else { return 1 };
        match std::fs::remove_dir_all(self.on_host(directory)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => io.fail(&format!("rm: {error}")),
            _ => 0,
        }
    }

    /// Runs `ostree admin prepare-soft-reboot`, which makes or removes a file in `/run`.
    fn prepare_soft_reboot(&self, arguments: &[&str], io: &mut Stdio) -> i32 {
        let file = self.on_host("/run/ostree/nextroot-booted");
        let done = match arguments {
            [_, _, "0"] => self
                .deployments(Deployments::prepare_soft_reboot)
                .and_then(|()| std::fs::write(file, "").map_err(|error| error.to_string())),
            [_, _, "--reset"] => {
                self.deployments(Deployments::reset_soft_reboot);
                std::fs::remove_file(file).map_err(|error| error.to_string())
            }
            _ => Err("INDEX must be specified".to_owned()),
        };
        done.map_or_else(|text| io.fail(&text), |()| 0)
    }

    /// Runs `install` for one file.
    fn install(&self, arguments: &[&str], io: &mut Stdio) -> i32 {
        let ["-m", "0644", source, target] = arguments else {
            return 1;
        };
        let target = self.on_host(target);
        let made = target.parent().map_or(Ok(()), std::fs::create_dir_all);
        let copied = made.and_then(|()| std::fs::copy(self.on_host(source), target));
        copied.map_or_else(|error| io.fail(&format!("install: {error}")), |_| 0)
    }

    async fn switch(
        &self,
        target: &ImageReference,
        lock: bool,
        has_progress: bool,
        settings: &Settings,
        io: &mut Stdio,
    ) -> Result<String, String> {
        let digest = target.image.rsplit_once('@').map_or("", |(_, digest)| digest);
        if settings.composefs && self.deployments(|d| d.is_finalized(digest)) {
            return Err(
                "Composefs Switching: Target image has the same fs-verity digest as the existing Some(Rollback) deployment."
                    .to_owned(),
            );
        }
        let mut record = PullRecord::begin(&self.log, &self.host, digest);
        let unused = io.fd3.take_if(|_| !has_progress);
        let pulled = self.pull(target, digest, lock, settings, io).await;
        io.fd3 = io.fd3.take().or(unused);
        let step = if settings.composefs {
            "Composefs Switching: Performing Upgrade Operation"
        } else {
            "Switching (ostree)"
        };
        pulled.map_err(|text| format!("{step}: {text}"))?;
        record.ok = true;
        Ok(announcement(target, lock, None, digest))
    }

    /// Fetches the image, unless its layers are on the disk, and stages it. The caller puts the name of the step before
    /// an error.
    async fn pull(
        &self,
        target: &ImageReference,
        digest: &str,
        lock: bool,
        settings: &Settings,
        io: &mut Stdio,
    ) -> Result<(), String> {
        let signed = target.signature.is_some();
        if signed && self.policy().accepts_anything() {
            return Err(policy::REFUSING_USAGE.to_owned());
        }
        let image = self.find(&target.image, digest, settings)?;
        if !self.deployments(|d| d.is_cached(digest)) {
            self.fetch(&target.image, digest, image.size, settings, io).await?;
        }
        tokio::time::sleep(settings.command_time).await;
        self.stage(&target.image, digest, image, lock, signed);
        io.progress(&progress::staging(digest, 2)).await;
        tokio::time::sleep(settings.after_staging).await;
        io.progress(&progress::staging(digest, 4)).await;
        if self.settings.strikes(|s| &mut s.staged_then_fails) {
            let words = "Pulling bound images: Pulling bound image registry.test/bound:1: failed to invoke method OpenImage: \
                 reading manifest 1 in registry.test/bound: manifest unknown";
            return Err(words.to_owned());
        }
        self.require_reboot(digest, settings);
        Ok(())
    }

    /// Simulates a download of four layers. Each layer has a quarter of the image's size and download time.
    async fn fetch(
        &self,
        image: &str,
        digest: &str,
        size: u64,
        settings: &Settings,
        io: &mut Stdio,
    ) -> Result<(), String> {
        if settings.disk_full {
            return Err(format!(
                "Pulling: Insufficient free space for {image} (available: 1048576 required: {size})"
            ));
        }
        let fails = self.settings.strikes(|s| &mut s.pull_failures);
        let mut pull = progress::Pull::new(digest, &[], &[size / 4; 4]);
        io.progress(&progress::start()).await;
        for _ in 0..if fails { 2 } else { 4 } {
            pull.begin(digest, size / 4);
            let mut event = pull.event();
            event["subtasks"][0]["id"] = "0".repeat(settings.progress_padding).into();
            io.progress(&event).await;
            tokio::time::sleep(settings.pull_time / 4).await;
            pull.add(size / 4);
            pull.end();
        }
        if fails {
            return Err(settings.pull_failure_text.clone());
        }
        Ok(())
    }

    fn policy(&self) -> policy::Policy {
        policy::Policy::of_host(&self.root)
    }

    /// Returns the manifest from the registry or the repository. As with bootc and rpm-ostree, an image with a ref in
    /// the repository skips the checks of the registry and the signature policy.
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

    /// True if the first auth file that exists on the host contains this text.
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

/// Ref of an image in the repository. The name is made up, because simulated hosts record only digests.
fn image_ref(digest: &str) -> String {
    ostree::image_ref(&format!("docker://registry.test/os@{digest}"))
}

#[cfg(test)]
mod tests;
