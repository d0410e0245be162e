//! `berth-controller`: see `--help`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use berth_controller::api::{self, Kube};
use berth_controller::check::check;
use berth_controller::cli::{Cli, Command};
use berth_controller::clock::Clock;
use berth_controller::events::writer::Events;
use berth_controller::firstboots::FirstBoots;
use berth_controller::leader::Candidate;
use berth_controller::metrics::Metrics;
use berth_controller::pulse::Pulse;
use berth_controller::readyz::Readyz;
use berth_controller::reconcile::{Outside, Reconciler};
use berth_controller::resolve::{Mounted, PullSecrets, RegistryConfig, Resolver};
use berth_controller::runtime::runtime;
use berth_controller::server_clock::ServerClock;
use berth_controller::store::Store;
use berth_shell::pages::{self, Page};
use berth_shell::{client, kubeconfig, log};
use clap::Parser;
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::start(cli.log_format, &cli.log_level);
    let runtime = runtime().context("cannot start threads");
    let ended = runtime.and_then(|runtime| match cli.command {
        Some(Command::Check) => runtime.block_on(run_check(&cli)),
        None => runtime.block_on(run(cli)),
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "berth-controller exits after an error");
            eprintln!("berth-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn config(cli: &Cli) -> anyhow::Result<Config> {
    Ok(match &cli.kubeconfig {
        Some(file) => {
            let kubeconfig = kubeconfig::read_named(file, "--kubeconfig")?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
        }
        None => Config::infer()
            .await
            .context("found neither a kubeconfig nor a pod's service account")?,
    })
}

/// Starts the servers for metrics and health probes. They also run while another controller leads.
async fn serve(cli: &Cli, metrics: &Metrics, pulse: &Pulse) -> anyhow::Result<()> {
    let (metrics, health) = (Page::Metrics(metrics.families()), Page::Health(Arc::new(pulse.clone())));
    pages::start([
        ("--metrics-address", cli.metrics_address.as_str(), metrics),
        ("--health-address", cli.health_address.as_str(), health),
    ])
    .await
}

fn registries(cli: &Cli, client: &Client) -> RegistryConfig {
    RegistryConfig {
        plain_http: cli.registry_plain_http.clone(),
        ca: cli.registry_ca.as_deref().map(Mounted::certificates),
        conf: cli.registries_conf.as_deref().map(Mounted::registries_conf),
        secrets: Some(PullSecrets::new(client.clone(), &cli.namespace)),
    }
}

fn identity(cli: &Cli) -> String {
    let name = cli.identity.clone();
    let name = name.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    let name = name.unwrap_or_default();
    format!("{}_{:08x}", name.trim(), fastrand::u32(..))
}

/// Prints the result of the check. Fails if anything is missing.
async fn run_check(cli: &Cli) -> anyhow::Result<()> {
    berth_shell::install_crypto();
    let config = config(cli).await?;
    let objections = check(client::client(config)?).await?;
    for objection in &objections {
        eprintln!("berth-controller: {objection}");
    }
    anyhow::ensure!(objections.is_empty(), "the installation is incomplete: see above");
    println!(
        "The API server has the CRDs and the admission policies of Berth {}.",
        env!("CARGO_PKG_VERSION")
    );
    Ok(())
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    berth_shell::install_crypto();
    let timing = cli.timing().map_err(anyhow::Error::msg)?;
    let config = config(&cli).await?;
    let client = client::client(api::settled(config.clone(), api::SILENCE_TIMEOUT))?;
    let server_clock = ServerClock::default();
    let client = server_clock.listening(&client);
    let (metrics, pulse) = (Metrics::default(), Pulse::default());
    serve(&cli, &metrics, &pulse).await?;
    let identity = identity(&cli);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stopped = async {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    tokio::pin!(stopped);

    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespace = %cli.namespace, "berth-controller starts");
    let candidate = Candidate::new(client.clone(), &cli.namespace, identity.clone(), timing, pulse);
    let (leadership, lease) = tokio::select! {
        won = candidate.acquire() => won,
        signal = &mut stopped => {
            tracing::info!(signal, "stopping");
            return Ok(());
        }
    };
    let mut renewals = candidate.renew(leadership.clone(), lease);
    let store = Store::watch(&client, &cli.namespace);
    metrics.leads();
    let outside = Outside {
        events: Events::start(client.clone(), &identity),
        metrics,
        readyz: Readyz::start(config, client.clone(), store.clone()),
        firstboots: FirstBoots::start(client.clone(), store.clone()),
        clock: Clock::new(cli.trust_clock),
        server_clock,
    };
    let registries = registries(&cli, &client);
    let kube = Kube::new(client, &cli.namespace, leadership.clone());
    let resolver = Resolver::new(registries, store.clone());
    let reconciler = Reconciler::new(kube, store, resolver, cli.settings(), outside);
    tokio::select! {
        lost = reconciler.run() => Err(lost.into()),
        lost = &mut renewals => Err(lost.context("the task that renews leadership ended")?.into()),
        signal = &mut stopped => {
            tracing::info!(signal, "stopping");
            renewals.abort();
            candidate.release(&leadership).await;
            Ok(())
        }
    }
}
