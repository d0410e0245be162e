//! Everything that Berth leaves on a host, and the script that removes it.
//!
//! The lists contain what Berth or the kubelet of its pods writes, and what an admin writes to give the agent an
//! identity or settings. They contain nothing below `/usr`, because that belongs to the OS image. [`KEPT`] lists files
//! that an admin wrote for Berth and that stay. docs/install/removal.md names all of it; a test compares the two.

use crate::agent::host_policy::credentials::PLACES;
use crate::agent::host_policy::registries;

/// Services that the host's systemd starts for Berth. Some hosts have none of them.
pub const SERVICES: [&str; 3] = [
    "berth-agent.service",
    "berth-firstboot.service",
    "berth-rollback-guard.service",
];

/// Pattern of all units of Berth: the services, and units that the agent runs for a short time.
pub const UNIT_PATTERN: &str = "berth-*.service";

/// Links that start a service of Berth at the boot. The links that require the first-boot check come first: as long as
/// one of them is there, the kubelet does not start without the check. A link to `/dev/null` masks a unit and stays.
pub const LINKS: [&str; 2] = [
    "/etc/systemd/system/*.requires/berth-*.service",
    "/etc/systemd/system/*.wants/berth-*.service",
];

/// Files to remove. A unit that is a link to `/dev/null` stays, because an admin has masked it.
pub const FILES: [&str; 10] = [
    "/etc/systemd/system/berth-agent.service",
    "/etc/systemd/system/berth-firstboot.service",
    "/etc/systemd/system/berth-rollback-guard.service",
    "/etc/issue.d/80-berth-firstboot.issue",
    "/run/motd.d/80-berth-firstboot",
    "/etc/berth/agent.env",
    "/etc/berth/agent.kubeconfig",
    "/etc/berth/agent.token",
    "/etc/berth/auth.json",
    "/etc/berth/firstboot.toml",
];

/// Directories to remove with their content: drop-ins for units of Berth, and the agent's memory.
pub const DIRECTORIES: [&str; 6] = [
    "/etc/systemd/system/berth-agent.service.d",
    "/etc/systemd/system/berth-firstboot.service.d",
    "/etc/systemd/system/berth-inspect-.service.d",
    "/etc/systemd/system/berth-pull-.service.d",
    "/etc/systemd/system/berth-rollback-guard.service.d",
    "/var/lib/berth",
];

/// Directory with the output of the host commands. It is removed after everything else, because the script's own
/// output is there.
pub const RUN_DIR: &str = "/run/berth";

/// Directories to remove if they are empty. The kubelet creates missing ones for the agent's pod.
pub const EMPTY_DIRECTORIES: [&str; 7] = [
    "/etc/berth/health.d/required.d",
    "/etc/berth/health.d/wanted.d",
    "/etc/berth/health.d",
    "/etc/berth",
    "/etc/ostree",
    "/etc/containers",
    "/run/ostree",
];

/// Files that stay, because an admin wrote them and a new installation should find them: the host's restriction of
/// registries, and its health checks. Without Berth they have no effect.
pub const KEPT: [&str; 2] = [registries::FILE, "/etc/berth/health.d"];

/// Record of the digests of the auth files that Berth wrote.
const AUTH_RECORD: &str = "/run/berth/auth.json.ours";
/// Temporary file of the agent that writes the auth file.
const AUTH_TEMPORARY: &str = "/run/ostree/auth.tmp";

/// Returns the shell script that removes everything except [`RUN_DIR`]. It continues after an error, and then fails at
/// its end. Its output is one line for each path of [`KEPT`] that exists.
///
/// The configuration of the first-boot check goes too, even if the OS image contains it: without the memory in
/// `/var/lib/berth`, the next boot would repeat the check, which may change the host's image.
///
/// systemd expands `${` and `$$` in a unit's command, so the script has neither.
pub fn script() -> String {
    let links_and_files = [LINKS.as_slice(), FILES.as_slice()].concat().join(" ");
    let directories = DIRECTORIES.join(" ");
    let empty = EMPTY_DIRECTORIES.join(" ");
    let kept = KEPT.join(" ");
    let auth = PLACES[0];
    format!(
        r#"failed=0
remove() {{
  for path do
    if [ -e "$path" ] || [ -L "$path" ]; then
      [ "$(readlink "$path")" = /dev/null ] || rm -rf -- "$path" || failed=1
    fi
  done
}}
remove {links_and_files} {directories}
if [ -f {AUTH_RECORD} ]; then
  remove {AUTH_TEMPORARY}
  if [ -f {auth} ] && [ ! -L {auth} ]; then
    sum=$(sha256sum <{auth} | cut -d ' ' -f 1)
    if grep -qsx "sha256:$sum" {AUTH_RECORD}; then remove {auth}; fi
  fi
fi
for directory in {empty}; do
  rmdir -- "$directory" 2>/dev/null
done
for path in {kept}; do
  if [ -e "$path" ]; then echo "$path"; fi
done
exit "$failed""#
    )
}

#[cfg(test)]
mod tests {
    use crate::firstboot::config;

    use super::*;

    /// With a configuration but without memory, the next boot would repeat the check.
    #[test]
    fn the_first_boot_check_loses_its_configuration() {
        assert!(FILES.contains(&config::PATH));
    }

    /// Everything below `/usr` belongs to the OS image, and a list of paths must not select more than it names.
    #[test]
    fn only_paths_of_berth_are_removed() {
        let removed = [LINKS.as_slice(), FILES.as_slice(), DIRECTORIES.as_slice(), &[RUN_DIR]].concat();
        for path in removed {
            let name = path.rsplit('/').next().unwrap_or_default();
            let is_in_ours = path.starts_with("/etc/berth/");
            assert!(is_in_ours || name.contains("berth"), "{path}");
            assert!(
                ["/etc/", "/run/", "/var/lib/"].iter().any(|top| path.starts_with(top)),
                "{path}"
            );
            for kept in KEPT {
                assert!(
                    path != kept && !kept.starts_with(&format!("{path}/")),
                    "{path} has {kept}"
                );
            }
        }
    }

    #[test]
    fn systemd_expands_nothing_in_the_script() {
        let script = script();
        assert!(!script.contains("${") && !script.contains("$$"), "{script}");
    }

    /// A list of services that is not complete would leave a unit that starts again at the next boot.
    #[test]
    fn each_service_has_its_file_and_its_drop_ins() {
        for service in SERVICES {
            let file = format!("/etc/systemd/system/{service}");
            assert!(FILES.contains(&file.as_str()), "{file}");
            assert!(DIRECTORIES.contains(&format!("{file}.d").as_str()), "{file}.d");
        }
    }
}
