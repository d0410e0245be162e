//! The packages have exactly the listed files, with their content, permissions and owners.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use berth_tests::dist::VERSION;
use berth_tests::manifests::with_components;
use berth_tests::programs::{read, workspace_root};

use super::Made;
use super::read::{self, Contents, DIRECTORY};

/// Contents of `berth-agent` besides the manual pages. A file: permissions, path, and source in the repository.
const AGENT: &str = "
755 /usr/bin/berth-agent programs/berth-agent
644 /usr/lib/systemd/system/berth-agent.service systemd/berth-agent.service
644 /usr/lib/systemd/system/berth-firstboot.service systemd/berth-firstboot.service
644 /usr/lib/systemd/system/berth-rollback-guard.service systemd/berth-rollback-guard.service
link /usr/lib/systemd/system/multi-user.target.wants/berth-firstboot.service ../berth-firstboot.service
link /usr/lib/systemd/system/kubelet.service.requires/berth-firstboot.service ../berth-firstboot.service
link /usr/lib/systemd/system/multi-user.target.wants/berth-rollback-guard.service ../berth-rollback-guard.service
link /usr/lib/systemd/system/emergency.target.wants/berth-rollback-guard.service ../berth-rollback-guard.service
644 /usr/lib/systemd/system-preset/80-berth.preset packaging/agent/berth.preset
644 /usr/lib/tmpfiles.d/berth.conf packaging/agent/berth.tmpfiles
755 /usr/lib/berth/health.d/available.d/10-kubelet systemd/health.d/10-kubelet
755 /usr/lib/berth/health.d/available.d/20-cri systemd/health.d/20-cri
755 /usr/lib/berth/health.d/available.d/30-cni systemd/health.d/30-cni
755 /usr/lib/berth/health.d/available.d/40-storage systemd/health.d/40-storage
directory /usr/lib/berth/health.d/required.d
directory /usr/lib/berth/health.d/wanted.d
directory /etc/berth
directory /etc/containers
directory /etc/ostree
644 /usr/share/doc/berth-agent/boot-images.md docs/boot-images.md
644 /usr/share/doc/berth-agent/health.md docs/health.md
644 /usr/share/doc/berth-agent/packages.md docs/packages.md
";
const AGENT_DEB: &str = "644 /usr/share/doc/berth-agent/copyright packaging/copyright";
const AGENT_RPM: &str = "644 /usr/share/licenses/berth-agent/LICENSE LICENSE";

/// Contents of `kubectl-berth` besides the manual pages.
const PLUGIN: &str = "
755 /usr/bin/kubectl-berth programs/kubectl-berth
755 /usr/bin/kubectl_complete-berth cli/src/completion/kubectl.sh
644 /usr/share/bash-completion/completions/kubectl-berth cli/src/completion/bash.sh
644 /usr/share/fish/vendor_completions.d/kubectl-berth.fish cli/src/completion/fish.fish
";
const PLUGIN_DEB: &str = "
644 /usr/share/zsh/vendor-completions/_kubectl-berth cli/src/completion/zsh.sh
644 /usr/share/doc/kubectl-berth/copyright packaging/copyright
";
const PLUGIN_RPM: &str = "
644 /usr/share/zsh/site-functions/_kubectl-berth cli/src/completion/zsh.sh
644 /usr/share/licenses/kubectl-berth/LICENSE LICENSE
";

const DEB_FIELDS: &str = "${Package} ${Version} ${Architecture}; needs: ${Depends}; recommends: ${Recommends}";
const RPM_FIELDS: &str =
    "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}; needs:[ %{REQUIRENEVRS}]; recommends:[ %{RECOMMENDNEVRS}]";

/// The contents that a list names.
fn listed(made: &Made, list: &str) -> Result<Contents> {
    let mut contents = Contents::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let (path, description) = match words[..] {
            ["directory", path] => (path, DIRECTORY.to_owned()),
            ["link", path, target] => (path, read::link(target)),
            [mode, path, source] => {
                let directory = if source.starts_with("programs/") {
                    made.path("")
                } else {
                    workspace_root()
                };
                let bytes = fs::read(directory.join(source)).context(source.to_owned())?;
                (path, read::file(u32::from_str_radix(mode, 8)?, &bytes))
            }
            _ => bail!("not a file, link or directory: {line}"),
        };
        contents.insert(path.to_owned(), description);
    }
    Ok(contents)
}

/// Manual pages of a program.
fn manual(made: &Made, program: &str, section: &str) -> Result<Contents> {
    let mut pages = Contents::new();
    for page in fs::read_dir(made.path("man"))? {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        if name.starts_with(program) {
            let path = format!("/usr/share/man/man{section}/{name}");
            pages.insert(path, read::file(0o644, &fs::read(page.path())?));
        }
    }
    let first = format!("/usr/share/man/man{section}/{program}.{section}.gz");
    ensure!(pages.contains_key(&first), "{first} is missing");
    Ok(pages)
}

