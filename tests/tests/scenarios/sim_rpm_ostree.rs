//! The stand-in for rpm-ostree on a simulated host: it behaves like the real daemon for its clients.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::hosts::HostLog;
use berth_tests::hosts::sim::{Catalog, SimHost, SimHostConfig, Updaters};
use berth_tests::rpmostreed::Broken;
use berth_tests::rpmostreed::client::{Client, TransactionProxy};
use berth_tests::wait::eventually;
use tokio::time::timeout;
use zbus::{OwnedVariant, Variant};

const REPOSITORY: &str = "registry.test/os";
const SOON: Duration = Duration::from_secs(30);
const PULL: Duration = Duration::from_millis(200);

struct World {
    host: SimHost,
    old: String,
    new: String,
}

impl World {
    async fn start(updaters: Updaters) -> Result<Self> {
        let catalog = Catalog::default();
        let (old, new) = (catalog.publish("1.0.0"), catalog.publish("2.0.0"));
        let mut config = SimHostConfig::new("node-1", REPOSITORY, &old, &catalog, &HostLog::default());
        config.settings.reboot_time = Duration::from_millis(100);
        config.settings.pull_time = PULL;
        updaters.install(&mut config.settings);
        config.packages = updaters.packages();
        let host = SimHost::start(config).await?;
        Ok(Self { host, old, new })
    }

    fn refspec(&self) -> String {
        format!("ostree-unverified-registry:{REPOSITORY}@{}", self.new)
    }

    /// Waits until no transaction is active: clients of an ended transaction disconnect a moment later.
    async fn is_free(&self, client: &Client) -> Result<()> {
        self.until("no transaction is active", async || {
            let path = client.sysroot().await?.active_transaction_path().await?;
            Ok(path.is_empty())
        })
        .await
    }

    /// Requests the new image, locked.
    async fn rebase(&self, client: &Client) -> zbus::Result<String> {
        let os = client.os().await.map_err(|e| zbus::Error::Failure(format!("{e:#}")))?;
        let options = HashMap::from([("lock-finalization", Variant::from(true))]);
        os.rebase(options, &self.refspec(), &[]).await
    }

    async fn until(&self, what: &str, so: impl AsyncFn() -> Result<bool>) -> Result<()> {
        eventually(what, SOON, so).await
    }

    fn runs(&self) -> bool {
        self.host.rpm_ostree_runs()
    }
}

async fn deployments(client: &Client) -> Result<Vec<HashMap<String, OwnedVariant>>> {
    let sysroot = client.sysroot().await?;
    sysroot.reload().await.context("Reload")?;
    sysroot.deployments().await.context("Deployments")
}

