//! `kubectl berth`: shows the state of the pools and runs admin commands.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_api::pool::BootcNodePool;
use berth_judge::verdict::Terms;
use berth_shell::names::list_names;
use berth_shell::request::within;
use clap::{CommandFactory, Parser};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kubectl_berth::admin::{self, Answer, NoPlan, Plan};
use kubectl_berth::arguments::{
    Arguments, Cluster, Command, Consent, Dashboard, Doctor, Explain, History, NodeStory, OneOrAll, Output, Poll,
    Status, Timeline, Uninstall, Verify,
};
use kubectl_berth::completion::{self, Names};
use kubectl_berth::dashboard::{self, About, serve};
use kubectl_berth::doctor::{self, Commands, Origin};
use kubectl_berth::uninstall::{Options, Removal};
use kubectl_berth::watch::{Watching, watch};
use kubectl_berth::{
    Look, Scope, Snapshot, explanation, export, fields, has_colours, node_history, picture, pool_history, previews,
    read_logs, render, render_explanation, render_labels, render_preview, render_report, render_story, report, story,
    supposed,
};
use tokio::signal::unix::{SignalKind, signal};

/// Timeout for reading names from the cluster while a shell completes a word.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(2);

/// Exit status if --yes is missing and standard input is not a terminal.
const NO_TERMINAL: u8 = 2;
/// Exit status when the admin declined.
const DECLINED: u8 = 3;
/// Exit status when `verify` finds a broken rule in a log.
const BROKEN: u8 = 4;
/// Exit status when `doctor` cannot reach the cluster.
const UNREACHED: u8 = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(Outcome::Done(text)) => print(&text),
        Ok(Outcome::Ended(text, status)) => match print(&text) {
            ExitCode::SUCCESS => ExitCode::from(status),
            code => code,
        },
        Ok(Outcome::NoTerminal) => {
            eprintln!(
                "kubectl berth: cannot ask for consent, since standard input is not a terminal: add --yes to make the \
                 change, or --dry-run to see the plan"
            );
            ExitCode::from(NO_TERMINAL)
        }
        Ok(Outcome::Declined) => {
            eprintln!("Nothing was changed.");
            ExitCode::from(DECLINED)
        }
        Err(error) => {
            eprintln!("kubectl berth: {error:#}");
            match arguments.command {
                Command::Doctor(_) => ExitCode::from(UNREACHED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Prints the text. Succeeds even if the reader closes the pipe early (`| head`).
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

enum Outcome {
    Done(String),
    /// Done, with this exit status.
    Ended(String, u8),
    /// The admin cannot be asked, and --yes is missing.
    NoTerminal,
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
        Command::Completion(of) => Ok(Outcome::Done(completion::script(of.shell).to_owned())),
        Command::Complete(of) => Ok(Outcome::Done(completed(&of.words).await)),
        Command::Status(what) if what.watch => watch_status(cluster, what).await,
        Command::Status(what) => status(cluster, what).await.map(Outcome::Done),
        Command::Dashboard(of) => dashboard(cluster, of).await,
        Command::Node(of) => node(cluster, of).await.map(Outcome::Done),
        Command::Explain(of) => explain(cluster, of).await.map(Outcome::Done),
        Command::Timeline(of) => timeline(cluster, of).await.map(Outcome::Done),
        Command::Doctor(of) => diagnose(cluster, of).await,
        Command::Verify(of) => verify(cluster, of),
        Command::History(of) => history(cluster, of).await.map(Outcome::Done),
        Command::Exclude(of) if of.undo => {
            carry_out(cluster, of.consent, |s, now| admin::include(s, &of.node, now)).await
        }
        Command::Exclude(of) => carry_out(cluster, of.consent, |s, now| admin::exclude(s, &of.node, now)).await,
        Command::Include(of) => carry_out(cluster, of.consent, |s, now| admin::include(s, &of.node, now)).await,
        Command::Hold(of) => carry_out(cluster, of.consent, |s, now| admin::hold(s, &of.node, now)).await,
        Command::Unhold(of) => carry_out(cluster, of.consent, |s, now| admin::unhold(s, &of.node, now)).await,
        Command::Pause(of) => carry_out(cluster, of.consent, |s, _| admin::pause(s, pause_target(&of.which))).await,
        Command::Resume(of) => carry_out(cluster, of.consent, |s, _| admin::resume(s, pause_target(&of.which))).await,
        Command::Dismiss(of) => carry_out(cluster, of.consent, |s, _| admin::dismiss(s, &of.machine)).await,
        Command::Release(of) => carry_out(cluster, of.consent, |s, now| admin::release(s, &of.node, now)).await,
        Command::Retry(of) => {
            carry_out(cluster, of.consent, |s, now| match &of.which.pool {
                Some(pool) => admin::retry(s, pool, now),
                None => admin::in_all_pools(s, |s, pool| admin::retry(s, pool, now)),
            })
            .await
        }
        Command::Uninstall(of) => uninstall(cluster, of).await,
        Command::Poll(of) => poll(cluster, of).await.map(Outcome::Done),
        Command::Approve(of) => match &of.which.pool {
            Some(pool) if of.print => {
                let snapshot = read(&client(cluster).await?, cluster, Scope::Admin).await?;
                let plan = admin::approve(&snapshot, pool, Timestamp::now())?;
                admin::print(&plan).map(Outcome::Done).map_err(anyhow::Error::msg)
            }
            Some(pool) => carry_out(cluster, of.consent, |s, now| admin::approve(s, pool, now)).await,
            None => {
                carry_out(cluster, of.consent, |s, now| {
                    admin::in_all_pools(s, |s, pool| admin::approve(s, pool, now))
                })
                .await
            }
        },
    }
}

/// Polls one pool, or all pools in turn. With --all, a failed poll does not stop the others.
async fn poll(cluster: &Cluster, of: &Poll) -> Result<String> {
    let client = client(cluster).await?;
    let pools = match &of.which.pool {
        Some(pool) => vec![pool.clone()],
        None => read(&client, cluster, Scope::Status).await?.pool_names(),
    };
    let (mut text, mut failed) = (String::new(), vec![]);
    for pool in pools {
        match admin::poll(&client, &pool, of.timeout).await {
            Ok(found) => text += &found,
            Err(error) if of.which.all => failed.push(format!("pool {pool}: {error:#}")),
            Err(error) => return Err(error),
        }
    }
    if !failed.is_empty() {
        std::io::stdout().write_all(text.as_bytes())?;
        bail!("{}", failed.join("; "));
    }
    Ok(text)
}

fn pause_target(which: &OneOrAll) -> admin::PauseTarget<'_> {
    which
        .pool
        .as_deref()
        .map_or(admin::PauseTarget::Fleet, admin::PauseTarget::Pool)
}

/// Prints the plan, asks for consent and applies the plan.
async fn carry_out(
    cluster: &Cluster,
    consent: Consent,
    decide: impl FnOnce(&Snapshot, Timestamp) -> Result<Plan, NoPlan>,
) -> Result<Outcome> {
    if !consent.yes && !consent.dry_run && !std::io::stdin().is_terminal() {
        return Ok(Outcome::NoTerminal);
    }
    let client = client(cluster).await?;
    let snapshot = read(&client, cluster, Scope::Admin).await?;
    let plan = decide(&snapshot, Timestamp::now())?.noting(&snapshot);
    let text = plan.render();
    if consent.dry_run || plan.is_empty() {
        return Ok(Outcome::Done(text));
    }
    // Print the plan before the question and before any change.
    std::io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| std::io::stdout().flush())?;
    if !consent.yes && admin::ask(&mut std::io::stdin().lock(), &mut std::io::stderr())? == Answer::No {
        return Ok(Outcome::Declined);
    }
    let done =
        within::<_, _, anyhow::Error>(cluster.request_timeout, admin::apply(&client, &plan, Timestamp::now())).await?;
    Ok(Outcome::Done(done.into_iter().map(|line| line + "\n").collect()))
}

