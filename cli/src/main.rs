//! `kubectl berth`: what the pools are doing.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kubectl_berth::{Scope, Snapshot, previews, render, render_preview, views};

/// How long the API server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Shows what the pools of bootc nodes are doing.
///
/// A BootcNodePool says which OS image its nodes should run. This program shows how far each pool and each node
/// is, what a node waits for, and what would happen before it happens. It only reads.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-berth",
    bin_name = "kubectl berth",
    version,
    disable_help_subcommand = true,
    after_long_help = "\
EXAMPLES
  All pools, and where each node is:
      kubectl berth status

  What a change of the pool workers would do, and what blocks it:
      kubectl berth status workers --preview

  The table again every two seconds:
      watch -n 2 kubectl berth status

FILES
  ~/.kube/config
      Used unless --kubeconfig or the variable KUBECONFIG names another. Inside a pod
      without any of these: the pod's service account.

EXIT STATUS
  0  Done.
  1  The cluster could not be read; standard error says why.
  2  The command line is wrong.

SEE ALSO
  kubectl get bootcnodepools, kubectl get bootcnodes, kubectl get leases -n berth-system"
)]
struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    #[command(subcommand)]
    command: Command,
}

/// Which cluster.
#[derive(Debug, Args)]
struct Cluster {
    /// File with the cluster's address and your credentials.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that file; its current one if not given.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Namespace that Berth is installed in.
    #[arg(long, global = true, value_name = "NAME", default_value = berth_api::keys::NAMESPACE)]
    namespace: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what pools and nodes are doing.
    ///
    /// For each pool: its image and what that is resolved to, how many nodes run it, who holds its berths, what it
    /// waits for since when, and the conditions that need a look. For each node: its phase, the version that it
    /// booted, the version that it should run, since when it is in that phase, how far its pull is, and a message:
    /// what failed and when it is tried again, which pod holds up the drain, why nothing happens, or how its last
    /// turn ended.
    ///
    /// Versions are the images' version labels; an image without one shows the first digits of its digest, and two
    /// images of the same version show both.
    #[command(long_about)]
    Status(Status),
    /// Print the version of this program and of the API that it reads.
    Version,
}

#[derive(Debug, Args)]
struct Status {
    /// Show this pool only.
    pool: Option<String>,
    /// Show what would happen instead: which nodes would go, to what, in which order, and what blocks.
    ///
    /// Names what blocks a whole pool (it is paused, its image is not resolved, nodes that are NotReady, cordoned
    /// or at work use up its capacity) and what blocks one node (two pools select it, it has not staged the image,
    /// the digest failed there before, its agent is silent). A pool that is paused when its image is changed can
    /// be looked at like this, with everything staged, before anything reboots.
    #[arg(long)]
    preview: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people, as wide as the terminal.
    Table,
    /// For programs: the same facts as JSON.
    Json,
}

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
