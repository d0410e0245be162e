//! An OS image with the package `berth-agent`, built from `packaging/os-image.Containerfile` and booted on a real host: its
//! units are enabled and valid.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::hosts::HostLog;
use berth_tests::hosts::real::{HostOptions, OsImage, OsImages, OsVersion, RealHost, RealHosts};
use berth_tests::programs;
use berth_tests::scratch::Scratch;
use berth_tests::wait::eventually;
use berth_tests::{dist, packages};

use crate::rollout::{ONLY_IN_TEST_REAL, SELECTED};

const MINUTE: Duration = Duration::from_secs(60);
const AGENT: &str = "berth-agent.service";
/// Units that start at boot, and wait for a file.
const WAITING: [&str; 2] = ["berth-firstboot.service", "berth-rollback-guard.service"];
/// Last step of the Containerfile. The stand-in for bootc has no linter.
const LINT: &str = "\nRUN bootc container lint\n";

/// Makes the package, in the directory of the Containerfile's files.
fn make_package(scratch: &Path, context: &Path) -> Result<()> {
    let directory = scratch.join("programs");
    fs::create_dir(&directory)?;
    let mut strip = Command::new("strip");
    let strip = strip.arg(programs::static_agent()?).arg("-o");
    let status = strip.arg(directory.join("berth-agent")).status()?;
    ensure!(status.success(), "strip: {status}");
    fs::write(directory.join("kubectl-berth"), "not on hosts\n")?;
    packages::make(&directory, scratch)?;
    let package = packages::deb(scratch, "berth-agent");
    fs::create_dir(context)?;
    fs::rename(&package, context.join(package.file_name().context("no name")?))?;
    Ok(())
}

/// Builds the image on a plain one, as an image builder does. It is in `scratch`.
fn build(images: &OsImages, scratch: &Path) -> Result<OsImage> {
    let context = scratch.join("context");
    make_package(scratch, &context)?;
    let base = images.version(&OsVersion::new("1.0.0"))?;
    let text = programs::read("packaging/os-image.Containerfile")?;
    let steps = text.strip_suffix(LINT).context("the last step is not the linter")?;
    images.build_on(&base, steps, &context, scratch)
}

async fn show(host: &RealHost, unit: &str, property: &str) -> Result<String> {
    let property = format!("--property={property}");
    let text = host.exec(&["systemctl", "show", "--value", &property, unit]).await?;
    Ok(text.trim().to_owned())
}

async fn units_are_enabled(host: &RealHost) -> Result<()> {
    let others = ["zincati.service", "bootc-fetch-apply-updates.timer"];
    let expected = [
        (AGENT, "disabled"),
        (WAITING[0], "enabled"),
        (WAITING[1], "enabled"),
        (others[0], "masked"),
        (others[1], "masked"),
    ];
    for (unit, expected) in expected {
        let output = host.output(&["systemctl", "is-enabled", unit]).await?;
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(found == expected, "{unit} is {found}, not {expected}");
    }
    let required = show(host, "kubelet.service", "Requires").await?;
    ensure!(required.contains(WAITING[0]), "the kubelet requires {required}");
    Ok(())
}

/// systemd starts the two units at boot, and their conditions keep them from running.
async fn units_wait_for_their_files(host: &RealHost) -> Result<()> {
    for unit in WAITING {
        let is_checked = async || Ok(show(host, unit, "ConditionTimestampMonotonic").await? != "0");
        eventually(&format!("systemd starts {unit}"), MINUTE, is_checked).await?;
        let condition = show(host, unit, "ConditionResult").await?;
        let state = show(host, unit, "ActiveState").await?;
        ensure!(condition == "no" && state == "inactive", "{unit}: {condition}, {state}");
    }
    Ok(())
}

async fn units_are_valid(host: &RealHost) -> Result<()> {
    for unit in [AGENT, WAITING[0], WAITING[1]] {
        let output = host.output(&["systemd-analyze", "verify", "--man=no", unit]).await?;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let text = text.concat();
        ensure!(
            output.status.success() && text.is_empty(),
            "{unit}: {}: {text}",
            output.status
        );
    }
    Ok(())
}

async fn files_are_in_place(host: &RealHost) -> Result<()> {
    for path in [
        "/etc/berth",
        "/etc/ostree",
        "/run/berth",
        "/run/ostree",
        "/var/lib/berth",
    ] {
        host.exec(&["test", "-d", path]).await.context(path)?;
    }
    let checks = "/usr/lib/berth/health.d/required.d";
    host.exec(&[&format!("{checks}/40-storage")]).await?;
    host.exec(&["test", "-x", &format!("{checks}/10-kubelet")]).await?;
    let version = host.exec(&["berth-agent", "--version"]).await?;
    ensure!(version.contains(dist::VERSION), "{version}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_os_image_with_the_package_runs_its_units() -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    if std::env::var_os(SELECTED).is_none() {
        println!(
            "{ONLY_IN_TEST_REAL}an_os_image_with_the_package_runs_its_units: `make test` reads and installs the packages"
        );
        return Ok(());
    }
    let scratch = Scratch::new("berth-package-image-")?;
    let directory = scratch.path().to_owned();
    let (images, image) = tokio::task::spawn_blocking(move || -> Result<_> {
        let images = OsImages::ensure(None)?;
        let image = build(&images, &directory)?;
        Ok((images, image))
    })
    .await??;
    let hosts = RealHosts::new(images, HostLog::default()).await?;
    // Nothing is pulled.
    let host = hosts.add(HostOptions::new("host1", &image, "registry.invalid")).await?;
    host.start().await?;
    units_are_enabled(&host).await?;
    units_wait_for_their_files(&host).await?;
    units_are_valid(&host).await?;
    files_are_in_place(&host).await
}