/// Prints the steps of the removal, asks for consent and carries them out.
async fn uninstall(cluster: &Cluster, of: &Uninstall) -> Result<Outcome> {
    let consent = of.consent;
    if !consent.yes && !consent.dry_run && !std::io::stdin().is_terminal() {
        return Ok(Outcome::NoTerminal);
    }
    let options = Options {
        namespace: cluster.namespace.clone(),
        leave: of.leave.iter().cloned().collect(),
        timeout: of.timeout,
        request_timeout: cluster.request_timeout,
    };
    let removal = Removal::plan(client(cluster).await?, options).await?;
    if consent.dry_run || removal.is_empty() {
        return Ok(Outcome::Done(removal.render()));
    }
    let mut out = std::io::stdout();
    out.write_all(removal.render().as_bytes()).and_then(|()| out.flush())?;
    if !consent.yes && admin::ask(&mut std::io::stdin().lock(), &mut std::io::stderr())? == Answer::No {
        return Ok(Outcome::Declined);
    }
    let width = out.is_terminal().then(|| look().width);
    removal.run(&mut out, width).await.map(Outcome::Done)
}

async fn read(client: &Client, cluster: &Cluster, scope: Scope) -> Result<Snapshot> {
    within(
        cluster.request_timeout,
        Snapshot::read(client, &cluster.namespace, scope),
    )
    .await
}

