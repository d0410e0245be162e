//! `berth-agent firstboot`: compares the machine with its target before the kubelet runs. [`berth_core::firstboot`]
//! makes the decisions; this module reads, waits and acts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::boot_image::NodeBootImage;
use berth_core::firstboot::config::{self, Config};
use berth_core::firstboot::node::Signs;
use berth_core::firstboot::{self as decide, Answer, Booted, Inputs, PivotError, Record, Step, Target, Verdict};
use berth_core::skew::aleph::PLACES;
use berth_shell::retry;
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use crate::host::{Host, HostRoot, files};

mod node;
mod notify;
mod pivot;
pub mod record;
mod retries;

use node::is_node;
use record::RecordFile;
use retries::{RETRY_MAX, RETRY_MIN, read_with_retries};

/// Exit status if the check refuses the machine and keeps its kubelet from starting.
pub const REFUSED: u8 = 3;
/// Exit status for an invalid configuration.
const WRONG: u8 = 2;

const ASK_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of one run.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Root of the host's files.
    pub root: HostRoot,
    /// D-Bus address of the host's system bus. `None` for its socket under the root.
    pub bus: Option<String>,
    /// The configuration file, as the host sees it.
    pub config: PathBuf,
    /// Print what would be done, but do nothing.
    pub dry_run: bool,
}

struct Run<'a> {
    setup: &'a Setup,
    config: &'a Config,
    host: Host,
    file: RecordFile,
    record: Option<Record>,
    boot_image: Option<NodeBootImage>,
    answer: Answer,
    booted: Booted,
    trouble: Option<PivotError>,
    /// Number of queries to the registry. The field `tried` is the number of attempts to switch to the target.
    asked: u32,
    tried: u32,
    begin: Timestamp,
    give_up: Instant,
}

/// Runs the check until it ends. Does not return if the machine reboots into the target.
pub async fn run(setup: &Setup) -> ExitCode {
    let file = RecordFile::new(&setup.root);
    let record = file.load();
    if record.as_ref().is_some_and(|record| record.finished) && !setup.dry_run {
        return ExitCode::SUCCESS;
    }
    // Checked before the configuration is read, because a machine that is already a node may have none.
    if is_node(&setup.root, &Signs::default()) && !setup.dry_run {
        return leave_alone(setup, &file, record);
    }
    let config = match read_config(setup) {
        Ok(config) => config,
        Err(error) => {
            let verdict = Verdict::invalid_config(&format!("{error:#}"));
            return could_not_begin(setup, None, &file, verdict, WRONG);
        }
    };
    if is_node(&setup.root, &config.signs) && !setup.dry_run {
        return leave_alone(setup, &file, record);
    }
    let give_up = Instant::now() + config.deadline;
    let host = match connect(setup, give_up).await {
        Ok(host) => host,
        Err(error) => {
            let verdict = Verdict::host_failed(&format!("{error:#}"));
            return could_not_begin(setup, Some(&config), &file, verdict, 1);
        }
    };
    // Another run may have held the lock and finished the check.
    let record = file.load();
    if record.as_ref().is_some_and(|record| record.finished) && !setup.dry_run {
        return ExitCode::SUCCESS;
    }
    let mut run = Run {
        setup,
        config: &config,
        host,
        file,
        record,
        boot_image: None,
        answer: Answer::NotAsked,
        booted: Booted::Unknown("not read yet".to_owned()),
        trouble: None,
        asked: 0,
        tried: 0,
        begin: Timestamp::now(),
        give_up,
    };
    run.look().await;
    run.run_to_end().await
}

fn read_config(setup: &Setup) -> Result<Config> {
    let path = setup.root.path(&setup.config);
    let content = files::read_bounded(&path, config::MAX_LENGTH);
    let content = content.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Config::parse(&content)?)
}

async fn connect(setup: &Setup, give_up: Instant) -> Result<Host> {
    let connected = timeout_at(give_up, Host::connect(setup.bus.as_deref(), setup.root.clone())).await;
    let host = connected.context("the host's system bus did not answer in time")??;
    if !setup.dry_run {
        // Only the holder of the host's lock may change the host.
        let claimed = timeout_at(give_up, host.claim()).await;
        claimed.context("another agent holds this host's lock, /run/berth/lock")??;
    }
    Ok(host)
}

