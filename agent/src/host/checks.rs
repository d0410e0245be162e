//! The host's health checks: programs that an image builder or an admin installs, and that judge a new boot.
//!
//! A check is an executable file. Each runs as a transient unit of the host, all at once, until it has succeeded once
//! under this boot. The agent's loop does not wait for them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_api::BootId;
use berth_api::condition::one_line;
use berth_core::agent::facts::Checks;
use futures::future::join_all;

use super::bus::Changes;
use super::files;
use super::root::{HostRoot, RUN_DIR};
use super::tools::Tools;
use super::units::{self, EXIT_EXEC, Spec, UnitFailure};

/// Directories of the checks. A file hides a file of the same name in the directories before it, as in systemd.
const DIRS: [(&str, Kind); 4] = [
    ("/usr/lib/berth/health.d/required.d", Kind::Required),
    ("/etc/berth/health.d/required.d", Kind::Required),
    ("/usr/lib/berth/health.d/wanted.d", Kind::Wanted),
    ("/etc/berth/health.d/wanted.d", Kind::Wanted),
];
/// Directories of greenboot's checks, which the agent runs if the host has them without greenboot.
const GREENBOOT_DIRS: [(&str, Kind); 4] = [
    ("/usr/lib/greenboot/check/required.d", Kind::Required),
    ("/etc/greenboot/check/required.d", Kind::Required),
    ("/usr/lib/greenboot/check/wanted.d", Kind::Wanted),
    ("/etc/greenboot/check/wanted.d", Kind::Wanted),
];
/// Unit of greenboot. If the host has it, greenboot runs its checks before `boot-complete.target`.
const GREENBOOT_UNIT: &str = "/usr/lib/systemd/system/greenboot-healthcheck.service";
/// Time limit of one run of a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// Time from the end of a run until the checks that failed run again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Number of bytes that are read from the end of a check's output, and of lines that are reported.
const OUTPUT_TAIL: u64 = 4 << 10;
const REPORTED_LINES: usize = 3;
/// Longest report of one check, in characters.
const MAX_REPORT: usize = 300;

/// Consequence of a check that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The boot is not proven until the check succeeds.
    Required,
    /// The failure is logged.
    Wanted,
}

/// A health check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    /// Path on the host.
    path: String,
    kind: Kind,
}

/// The runs of the checks under one boot.
#[derive(Debug, Clone)]
pub(super) struct CheckRuns {
    tools: Tools,
    changes: Changes,
    runs: Arc<Mutex<Runs>>,
}

#[derive(Debug, Default)]
struct Runs {
    boot: Option<BootId>,
    /// Checks that have not succeeded, each with the report of its last run; `None` before the first.
    left: Vec<(Check, Option<String>)>,
    is_running: bool,
    /// End of the last run.
    ended: Option<Instant>,
    /// True if the Node was Ready when the last run began.
    node_was_ready: bool,
}

impl CheckRuns {
    pub(super) fn new(tools: Tools, changes: Changes) -> Self {
        Self {
            tools,
            changes,
            runs: Arc::default(),
        }
    }

    /// Starts the checks that are due, and returns the state of all. Checks that failed run again after 10 s, and when
    /// the Node has become Ready, since some of them wait for the same things as the kubelet.
    pub(super) fn poll(&self, boot: &BootId, node_ready: bool) -> Checks {
        let mut runs = self.runs.lock().unwrap_or_else(|e| e.into_inner());
        if runs.boot.as_ref() != Some(boot) {
            let left = find(&self.tools.root).into_iter().map(|check| (check, None)).collect();
            *runs = Runs {
                boot: Some(boot.clone()),
                left,
                ..Runs::default()
            };
        }
        let is_retry_due = runs.ended.is_none_or(|ended| ended.elapsed() >= RETRY_INTERVAL);
        let has_become_ready = node_ready && !runs.node_was_ready;
        if !runs.left.is_empty() && !runs.is_running && (is_retry_due || has_become_ready) {
            (runs.is_running, runs.node_was_ready) = (true, node_ready);
            let checks = runs.left.iter().map(|(check, _)| check.clone()).collect();
            tokio::spawn(self.clone().run(boot.clone(), checks));
        }
        state(&runs.left)
    }

    /// Runs these checks to their end, all at once, and records the result.
    async fn run(self, boot: BootId, checks: Vec<Check>) {
        let reports = join_all(checks.iter().enumerate().map(|(n, check)| self.run_one(n, check))).await;
        let mut runs = self.runs.lock().unwrap_or_else(|e| e.into_inner());
        if runs.boot.as_ref() != Some(&boot) {
            return;
        }
        (runs.is_running, runs.ended) = (false, Some(Instant::now()));
        runs.left.clear();
        for (check, report) in checks.into_iter().zip(reports) {
            let Some(report) = report else { continue };
            tracing::warn!(check = check.path, kind = ?check.kind, report, "health check failed");
            runs.left.push((check, Some(report)));
        }
        drop(runs);
        self.changes.bump();
    }