/// Returns completion candidates for a shell. If the cluster does not return names in time, they are left out, so that
/// the shell does not hang.
async fn completed(words: &[String]) -> String {
    let mut asked = None;
    let first = completion::complete(Arguments::command(), words, |names| {
        asked = Some(names);
        vec![]
    });
    let Some(names) = asked else { return first };
    let found = match names {
        Names::Fields => fields(),
        names => within::<_, _, anyhow::Error>(COMPLETION_TIMEOUT, named(words, names))
            .await
            .unwrap_or_default(),
    };
    completion::complete(Arguments::command(), words, |_| found)
}

async fn named(words: &[String], names: Names) -> Result<Vec<String>> {
    let cluster = Cluster {
        kubeconfig: completion::option(words, "kubeconfig").map(Into::into),
        context: completion::option(words, "context").map(str::to_owned),
        namespace: String::new(),
        request_timeout: COMPLETION_TIMEOUT,
    };
    let client = client(&cluster).await?;
    let all = ListParams::default();
    if names == Names::Nodes {
        return Ok(list_names::<Node>(&client, &all).await?);
    }
    Ok(list_names::<BootcNodePool>(&client, &all).await?)
}

async fn status(cluster: &Cluster, what: &Status) -> Result<String> {
    let client = client(cluster).await?;
    let scope = if what.preview { Scope::Preview } else { Scope::Status };
    let mut snapshot = read(&client, cluster, scope).await?;
    if let Some(pool) = &what.pool {
        snapshot.only = Some(snapshot.known(pool)?);
    }
    if let (Some(pool), false) = (&what.pool, what.what_if.is_empty()) {
        snapshot = supposed(&client, cluster.request_timeout, &snapshot, pool, &what.what_if).await?;
    }
    let (now, look) = (Timestamp::now(), look());
    if what.labels {
        return Ok(render_labels(&snapshot, now, look.width));
    }
    match (what.output, what.preview) {
        (Output::Table, false) => Ok(render(&snapshot, now, look, what.details.into())),
        (Output::Table, true) => Ok(render_preview(&snapshot, now, look.width)),
        (form, false) => export(form, &report(&snapshot, now)),
        (form, true) => export(form, &previews(&snapshot, now)),
    }
}

async fn watch_status(cluster: &Cluster, what: &Status) -> Result<Outcome> {
    let moves = std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
    let watching = Watching {
        namespace: cluster.namespace.clone(),
        pool: what.pool.clone(),
        detail: what.details.into(),
        limit: cluster.request_timeout,
        colours: (std::io::stdout().is_terminal() && moves).then(|| look().colours),
    };
    let end = ended()?;
    watch(&client(cluster).await?, &watching, std::io::stdout(), end).await?;
    Ok(Outcome::Done(String::new()))
}

async fn dashboard(cluster: &Cluster, of: &Dashboard) -> Result<Outcome> {
    let file = cluster.kubeconfig.as_ref().map(|file| file.display().to_string());
    let is_usual_namespace = cluster.namespace == berth_api::keys::NAMESPACE;
    // The copied commands name the context: the current one may be another when they are run.
    let context = context(cluster);
    let about = About::of(
        context.clone().unwrap_or_else(|| "this cluster".to_owned()),
        file.as_deref(),
        context.as_deref(),
        (!is_usual_namespace).then_some(&*cluster.namespace),
    );
    let dashboard = dashboard::Dashboard {
        about: About {
            only: of.pool.clone(),
            ..about
        },
        namespace: cluster.namespace.clone(),
        port: of.port,
        opens: !of.no_open,
        limit: cluster.request_timeout,
    };
    let end = ended()?;
    serve(&client(cluster).await?, dashboard, std::io::stdout(), end).await?;
    Ok(Outcome::Done(String::new()))
}

/// Returns the context that the user names, or the current one of the kubeconfig; `None` without a context.
fn context(cluster: &Cluster) -> Option<String> {
    if cluster.context.is_some() {
        return cluster.context.clone();
    }
    let file = match &cluster.kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let context = file.ok().and_then(|file| file.current_context);
    context.filter(|name| !name.is_empty())
}

/// Returns a future that completes when the process receives SIGINT, SIGTERM or SIGHUP.
fn ended() -> Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate, mut hangup) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

async fn explain(cluster: &Cluster, of: &Explain) -> Result<String> {
    let client = client(cluster).await?;
    let mut snapshot = read(&client, cluster, Scope::Preview).await?;
    let now = Timestamp::now();
    if !of.what_if.is_empty() {
        let found = explanation(&snapshot, &of.node, now).map_err(anyhow::Error::msg)?;
        let pool = found.pool.with_context(|| {
            format!(
                "node {} is in no pool, so --what-if cannot change a setting of its pool",
                of.node
            )
        })?;
        snapshot = supposed(&client, cluster.request_timeout, &snapshot, &pool, &of.what_if).await?;
    }
    match of.output {
        Output::Table => render_explanation(&snapshot, &of.node, now, look().width).map_err(anyhow::Error::msg),
        form => export(
            form,
            &explanation(&snapshot, &of.node, now).map_err(anyhow::Error::msg)?,
        ),
    }
}

