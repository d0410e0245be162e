//! `kubectl berth`: shows the state of the pools, and carries out the commands of an admin.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_shell::request::within;
use clap::Parser;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kubectl_berth::admin::{self, Answer, NoPlan, Plan};
use kubectl_berth::arguments::{
    Arguments, Cluster, Command, Consent, Details, History, NodeStory, Output, Status, Timeline,
};
use kubectl_berth::{
    Scope, Snapshot, insights, node_history, picture, pool_history, previews, render, render_insights, render_preview,
    render_story, story, views,
};

/// Longest time that the API server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Exit status when nobody can be asked and --yes is not given.
const NOBODY_TO_ASK: u8 = 2;
/// Exit status when the admin did not say yes.
const DECLINED: u8 = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(Outcome::Done(text)) => written(&text),
        Ok(Outcome::NobodyToAsk) => {
            eprintln!(
                "kubectl berth: standard input is no terminal, so nobody can be asked: add --yes to go on without, or \
                 --dry-run to see what would be done"
            );
            ExitCode::from(NOBODY_TO_ASK)
        }
        Ok(Outcome::Declined) => {
            eprintln!("Nothing was changed.");
            ExitCode::from(DECLINED)
        }
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

/// Result of a command.
enum Outcome {
    /// Success, with this text to print.
    Done(String),
    /// Nobody can be asked.
    NobodyToAsk,
    /// The admin did not say yes.
    Declined,
}

async fn run(arguments: &Arguments) -> Result<Outcome> {
    let cluster = &arguments.cluster;
    match &arguments.command {
        Command::Version => Ok(Outcome::Done(format!(
            "kubectl-berth {}\n{}/{}\n",
            env!("CARGO_PKG_VERSION"),
            berth_api::keys::GROUP,
            berth_api::keys::VERSION
        ))),
        Command::Status(what) => status(cluster, what).await.map(Outcome::Done),
        Command::Node(of) => node(cluster, of).await.map(Outcome::Done),
        Command::Timeline(of) => timeline(cluster, of).await.map(Outcome::Done),
        Command::History(of) => history(cluster, of).await.map(Outcome::Done),
        Command::Exclude(of) if of.undo => {
            carry_out(cluster, of.consent, |s, now| admin::include(s, &of.node, now)).await
        }
        Command::Exclude(of) => carry_out(cluster, of.consent, |s, now| admin::exclude(s, &of.node, now)).await,
        Command::Include(of) => carry_out(cluster, of.consent, |s, now| admin::include(s, &of.node, now)).await,
        Command::Release(of) => carry_out(cluster, of.consent, |s, now| admin::release(s, &of.node, now)).await,
        Command::Retry(of) => carry_out(cluster, of.consent, |s, now| admin::retry(s, &of.pool, now)).await,
        Command::Poll(of) => {
            let client = client(cluster).await?;
            admin::poll(&client, &of.pool, of.timeout).await.map(Outcome::Done)
        }
        Command::Approve(of) if of.print => {
            let snapshot = read(&client(cluster).await?, cluster, Scope::Admin).await?;
            let plan = admin::approve(&snapshot, &of.pool, Timestamp::now())?;
            admin::print(&plan).map(Outcome::Done).map_err(anyhow::Error::msg)
        }
        Command::Approve(of) => carry_out(cluster, of.consent, |s, now| admin::approve(s, &of.pool, now)).await,
    }
}

/// Says what will be done, asks, and does it.
async fn carry_out(
    cluster: &Cluster,
    consent: Consent,
    decide: impl FnOnce(&Snapshot, Timestamp) -> Result<Plan, NoPlan>,
) -> Result<Outcome> {
    if !consent.yes && !consent.dry_run && !std::io::stdin().is_terminal() {
        return Ok(Outcome::NobodyToAsk);
    }
    let client = client(cluster).await?;
    let snapshot = read(&client, cluster, Scope::Admin).await?;
    let plan = decide(&snapshot, Timestamp::now())?;
    let text = plan.render();
    if consent.dry_run || plan.is_empty() {
        return Ok(Outcome::Done(text));
    }
    // On its way before the question, and before anything is done.
    std::io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| std::io::stdout().flush())?;
    if !consent.yes && admin::ask(&mut std::io::stdin().lock(), &mut std::io::stderr())? == Answer::No {
        return Ok(Outcome::Declined);
    }
    let done = within::<_, _, anyhow::Error>(TIMEOUT, admin::apply(&client, &plan, Timestamp::now())).await?;
    Ok(Outcome::Done(done.into_iter().map(|line| line + "\n").collect()))
}

