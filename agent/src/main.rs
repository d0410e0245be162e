//! `berth-agent`: see `berth-agent --help`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use berth_agent::cli::{Args, Command, NodeIdentity};
use berth_agent::clients::{self, OwnClient};
use berth_agent::firstboot;
use berth_agent::host::{AuthSource, Host, HostRoot};
use berth_agent::kubelet::KubeletClient;
use berth_agent::metrics::Metrics;
use berth_agent::own_token;
use berth_agent::ready::{self, ReadyFile};
use berth_agent::removal;
use berth_agent::run::{Agent, Setup};
use berth_api::NodeName;
use berth_shell::log;
use berth_shell::pages::{self, Page};
use berth_shell::retry::{self, Retryable};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Ready { file, within }) = &args.command {
        return match ready::check(file, Duration::from_secs(*within)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    log::start(args.log_format, &args.log_level);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    let ended = match args.command {
        Some(Command::Firstboot {
            dry_run,
            config,
            bus,
            host_root,
        }) => {
            let setup = firstboot::Setup {
                root: HostRoot::new(host_root),
                bus,
                config,
                dry_run,
            };
            return runtime.block_on(first_boot(&setup));
        }
        Some(Command::Remove {
            bus,
            host_root,
            ready_file,
        }) => {
            let setup = removal::Setup {
                root: HostRoot::new(host_root),
                bus,
                ready_file,
            };
            runtime.block_on(remove(&setup))
        }
        _ => runtime.block_on(start(args)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "berth-agent stops because of an error");
            ExitCode::FAILURE
        }
    }
}

/// Removes Berth from the host. Ends on SIGTERM or SIGINT.
async fn remove(setup: &removal::Setup) -> Result<()> {
    let stop = stopped()?;
    tokio::select! {
        () = stop => anyhow::bail!("stopped by a signal"),
        removed = removal::run(setup) => removed,
    }
}

/// Runs the first-boot check. Returns a failure on SIGTERM. systemd also sends SIGTERM after the check has requested a
/// reboot.
async fn first_boot(setup: &firstboot::Setup) -> ExitCode {
    berth_shell::install_crypto();
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return ExitCode::FAILURE;
    };
    tokio::select! {
        _ = terminate.recv() => ExitCode::FAILURE,
        status = firstboot::run(setup) => status,
    }
}

async fn start(args: Args) -> Result<()> {
    let mut stop = std::pin::pin!(stopped()?);
    let node = NodeName::new(args.node_name.clone().context("--node-name is missing")?);
    tracing::info!(
        %node,
        version = env!("CARGO_PKG_VERSION"),
        "berth-agent starts"
    );
    if args.experimental_composefs {
        tracing::warn!(
            "--experimental-composefs is ignored, because composefs hosts are updated without it. Remove it from the agent's \
             arguments: a later release will reject it"
        );
    }
    let setup = async {
        berth_shell::install_crypto();
        let root = HostRoot::new(&args.host_root);
        // Notify systemd now, so that it counts the agent as started even while the agent waits for another agent to
        // end.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let auth = AuthSource {
            path: args.auth_file.clone(),
            replace: args.replace_auth_file,
        };
        let host = Host::connect(args.bus.as_deref(), root)
            .await
            .context("cannot reach the host's system bus")?
            .with_auth(auth)
            .with_allowed_registries(args.allowed_registries.clone());
        let ready = ReadyFile::new(args.ready_file.clone())?;
        tokio::select! {
            // Poll the claim of the lock first, so that an agent that finds the lock free does not report a wait.
            biased;
            claimed = host.claim() => claimed.context("cannot take the host's lock")?,
            never = ready.while_waiting() => match never {},
        }
        // A wait for the lock may have made this agent ready. From now on, only a pass of its loop makes it ready.
        ready.forget()?;
        let metrics = Metrics::default();
        serve(&args, &metrics, &ready).await;
        let own = own_client(&args).await?;
        let kubelet = kubelet_client(&args, &host, &own, &node)?;
        let heartbeat = Duration::from_secs(args.heartbeat);
        let namespace = args.namespace.clone();
        Agent::new(Setup {
            node,
            host,
            client: own.client,
            kubelet,
            namespace,
            heartbeat,
            trust_clock: args.trust_clock,
            ready,
            metrics,
        })
    };
    let agent = tokio::select! {
        () = &mut stop => return Ok(()),
        agent = setup => agent?,
    };
    agent.run(stop).await
}

/// Serves metrics and probes, if their addresses are set. If an address cannot be used, only logs the error, because
/// the node's updates do not need the address.
async fn serve(args: &Args, metrics: &Metrics, ready: &ReadyFile) {
    let (metrics, health) = (
        Page::Metrics(metrics.families()),
        Page::Health(Arc::new(ready.health())),
    );
    for page in [
        ("--metrics-address", args.metrics_address.as_str(), metrics),
        ("--health-address", args.health_address.as_str(), health),
    ] {
        if let Err(error) = pages::start([page]).await {
            let error = format!("{error:#}");
            tracing::error!(
                error,
                "cannot serve metrics or probes on this address; choose another address, or stop the process that uses it"
            );
        }
    }
}

fn stopped() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
}

/// Returns a client with the agent's own identity. Retries, because the identity's files may appear late on a machine's
/// first boot, or be incomplete for a moment.
async fn own_client(args: &Args) -> Result<OwnClient> {
    let delays = retry::delays(Duration::from_millis(500), Duration::from_secs(10));
    (|| load_client(args))
        .retry(delays)
        .notify(|error, wait| {
            let (error, wait_ms) = (format!("{error:#}"), wait.as_millis() as u64);
            tracing::warn!(error, wait_ms, "cannot load the agent's credentials yet; retrying");
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        })
        .await
}

async fn load_client(args: &Args) -> Result<OwnClient> {
    match (&args.kubeconfig, args.node_identity) {
        (Some(path), _) => own_token::renewing_client(path, &args.host_root).await,
        (None, NodeIdentity::Kubeconfig) => clients::pod_client(&args.kubelet_kubeconfig, &args.host_root).await,
        (None, NodeIdentity::Impersonate) => clients::in_cluster_client(),
    }
}

/// Returns the client with the kubelet's identity.
fn kubelet_client(args: &Args, host: &Host, own: &OwnClient, node: &NodeName) -> Result<KubeletClient> {
    match args.node_identity {
        NodeIdentity::Kubeconfig => {
            let programs = host.credential_programs();
            Ok(KubeletClient::new(&args.kubelet_kubeconfig, &args.host_root, programs))
        }
        NodeIdentity::Impersonate => KubeletClient::impersonating(own, node).context("cannot use --node-name"),
    }
}
