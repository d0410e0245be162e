//! The shipped units, by systemd's own words: nothing in them is unknown to it, and they are as confined as their work allows.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_tests::programs::workspace_root;
use berth_tests::scratch::Scratch;
use berth_tests::tools::{ensure_packages, find_program};

/// Highest exposure that systemd may see, from 0 (none) to 10.
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
    ensure!(
        out.status.success(),
        "systemd-analyze {arguments:?} {}: {text}",
        unit.display()
    );
    Ok(text)
}

#[test]
fn systemd_knows_all_of_a_unit_and_calls_it_confined() -> Result<()> {
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
        // It looks whether the program is there.
        let text = text.replace("ExecStart=/usr/bin/berth-agent", "ExecStart=/bin/true");
        std::fs::write(&unit, &text)?;
        let words = analyze(&["verify", "--man=no"], &unit)?;
        ensure!(!words.contains(name), "{words}");
        std::fs::write(&unit, text.replace("ProtectSystem=", "ProtectSystems="))?;
        let words = analyze(&["verify", "--man=no"], &unit)?;
        ensure!(words.contains("ProtectSystems"), "a mistake is seen: {words}");

        let words = analyze(&["security", "--offline=true", "--no-pager"], &shipped)?;
        let last = words.lines().rfind(|line| line.contains("Overall exposure level"));
        let level = last.and_then(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
        let level = level.with_context(|| format!("no exposure in {words}"))?;
        println!("{name}: exposure {level}");
        ensure!(level <= EXPOSED, "{name}: {words}");
    }
    Ok(())
}