    /// Runs one check to its end. Returns the report of a failure.
    async fn run_one(&self, number: usize, check: &Check) -> Option<String> {
        let name = unit_name(number, &check.path);
        let (stdout, stderr) = (format!("{RUN_DIR}/{name}.out"), format!("{RUN_DIR}/{name}.err"));
        let spec = Spec {
            name: format!("{name}.service"),
            description: "Berth: health check of the host",
            before: vec![],
            command: vec![check.path.clone()],
            on_success: vec![],
            last: None,
            deadline: CHECK_TIMEOUT,
            stdout: Some(stdout.clone()),
            stderr: Some(stderr.clone()),
            fd3: None,
            background: false,
            expendable: false,
        };
        let failure = match units::run(&self.tools.bus, &spec).await {
            Ok(None) => return None,
            Ok(Some(failure)) => words(&failure),
            Err(error) => format!("the agent cannot run it: {error}"),
        };
        let [errors, output] = [stderr, stdout].map(|path| files::tail(&self.tools.root.path(path), OUTPUT_TAIL));
        let text = if errors.trim().is_empty() { output } else { errors };
        Some(report(&check.path, &failure, &text))
    }
}

/// Returns the state of the host's checks, given the ones that have not succeeded.
fn state(left: &[(Check, Option<String>)]) -> Checks {
    let required: Vec<_> = left.iter().filter(|(check, _)| check.kind == Kind::Required).collect();
    if required.is_empty() {
        return Checks::Passed;
    }
    let reports: Vec<String> = required.iter().filter_map(|(_, report)| report.clone()).collect();
    if reports.is_empty() {
        return Checks::Running;
    }
    Checks::Failed(reports)
}

/// Finds the host's checks, in the order of their directories and names.
fn find(root: &HostRoot) -> Vec<Check> {
    let mut checks = of_dirs(root, &DIRS);
    if !root.path(GREENBOOT_UNIT).exists() {
        checks.extend(of_dirs(root, &GREENBOOT_DIRS));
    }
    checks
}

fn of_dirs(root: &HostRoot, dirs: &[(&str, Kind)]) -> Vec<Check> {
    let mut found = BTreeMap::new();
    for (dir, kind) in dirs {
        let Ok(entries) = std::fs::read_dir(root.path(dir)) else {
            // Most hosts have no checks.
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let check = Check {
                path: format!("{dir}/{name}"),
                kind: *kind,
            };
            let is_wanted = *kind == Kind::Wanted;
            found.insert((is_wanted, name), check);
        }
    }
    let checks = found.into_values();
    checks.filter(|check| is_executable(root, &check.path)).collect()
}

/// True for an executable file. A README, or a link to `/dev/null` that hides a check, is not a check.
fn is_executable(root: &HostRoot, path: &str) -> bool {
    let metadata = root.resolve(path).and_then(std::fs::metadata);
    metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns the name of a check's unit, without its suffix. The number keeps the names of two checks apart.
fn unit_name(number: usize, path: &str) -> String {
    let file = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    let allowed = file.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "_");
    let name: String = allowed.chars().take(100).collect();
    format!("berth-check-{number}-{name}")
}

fn words(failure: &UnitFailure) -> String {
    match (failure.result.as_str(), failure.status) {
        ("timeout", _) => format!("did not end within {} s", CHECK_TIMEOUT.as_secs()),
        ("exit-code", EXIT_EXEC) => "cannot be executed".to_owned(),
        ("exit-code", status) => format!("exit status {status}"),
        (result, status) => format!("{result} {status}"),
    }
}

/// Returns the report of a failed check: its path, how it failed, and its last lines.
fn report(path: &str, failure: &str, output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.len().saturating_sub(REPORTED_LINES);
    let mut text = format!("{path}: {failure}");
    if !lines.is_empty() {
        text.push_str(&format!(": {}", lines.get(last..).unwrap_or_default().join(" / ")));
    }
    one_line(&text).chars().take(MAX_REPORT).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        find(root).into_iter().map(|check| check.path).collect()
    }

    #[test]
    fn only_executable_files_are_checks() {
        let root = root("find");
        assert_eq!(find(&root), []);
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
        fs::remove_dir_all(root.path("/")).unwrap();
    }

    #[test]
    fn a_report_has_the_last_lines() {
        let found = report("/etc/x", "exit status 1", "one\n\ntwo\nthree\nfour\n");
        assert_eq!(found, "/etc/x: exit status 1: two / three / four");
        assert_eq!(report("/etc/x", "exit status 1", " \n"), "/etc/x: exit status 1");
        assert_eq!(report("/etc/x", "e", &"y".repeat(999)).chars().count(), MAX_REPORT);
        for (result, status, expected) in [
            ("timeout", 0, "did not end within 60 s"),
            ("exit-code", 203, "cannot be executed"),
            ("exit-code", 2, "exit status 2"),
            ("signal", 9, "signal 9"),
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
        fn left(kind: Kind, report: Option<&str>) -> (Check, Option<String>) {
            let check = Check {
                path: "/etc/x".to_owned(),
                kind,
            };
            (check, report.map(str::to_owned))
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
        assert_eq!(unit_name(3, "/etc/berth/a b@c.sh"), "berth-check-3-a_b_c.sh");
    }
}