async fn read(client: &Client, cluster: &Cluster, scope: Scope) -> Result<Snapshot> {
    within(TIMEOUT, Snapshot::read(client, &cluster.namespace, scope)).await
}

async fn status(cluster: &Cluster, what: &Status) -> Result<String> {
    let client = client(cluster).await?;
    let scope = match what.preview || what.insights {
        true => Scope::Preview,
        false => Scope::Status,
    };
    let mut snapshot = read(&client, cluster, scope).await?;
    if let Some(pool) = &what.pool {
        let names: Vec<_> = snapshot.pools.iter().filter_map(|p| p.metadata.name.clone()).collect();
        if !names.contains(pool) {
            bail!("there is no pool {pool:?}; there are: {}", names.join(", "));
        }
        snapshot.only = Some(pool.clone());
    }
    let (now, width) = (Timestamp::now(), width());
    let json = |value| Ok::<_, anyhow::Error>(serde_json::to_string_pretty(&value)? + "\n");
    if what.insights {
        return match what.output {
            Output::Table => Ok(render_insights(&snapshot, now, width, what.details == Details::Nodes)),
            Output::Json => json(serde_json::to_value(insights(&snapshot, now))?),
        };
    }
    match (what.output, what.preview) {
        (Output::Table, false) => Ok(render(&snapshot, now, width)),
        (Output::Table, true) => Ok(render_preview(&snapshot, now, width)),
        (Output::Json, false) => json(serde_json::to_value(views(&snapshot, now))?),
        (Output::Json, true) => json(serde_json::to_value(previews(&snapshot, now))?),
    }
}

async fn node(cluster: &Cluster, of: &NodeStory) -> Result<String> {
    let snapshot = read(&client(cluster).await?, cluster, Scope::Status).await?;
    let now = Timestamp::now();
    match of.output {
        Output::Table => render_story(&snapshot, &of.node, now, width()).map_err(anyhow::Error::msg),
        Output::Json => {
            let story = story(&snapshot, &of.node, now).map_err(anyhow::Error::msg)?;
            Ok(serde_json::to_string_pretty(&story)? + "\n")
        }
    }
}

async fn timeline(cluster: &Cluster, of: &Timeline) -> Result<String> {
    let snapshot = read(&client(cluster).await?, cluster, Scope::Status).await?;
    let picture = picture(&snapshot, &of.pool, Timestamp::now()).map_err(anyhow::Error::msg)?;
    let Some(file) = &of.svg else {
        return Ok(picture.render(width()));
    };
    std::fs::write(file, picture.svg()).with_context(|| format!("cannot write the picture to {}", file.display()))?;
    Ok(format!("wrote {}\n", file.display()))
}

async fn history(cluster: &Cluster, of: &History) -> Result<String> {
    let snapshot = read(&client(cluster).await?, cluster, Scope::Status).await?;
    let (now, width) = (Timestamp::now(), width());
    let shown = match (&of.node, &of.pool) {
        (Some(node), _) => node_history(&snapshot, node, now, width),
        (None, pool) => pool_history(&snapshot, pool.as_deref().unwrap_or_default(), now, width),
    };
    shown.map_err(anyhow::Error::msg)
}

/// The terminal's width; into a file or a pipe nothing is cut.
fn width() -> usize {
    let terminal = std::io::stdout().is_terminal().then(terminal_size::terminal_size);
    terminal.flatten().map_or(0, |(width, _)| usize::from(width.0))
}

async fn client(cluster: &Cluster) -> Result<Client> {
    berth_shell::install_crypto();
    let options = KubeConfigOptions {
        context: cluster.context.clone(),
        ..KubeConfigOptions::default()
    };
    let config = match (&cluster.kubeconfig, &cluster.context) {
        (Some(file), _) => {
            let file = Kubeconfig::read_from(file)?;
            Config::from_custom_kubeconfig(file, &options).await?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await?,
        (None, None) => Config::infer()
            .await
            .context("no cluster to ask; name one with --kubeconfig")?,
    };
    berth_shell::client::client(config)
}