fn text(deployment: &HashMap<String, OwnedVariant>, key: &str) -> Option<String> {
    match &**deployment.get(key)? {
        Variant::Str(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Name and message of a call's error.
fn name_of<T>(result: zbus::Result<T>) -> (String, String) {
    match result {
        Err(zbus::Error::MethodError(name, words, _)) => (name.to_string(), words.unwrap_or_default()),
        Err(other) => (other.to_string(), String::new()),
        Ok(_) => Default::default(),
    }
}

#[tokio::test]
async fn an_image_is_staged_locked_and_finalized() -> Result<()> {
    let world = World::start(Updaters::Layered).await?;
    let client = world.host.rpm_ostree_client().await?;
    let booted = deployments(&client).await?.remove(0);
    ensure!(text(&booted, "container-image-reference-digest").as_ref() == Some(&world.old));
    ensure!(booted.contains_key("base-checksum"), "a package is layered");
    let address = world.rebase(&client).await?;
    ensure!(world.rebase(&client).await? == address, "an identical call joins");
    let other = name_of(client.os().await?.cleanup(&["pending-deploy"]).await);
    ensure!(
        other.0 == "org.gtk.GDBus.UnmappedGError.Quark._g_2dio_2derror_2dquark.Code26"
            && other.1.starts_with("Transaction in progress: new-deployment"),
        "{other:?}"
    );
    let active = client.sysroot().await?.active_transaction_path().await?;
    ensure!(active == address, "{active} is {address}");
    // A client that listens, and stays connected.
    let lingers = client.join(&address).await?;
    let ended = client.follow(&address).await?;
    ensure!(ended.ok, "{ended:?}");
    for signal in ["Message", "TaskBegin", "PercentProgress", "ProgressEnd", "TaskEnd"] {
        ensure!(ended.heard.iter().any(|h| h == signal), "{signal} in {ended:?}");
    }
    // The transaction is active until all clients have disconnected: a late client receives its end, other calls fail.
    ensure!(world.rebase(&client).await? == address, "no call joins");
    let late = timeout(SOON, client.follow(&address)).await??;
    ensure!(late.ok && late.heard.is_empty(), "{late:?}");
    let other = name_of(client.os().await?.cleanup(&["pending-deploy"]).await);
    ensure!(other.1.starts_with("Transaction in progress: rebase"), "{other:?}");
    drop(lingers);
    world.is_free(&client).await?;
    let facts = world.host.facts();
    ensure!(facts.staged.as_ref() == Some(&world.new) && facts.locked, "{facts:?}");
    let staged = deployments(&client).await?.remove(0);
    // The lock is a key in the deployment's state, which the daemon does not show.
    ensure!(!staged.contains_key("finalization-locked") && staged.contains_key("base-checksum"));
    let state = std::fs::read(world.host.root().join("run/ostree/staged-deployment"))?;
    ensure!(berth_core::agent::staged::is_locked(&state)?);
    ensure!(!world.host.root().join("run/ostree/staged-deployment-locked").exists());
    the_staged_image_is_finalized(&world, &client).await
}

async fn the_staged_image_is_finalized(world: &World, client: &Client) -> Result<()> {
    // An identical rebase fails inside the transaction.
    let again = client.follow(&world.rebase(client).await?).await?;
    ensure!(
        again.words == format!("Old and new refs are equal: {}", world.refspec()),
        "{again:?}"
    );
    let os = client.os().await?;
    let wrong = HashMap::from([("checksum", Variant::from(world.old.as_str()))]);
    world.is_free(client).await?;
    let refused = client.follow(&os.finalize_deployment(wrong).await?).await?;
    ensure!(
        refused.words.starts_with("Expected staged base checksum"),
        "{refused:?}"
    );
    let right = HashMap::from([("checksum", Variant::from(world.new.as_str()))]);
    world.is_free(client).await?;
    client.follow(&os.finalize_deployment(right).await?).await?;
    world
        .until("the new image runs with its packages", async || {
            let facts = world.host.facts();
            let up = facts.boot_id.is_some() && facts.booted == world.new;
            ensure!(!up || facts.packages == ["htop"], "{facts:?}");
            Ok(up)
        })
        .await
}

#[tokio::test]
async fn failures_match_the_real_daemon() -> Result<()> {
    let world = World::start(Updaters::Both).await?;
    let client = world.host.rpm_ostree_client().await?;
    // A transaction that was not started ends with its client.
    let hasty = world.host.rpm_ostree_client().await?;
    world.rebase(&hasty).await?;
    drop(hasty);
    world.is_free(&client).await?;
    // Cancelled.
    world.host.settings(|s| s.pull_time = SOON);
    let address = world.rebase(&client).await?;
    let peer = client.join(&address).await?;
    let transaction = TransactionProxy::new(&peer).await?;
    ensure!(transaction.start().await?, "the first call starts the transaction");
    transaction.cancel().await?;
    let ended = client.follow(&address).await?;
    ensure!(ended.words == "Operation was cancelled", "{ended:?}");
    drop((transaction, peer));
    world.is_free(&client).await?;
    world.host.settings(|s| s.pull_time = PULL);
    // A failure with an error text of its own.
    world
        .host
        .rpm_ostree(|f| f.fails_with.push_back("Importing: unexpected end of file".to_owned()));
    let ended = client.follow(&world.rebase(&client).await?).await?;
    ensure!(ended.words == "Importing: unexpected end of file", "{ended:?}");
    world.is_free(&client).await?;
    // The daemon dies during a transaction: the next call starts another instance.
    world.host.rpm_ostree(|f| f.dies_in_transaction = 1);
    let address = world.rebase(&client).await?;
    let died = timeout(SOON, client.follow(&address)).await?;
    ensure!(died.is_err(), "{died:?}");
    ensure!(world.host.facts().staged.is_none());
    world.until("the daemon is dead", async || Ok(!world.runs())).await?;
    ensure!(deployments(&client).await?.len() == 1, "the bus starts it again");
    the_daemon_exits_and_misleads(&world, &client).await
}

async fn the_daemon_exits_and_misleads(world: &World, client: &Client) -> Result<()> {
    // A query that crashes the real daemon.
    ensure!(client.sysroot().await?.get_os("").await.is_err());
    world.until("the daemon is dead", async || Ok(!world.runs())).await?;
    deployments(client).await?;
    // An exit between a call and its answer.
    world.host.rpm_ostree(|f| f.no_reply = 1);
    let lost = name_of(client.sysroot().await?.reload().await);
    ensure!(lost.0.starts_with("org.freedesktop.DBus.Error.NoReply"), "{lost:?}");
    world.until("the daemon has exited", async || Ok(!world.runs())).await?;
    // Idle exit.
    deployments(client).await?;
    world.host.rpm_ostree(|f| f.idle_exit = Duration::from_millis(50));
    world.until("the daemon exits", async || Ok(!world.runs())).await?;
    world.host.rpm_ostree(|f| f.idle_exit = SOON);
    // Missing and malformed keys.
    world.host.rpm_ostree(|f| {
        f.broken = BTreeMap::from([
            ("version".to_owned(), Broken::Missing),
            ("container-image-reference-digest".to_owned(), Broken::Malformed),
        ]);
    });
    let booted = deployments(client).await?.remove(0);
    ensure!(!booted.contains_key("version") && text(&booted, "container-image-reference-digest").is_none());
    // No answers.
    world.host.rpm_ostree(|f| f.silent = true);
    let sysroot = client.sysroot().await?;
    ensure!(timeout(Duration::from_millis(200), sysroot.reload()).await.is_err());
    Ok(())
}

#[tokio::test]
async fn bootc_sees_an_installed_package() -> Result<()> {
    let world = World::start(Updaters::Both).await?;
    let client = world.host.rpm_ostree_client().await?;
    client.install(&["htop"]).await?;
    let facts = world.host.facts();
    ensure!(facts.staged.as_ref() == Some(&world.old) && !facts.locked, "{facts:?}");
    world.is_free(&client).await?;
    let twice = client.install(&["htop"]).await;
    ensure!(twice.is_err(), "the package is requested already");
    world.host.reboot_now().await?;
    ensure!(world.host.facts().packages == ["htop"], "{:?}", world.host.facts());
    let client = world.host.rpm_ostree_client().await?;
    ensure!(client.follow(&world.rebase(&client).await?).await?.ok);
    world.is_free(&client).await?;
    client
        .follow(&client.os().await?.cleanup(&["pending-deploy"]).await?)
        .await?;
    let facts = world.host.facts();
    ensure!(facts.staged.is_none(), "{facts:?}");
    Ok(())
}