/// Fails unless a package has exactly these contents. A `.deb` also lists the directories above each file.
fn compare(package: &Path, mut found: Contents, expected: &Contents) -> Result<()> {
    let is_above = |path: &str| expected.keys().any(|other| other.starts_with(&format!("{path}/")));
    found.retain(|path, description| {
        expected.contains_key(path) || description.as_str() != DIRECTORY || !is_above(path)
    });
    let paths: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    for path in paths {
        let (found, expected) = (found.get(path), expected.get(path));
        ensure!(
            found == expected,
            "{}: {path} is {found:?}, not {expected:?}",
            package.display()
        );
    }
    Ok(())
}

/// Fails unless the text is as expected.
fn is(found: &str, expected: &str) -> Result<()> {
    ensure!(found == expected, "found:\n{found}\nexpected:\n{expected}");
    Ok(())
}

/// Version of the packages. Both formats sort `~` before the end of a version.
fn version() -> String {
    VERSION.replacen('-', "~", 1)
}

#[test]
fn the_agents_deb_is_complete() -> Result<()> {
    let made = Made::new()?;
    let package = made.deb("berth-agent");
    let mut expected = listed(&made, &[AGENT, AGENT_DEB].concat())?;
    expected.extend(manual(&made, "berth-agent", "8")?);
    compare(&package, read::deb(&package)?, &expected)?;
    let fields = format!(
        "berth-agent {} amd64; needs: systemd (>= 252); recommends: skopeo, podman",
        version()
    );
    is(&read::deb_fields(&package, DEB_FIELDS)?, &fields)
}

#[test]
fn the_agents_rpm_is_complete() -> Result<()> {
    let made = Made::new()?;
    let package = made.rpm("berth-agent");
    let mut expected = listed(&made, &[AGENT, AGENT_RPM].concat())?;
    expected.extend(manual(&made, "berth-agent", "8")?);
    compare(&package, read::rpm(&package)?, &expected)?;
    let fields = format!(
        "berth-agent {}-1 x86_64; needs: systemd >= 252; recommends: skopeo podman",
        version()
    );
    is(&read::rpm_fields(&package, RPM_FIELDS)?, &fields)?;
    // The scenarios of the scripts run those in the .deb.
    for (field, script) in [("POSTIN", "postinstall.sh"), ("PREUN", "preremove.sh")] {
        let found = read::rpm_fields(&package, &format!("%{{{field}}}"))?;
        is(found.trim(), read(&format!("packaging/agent/{script}"))?.trim())?;
    }
    is(&read::rpm_fields(&package, "%{PREIN} %{POSTUN}")?, "(none) (none)")
}

#[test]
fn the_plugins_packages_are_complete() -> Result<()> {
    let made = Made::new()?;
    let (deb, rpm) = (made.deb("kubectl-berth"), made.rpm("kubectl-berth"));
    let manual = manual(&made, "kubectl-berth", "1")?;
    let mut expected = listed(&made, &[PLUGIN, PLUGIN_DEB].concat())?;
    expected.extend(manual.clone());
    compare(&deb, read::deb(&deb)?, &expected)?;
    let fields = format!("kubectl-berth {} amd64; needs: ; recommends: ", version());
    is(&read::deb_fields(&deb, DEB_FIELDS)?, &fields)?;

    let mut expected = listed(&made, &[PLUGIN, PLUGIN_RPM].concat())?;
    expected.extend(manual);
    compare(&rpm, read::rpm(&rpm)?, &expected)?;
    let fields = format!("kubectl-berth {}-1 x86_64; needs:; recommends:", version());
    is(&read::rpm_fields(&rpm, RPM_FIELDS)?, &fields)
}

/// The agent contains the script of the rollback guard and writes it to the host. The package has all other files of
/// `systemd/`.
#[test]
fn no_file_of_systemd_is_forgotten() -> Result<()> {
    let packaged: BTreeSet<&str> = AGENT.split_whitespace().collect();
    for directory in ["systemd", "systemd/health.d"] {
        for file in fs::read_dir(workspace_root().join(directory))? {
            let file = file?;
            let path = format!("{directory}/{}", file.file_name().to_string_lossy());
            if file.file_type()?.is_file() && path != "systemd/berth-rollback-guard.sh" {
                ensure!(packaged.contains(path.as_str()), "the package lacks {path}");
            }
        }
    }
    Ok(())
}

/// The kubelet cannot create missing directories of the pod's mounts if `/etc` is read-only. So the image has those in
/// `/etc`, and systemd creates the others at boot.
#[test]
fn directories_that_the_pod_mounts_are_created() -> Result<()> {
    let settings = read("packaging/agent/berth.tmpfiles")?;
    let mut mounted = 0;
    for object in with_components(&[])? {
        let volumes = object.pointer("/spec/template/spec/volumes");
        for volume in volumes.and_then(|list| list.as_array()).into_iter().flatten() {
            let path = volume["hostPath"]["path"].as_str().unwrap_or_default();
            let is_kubelets = path.starts_with("/var/lib/kubelet/");
            if volume["hostPath"]["type"] != "DirectoryOrCreate" || is_kubelets {
                continue;
            }
            ensure!(settings.contains(&format!("\nd {path} ")), "{path} is not created");
            let is_packaged = AGENT.contains(&format!("\ndirectory {path}\n"));
            ensure!(is_packaged == path.starts_with("/etc/"), "{path}");
            mounted += 1;
        }
    }
    ensure!(mounted >= 6, "only {mounted} directories are mounted");
    Ok(())
}
