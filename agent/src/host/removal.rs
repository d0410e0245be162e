//! Removes Berth from the host: its units, files and directories. See [`berth_core::agent::removal`].

use std::time::Duration;

use berth_core::agent::removal::{RUN_DIR, SERVICES, UNIT_PATTERN, script};

use super::error::HostError;
use super::handle::Host;
use super::units::{self, Spec};

/// How long the units may take to end. systemd kills a service 90 s after it was stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit of the removal of the runtime directory.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Host {
    /// Stops the agent that runs as a service of the host. It holds the host's lock.
    ///
    /// # Errors
    /// When systemd does not answer, or the service does not end.
    pub async fn stop_service(&self) -> Result<(), HostError> {
        self.stop_units(vec![SERVICES[0].to_owned()]).await
    }

    /// Removes everything that Berth left on the host, except what the agent's process itself holds open. Returns the
    /// paths that stay, because an admin wrote them. A second call finds nothing to do and succeeds.
    ///
    /// The caller must hold the host's lock.
    ///
    /// # Errors
    /// When systemd does not answer, a unit does not end, or a file cannot be removed.
    pub async fn remove_all(&self) -> Result<Vec<String>, HostError> {
        let bus = &self.tools.bus;
        let loaded = units::matching(bus, UNIT_PATTERN).await?;
        self.stop_units(loaded.clone()).await?;
        let output = self.tools.run("remove", &["/usr/bin/sh", "-c", &script()]).await?;
        units::reload(bus).await?;
        for name in &loaded {
            units::reset(bus, name).await?;
        }
        self.remove_run_dir().await?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    async fn stop_units(&self, names: Vec<String>) -> Result<(), HostError> {
        let running = units::stop_all(&self.tools.bus, &names, STOP_TIMEOUT).await?;
        if running.is_empty() {
            return Ok(());
        }
        let (names, limit) = (running.join(", "), STOP_TIMEOUT.as_secs());
        Err(HostError::Timeout(format!(
            "{names} did not end within {limit} s after it was stopped"
        )))
    }

    /// Removes the runtime directory, with the output of the script. This command therefore has no output.
    async fn remove_run_dir(&self) -> Result<(), HostError> {
        let command = ["/usr/bin/rm", "-rf", RUN_DIR];
        let spec = Spec {
            name: "berth-remove-output.service".to_owned(),
            description: "Berth: remove the output of host commands",
            command: command.map(str::to_owned).to_vec(),
            deadline: TIMEOUT,
            expendable: true,
            ..Spec::default()
        };
        match units::run(&self.tools.bus, &spec).await? {
            None => Ok(()),
            Some(_) => Err(HostError::Io(format!(
                "{} failed; run it on the host to see why",
                command.join(" ")
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};

    use super::*;

    struct Scratch(tempfile::TempDir);

    impl Scratch {
        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(&path[1..])
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn link(&self, target: &str, path: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }

        /// Returns the script with the scratch directory in place of the host's root.
        fn script(&self) -> String {
            let mut script = script();
            for top in ["/etc/", "/run/", "/var/"] {
                script = script.replace(top, &format!("{}{top}", self.0.path().display()));
            }
            script
        }

        fn run(&self) -> Output {
            Command::new("sh").args(["-c", &self.script()]).output().unwrap()
        }

        /// Returns the paths of all files and empty directories, sorted.
        fn left(&self) -> Vec<String> {
            let mut left = vec![];
            collect(self.0.path(), &mut left);
            let root = self.0.path().display().to_string();
            left.iter()
                .map(|path| path.display().to_string().replace(&root, ""))
                .collect()
        }
    }

    fn collect(directory: &Path, left: &mut Vec<PathBuf>) {
        let mut entries: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        if entries.is_empty() {
            left.push(directory.to_owned());
        }
        for entry in entries {
            if entry.is_dir() && !entry.is_symlink() {
                collect(&entry, left);
            } else {
                left.push(entry);
            }
        }
    }

    const AUTH: &str = "{}\n";
    const SHA256_OF_AUTH: &str = "sha256:ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356";

    #[test]
    fn everything_of_berth_goes_and_nothing_else() {
        let host = Scratch(tempfile::tempdir().unwrap());
        let units = "/etc/systemd/system";
        host.link(
            "../berth-firstboot.service",
            &format!("{units}/kubelet.service.requires/berth-firstboot.service"),
        );
        host.link(
            "../berth-agent.service",
            &format!("{units}/multi-user.target.wants/berth-agent.service"),
        );
        host.write(&format!("{units}/berth-agent.service"), "");
        host.write(&format!("{units}/berth-pull-.service.d/proxy.conf"), "");
        host.write("/etc/issue.d/80-berth-firstboot.issue", "");
        host.write("/var/lib/berth/rollback-guard/armed", "");
        host.write("/etc/berth/agent.token", "");
        host.write("/etc/berth/firstboot.toml", "");
        fs::create_dir_all(host.path("/etc/ostree")).unwrap();
        fs::create_dir_all(host.path("/etc/berth/health.d/wanted.d")).unwrap();
        host.write("/run/berth/auth.json.ours", &format!("{SHA256_OF_AUTH}\n"));
        host.write("/run/ostree/auth.json", AUTH);
        host.write("/run/ostree/auth.tmp", AUTH);
        // The rest belongs to others.
        host.write(&format!("{units}/berth-backup.service"), "");
        host.write(&format!("{units}/multi-user.target.wants/kubelet.service"), "");
        host.write("/etc/containers/policy.json", "");
        host.link("/dev/null", &format!("{units}/berth-rollback-guard.service"));

        let done = host.run();
        assert!(done.status.success(), "{done:?}");
        assert!(done.stdout.is_empty() && done.stderr.is_empty(), "{done:?}");
        let others = [
            "/etc/containers/policy.json",
            "/etc/issue.d",
            "/etc/systemd/system/berth-backup.service",
            "/etc/systemd/system/berth-rollback-guard.service",
            "/etc/systemd/system/kubelet.service.requires",
            "/etc/systemd/system/multi-user.target.wants/kubelet.service",
            "/run/berth/auth.json.ours",
            "/var/lib",
        ];
        assert_eq!(host.left(), others);
        assert!(host.run().status.success(), "a second time");
        assert_eq!(host.left(), others);
    }

    #[test]
    fn what_an_admin_wrote_stays_and_is_named() {
        let host = Scratch(tempfile::tempdir().unwrap());
        host.write("/etc/berth/allowed-registries", "quay.io");
        host.write("/etc/berth/health.d/required.d/10-disk", "");
        host.write("/run/ostree/auth.json", AUTH);
        host.write("/run/berth/auth.json.ours", "sha256:0000\n");
        let before = host.left();
        let done = host.run();
        assert!(done.status.success(), "{done:?}");
        let root = host.0.path().display().to_string();
        let named = String::from_utf8(done.stdout).unwrap().replace(&root, "");
        assert_eq!(named, "/etc/berth/allowed-registries\n/etc/berth/health.d\n");
        assert_eq!(host.left(), before);
    }

    /// The script removes everything else, and fails.
    #[test]
    fn a_file_that_cannot_be_removed_is_named() {
        let host = Scratch(tempfile::tempdir().unwrap());
        host.write("/var/lib/berth/memory.json", "");
        let bin = tempfile::tempdir().unwrap();
        let rm = bin.path().join("rm");
        fs::write(
            &rm,
            "#!/bin/sh\necho \"rm: cannot remove '$3': Read-only file system\" >&2\nexit 1\n",
        )
        .unwrap();
        fs::set_permissions(&rm, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", bin.path().display());
        let mut sh = Command::new("sh");
        let done = sh.args(["-c", &host.script()]).env("PATH", path).output().unwrap();
        assert!(!done.status.success());
        let words = String::from_utf8(done.stderr).unwrap();
        assert!(words.contains("/var/lib/berth': Read-only file system"), "{words}");
    }
}
