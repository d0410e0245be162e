//! Power cuts during a first boot that changes the machine to its target: the shipped program on a simulated host. The
//! machine always comes back as it was, and the next check tries again and reaches the target.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::LONG;
use berth_tests::hosts::HostLog;
use berth_tests::hosts::sim::settings::RebootFault;
use berth_tests::hosts::sim::{Catalog, CatalogImage, SimHost, SimHostConfig};
use berth_tests::images::Image;
use berth_tests::programs;
use berth_tests::registry::Registry;
use serde_json::Value;
use tokio::process::{Child, Command};

/// Duration of each host command before the power fails, so that the test has time to cut the power between two
/// commands.
const SLOW: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

struct Machine {
    host: SimHost,
    agent: PathBuf,
    first: String,
    target: String,
    _registry: Registry,
}

impl Machine {
    /// Starts a machine that runs 1.0.0, with 2.0.0 as its target.
    async fn start() -> Result<Self> {
        let programs = tokio::task::spawn_blocking(programs::programs).await??;
        let registry = Registry::start_local().await?;
        let image = Image::tiny_os("2.0.0", b"2.0.0")?;
        registry.client().push_image("os", Some("stable"), &image).await?;
        let catalog = Catalog::default();
        let first = catalog.publish("1.0.0");
        let target = image.digest.to_string();
        catalog.insert(&target, CatalogImage::new("2.0.0"));
        let config = SimHostConfig::new("node1", "registry.test/os", &first, &catalog, &HostLog::default());
        let host = SimHost::start(config).await?;
        let config = host.root().join("etc/berth/firstboot.toml");
        fs::create_dir_all(config.parent().context("a file without a directory")?)?;
        fs::write(
            config,
            format!("image = \"{}/os:stable\"\npivot = true\n", registry.host()),
        )?;
        host.settings(|s| (s.reboot_time, s.command_time) = (Duration::from_millis(50), SLOW));
        Ok(Self {
            host,
            agent: programs.agent,
            first,
            target,
            _registry: registry,
        })
    }

    fn check(&self) -> Result<Child> {
        let mut command = Command::new(&self.agent);
        command.args(["firstboot", "--bus", &self.host.bus_address(), "--host-root"]);
        command.arg(self.host.root()).stdin(Stdio::null()).kill_on_drop(true);
        command
            .spawn()
            .with_context(|| format!("cannot start {}", self.agent.display()))
    }

    fn record(&self) -> Option<Value> {
        let text = fs::read_to_string(self.host.root().join("var/lib/berth/firstboot.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// True if the record says that the check is about to reboot into the target.
    fn is_recorded(&self) -> bool {
        self.record().is_some_and(|record| record["pivotsTo"] == *self.target)
    }

    /// True if a shutdown would apply the target.
    fn is_armed(&self) -> bool {
        let facts = self.host.facts();
        facts.staged.as_ref() == Some(&self.target) && !facts.locked
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let begin = Instant::now();
        while !is_so() {
            ensure!(
                begin.elapsed() < LONG,
                "not in time: {what}; {:?}, {:?}",
                self.host.facts(),
                self.record()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    fn is_up_again(&self, before: &Option<String>) -> bool {
        let boot = self.host.facts().boot_id;
        boot.is_some() && boot != *before
    }

    /// Checks that the machine still runs its first image, and that the next check reaches the target. `tries` is the
    /// expected total number of tries.
    async fn arrives(&self, tries: u64) -> Result<()> {
        let facts = self.host.facts();
        ensure!(facts.booted == self.first && facts.staged.is_none(), "{facts:?}");
        self.host.settings(|s| {
            s.command_time = Duration::from_millis(2);
            s.reboot = RebootFault::Works;
        });
        let check = self.check()?;
        self.until("the boot into the target", || self.is_up_again(&facts.boot_id))
            .await?;
        drop(check);
        let boot = self.host.facts().boot_id;
        let status = tokio::time::timeout(LONG, self.check()?.wait()).await;
        let status = status.context("the check does not end")??;
        ensure!(status.success(), "the check on the target ends with {status}");
        let (facts, record) = (self.host.facts(), self.record().context("no record")?);
        ensure!(facts.booted == self.target && facts.boot_id == boot, "{facts:?}");
        let is_over = record["finished"] == true && record["status"]["pivoted"] == true;
        ensure!(is_over && record["status"]["outcome"] == "Allowed", "{record:#}");
        ensure!(record["pivots"] == tries, "{record:#}");
        Ok(())
    }

    /// Runs a check, and cuts the power as soon as the condition is true.
    async fn cut_when(&self, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let check = self.check()?;
        self.until(what, is_so).await?;
        self.host.power_cut().await?;
        drop(check);
        Ok(())
    }
}

#[tokio::test]
async fn a_power_cut_while_the_target_is_pulled() -> Result<()> {
    let machine = Machine::start().await?;
    machine
        .cut_when("the target is staged", || machine.host.facts().staged.is_some())
        .await?;
    machine.arrives(1).await
}

#[tokio::test]
async fn a_power_cut_between_the_record_and_the_unlock() -> Result<()> {
    let machine = Machine::start().await?;
    machine
        .cut_when("the try is recorded", || machine.is_recorded())
        .await?;
    machine.arrives(2).await
}

#[tokio::test]
async fn a_power_cut_between_the_unlock_and_the_reboot() -> Result<()> {
    let machine = Machine::start().await?;
    machine
        .cut_when("the target is unlocked", || machine.is_recorded() && machine.is_armed())
        .await?;
    machine.arrives(2).await
}

#[tokio::test]
async fn a_power_cut_between_the_reboot_and_the_finalization() -> Result<()> {
    let machine = Machine::start().await?;
    // logind accepts the request, and the power fails before the shutdown finalizes anything.
    machine.host.settings(|s| s.reboots_lost = 1);
    machine
        .cut_when("the reboot is asked for", || {
            machine.host.settings(|s| s.reboots_lost == 0)
        })
        .await?;
    machine.arrives(2).await
}

#[tokio::test]
async fn a_finalization_that_fails() -> Result<()> {
    let machine = Machine::start().await?;
    machine.host.settings(|s| s.finalization_failures = 1);
    let before = machine.host.facts().boot_id;
    let check = machine.check()?;
    machine.until("the next boot", || machine.is_up_again(&before)).await?;
    drop(check);
    machine.arrives(2).await
}