/// Ends the run on a machine that is already a node. Does not wait for the host's lock, because the node's agent holds
/// that lock.
fn leave_alone(setup: &Setup, file: &RecordFile, record: Option<Record>) -> ExitCode {
    match record {
        Some(mut record) => {
            record.finished = true;
            save(file, &record);
            ExitCode::SUCCESS
        }
        None => could_not_begin(setup, None, file, Verdict::not_first_boot(), 0),
    }
}

/// Ends a run that cannot start the check: the machine is already a node, the configuration is invalid, or the host
/// cannot be reached.
fn could_not_begin(
    setup: &Setup,
    config: Option<&Config>,
    file: &RecordFile,
    verdict: Verdict,
    status: u8,
) -> ExitCode {
    let before = file.load();
    let before = before.as_ref();
    if before.is_some_and(|record| record.finished) && !setup.dry_run {
        return ExitCode::SUCCESS;
    }
    let signs = config.map(|config| config.signs.clone()).unwrap_or_default();
    let mut verdict = if is_node(&setup.root, &signs) {
        verdict
    } else {
        verdict.unless_refused(before)
    };
    let override_file = config.map_or(Path::new(config::OVERRIDE_FILE), |config| &config.override_file);
    if setup.root.path(override_file).exists() {
        verdict = verdict.overridden_by(override_file);
    }
    println!("{}: {}", verdict.outcome.as_str(), verdict.message());
    if !setup.dry_run {
        notify::locally(&setup.root, config, &verdict);
        save(file, &decide::record_of_failure(before, &verdict, Timestamp::now()));
        if let Some(config) = config {
            notify_cluster(&setup.root, config, &verdict);
        }
    }
    ExitCode::from(if verdict.holds { REFUSED } else { status })
}

/// Writes an event in the cluster if the outcome needs attention and the configuration names a kubeconfig.
fn notify_cluster(root: &HostRoot, config: &Config, verdict: &Verdict) {
    let Some(kubeconfig) = config.kubeconfig.as_ref().filter(|_| verdict.outcome.is_trouble()) else {
        return;
    };
    let node = config.node_name.clone().unwrap_or_else(|| host_name(root));
    if let Err(error) = notify::cluster(&root.path(kubeconfig), &node, verdict) {
        tracing::warn!(error = format!("{error:#}"), "cannot write an event in the cluster");
    }
}

fn host_name(root: &HostRoot) -> String {
    let name = files::small_text(&root.path("/proc/sys/kernel/hostname"));
    name.unwrap_or_default().trim().to_lowercase()
}

fn save(file: &RecordFile, record: &Record) {
    if let Err(error) = file.save(record) {
        tracing::error!(
            error = format!("{error:#}"),
            "cannot record the outcome of the first boot"
        );
    }
}

