//! The shipped units, checked with systemd's tools: systemd knows all their settings, and they are confined enough.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_tests::programs::{read, workspace_root};
use berth_tests::scratch::Scratch;
use berth_tests::tools::{ensure_packages, find_program};

/// Highest exposure level that systemd-analyze may report, from 0 (none) to 10.
const EXPOSED: f64 = 3.0;

fn analyze(arguments: &[&str], unit: &Path) -> Result<String> {
    let mut command = Command::new("systemd-analyze");
    let out = command
        .args(arguments)
        .arg(unit)
        .output()
        .context("running systemd-analyze")?;
    let text = [out.stdout, out.stderr].map(|words| String::from_utf8_lossy(&words).into_owned());
    let text = text.concat();
    ensure!(out.status.success(), "{arguments:?}: {text}");
    Ok(text)
}

/// Runs the part of the first boot's unit that removes links in `/etc`, with these directories in place of the host's.
fn without_links_in_etc(etc: &Path, usr: &Path) -> Result<()> {
    let unit = read("systemd/berth-firstboot.service")?;
    let unit = unit.replace("\\\n", " ");
    let mut lines = unit.lines();
    let command = lines.find_map(|line| line.strip_prefix("ExecStartPre=-+/usr/bin/sh -c '"));
    let script = command.and_then(|command| command.strip_suffix('\''));
    let script = script.context("the unit has no such command")?.replace("$$", "$");
    let script = script.replace("/etc/systemd/system", &etc.display().to_string());
    let script = script.replace("/usr/lib/systemd/system", &usr.display().to_string());
    let status = Command::new("sh").args(["-c", &script]).status()?;
    ensure!(status.success(), "{script}: {status}");
    Ok(())
}

/// Creates a link below this directory that makes the unit `of` require the first boot's unit.
fn link(root: &Path, of: &str) -> Result<PathBuf> {
    let directory = root.join(format!("{of}.requires"));
    std::fs::create_dir_all(&directory)?;
    let link = directory.join("berth-firstboot.service");
    symlink("../berth-firstboot.service", &link)?;
    Ok(link)
}

#[test]
fn a_link_in_etc_is_replaced_by_the_images() -> Result<()> {
    let scratch = Scratch::new("berth-links-")?;
    let (etc, usr) = (scratch.path().join("etc"), scratch.path().join("usr"));
    std::fs::create_dir_all(&usr)?;
    let (kubelet, k3s) = (link(&etc, "kubelet.service")?, link(&etc, "k3s.service")?);
    without_links_in_etc(&etc, &usr)?;
    ensure!(kubelet.is_symlink() && k3s.is_symlink(), "a link is gone");
    // The image has the link for one of the two.
    std::fs::write(usr.join("berth-firstboot.service"), "")?;
    let of_image = link(&usr, "kubelet.service")?;
    without_links_in_etc(&etc, &usr)?;
    ensure!(!kubelet.is_symlink() && k3s.is_symlink() && of_image.is_symlink());
    without_links_in_etc(&etc, &usr)
}

#[test]
fn the_rollback_guards_unit_is_valid() -> Result<()> {
    if find_program("systemd-analyze").is_none()
        && let Err(error) = ensure_packages(&["systemd"])
    {
        println!("SKIPPED: this machine has no systemd-analyze, which reads the unit: {error:#}");
        return Ok(());
    }
    let name = "berth-rollback-guard.service";
    let text = read(&format!("systemd/{name}"))?;
    let scratch = Scratch::new("berth-units-")?;
    let unit = scratch.path().join(name);
    std::fs::write(&unit, &text)?;
    let words = analyze(&["verify", "--man=no"], &unit)?;
    ensure!(!words.contains(name), "{words}");
    std::fs::write(&unit, text.replace("OOMScoreAdjust=", "OOMScoresAdjust="))?;
    let words = analyze(&["verify", "--man=no"], &unit)?;
    ensure!(words.contains("OOMScoresAdjust"), "no mistake in {words}");
    Ok(())
}

#[test]
fn units_are_valid_and_confined() -> Result<()> {
    if find_program("systemd-analyze").is_none()
        && let Err(error) = ensure_packages(&["systemd"])
    {
        println!(
            "SKIPPED: this machine has no systemd-analyze, and so no systemd that could read the units: {error:#}"
        );
        return Ok(());
    }
    for name in ["berth-agent.service", "berth-firstboot.service"] {
        let shipped = workspace_root().join("systemd").join(name);
        let text = std::fs::read_to_string(&shipped)?;
        ensure!(text.contains("ExecStart=/usr/bin/berth-agent"), "{name}: {text}");
        let scratch = Scratch::new("berth-units-")?;
        let unit = scratch.path().join(name);
        // systemd-analyze checks that the program exists.
        let text = text.replace("ExecStart=/usr/bin/berth-agent", "ExecStart=/bin/true");
        std::fs::write(&unit, &text)?;
        let words = analyze(&["verify", "--man=no"], &unit)?;
        ensure!(!words.contains(name), "{words}");
        std::fs::write(&unit, text.replace("ProtectSystem=", "ProtectSystems="))?;
        let words = analyze(&["verify", "--man=no"], &unit)?;
        ensure!(words.contains("ProtectSystems"), "no mistake in {words}");

        let words = analyze(&["security", "--offline=true", "--no-pager"], &shipped)?;
        let last = words.lines().rfind(|line| line.contains("Overall exposure level"));
        let level = last.and_then(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
        let level = level.with_context(|| format!("no exposure in {words}"))?;
        println!("{name}: exposure {level}");
        ensure!(level <= EXPOSED, "{name}: {words}");
    }
    Ok(())
}
