//! The host's health checks: programs, installed by an image builder or an admin, that test a new boot.
//!
//! A check is an executable file. The agent runs it as a transient unit of the host, again and again until it has
//! succeeded once under this boot. The checks run at the same time, and the agent's loop does not wait for them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use berth_api::BootId;
use berth_api::foreign::{bounded, is_printable};
use berth_core::agent::facts::{BootComplete, Checks};

use super::bus::Changes;
use super::files;
use super::root::{HostRoot, RUN_DIR};
use super::tools::Tools;
use super::units::{self, EXIT_EXEC, Spec, UnitFailure};

/// Directories of the checks. A file in `/etc` hides the file of the same name and kind in `/usr/lib`, as in systemd.
const DIRS: [(&str, Kind); 4] = [
    ("/usr/lib/berth/health.d/required.d", Kind::Required),
    ("/etc/berth/health.d/required.d", Kind::Required),
    ("/usr/lib/berth/health.d/wanted.d", Kind::Wanted),
    ("/etc/berth/health.d/wanted.d", Kind::Wanted),
];
/// Directories of greenboot's checks. The agent runs these checks on hosts where greenboot does not run them.
const GREENBOOT_DIRS: [(&str, Kind); 4] = [
    ("/usr/lib/greenboot/check/required.d", Kind::Required),
    ("/etc/greenboot/check/required.d", Kind::Required),
    ("/usr/lib/greenboot/check/wanted.d", Kind::Wanted),
    ("/etc/greenboot/check/wanted.d", Kind::Wanted),
];
/// Unit that runs greenboot's checks before `boot-complete.target`, if that target is in use.
const GREENBOOT_UNIT: &str = "/usr/lib/systemd/system/greenboot-healthcheck.service";
/// Time limit of one run of a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay before a failed check runs again, from the end of its last run.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Number of bytes that are read from the end of a check's output. The report contains the last [`REPORTED_LINES`]
/// lines of this text.
const OUTPUT_TAIL: u64 = 4 << 10;
const REPORTED_LINES: usize = 3;
/// Maximum length of the check's path in a unit's name, in bytes.
const MAX_NAME: usize = 200;
/// Longest report of one check, in characters.
const MAX_REPORT: usize = 300;

/// Consequence of a failed check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The boot is not proven until the check succeeds.
    Required,
    /// A failure is only logged.
    Wanted,
}

/// A health check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    /// Path on the host.
    path: String,
    kind: Kind,
}

/// Runs the checks of one boot, and keeps their results.
#[derive(Debug, Clone)]
pub(super) struct CheckRuns {
    tools: Tools,
    changes: Changes,
    runs: Arc<Mutex<Runs>>,
}

#[derive(Debug, Default)]
struct Runs {
    boot: Option<BootId>,
    /// Checks that have not succeeded.
    left: Vec<Run>,
}

/// The runs of a check that has not succeeded yet.
#[derive(Debug)]
struct Run {
    check: Check,
    is_running: bool,
    /// Report of the last run that ended; `None` before the first run has ended.
    report: Option<String>,
    /// End of the last run.
    ended: Option<Instant>,
    /// True if the Node was Ready when the last run began.
    node_was_ready: bool,
}

impl Run {
    fn of(check: Check) -> Self {
        Self {
            check,
            is_running: false,
            report: None,
            ended: None,
            node_was_ready: false,
        }
    }

    fn is_due(&self, node_ready: bool) -> bool {
        let has_become_ready = node_ready && !self.node_was_ready;
        let is_retry_due = self.ended.is_none_or(|ended| ended.elapsed() >= RETRY_INTERVAL);
        !self.is_running && (is_retry_due || has_become_ready)
    }
}

impl CheckRuns {
    pub(super) fn new(tools: Tools, changes: Changes) -> Self {
        Self {
            tools,
            changes,
            runs: Arc::default(),
        }
    }