impl Run<'_> {
    /// Reads the facts that do not change during a run: the boot image and the booted digest. The digest is read only
    /// if the configuration asks for a switch to the target, or an earlier run has begun a switch.
    async fn look(&mut self) {
        let found = read_with_retries(self.give_up, async || self.host.boot_image().await).await;
        // If the boot image cannot be read, report the error instead of a missing boot image.
        self.boot_image = found.unwrap_or_else(|why| {
            Some(NodeBootImage {
                source: PLACES[0].to_owned(),
                error: Some(why),
                ..NodeBootImage::default()
            })
        });
        let was_going = self.record.as_ref().is_some_and(|record| record.pivots_to.is_some());
        if self.config.pivot || was_going {
            let booted = read_with_retries(self.give_up, async || pivot::booted(&self.host).await).await;
            self.booted = booted.unwrap_or_else(Booted::Unknown);
        }
    }

    fn facts(&self) -> Inputs<'_> {
        let root = &self.setup.root;
        Inputs {
            config: self.config,
            record: self.record.as_ref(),
            is_node: is_node(root, &self.config.signs),
            is_overridden: root.path(&self.config.override_file).exists(),
            boot_image: self.boot_image.as_ref(),
            answer: &self.answer,
            booted: &self.booted,
            pivot_error: self.trouble.as_ref(),
            is_late: Instant::now() >= self.give_up,
        }
    }

    async fn run_to_end(&mut self) -> ExitCode {
        loop {
            match decide::next(&self.facts()) {
                Step::Done => {
                    self.close();
                    return ExitCode::SUCCESS;
                }
                Step::Ask => self.ask().await,
                Step::Pivot(target, verdict) if self.setup.dry_run => {
                    println!(
                        "would update to {} ({}): {}",
                        self.config.image,
                        target.digest,
                        verdict.message()
                    );
                    return ExitCode::SUCCESS;
                }
                Step::Pivot(target, verdict) => self.pivot(&target, &verdict).await,
                Step::End(verdict) => return self.end(&verdict),
            }
        }
    }

    async fn ask(&mut self) {
        self.pause(self.asked).await;
        let left = self.give_up.saturating_duration_since(Instant::now());
        self.answer = self.host.look_up(&self.config.image, left.min(ASK_TIMEOUT)).await;
        self.asked = self.asked.saturating_add(1);
        if let Answer::HostFailed(why) | Answer::Away(why) | Answer::Withheld(why) = &self.answer {
            tracing::warn!(why, asked = self.asked, image = %self.config.image, "cannot get the target image from the registry");
        }
    }

    /// Waits before the next attempt: longer after more failures, but not past the deadline.
    async fn pause(&self, failures: u32) {
        if failures > 0 {
            let wait = retry::delay(failures, RETRY_MIN, RETRY_MAX);
            tokio::time::sleep_until(self.give_up.min(Instant::now() + wait)).await;
        }
    }

    async fn pivot(&mut self, target: &Target, verdict: &Verdict) {
        self.pause(self.tried).await;
        self.tried = self.tried.saturating_add(1);
        tracing::info!(image = %self.config.image, digest = %target.digest, "updating the machine to the target image");
        let staged = pivot::stage(&self.host, &self.config.image, target, self.give_up).await;
        let trouble = match staged {
            Ok(()) => self.reboot_into(target, verdict).await,
            Err(trouble) => {
                pivot::disarm(&self.host, target).await;
                trouble
            }
        };
        tracing::warn!(why = trouble.message, "the machine was not updated to the target image");
        self.trouble = Some(trouble);
    }

    /// Writes the record, then reboots. After the reboot, the record explains why the target runs.
    async fn reboot_into(&mut self, target: &Target, verdict: &Verdict) -> PivotError {
        let record = decide::record(
            &self.facts(),
            verdict,
            Some(&target.digest),
            self.begin,
            Timestamp::now(),
        );
        if let Err(error) = self.file.save(&record) {
            pivot::disarm(&self.host, target).await;
            return PivotError {
                message: format!("{error:#}"),
                is_final: true,
            };
        }
        self.record = Some(record);
        pivot::reboot(&self.host, target, &self.config.signs).await
    }

    /// Marks the check as finished, because the machine has become a node. A dry run only prints that the check has
    /// ended.
    fn close(&mut self) {
        let Some(mut record) = self.record.take() else {
            return;
        };
        if self.setup.dry_run {
            println!(
                "nothing to do: the first-boot check of this machine has already ended ({})",
                record.status.outcome.as_str()
            );
        } else if !record.finished {
            record.finished = true;
            save(&self.file, &record);
        }
    }

    fn end(&mut self, verdict: &Verdict) -> ExitCode {
        println!("{}: {}", verdict.outcome.as_str(), verdict.message());
        let status = if verdict.holds { REFUSED } else { 0 };
        if self.setup.dry_run {
            return ExitCode::from(status);
        }
        notify::locally(&self.setup.root, Some(self.config), verdict);
        // Show the notice before writing the record: after a crash in between, the next run shows the notice again. In
        // the other order, a crash would suppress the notice.
        let record = decide::record(&self.facts(), verdict, None, self.begin, Timestamp::now());
        save(&self.file, &record);
        notify_cluster(&self.setup.root, self.config, verdict);
        ExitCode::from(status)
    }
}

#[cfg(test)]
mod tests;
