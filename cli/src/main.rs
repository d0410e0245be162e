//! `kubectl berth`: what the pools are doing.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kubectl_berth::arguments::{Arguments, Cluster, Command, Output, Status};
use kubectl_berth::{Scope, Snapshot, previews, render, render_preview, views};

/// How long the API server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(text) => written(&text),
        Err(error) => {
            eprintln!("kubectl berth: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A reader that has seen enough (`| head`) is no failure.
fn written(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

async fn run(arguments: &Arguments) -> Result<String> {
    match &arguments.command {
        Command::Version => Ok(format!(
            "kubectl-berth {}\n{}/{}\n",
            env!("CARGO_PKG_VERSION"),
            berth_api::keys::GROUP,
            berth_api::keys::VERSION
        )),
        Command::Status(what) => status(&arguments.cluster, what).await,
    }
}

async fn status(cluster: &Cluster, what: &Status) -> Result<String> {
    let client = client(cluster).await?;
    let scope = if what.preview { Scope::Preview } else { Scope::Status };
    let read = Snapshot::read(&client, &cluster.namespace, scope);
    let mut snapshot = tokio::time::timeout(TIMEOUT, read)
        .await
        .with_context(|| format!("no answer from the API server within {} s", TIMEOUT.as_secs()))??;
    if let Some(pool) = &what.pool {
        let names: Vec<_> = snapshot.pools.iter().filter_map(|p| p.metadata.name.clone()).collect();
        if !names.contains(pool) {
            bail!("there is no pool {pool:?}; there are: {}", names.join(", "));
        }
        snapshot.only = Some(pool.clone());
    }
    let (now, width) = (Timestamp::now(), width());
    let json = |value| Ok::<_, anyhow::Error>(serde_json::to_string_pretty(&value)? + "\n");
    match (what.output, what.preview) {
        (Output::Table, false) => Ok(render(&snapshot, now, width)),
        (Output::Table, true) => Ok(render_preview(&snapshot, now, width)),
        (Output::Json, false) => json(serde_json::to_value(views(&snapshot, now))?),
        (Output::Json, true) => json(serde_json::to_value(previews(&snapshot, now))?),
    }
}

/// The terminal's width; into a file or a pipe nothing is cut.
fn width() -> usize {
    let terminal = std::io::stdout().is_terminal().then(terminal_size::terminal_size);
    terminal.flatten().map_or(0, |(width, _)| usize::from(width.0))
}

async fn client(cluster: &Cluster) -> Result<Client> {
    // kube's own choice of a TLS provider would panic if a second one were ever compiled in.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = KubeConfigOptions { context: cluster.context.clone(), ..KubeConfigOptions::default() };
    let config = match (&cluster.kubeconfig, &cluster.context) {
        (Some(file), _) => {
            let file = Kubeconfig::read_from(file)?;
            Config::from_custom_kubeconfig(file, &options).await?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await?,
        (None, None) => Config::infer().await.context("no cluster to ask; name one with --kubeconfig")?,
    };
    Ok(Client::try_from(config)?)
}