async fn node(cluster: &Cluster, of: &NodeStory) -> Result<String> {
    let snapshot = read(&client(cluster).await?, cluster, Scope::WithoutNodes).await?;
    let now = Timestamp::now();
    match of.output {
        Output::Table => render_story(&snapshot, &of.node, now, look().width).map_err(anyhow::Error::msg),
        form => export(form, &story(&snapshot, &of.node, now).map_err(anyhow::Error::msg)?),
    }
}

async fn timeline(cluster: &Cluster, of: &Timeline) -> Result<String> {
    let snapshot = read(&client(cluster).await?, cluster, Scope::WithoutNodes).await?;
    let picture = picture(&snapshot, &of.pool, Timestamp::now()).map_err(anyhow::Error::msg)?;
    let Some(file) = &of.svg else {
        return Ok(picture.render(look().width));
    };
    std::fs::write(file, picture.svg()).with_context(|| format!("cannot write the picture to {}", file.display()))?;
    Ok(format!("wrote {}\n", file.display()))
}

async fn diagnose(cluster: &Cluster, of: &Doctor) -> Result<Outcome> {
    let commands = Commands {
        origin: of.manifests.as_deref().map_or(Origin::Release, origin),
        kubeconfig: cluster.kubeconfig.as_ref().map(|file| file.display().to_string()),
        context: cluster.context.clone(),
        is_usual_namespace: cluster.namespace == berth_api::keys::NAMESPACE,
    };
    let client = client(cluster).await?;
    let facts = doctor::read(&client, cluster.request_timeout, &cluster.namespace, commands).await?;
    let diagnosis = doctor::diagnose(&facts, Timestamp::now());
    let text = match of.output {
        _ if of.fix => doctor::render_commands(&diagnosis),
        Output::Table => doctor::render(&diagnosis, look()),
        form => export(form, &diagnosis)?,
    };
    Ok(Outcome::Ended(text, diagnosis.exit_status()))
}

/// Returns the kind of manifests at this path or address.
fn origin(manifests: &str) -> Origin {
    let path = std::path::Path::new(manifests);
    let manifests = manifests.trim_end_matches('/').to_owned();
    if !path.is_dir() {
        return Origin::File(manifests);
    }
    let has_files = ["crds.yaml", "admission-policies.yaml"]
        .iter()
        .all(|file| path.join(file).is_file());
    if has_files {
        Origin::Directory(manifests)
    } else {
        Origin::Kustomization(manifests)
    }
}

fn verify(cluster: &Cluster, of: &Verify) -> Result<Outcome> {
    let terms = Terms {
        namespace: cluster.namespace.clone(),
        fleet: of.fleet_limit,
        lag: of.lag.try_into().context("--lag is too long")?,
    };
    let report = read_logs(&of.audit_log, &cluster.namespace)?.judge(&terms)?;
    let text = match of.output {
        Output::Table => render_report(&report, look().width),
        form => export(form, &report)?,
    };
    Ok(if report.violations.is_empty() {
        Outcome::Done(text)
    } else {
        Outcome::Ended(text, BROKEN)
    })
}

async fn history(cluster: &Cluster, of: &History) -> Result<String> {
    let snapshot = read(&client(cluster).await?, cluster, Scope::WithoutNodes).await?;
    let (now, width) = (Timestamp::now(), look().width);
    if of.all {
        let pools = snapshot.pool_names();
        let pools = pools.iter().map(|pool| pool_history(&snapshot, pool, now, width));
        let pools: Result<Vec<String>, String> = pools.collect();
        return Ok(pools.map_err(anyhow::Error::msg)?.join("\n"));
    }
    let shown = match (&of.node, &of.pool) {
        (Some(node), _) => node_history(&snapshot, node, now, width),
        (None, pool) => pool_history(&snapshot, pool.as_deref().unwrap_or_default(), now, width),
    };
    shown.map_err(anyhow::Error::msg)
}

/// Returns the terminal's width and whether to use colors. Text for a file or a pipe is neither cut nor colored.
fn look() -> Look {
    let terminal = std::io::stdout().is_terminal().then(terminal_size::terminal_size);
    let [no_color, term] = ["NO_COLOR", "TERM"].map(std::env::var_os);
    Look {
        width: terminal.flatten().map_or(0, |(width, _)| usize::from(width.0)),
        colours: terminal.is_some() && has_colours(no_color.as_deref(), term.as_deref()),
    }
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
            .context("no cluster is configured; name a kubeconfig with --kubeconfig")?,
    };
    berth_shell::client::client(config)
}