    /// Starts the checks that are due, and returns the state of all checks. A failed check runs again 10 s after its
    /// end. If the Node becomes Ready earlier, the check runs again at once, because it may need the same services as
    /// the kubelet.
    pub(super) fn poll(&self, boot: &BootId, node_ready: bool, boot_complete: BootComplete) -> Checks {
        let mut runs = self.lock();
        if runs.boot.as_ref() != Some(boot) {
            match find(&self.tools.root, boot_complete) {
                Ok(checks) => {
                    runs.boot = Some(boot.clone());
                    runs.left = checks.into_iter().map(Run::of).collect();
                }
                Err(error) => return Checks::Failed(vec![format!("the host's health checks cannot be read: {error}")]),
            }
        }
        for run in runs.left.iter_mut().filter(|run| run.is_due(node_ready)) {
            (run.is_running, run.node_was_ready) = (true, node_ready);
            tokio::spawn(self.clone().run(boot.clone(), run.check.clone()));
        }
        state(&runs.left)
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs a check to its end and records the result.
    async fn run(self, boot: BootId, check: Check) {
        let report = self.run_unit(&check).await;
        let mut runs = self.lock();
        if runs.boot.as_ref() != Some(&boot) {
            return;
        }
        match report {
            None => runs.left.retain(|run| run.check != check),
            Some(report) => {
                tracing::warn!(check = check.path, kind = ?check.kind, report, "health check failed");
                if let Some(run) = runs.left.iter_mut().find(|run| run.check == check) {
                    (run.is_running, run.report, run.ended) = (false, Some(report), Some(Instant::now()));
                }
            }
        }
        drop(runs);
        self.changes.bump();
    }

    /// Runs one check to its end. Returns a report if the check failed.
    async fn run_unit(&self, check: &Check) -> Option<String> {
        let name = unit_name(&check.path);
        let (stdout, stderr) = (format!("{RUN_DIR}/{name}.out"), format!("{RUN_DIR}/{name}.err"));
        let spec = Spec {
            name: format!("{name}.service"),
            description: "Berth: health check of the host",
            command: vec![check.path.clone()],
            deadline: CHECK_TIMEOUT,
            stdout: Some(stdout.clone()),
            stderr: Some(stderr.clone()),
            contained: true,
            ..Spec::default()
        };
        let bus = &self.tools.bus;
        let mut result = units::run(bus, &spec).await;
        if result.as_ref().is_err_and(|error| error.is(".UnitExists")) {
            result = match units::outlast(bus, &spec).await {
                Ok(()) => units::run(bus, &spec).await,
                Err(error) => Err(error),
            };
        }
        let failure = match result {
            Ok(None) => return None,
            Ok(Some(failure)) => words(&failure),
            Err(error) => format!("the agent cannot run this check: {error}"),
        };
        let [errors, output] = [stderr, stdout].map(|path| files::tail(&self.tools.root.path(path), OUTPUT_TAIL));
        let text = if errors.trim().is_empty() { output } else { errors };
        Some(report(&check.path, &failure, &text))
    }
}

/// Returns the state of the host's checks, given the checks that have not succeeded.
fn state(left: &[Run]) -> Checks {
    let required: Vec<_> = left.iter().filter(|run| run.check.kind == Kind::Required).collect();
    if required.is_empty() {
        return Checks::Passed;
    }
    let reports: Vec<String> = required.iter().filter_map(|run| run.report.clone()).collect();
    if reports.is_empty() {
        return Checks::Running;
    }
    Checks::Failed(reports)
}

/// Finds the host's checks: Berth's, then greenboot's if the agent must run them. In both groups, required checks come
/// first. Checks of the same kind are sorted by name.
///
/// # Errors
/// When a directory or a file cannot be read, because a required check could then be missed.
fn find(root: &HostRoot, boot_complete: BootComplete) -> Result<Vec<Check>, String> {
    let mut checks = of_dirs(root, &DIRS)?;
    let runs_greenboot = boot_complete != BootComplete::Unused && root.path(GREENBOOT_UNIT).exists();
    if !runs_greenboot {
        checks.extend(of_dirs(root, &GREENBOOT_DIRS)?);
    }
    Ok(checks)
}

fn of_dirs(root: &HostRoot, dirs: &[(&str, Kind)]) -> Result<Vec<Check>, String> {
    let mut found = BTreeMap::new();
    for (dir, kind) in dirs {
        for name in names(root, dir).map_err(|error| format!("{dir}: {error}"))? {
            let check = Check {
                path: format!("{dir}/{name}"),
                kind: *kind,
            };
            let is_wanted = *kind == Kind::Wanted;
            found.insert((is_wanted, name), check);
        }
    }
    let mut checks = vec![];
    for check in found.into_values() {
        if is_on(root, &check.path).map_err(|error| format!("{}: {error}", check.path))? {
            checks.push(check);
        }
    }
    Ok(checks)
}

/// Returns the names of the files in a directory; none if the host does not have the directory.
fn names(root: &HostRoot, dir: &str) -> io::Result<Vec<String>> {
    let entries = match root.resolve(dir).and_then(std::fs::read_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let mut names = vec![];
    for entry in entries {
        let name = entry?.file_name();
        // The name becomes part of a command.
        let Some(name) = name.to_str().filter(|name| is_printable(name)) else {
            return Err(io::Error::other(format!(
                "the file name {name:?} is not UTF-8 or has control characters; rename the file"
            )));
        };
        names.push(name.to_owned());
    }
    Ok(names)
}

/// True for an executable file. A README, or a link to `/dev/null` that turns a check off, is not a check.
fn is_on(root: &HostRoot, path: &str) -> io::Result<bool> {
    let target = root.resolve(path)?;
    if target == root.path("/dev/null") {
        return Ok(false);
    }
    match std::fs::metadata(target) {
        Ok(file) => Ok(file.is_file() && file.permissions().mode() & 0o111 != 0),
        // The link may lead to a file that the host has and the agent's pod does not see.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the name of a check's unit, without its suffix: `berth-check-` and the check's path. With this name, a
/// restarted agent finds a check that still runs. systemd allows 255 bytes, so the start of a long path is cut off.
pub(super) fn unit_name(path: &str) -> String {
    let path = path.trim_start_matches('/').replace('/', "-");
    let name = path.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "_");
    let extra = name.len().saturating_sub(MAX_NAME);
    format!("berth-check-{}", name.get(extra..).unwrap_or_default())
}

fn words(failure: &UnitFailure) -> String {
    match (failure.result.as_str(), failure.status) {
        ("timeout", _) => format!("the check did not end within {} s", CHECK_TIMEOUT.as_secs()),
        ("exit-code", EXIT_EXEC) => "the check cannot be executed".to_owned(),
        ("canceled", _) => "the check was stopped before it ended".to_owned(),
        ("exit-code", status) => format!("exit status {status}"),
        (result, status) => format!("{result} {status}"),
    }
}

/// Returns the report of a failed check: its path, how it failed, and its last lines.
pub(super) fn report(path: &str, failure: &str, output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.len().saturating_sub(REPORTED_LINES);
    let mut text = format!("{path}: {failure}");
    if !lines.is_empty() {
        text.push_str(&format!(": {}", lines.get(last..).unwrap_or_default().join(" / ")));
    }
    bounded(&text, MAX_REPORT)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    fn root(name: &str) -> HostRoot {
        let dir = std::env::temp_dir().join(format!("berth-checks-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        HostRoot::new(dir)
    }

    fn file(root: &HostRoot, path: &str, mode: u32) {
        let path = root.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn paths(root: &HostRoot) -> Vec<String> {
        let checks = find(root, BootComplete::Reached).unwrap();
        checks.into_iter().map(|check| check.path).collect()
    }

    #[test]
    fn only_executable_files_are_checks() {
        let root = root("find");
        assert_eq!(paths(&root), [""; 0]);
        let [usr, etc] = ["/usr/lib/berth/health.d/", "/etc/berth/health.d/"];
        for (path, mode) in [
            (format!("{usr}required.d/20-disk"), 0o755),
            (format!("{usr}required.d/10-cri"), 0o755),
            (format!("{usr}required.d/README"), 0o644),
            (format!("{etc}required.d/20-disk"), 0o755),
            (format!("{usr}wanted.d/10-cri"), 0o755),
            (format!("{etc}wanted.d/10-cri"), 0o644),
            ("/usr/lib/greenboot/check/required.d/01-dns.sh".to_owned(), 0o755),
        ] {
            file(&root, &path, mode);
        }
        let expected = [
            "/usr/lib/berth/health.d/required.d/10-cri",
            "/etc/berth/health.d/required.d/20-disk",
            "/usr/lib/greenboot/check/required.d/01-dns.sh",
        ];
        assert_eq!(paths(&root), expected);
        file(&root, GREENBOOT_UNIT, 0o644);
        assert_eq!(paths(&root), expected[..2], "greenboot runs its own checks");
        let unused = find(&root, BootComplete::Unused).unwrap();
        assert_eq!(unused.len(), 3, "nothing starts greenboot");
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    #[test]
    fn a_check_that_cannot_be_read_is_no_missing_check() {
        let root = root("unread");
        let dir = root.path("/etc/berth/health.d/required.d");
        fs::create_dir_all(&dir).unwrap();
        symlink("/opt/elsewhere", dir.join("10-not-seen-by-the-pod")).unwrap();
        symlink("/dev/null", dir.join("20-off")).unwrap();
        assert_eq!(paths(&root), ["/etc/berth/health.d/required.d/10-not-seen-by-the-pod"]);
        fs::write(dir.join(OsStr::from_bytes(b"30-\xff")), "").unwrap();
        let error = find(&root, BootComplete::Unused).unwrap_err();
        assert!(error.contains("not UTF-8"), "{error}");
        fs::rename(dir.join(OsStr::from_bytes(b"30-\xff")), dir.join("30-\u{1b}[2J\n")).unwrap();
        let error = find(&root, BootComplete::Unused).unwrap_err();
        assert!(error.contains("rename the file"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
        fs::write(&dir, "").unwrap();
        assert!(
            find(&root, BootComplete::Unused).is_err(),
            "a file in place of the directory"
        );
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    #[test]
    fn a_report_has_the_last_lines() {
        let found = report("/etc/x", "exit status 1", "one\n\ntwo\nthree\nfour\n");
        assert_eq!(found, "/etc/x: exit status 1: two / three / four");
        assert_eq!(report("/etc/x", "exit status 1", " \n"), "/etc/x: exit status 1");
        assert_eq!(report("/etc/x", "e", &"y".repeat(999)).chars().count(), MAX_REPORT);
        for (result, status, expected) in [
            ("timeout", 0, "the check did not end within 60 s"),
            ("exit-code", 203, "the check cannot be executed"),
            ("exit-code", 2, "exit status 2"),
            ("signal", 9, "signal 9"),
            ("canceled", 0, "the check was stopped before it ended"),
        ] {
            let failure = UnitFailure {
                result: result.to_owned(),
                status,
            };
            assert_eq!(words(&failure), expected);
        }
    }

    #[test]
    fn only_required_checks_count() {
        fn left(kind: Kind, report: Option<&str>) -> Run {
            let check = Check {
                path: "/etc/x".to_owned(),
                kind,
            };
            Run {
                report: report.map(str::to_owned),
                ..Run::of(check)
            }
        }
        let failed = Checks::Failed(vec!["no".to_owned()]);
        for (left, expected) in [
            (vec![], Checks::Passed),
            (vec![left(Kind::Wanted, Some("no"))], Checks::Passed),
            (vec![left(Kind::Required, None)], Checks::Running),
            (
                vec![left(Kind::Required, None), left(Kind::Wanted, Some("no"))],
                Checks::Running,
            ),
            (vec![left(Kind::Required, Some("no"))], failed),
        ] {
            assert_eq!(state(&left), expected, "{left:?}");
        }
    }

    #[test]
    fn a_unit_has_a_name_that_systemd_accepts() {
        assert_eq!(unit_name("/etc/berth/a b@c.sh"), "berth-check-etc-berth-a_b_c.sh");
        let long = unit_name(&format!("/etc/{}é", "x".repeat(300)));
        assert_eq!(long.len(), "berth-check-".len() + MAX_NAME);
    }
}
