//! `make demo`: shows a rollout on hosts of the test harness. Installs nothing and leaves nothing behind but caches.

mod screen;
mod stage;
mod story;

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_tests::cluster::Published;
use berth_tests::programs;
use berth_tests::tools::{Tool, Tools};
use clap::{Parser, ValueEnum};
use jiff::Timestamp;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::screen::Screen;
use crate::stage::Stage;

const POOL: &str = "workers";
const HOSTS: usize = 3;
const PODS: usize = 6;
/// How long an interrupted demo waits for a build that still runs.
const GRACE: Duration = Duration::from_secs(2);

/// Shows a rollout: three hosts go from OS image 1.0.0 to 2.0.0, one at a time.
///
/// Brings up a control plane, a registry and hosts, all on this machine, updates the hosts while a table shows their state, and
/// finally lists what each host did and whether a berth licensed it. Stop it with Ctrl-C. Only the cache of built programs stays.
#[derive(Debug, Parser)]
#[command(
    name = "berth-demo",
    after_help = "EXIT STATUS\n  0  the rollout was completed and every reboot was licensed\n  1  it was not; standard error says why\n  2  the command line is wrong\n  130  interrupted"
)]
struct Arguments {
    /// Kind of the hosts.
    #[arg(long, value_enum, default_value_t = Hosts::Sim, value_name = "KIND")]
    hosts: Hosts,
    /// Also write the picture of the rollout to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Hosts {
    /// Simulated: the harness plays systemd and logind on a bus. Needs no root.
    Sim,
    /// Machines of systemd-nspawn with ostree deployments, containerd and a kubelet. Needs root.
    Real,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let end = runtime.block_on(async {
        let interrupted = interrupted();
        tokio::select! {
            // Dropping the demo ends everything it started.
            end = demo(arguments.hosts, arguments.svg.as_deref()) => Some(end),
            signal = interrupted => match signal {
                Ok(()) => None,
                Err(error) => Some(Err(error)),
            },
        }
    });
    // A build that still runs must not delay the end.
    runtime.shutdown_timeout(GRACE);
    match end {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => failed(&error),
        None => {
            eprintln!("\nInterrupted; everything the demo started was removed.");
            ExitCode::from(130)
        }
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("\nThe demo failed: {error:#}");
    ExitCode::FAILURE
}

async fn interrupted() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hangup.recv() => {} }
    Ok(())
}

async fn demo(hosts: Hosts, svg: Option<&Path>) -> Result<()> {
    if hosts == Hosts::Real
        && let Some(why) = berth_tests::hosts::real::unavailable()
    {
        bail!("{}", why.trim_start_matches("SKIPPED: "));
    }
    println!(
        "Berth: {HOSTS} {} hosts go from 1.0.0 to 2.0.0, one at a time.\n",
        hosts.adjective()
    );
    build().await?;
    let began = Instant::now();
    let stage = step(
        "control plane, registry, controller and hosts are up",
        Stage::start(hosts, HOSTS),
    )
    .await?;
    stage.say_hosts();
    let pods = format!("Deployment web runs {PODS} pods on the hosts");
    step(&pods, stage.site().deploy("web", PODS)).await?;
    let first = step(
        "image 1.0.0 is published; pool workers already runs it, so no host reboots",
        async { roll(&stage, "1.0.0", stage.limit()).await },
    )
    .await?;
    let second = step("image 2.0.0 is published", stage.publish("2.0.0")).await?;
    println!("\nThe admin changes one field: spec.image.ref of pool {POOL}, from :1.0.0 to :2.0.0\n");
    let from = Timestamp::now();
    stage
        .site()
        .patch_pool(POOL, json!({ "image": { "ref": second.reference } }))
        .await?;
    watch(&stage, &second).await?;
    let picture = screen::rollout(&stage.site().client(), POOL).await?;
    println!("Output of kubectl berth timeline {POOL}:\n");
    screen::print(&picture);
    if let Some(file) = svg {
        std::fs::write(file, picture.svg()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    story::print(stage.site(), from, HOSTS, &first.digest, &second.digest)?;
    println!(
        "\nThe demo took {:.0} s, not counting builds. It now removes everything it started.",
        began.elapsed().as_secs_f64()
    );
    tokio::task::spawn_blocking(move || drop(stage))
        .await
        .context("cannot remove what the demo started")
}

impl Hosts {
    fn adjective(self) -> &'static str {
        match self {
            Self::Sim => "simulated",
            Self::Real => "real",
        }
    }
}

/// Builds or finds the programs. The first build takes minutes and shows its progress; later runs reuse it.
async fn build() -> Result<()> {
    const WANTED: [Tool; 5] = [
        Tool::Etcd,
        Tool::KubeApiserver,
        Tool::KubeControllerManager,
        Tool::KubeScheduler,
        Tool::Registry,
    ];
    step(
        "berth-agent and berth-controller are built",
        blocking(|| programs::programs().map(drop)),
    )
    .await?;
    let servers = blocking(|| Tools::ensure(&WANTED).map(drop));
    step("etcd, the Kubernetes servers and a registry are ready", servers).await
}

async fn blocking(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    tokio::task::spawn_blocking(work).await.context("the build panicked")?
}

/// Runs a step, then prints its name and duration. On a terminal, also prints the name while the step runs.
async fn step<T>(what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let began = Instant::now();
    if std::io::stdout().is_terminal() {
        print!("{:>6}    {what}\r", "...");
        std::io::stdout().flush()?;
    }
    let done = work.await.with_context(|| format!("failed: {what}"))?;
    println!("{:>6.1} s  {what}", began.elapsed().as_secs_f64());
    Ok(done)
}

async fn roll(stage: &Stage, version: &str, limit: Duration) -> Result<Published> {
    let image = stage.publish(version).await?;
    // Progress as often as the API allows, for the table; an admin would leave it at 5s.
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": 2, "progressInterval": "1s" });
    stage.site().pool(POOL, &image.reference, rollout).await?;
    stage.until_all_run(&image, limit).await?;
    Ok(image)
}

async fn watch(stage: &Stage, image: &Published) -> Result<()> {
    let mut screen = Screen::new(stage.site().client());
    tokio::select! {
        end = stage.until_all_run(image, stage.limit()) => end?,
        end = screen.run() => end?,
    }
    screen.show().await
}
